"""By which key rows are found: one rule in tables and lakes, in one process and in tasks of Spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline
from trunq.pipeline.errors import WorkFailed
from trunq.pipeline.plan import plan_pipeline

TABLE = {"format": "table", "table": "source"}
SINKS = {
    "upsert": {"format": "table", "table": "moved", "mode": "upsert"},
    "history": {"format": "table", "table": "moved", "mode": "history"},
    "delta": {"format": "delta", "path": "lake", "mode": "upsert"},
}
ENGINES = ["process", "spark"]


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def taken(bench: Bench, kind: str) -> list[tuple[int, int]]:
    if kind == "delta":
        rows = DeltaTable("lake").to_pyarrow_table().to_pylist()
        return sorted((row["id"], row["n"]) for row in rows)
    return sorted(bench.sql("select id, n from moved"))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", SINKS)
def test_null_in_a_key_is_refused_and_a_check_keeps_it_out(bench: Bench, kind: str, engine: str) -> None:
    bench.sql("create table source (id int, n int); insert into source values (null, 1), (2, 1)")
    bench.sql("create table moved (id int, n int, valid_from timestamptz, valid_to timestamptz)")
    # An index that would take any number of nulls.
    bench.sql("create unique index on moved (id)")
    bench.sql("create unique index on moved (id, valid_from)")
    sink = {**SINKS[kind], "key": ["id"]}
    with pytest.raises(
        (InvalidPipeline, WorkFailed), match='"id" is null in a row, and rows are found by it'
    ):
        bench.run(bench.make(TABLE, sink, engine=engine))
    assert taken(bench, kind) == []
    rule = {"column": "id", "not_null": True}
    bench.run(bench.make(TABLE, sink, engine=engine, checks=[rule]))
    assert taken(bench, kind) == [(2, 1)]


@pytest.mark.parametrize("newest", [{}, {"newest": "at"}])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", SINKS)
def test_of_rows_with_one_key_the_last_is_taken(
    bench: Bench, tmp_path: Path, kind: str, engine: str, newest: dict[str, Any]
) -> None:
    at = "2030-01-01T00:00:00Z"
    for file in range(4):
        rows = range(file * 100, file * 100 + 100)
        text = "".join(f'{{"id": {n % 3}, "n": {n}, "at": "{at}"}}\n' for n in rows)
        (tmp_path / f"{file}.json").write_text(text)
    files = {"format": "json", "path": f"{tmp_path}/*.json", "settled": 0}
    bench.run(bench.make(files, {**SINKS[kind], "key": ["id"], **newest}, engine=engine))
    assert taken(bench, kind) == [(0, 399), (1, 397), (2, 398)]


@pytest.mark.parametrize("kind", [*SINKS, "queue"])
def test_a_mask_that_leaves_nothing_of_a_key_is_refused_with_the_way_out(kind: str) -> None:
    sink = {**SINKS[kind], "key": ["id"]} if kind in SINKS else {"format": "queue", "queue": "q", "key": "id"}
    refused = 'mask puts null into "id", by which the sink finds a row: write mask = { id = "hash" } with'
    with pytest.raises(InvalidPipeline, match=re.escape(refused)):
        Pipeline("p", source=TABLE, sink=sink, columns={"mask": {"id": "null"}})
    # What follows may make another.
    Pipeline(
        "p", source=TABLE, sink=sink, columns={"mask": {"id": "null"}}, sql=["select 1 as id from input"]
    )


@pytest.mark.parametrize("kind", ["table", "delta", "queue"])
def test_a_mask_of_the_key_of_the_source_is_refused_by_plan_and_run(bench: Bench, kind: str) -> None:
    bench.sql("create table source (number int primary key, n int); insert into source values (1, 1)")
    if kind == "queue":
        bench.client.create_queue("q")
    sink = {
        "table": {"format": "table", "table": "moved"},
        "delta": {"format": "delta", "path": "lake"},
        "queue": {"format": "queue", "queue": "q"},
    }[kind]
    columns = {"rename": {"number": "id"}, "mask": {"id": "null"}}
    name = bench.make({**TABLE, "changes": "capture"}, {**sink, "mode": "apply"}, columns=columns)
    refused = 'mask puts null into "id", by which the sink finds a row'
    assert refused in plan_pipeline(name, bench.dsn).refused[0]["message"]
    with pytest.raises(InvalidPipeline, match=refused):
        bench.run(name)
