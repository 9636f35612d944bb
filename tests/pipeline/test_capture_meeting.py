"""Captured changes meet stamps, nested columns, both engines, missing rows and history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pipeline.piping import Bench

CAPTURED = {"format": "table", "table": "source", "changes": "capture"}
SINKS: dict[str, dict[str, Any]] = {
    "table": {"format": "table", "table": "copy"},
    "delta": {"format": "delta", "path": "copy"},
}


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows(bench: Bench, kind: str, *columns: str) -> list[tuple[Any, ...]]:
    if kind == "table":
        return sorted(bench.sql(f"select {', '.join(columns)} from copy"))
    found = DeltaTable("copy").to_pyarrow_table()
    return sorted(zip(*(found[name].to_pylist() for name in columns), strict=True))


@pytest.fixture
def nested(bench: Bench) -> Bench:
    bench.sql("create type pair as (x int, y text)")
    bench.sql("create table source (id int primary key, ns int[], p pair, word text)")
    bench.sql(
        "insert into source values"
        " (1, '{1,2}', (1, 'a'), 'one'), (2, null, null, 'two'), (3, '{}', (null, null), 'x')"
    )
    return bench


@pytest.mark.parametrize("engine", ["process", "spark"])
@pytest.mark.parametrize("kind", SINKS)
def test_nested_values_are_applied_with_stamps_of_the_run_that_brought_them(
    nested: Bench, kind: str, engine: str
) -> None:
    name = nested.make(CAPTURED, {**SINKS[kind], "mode": "apply"}, stamp=True, engine=engine)
    assert nested.run(name)["outcome"] == "done"
    first = rows(nested, kind, "id", "ns", "word", "_run")
    assert first == [(1, [1, 2], "one", 1), (2, None, "two", 1), (3, [], "x", 1)]
    nested.sql("update source set ns = '{7,null}' where id = 2; delete from source where id = 1")
    nested.sql("update source set id = 4, p = (9, 'z') where id = 3")
    assert nested.run(name)["outcome"] == "done"
    assert rows(nested, kind, "id", "ns", "word", "_run") == [(2, [7, None], "two", 2), (4, [], "x", 2)]
    pairs = rows(nested, kind, "id", "p")
    assert [(id, p and dict(p)) for id, p in pairs] == [(2, None), (4, {"x": 9, "y": "z"})]
    nested.sql("truncate source; insert into source values (5, '{5}', null, 'five')")
    assert nested.run(name)["outcome"] == "done"
    assert rows(nested, kind, "id", "ns", "_run") == [(5, [5], 3)]


@pytest.mark.parametrize("kind", SINKS)
def test_a_row_that_is_missing_goes_and_those_there_say_who_brought_them(nested: Bench, kind: str) -> None:
    sink = {**SINKS[kind], "mode": "upsert", "key": ["id"], "missing": "delete"}
    if kind == "table":
        nested.sql("create table copy (id int primary key, ns int[], p jsonb, word text)")
    name = nested.make({"format": "table", "table": "source", "changes": "all"}, sink, stamp=True)
    nested.run(name)
    nested.sql("delete from source where id = 2")
    nested.run(name)
    assert rows(nested, kind, "id", "ns", "_run") == [(1, [1, 2], 2), (3, [], 2)]


@pytest.mark.parametrize("kind", SINKS)
def test_a_history_has_stamps_and_no_version_for_them(nested: Bench, kind: str) -> None:
    sink = {**SINKS[kind], "mode": "history", "key": ["id"]}
    name = nested.make({"format": "table", "table": "source", "changes": "all"}, sink, stamp=True)
    nested.run(name)
    nested.sql("update source set word = 'TWO' where id = 2")
    nested.run(name)
    assert rows(nested, kind, "id", "word", "_run") == [
        (1, "one", 1),
        (2, "TWO", 2),
        (2, "two", 1),
        (3, "x", 1),
    ]


def test_deleted_rows_are_kept_with_stamps_of_the_run_that_found_them(nested: Bench) -> None:
    sink = {"format": "table", "table": "copy", "mode": "apply", "deletes": "soft"}
    name = nested.make(CAPTURED, sink, stamp=True)
    nested.run(name)
    nested.sql("delete from source where id = 1")
    nested.run(name)
    kept = nested.sql("select id, deleted_at is not null, ns from copy order by id")
    assert kept == [(1, True, [1, 2]), (2, False, None), (3, False, [])]
