"""With `engine = "spark"`, whatever is killed, every row arrives once: the runner, the Java process of Spark,
the Python process of a task.

A push takes a share of it: a task of a sink for each way to commit and of each source, the runner at one
point of a lake, and the Java process alone of a table. TRUNQ_KILLS, or TRUNQ_TEST_ALL, takes each
source and sink with each, and each point.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.apis import paged, serving
from pipeline.killing import execute_and_die
from pipeline.piping import Bench
from pipeline.test_kill import FIRST, OF_COMMIT, SINKS, Moving
from scope import EVERY

pytestmark = pytest.mark.usefixtures("spark")

CHOSEN: Final = list(SINKS) if EVERY else list(FIRST)
STRUCK: Final[dict[str, Any]] = {"engine": "spark", "function": "pipeline.killing:strikes"}
MOVED: Final = {"format": "table", "table": "moved"}
NUMBER: Final = 100
CURSOR: Final = {"rows": "data.items", "cursor": {"path": "paging.cursor", "param": "after"}}


def yielding(context: Any) -> Iterator[Any]:
    """A source."""
    if not context.state:
        context.state = {"is_over": True}
        yield from ({"id": id} for id in range(NUMBER))


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.killing.DIRECTORY", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def strike(path: Path, victim: str) -> dict[str, str]:
    """What has the first task kill it."""
    return {"struck": str(path / "struck"), "victim": victim}


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHOSEN)
def test_a_task_is_killed_while_it_stages(bench: Bench, kind: str, tmp_path: Path) -> None:
    moving = Moving(bench, kind, **STRUCK)
    round, message = moving.ask(strike(tmp_path, "task"))
    moving.end(round, message, "task")
    assert (tmp_path / "struck").exists()
    # Spark did the task again, and the run knows of no failure.
    assert bench.client.list_runs(moving.pipeline)[0].attempts == 1
    moving.check_leftovers()


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHOSEN if EVERY else ["delta"])
def test_a_runner_is_killed_with_its_java_process(bench: Bench, kind: str) -> None:
    moving = Moving(bench, kind, engine="spark")
    points = [*OF_COMMIT, *(["taken"] if "delta" in kind else [])]
    for point in points if EVERY else [random.choice(points)]:
        round, message = moving.ask()
        assert execute_and_die(bench.dsn, bench.asked(message), point) == -signal.SIGKILL, point
        moving.end(round, message, point)
    moving.check_leftovers()


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHOSEN if EVERY else ["append"])
def test_the_java_process_is_killed_while_a_task_stages(bench: Bench, kind: str, tmp_path: Path) -> None:
    moving = Moving(bench, kind, **STRUCK)
    round, message = moving.ask(strike(tmp_path, "java"))
    # The runner lives, and its attempt has failed.
    assert execute_and_die(bench.dsn, bench.asked(message), "") == 1
    assert (tmp_path / "struck").exists()
    error = bench.client.list_runs(moving.pipeline)[0].error
    assert error is not None
    assert error.startswith("EngineDied: the Java process of Spark ended during run")
    moving.end(round, message, "java")
    moving.check_leftovers()


def of_files(format: str) -> Callable[[Bench, Path, str], dict[str, Any]]:
    def make(_bench: Bench, path: Path, _url: str) -> dict[str, Any]:
        table = pa.table({"id": pa.array(range(NUMBER), pa.int64())})
        if format == "parquet":
            parquet.write_table(table, path / "rows.parquet")
        elif format == "csv":
            (path / "rows.csv").write_text("id\n" + "".join(f"{id}\n" for id in range(NUMBER)))
        else:
            (path / "rows.json").write_text("".join(f'{{"id": {id}}}\n' for id in range(NUMBER)))
        return {"format": format, "path": f"{path}/rows.{format}", "settled": "0 s"}

    return make


def of_table(bench: Bench, _path: Path, _url: str) -> dict[str, Any]:
    bench.sql("create table source as select id from generate_series(0, %s) id", NUMBER - 1)
    return {"format": "table", "table": "source"}


def of_queue(bench: Bench, _path: Path, _url: str) -> dict[str, Any]:
    bench.client.create_queue("orders")
    bench.client.publish_many("orders", [{"n": n} for n in range(NUMBER)])
    return {"format": "queue", "queue": "orders"}


def of_history(bench: Bench, _path: Path, _url: str) -> dict[str, Any]:
    bench.client.create_queue("orders")
    bench.client.publish_many("orders", [{"n": n} for n in range(NUMBER)])
    held = bench.client.lease("orders", "default", "w", NUMBER)
    bench.client.ack(held)
    return {"format": "history", "queue": "orders"}


SOURCES: Final[dict[str, Callable[[Bench, Path, str], dict[str, Any]]]] = {
    "table": of_table,
    "queue": of_queue,
    "history": of_history,
    **{format: of_files(format) for format in ("csv", "json", "parquet")},
    "http": lambda _bench, _path, url: {"format": "http", "url": f"{url}/rows", **CURSOR},
    "python": lambda _bench, _path, _url: {"format": "python", "function": f"{__name__}:yielding"},
}


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["task", "java"] if EVERY else ["task"])
@pytest.mark.parametrize("format", SOURCES)
def test_what_is_killed_after_it_has_read_a_source_reads_it_again(
    bench: Bench, format: str, victim: str, tmp_path: Path
) -> None:
    with serving(paged(NUMBER, 10)) as api:
        name = bench.make(SOURCES[format](bench, tmp_path, api.url), MOVED, **STRUCK)
        message = bench.client.run_pipeline(name, strike(tmp_path, victim))
        if victim == "java":
            assert execute_and_die(bench.dsn, bench.asked(message), "") == 1
        assert bench.execute(message)["rows_out"] == NUMBER
        assert (tmp_path / "struck").exists()
        assert bench.sql("select count(*), count(distinct id) from moved") == [(NUMBER, NUMBER)]
        # Tasks land pages where their runner would, whatever directory Spark has.
        assert bool([*tmp_path.glob("landing/*")]) == (format == "http")
        again = bench.run(name)
        assert again["outcome"] == "nothing new" or again["rows_out"] == (NUMBER if format == "http" else 0)
