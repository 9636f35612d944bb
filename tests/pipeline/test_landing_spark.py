"""A source of which only reading tells the columns, with `sql`: a task reads it, not the runner."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.apis import Reply, Server, serving
from pipeline.piping import Bench
from trunq.pipeline.errors import Wait

pytestmark = pytest.mark.usefixtures("spark")

MOVED = {"format": "table", "table": "moved"}
SQL: Any = {"sql": ["select *, id * 2 as twice from input"]}


def numbered(context: Any) -> Iterator[Any]:
    """Ten rows from where its last run ended, with the process that reads them; the first is kept out."""
    start = context.state.get("next", 0)
    context.state = {"next": start + 10}
    context.quarantine([{"id": -1}], "the first")
    yield from ({"id": id, "process": os.getpid()} for id in range(start, start + 10))


def refusing(context: Any) -> Iterator[Any]:
    """Nothing that could be written."""
    context.quarantine([{"id": 1}], "as all")
    yield from ()


def dying(context: Any) -> Iterator[Any]:
    """The first reader dies when some of its rows are in files."""
    for start in range(0, 3000, 1000):
        yield pa.table({"id": pa.array(range(start, start + 1000), pa.int64())})
        if start == 1000 and not (died := Path(context.message["at"])).exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def api() -> Iterator[Server]:
    with serving(lambda _: Reply([])) as server:
        yield server


def of(function: Any) -> dict[str, Any]:
    return {"format": "python", "function": f"{__name__}:{function.__name__}"}


@pytest.mark.slow
def test_a_task_reads_it_and_the_next_run_goes_on_where_it_stood(bench: Bench) -> None:
    name = bench.make(of(numbered), MOVED, **SQL)
    for _ in range(2):
        done = bench.run(name)
        assert (done["rows_in"], done["rows_out"], done["rows_bad"]) == (10, 10, 1)
    assert bench.sql("select min(id), max(twice), count(*) from moved") == [(0, 38, 20)]
    assert bench.one("select count(*) from moved where process = %s", os.getpid()) == 0
    assert len(bench.client.list_quarantine(name)) == 2


@pytest.mark.slow
def test_rows_that_are_all_kept_out_are_in_the_quarantine(bench: Bench) -> None:
    name = bench.make(of(refusing), MOVED, **SQL)
    done = bench.run(name)
    assert (done["rows_out"], done["rows_bad"]) == (0, 1)
    assert [row.reasons for row in bench.client.list_quarantine(name)] == [["as all"]]


@pytest.mark.slow
def test_a_reader_that_is_killed_brings_each_row_once(bench: Bench, tmp_path: Path) -> None:
    name = bench.make(of(dying), MOVED, **SQL)
    done = bench.run(name, {"at": str(tmp_path / "died")})
    assert (tmp_path / "died").exists()
    assert (done["rows_in"], done["rows_out"]) == (3000, 3000)
    assert bench.sql("select count(*), count(distinct id) from moved") == [(3000, 3000)]


@pytest.mark.slow
@pytest.mark.parametrize("parts", [SQL, {"engine": "spark"}], ids=["sql", "engine"])
def test_an_api_that_asks_a_task_to_wait_puts_the_message_off(
    bench: Bench, api: Server, tmp_path: Path, parts: dict[str, Any]
) -> None:
    api.handler = lambda _: Reply(status=429, headers={"Retry-After": "3600"})
    source = {"format": "http", "url": f"{api.url}/rows", "landing": str(tmp_path / "landing")}
    name = bench.make(source, MOVED, **parts)
    with pytest.raises(Wait) as caught:
        bench.run(name)
    assert 3500 < caught.value.seconds < 3700
    # It was not started, and has not failed.
    assert bench.one("select failures from trunq.pipeline_run") == 0
