"""Rows say which run brought them, and an attempt that is tried again says the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet

from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline
from trunq.pipeline.sink.table import TableSink

TABLE = {"format": "table", "table": "source"}
MOVED = {"format": "table", "table": "moved"}
SINKS = {
    "table": MOVED,
    "delta": {"format": "delta", "path": "lake"},
    "parquet": {"format": "parquet", "path": "lake"},
}


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def filled(bench: Bench) -> Bench:
    bench.sql("create table source (id int primary key, n int); insert into source values (1, 1)")
    return bench


def stamps(bench: Bench, kind: str) -> list[tuple[Any, ...]]:
    if kind == "table":
        return sorted(bench.sql("select id, _run, _at from moved"))
    if kind == "delta":
        rows: pa.Table = DeltaTable("lake").to_pyarrow_table()
    else:
        rows = pa.concat_tables(parquet.read_table(path) for path in Path("lake").glob("run-*/*.parquet"))
    return sorted(zip(*(rows[name].to_pylist() for name in ("id", "_run", "_at")), strict=True))


def begun(bench: Bench, name: str) -> list[Any]:
    return [run.begun_at for run in reversed(bench.client.list_runs(name))]


@pytest.mark.parametrize("engine", ["process", "spark"])
@pytest.mark.parametrize("kind", SINKS)
def test_each_row_says_which_run_brought_it_and_when_that_began(
    filled: Bench, kind: str, engine: str
) -> None:
    name = filled.make(TABLE, SINKS[kind], stamp=True, engine=engine)
    filled.run(name)
    filled.sql("insert into source values (2, 1)")
    filled.run(name)
    first, second = begun(filled, name)
    assert stamps(filled, kind) == [(1, 1, first), (2, 2, second)]
    assert first < second


def test_a_run_that_is_tried_again_writes_the_same_stamps(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = filled.make(TABLE, MOVED, stamp=True)
    with monkeypatch.context() as patched:
        patched.setattr(TableSink, "commit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            filled.run(name)
    first = begun(filled, name)
    filled.run(name)
    assert begun(filled, name)[:1] == first
    assert stamps(filled, "table") == [(1, 1, first[0])]


def test_a_row_that_came_again_as_it_was_is_no_other_version_of_a_history(filled: Bench) -> None:
    name = filled.make(TABLE, {**MOVED, "mode": "history", "key": ["id"]}, stamp=True)
    filled.run(name)
    filled.sql("update source set n = 1")
    filled.run(name)
    assert [row[:2] for row in stamps(filled, "table")] == [(1, 1)]
    filled.sql("update source set n = 2")
    filled.run(name)
    assert filled.sql("select _run, valid_to is null from moved order by 1") == [(1, False), (3, True)]


def test_a_backfill_has_the_negative_number_of_its_message(filled: Bench) -> None:
    name = filled.make(TABLE, {**MOVED, "mode": "upsert", "key": ["id"], "newest": "n"}, stamp=True)
    filled.run(name)
    message = filled.client.backfill_pipeline(name, {"column": "n", "from": "0", "to": "9"})
    filled.execute(message)
    assert [row[1] for row in stamps(filled, "table")] == [-message]


def test_what_cannot_be_stamped_is_refused_and_the_way_out_works(filled: Bench) -> None:
    with pytest.raises(InvalidPipeline, match="stamp writes two columns, which a sink of format 'queue'"):
        Pipeline("p", source=TABLE, sink={"format": "queue", "queue": "q"}, stamp=True)
    filled.sql("alter table source rename n to _run")
    with pytest.raises(InvalidPipeline, match='rows have a column "_run", which stamp writes') as refused:
        filled.run(filled.make(TABLE, MOVED, stamp=True))
    assert 'rename = { _run = "..." }' in str(refused.value)
    filled.run(filled.make(TABLE, MOVED, stamp=True, columns={"rename": {"_run": "n"}}))
    assert filled.sql("select id, n, _run from moved") == [(1, 1, 1)]
