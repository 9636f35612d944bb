"""An upsert of a Delta table, file by file, leaves what a dictionary of its rows does, whatever the keys are
and whoever wrote the table; and a table that asks for more than it knows is left to deltalake.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from pipeline.piping import Bench
from scope import some
from trunq.arrow.delta import write_entry
from trunq.arrow.wide import in_columns
from trunq.pipeline.control import Run
from trunq.pipeline.errors import SinkUnwritable
from trunq.pipeline.sink.lake import LakeStage
from trunq.pipeline.sink.upsert import Upsert

TIME = pa.timestamp("us", "UTC")
DIGITS = pa.decimal128(12, 3)
LONG = "z" * 70
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "whole": (pa.int64(), [0, 1, -1, 2**53, 2**53 + 1, -(2**63), 2**63 - 1]),
    "text": (pa.string(), ["", "a", "a%25b", "x/y=z", "ä 50%", "it's #?"]),
    "long": (pa.string(), ["b", LONG, LONG + "a", LONG + "b", "\U0010ffff" * 66, "z" * 5000]),
    "float": (pa.float64(), [0.0, -0.0, 1.5, math.nan, math.inf, -math.inf]),
    "decimal": (DIGITS, [Decimal("1.100"), Decimal("-3.000"), Decimal("0.001"), Decimal("0.000")]),
    "time": (
        TIME,
        [dt.datetime(2020, 1, 1, 1, 1, 1, 123456, dt.UTC), dt.datetime(2020, 1, 1, 1, 1, 1, 123457, dt.UTC)],
    ),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
    "truth": (pa.bool_(), [True, False]),
    "bytes": (pa.binary(), [b"", b"\x00", b"\xff\x00"]),
}  # fmt: skip
PARTITIONING = ("whole", "text", "time", "day", "truth")


def upserted(path: Path, number: int, parts: list[pa.Table], key: list[str], newest: str | None) -> None:
    """The upsert of one run, without what is around it."""
    run = Run("moving", "moving", number, number, 1, {}, attempt=1)
    stage, table = LakeStage("moving", str(path)), DeltaTable(path)
    stage.begin(run)
    there = pa.schema(table.schema().to_arrow())
    names = [f"part-{at}" for at in range(len(parts))]
    count = 0
    for name, part in zip(names, parts, strict=True):
        count += stage.write(run, name, (in_columns(batch, there) for batch in part.to_batches()))
    upsert = Upsert(stage, run, stage.keep_only(run, names, count), key, newest)
    assert upsert.is_for(table)
    write_entry(table, upsert.actions(table), [], alone=True)
    stage.discard(run)


def plain(value: Any, *, is_partition: bool = False) -> Any:
    """A value that is equal to those that a key takes for the same."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return None if is_partition and value == "" else value


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    """A table, and runs, as lists of rows: of two columns that may be its key, `newest`, and a word."""
    first, second = draw(st.sampled_from(sorted(KINDS))), draw(st.sampled_from(sorted(KINDS)))
    key = draw(st.sampled_from([["a"], ["a", "b"], ["b", "a"]]))
    parts = [name for name, kind in (("a", first), ("b", second)) if kind in PARTITIONING]
    row = st.tuples(
        st.sampled_from(KINDS[first][1]),
        st.sampled_from(KINDS[second][1]),
        st.sampled_from([None, 0.0, -0.0, 1.0, 2.0, math.nan]),
    )
    return {
        "kinds": (first, second),
        "key": key,
        "newest": draw(st.sampled_from([None, "at"])),
        "partition_by": draw(st.sampled_from([[], *([name] for name in parts)])),
        "indexed": draw(st.sampled_from([None, "0", "1", "2"])),
        "theirs": draw(st.integers(0, 3)),
        "runs": draw(
            st.lists(st.lists(st.lists(row, min_size=1, max_size=6), min_size=1, max_size=2), max_size=4)
        ),
    }


@settings(max_examples=some(40, 1500), deadline=None)
@given(tables())
def test_an_upsert_leaves_what_a_dictionary_does(
    tmp_path_factory: pytest.TempPathFactory, case: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("lake")
    kinds = [KINDS[kind][0] for kind in case["kinds"]]
    schema = pa.schema([("word", pa.string()), ("a", kinds[0]), ("b", kinds[1]), ("at", pa.float64())])
    asked = {"delta.dataSkippingNumIndexedCols": case["indexed"]} if case["indexed"] else None
    DeltaTable.create(path, schema, partition_by=case["partition_by"], configuration=asked)
    expected: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    said = 0
    for number, run in enumerate(case["runs"], 1):
        parts, given_rows = [], dict[tuple[Any, ...], tuple[Any, ...]]()
        for rows in run:
            made = [{"word": f"word {(said := said + 1)}", "a": a, "b": b, "at": at} for a, b, at in rows]
            parts.append(pa.Table.from_pylist(made, schema))
            for each in made:
                take(given_rows, each, case)
        for values in given_rows.values():
            take(expected, dict(zip(schema.names, values, strict=True)), case)
        if number <= case["theirs"] and number == 1:
            # What another engine writes first: one row a key, its own names of files, its own statistics.
            rows_of = [dict(zip(schema.names, values, strict=True)) for values in given_rows.values()]
            write_deltalake(path, pa.Table.from_pylist(rows_of, schema), mode="append")
        else:
            # Columns in another order.
            turned = [part.select(["at", "b", "word", "a"]) for part in parts]
            upserted(path, number, turned, case["key"], case["newest"])
        if number == case["theirs"]:
            DeltaTable(path).optimize.compact()
        assert found(path, case) == shown(expected.values(), schema.names, case)


def take(into: dict[tuple[Any, ...], tuple[Any, ...]], row: dict[str, Any], case: dict[str, Any]) -> None:
    key = tuple(plain(row[name], is_partition=name in case["partition_by"]) for name in case["key"])
    if key in into and case["newest"] and not _is_newer(into[key][-1], row["at"]):
        return
    into[key] = tuple(row.values())


def _is_newer(had: float | None, comes: float | None) -> bool:
    """As Postgres compares: NaN is above every number, and null in the table gives way."""
    if had is None or comes is None:
        return had is None
    return math.isnan(comes) or (not math.isnan(had) and had <= comes)


def found(path: Path, case: dict[str, Any]) -> list[str]:
    table = DeltaTable(path).to_pyarrow_table()
    return shown((tuple(row.values()) for row in table.to_pylist()), table.schema.names, case)


def shown(rows: Any, names: list[str], case: dict[str, Any]) -> list[str]:
    by = case["partition_by"]
    return sorted(
        str([plain(value, is_partition=name in by) for name, value in zip(names, row, strict=True)])
        for row in rows
    )


def run_twice(path: Path, rows: pa.Table, key: list[str]) -> list[tuple[Any, ...]]:
    for number in (1, 2):
        upserted(path, number, [rows], key, None)
    return sorted((tuple(row.values()) for row in DeltaTable(path).to_pyarrow_table().to_pylist()), key=str)


def test_a_file_whose_statistics_lack_the_key_is_not_passed_over(tmp_path: Path) -> None:
    # Spark has those of the first 32 columns alone, and Parquet none of a text of more than 4096 bytes.
    schema = pa.schema([("word", pa.string()), ("id", pa.string())])
    DeltaTable.create(tmp_path, schema)
    rows = pa.table({"word": ["x", "y"], "id": ["a" * 5000, "b" * 5000]}, schema)
    assert run_twice(tmp_path, rows, ["id"]) == [("x", "a" * 5000), ("y", "b" * 5000)]


@pytest.mark.parametrize("whose", ["ours", "another engine's"])
def test_a_partition_has_any_text_and_any_time(tmp_path: Path, whose: str) -> None:
    at = [dt.datetime(2020, 1, 1, 1, 1, hour, 123456, dt.UTC) for hour in range(4)]
    words = ["a%b", "x/y=z ä", "a%2Fb", ""]
    rows = pa.table({"id": [1, 2, 3, 4], "word": words, "at": pa.array(at, TIME)})
    DeltaTable.create(tmp_path, rows.schema, partition_by=["word", "at"])
    if whose != "ours":
        write_deltalake(tmp_path, rows, mode="append")
    assert [row[0] for row in run_twice(tmp_path, rows, ["id"])] == [1, 2, 3, 4]
    assert [row[0] for row in run_twice(tmp_path, rows, ["word", "id"])] == [1, 2, 3, 4]


def test_zero_and_its_negative_are_one_key(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"id": [0.0, math.nan], "word": ["a", "b"]}))
    rows = pa.table({"id": [0.0, -0.0, -math.nan], "word": ["x", "y", "z"]})
    assert [row[1] for row in run_twice(tmp_path, rows, ["id"])] == ["y", "z"]


def test_a_time_of_another_engine_that_nanoseconds_do_not_hold_stays(tmp_path: Path) -> None:
    far = [dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(1, 1, 1), dt.datetime(2020, 1, 1)]
    rows = pa.table({"id": ["a", "b", "c"], "at": pa.array(far, pa.timestamp("us"))})
    made = tmp_path / "part-00000-theirs.parquet"
    parquet.write_table(rows, made, use_deprecated_int96_timestamps=True)
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in (("id", "string"), ("at", "timestamp"))
    ]
    log(tmp_path, fields, made)
    given_row = pa.table({"id": ["c"], "at": pa.array([dt.datetime(2021, 1, 1)], TIME)})
    upserted(tmp_path, 1, [given_row], ["id"], None)
    there = DeltaTable(tmp_path).to_pyarrow_table()
    assert [str(row["at"])[:19] for row in there.sort_by("id").to_pylist()] == [
        "9999-12-31 23:59:59", "0001-01-01 00:00:00", "2021-01-01 00:00:00"
    ]  # fmt: skip


def log(path: Path, fields: list[dict[str, Any]], *files: Path, writer: int = 2) -> None:
    """The log of a table as another engine writes it."""
    schema = json.dumps({"type": "struct", "fields": fields})
    entry: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": writer}},
        {
            "metaData": {
                "id": "theirs", "format": {"provider": "parquet", "options": {}}, "schemaString": schema,
                "partitionColumns": [], "configuration": {}, "createdTime": 0,
            }
        },
        *(
            {
                "add": {
                    "path": file.name, "partitionValues": {}, "size": file.stat().st_size,
                    "modificationTime": 0, "dataChange": True,
                }
            }
            for file in files
        ),
    ]  # fmt: skip
    (path / "_delta_log").mkdir()
    (path / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, entry)))


@pytest.mark.parametrize(
    "asked",
    [
        {"delta.invariants": json.dumps({"expression": {"expression": "n > 0"}})},
        {"delta.generationExpression": "length(id)"},
        {"delta.columnMapping.physicalName": "col-1"},
    ],
)
def test_what_a_column_asks_of_its_values_deltalake_sees_to(tmp_path: Path, asked: dict[str, str]) -> None:
    fields = [
        {"name": "id", "type": "string", "nullable": True, "metadata": {}},
        {"name": "n", "type": "long", "nullable": True, "metadata": asked},
    ]
    log(tmp_path, fields, writer=4)
    run = Run("moving", "moving", 1, 1, 1, {}, attempt=1)
    stage = LakeStage("moving", str(tmp_path))
    stage.begin(run)
    assert stage.write(run, "part", pa.table({"id": ["a"], "n": [-1]}).to_batches()) == 1
    upsert = Upsert(stage, run, stage.keep_only(run, ["part"], 1), ["id"], None)
    assert not upsert.is_for(DeltaTable(tmp_path))


SOURCE = {"format": "table", "table": "source"}
LAKE: dict[str, Any] = {"format": "delta", "path": "lake"}
UPSERT: dict[str, Any] = {**LAKE, "mode": "upsert", "key": ["id"]}


@pytest.mark.parametrize("sink", [LAKE, UPSERT], ids=["append", "upsert"])
def test_null_in_a_column_that_another_engine_made_not_null_is_refused(
    bench: Bench, tmp_path: Path, sink: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bench.sql("create table source (id int, word text); insert into source values (1, 'a'), (2, null)")
    fields = [pa.field("id", pa.int32()), pa.field("word", pa.string(), nullable=False)]
    DeltaTable.create("lake", pa.schema(fields))
    name = bench.make(SOURCE, sink)
    with pytest.raises(SinkUnwritable, match='column "word" of lake is not null, and is null in a row'):
        bench.run(name)
    bench.sql("update source set word = 'b' where id = 2")
    bench.run(name)
    assert DeltaTable("lake").to_pyarrow_table().num_rows == 2


@pytest.mark.parametrize("sink", [LAKE, UPSERT], ids=["append", "upsert"])
@pytest.mark.parametrize("indexed", ["32", "0"])
def test_a_table_with_infinity_opens_again_and_is_merged_into(
    bench: Bench, tmp_path: Path, sink: dict[str, Any], indexed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bench.sql("create table source (id int, n float8)")
    bench.sql("insert into source values (1, 'infinity'), (2, '-infinity'), (3, 1.5)")
    fields = [pa.field("id", pa.int32()), pa.field("n", pa.float64())]
    asked = {"delta.dataSkippingNumIndexedCols": indexed}
    DeltaTable.create("lake", pa.schema(fields), configuration=asked)
    bench.run(bench.make(SOURCE, sink))
    # JSON has no infinity, and deltalake reads all statistics of a table that it merges into.
    rows = pa.table({"id": [3, 4], "n": [2.5, 3.5]}, pa.schema(fields))
    merging = DeltaTable("lake").merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
    merging.when_matched_update_all().when_not_matched_insert_all().execute()
    found = DeltaTable("lake").to_pyarrow_table().sort_by("id")["n"].to_pylist()
    assert found == [math.inf, -math.inf, 2.5, 3.5]


def test_where_a_column_comes_while_it_upserts_what_it_had_written_goes(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bench.sql("create table source (id int, word text); insert into source values (1, 'a'), (2, 'b')")
    name = bench.make(SOURCE, UPSERT)
    bench.run(name)
    bench.sql("update source set word = 'x' where id = 1")
    original, met = Upsert.actions, list[set[Path]]()

    def actions(self: Upsert, table: DeltaTable) -> Any:
        made = original(self, table)
        met.append({Path(file.path) for file in self.files})
        theirs = pa.table({"id": pa.array([8], pa.int32()), "word": ["theirs"], "n": [5]})
        write_deltalake("lake", theirs, mode="append", schema_mode="merge")
        return made

    monkeypatch.setattr(Upsert, "actions", actions)
    bench.run(name)
    rows = DeltaTable("lake").to_pyarrow_table().select(["id", "word", "n"]).to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [(1, "x", None), (2, "b", None), (8, "theirs", 5)]
    assert len(met) == 1
    assert not any(("lake" / path).exists() for path in met[0])
