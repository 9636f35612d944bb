"""Keys that are exact numbers: 1.0 and 1.00 are one key, in a lake, too, which has them as texts."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from pipeline.piping import Bench
from trunq.errors import InvalidPipeline

WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "upsert": ({}, {"mode": "upsert", "key": ["id"]}),
    "newest": ({}, {"mode": "upsert", "key": ["id"], "newest": "at"}),
    "history": ({}, {"mode": "history", "key": ["id"]}),
    "apply": ({"changes": "capture"}, {"mode": "apply"}),
    "soft": ({"changes": "capture"}, {"mode": "apply", "deletes": "soft"}),
    "missing": ({"changes": "all"}, {"mode": "upsert", "key": ["id"], "missing": "delete", "max_missing": 0}),
    "gone": ({"changes": "all"}, {"mode": "history", "key": ["id"], "missing": "delete", "max_missing": 0}),
}
SINKS = {"table": {"format": "table", "table": "moved"}, "delta": {"format": "delta", "path": "lake"}}


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def taken(bench: Bench, kind: str, *, only_open: bool) -> list[tuple[Decimal, str]]:
    if kind == "table":
        rows = bench.sql("select to_jsonb(m) - 'id' || jsonb_build_object('id', m.id::text) from moved m")
        found = [row for (row,) in rows]
    else:
        found = DeltaTable("lake").to_pyarrow_table().to_pylist()
    return sorted((Decimal(row["id"]), row["word"]) for row in found if not only_open or not row["valid_to"])


@pytest.mark.parametrize("engine", ["process", "spark"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", SINKS)
def test_equal_numbers_are_one_key_however_they_are_written(
    bench: Bench, kind: str, way: str, engine: str
) -> None:
    changes, mode = WAYS[way]
    bench.sql("create table source (id numeric primary key, word text, at int not null default 0)")
    bench.sql("insert into source values (1.0, 'a'), (20, 'b'), (0, 'c'), (-0.5, 'd')")
    name = bench.make(
        {"format": "table", "table": "source", **changes}, {**SINKS[kind], **mode}, engine=engine
    )
    bench.run(name)
    if kind == "delta" and way == "newest":
        # With a column of others, deltalake merges an upsert, too.
        DeltaTable("lake").alter.add_columns(Schema.from_arrow(pa.schema([("other", pa.int32())])).fields)
    bench.sql("update source set id = 1.00, word = 'A', at = 1 where id = 1")
    bench.sql("update source set id = 0.000, word = 'C', at = 1 where id = 0")
    bench.sql("update source set id = -0.50 where id = -0.5")
    bench.run(name)
    only_open = way in ("history", "gone")
    expected = [(Decimal("-0.5"), "d"), (Decimal(0), "C"), (Decimal(1), "A"), (Decimal(20), "b")]
    assert taken(bench, kind, only_open=only_open) == expected
    if only_open and kind == "delta":
        # What is only written in another way is no version.
        assert len(DeltaTable("lake").to_pyarrow_table()) == 6


def test_of_equal_numbers_in_one_run_the_last_is_taken(bench: Bench) -> None:
    bench.sql("create table source (id numeric, word text)")
    bench.sql("insert into source values (1.0, 'a'), (1.00, 'b'), (1, 'c')")
    name = bench.make({"format": "table", "table": "source"}, {**SINKS["delta"], **WAYS["upsert"][1]})
    bench.run(name)
    assert taken(bench, "delta", only_open=False) == [(Decimal(1), "c")]


def test_what_is_newest_is_no_number_that_a_lake_compares_as_a_text(bench: Bench) -> None:
    bench.sql("create table source (id int primary key, version numeric); insert into source values (1, 9)")
    sink = {**SINKS["delta"], "mode": "upsert", "key": ["id"], "newest": "version"}
    name = bench.make({"format": "table", "table": "source"}, sink)
    with pytest.raises(InvalidPipeline, match='"version" is numeric without digits, which is a text') as told:
        bench.run(name)
    assert 'cast = {version = "decimal(38,10)"}' in (told.value.hint or "")
    bench.client.cancel_pipeline(name)
    cast = {"cast": {"version": "decimal(38,10)"}}
    lake = {**sink, "path": "other"}
    name = bench.make({"format": "table", "table": "source"}, lake, columns=cast)
    bench.run(name)
    bench.sql("update source set version = 10")
    bench.run(name)
    assert DeltaTable("other").to_pyarrow_table()["version"].to_pylist() == [Decimal(10)]
