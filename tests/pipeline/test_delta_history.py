"""A history in Delta is the history that a table of Postgres keeps, whatever rows come."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from pipeline.piping import Bench
from scope import some
from trunq.errors import InvalidPipeline, TrunqError

SOURCE = {"format": "table", "table": "source"}
HISTORY = {"mode": "history", "key": ["a", "b"], "newest": "at"}
NAMES = ["a", "b", "word", "n", "tags", "at", "valid_from", "valid_to"]


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def in_delta() -> list[str]:
    rows = DeltaTable("copy").to_pyarrow_table().to_pylist()
    return told([row[name] for name in NAMES] for row in rows)


def in_table(bench: Bench) -> list[str]:
    return told(bench.sql(f"select {', '.join(NAMES)} from copy"))


def told(rows: Iterable[Any]) -> list[str]:
    """Rows as texts, in their order."""
    return sorted(" ".join(map(str, row)) for row in rows)


def insert(bench: Bench, chance: random.Random, base: datetime) -> None:
    """Rows of few keys, times and values, so that each meets another."""
    for _ in range(chance.randrange(1, 12)):
        bench.sql(
            "insert into source values (%s, %s, %s, %s, %s, %s)",
            chance.randrange(2),
            chance.choice("xy"),
            chance.choice(["p", "q", None]),
            chance.choice([1.5, float("nan"), None]),
            chance.choice(["[1, 2]", "[]", None]),
            base + timedelta(seconds=chance.randrange(20)),
        )


@pytest.mark.parametrize("seed", range(some(2, 20)))
def test_versions_are_those_of_a_table(bench: Bench, seed: int) -> None:
    chance = random.Random(seed)
    bench.sql("create table source (a int, b text, word text, n double precision, tags text, at timestamptz)")
    table = bench.make(SOURCE, {"format": "table", "table": "copy", **HISTORY})
    delta = bench.make(SOURCE, {"format": "delta", "path": "copy", **HISTORY})
    base = datetime(2030, 1, 1, tzinfo=UTC)
    for round in range(4):
        insert(bench, chance, base + timedelta(seconds=round * 10))
        bench.run(table)
        bench.run(delta)
        assert in_delta() == in_table(bench), (seed, round)
    assert {row.endswith("None") for row in in_delta()} == {True, False}


def test_without_newest_versions_begin_when_they_are_written(bench: Bench) -> None:
    bench.sql(
        "create table source (id int, word text); insert into source values (1, 'a'), (1, 'b'), (2, 'c')"
    )
    name = bench.make(
        SOURCE, {"format": "delta", "path": "copy", "mode": "history", "key": ["id"], "partition_by": ["id"]}
    )
    bench.run(name)
    bench.sql("insert into source values (1, 'd'), (2, 'c')")
    bench.run(name)
    rows = DeltaTable("copy").to_pyarrow_table().sort_by([("id", "ascending"), ("valid_from", "ascending")])
    # Of equal keys the last counts, and what is the same makes no version.
    assert rows["word"].to_pylist() == ["b", "d", "c"]
    first, second, other = rows.to_pylist()
    assert first["valid_to"] == second["valid_from"]
    assert (second["valid_to"], other["valid_to"]) == (None, None)


def without_time(rows: pa.Table) -> pa.Table:
    return rows.set_column(1, "at", pa.nulls(rows.num_rows, pa.timestamp("us", "UTC")))


def without_key(rows: pa.Table) -> pa.Table:
    return rows.set_column(0, "id", pa.nulls(rows.num_rows, pa.int32()))


@pytest.mark.parametrize(
    ("table", "function", "said"),
    [
        ("id int, at timestamptz", without_key, '"id" is null in a row'),
        ("id int, at timestamptz", without_time, '"at" is null in a row'),
        ("id int, at text", None, '"at" is string, and says when a version began'),
        ("id int, at timestamptz, valid_to int", None, 'a column "valid_to"'),
    ],
)
def test_rows_that_make_no_version_are_refused(bench: Bench, table: str, function: Any, said: str) -> None:
    bench.sql(f"create table source ({table}); insert into source values (1, now())")
    sink = {"format": "delta", "path": "copy", "mode": "history", "key": ["id"], "newest": "at"}
    name = bench.make(SOURCE, sink, function=function)
    with pytest.raises(TrunqError, match=said):
        bench.run(name)


def test_a_history_without_a_key_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidPipeline, match="mode = 'history' and key"):
        bench.make(SOURCE, {"format": "delta", "path": "copy", "mode": "history"})


@pytest.mark.parametrize("format", ["table", "delta"])
@pytest.mark.parametrize("missing", [False, True])
def test_a_version_that_a_faster_clock_wrote_keeps_no_later_one_out(
    bench: Bench, format: str, missing: bool
) -> None:
    bench.sql("create table source (id int, word text)")
    bench.sql("insert into source values (1, 'a'), (2, 'b')")
    place = {"table": "copy"} if format == "table" else {"path": "copy"}
    sink = {"format": format, **place, "mode": "history", "key": ["id"]}
    source = {**SOURCE, "changes": "all" if missing else "window"}
    name = bench.make(source, sink | ({"missing": "delete", "max_missing": 1} if missing else {}))
    bench.run(name)
    if format == "table":
        bench.sql("update copy set valid_from = valid_from + interval '1 hour'")
    else:
        DeltaTable("copy").update(updates={"valid_from": "valid_from + interval '1 hour'"})
    bench.sql("update source set word = 'c' where id = 1")
    bench.run(name)

    def versions() -> list[tuple[str, Any, Any]]:
        if format == "table":
            query = "select word, valid_from, valid_to from copy where id = 1 order by valid_from"
            return list(bench.sql(query))
        rows = DeltaTable("copy").to_pyarrow_table().filter(pc.field("id") == 1).sort_by("valid_from")
        return [(row["word"], row["valid_from"], row["valid_to"]) for row in rows.to_pylist()]

    (first, begun, ended), (second, after, still) = versions()
    assert (first, second, still) == ("a", "c", None)
    assert begun < ended == after
    # What is as it was makes no version.
    bench.sql("update source set word = word")
    bench.run(name)
    assert len(versions()) == 2
