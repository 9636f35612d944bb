"""What becomes of the columns of lakes, and of sinks that are not there, when those of the rows change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.piping import Bench
from trunq.arrow.wide import holding
from trunq.errors import InvalidPipeline
from trunq.pipeline.errors import Outrun
from trunq.pipeline.sink import delta, rewrite

ALL = {"format": "table", "table": "source", "changes": "all"}
WINDOW = {"format": "table", "table": "source"}


@pytest.fixture
def bench(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    bench.sql("create table source (id int primary key, n int); insert into source values (1, 7)")
    return bench


def lake(*columns: str) -> list[tuple[Any, ...]]:
    found = DeltaTable("lake").to_pyarrow_table().to_pylist()
    return sorted(tuple(row[name] for name in columns) for row in found)


def kind(name: str) -> str:
    return str(pa.schema(DeltaTable("lake").schema().to_arrow()).field(name).type)


def retype(bench: Bench, wide: str, value: str) -> None:
    # Rows that Postgres writes anew would come again.
    bench.sql(f"delete from source; alter table source alter n type {wide}")
    bench.sql(f"insert into source values (2, {value})")


MODES: list[dict[str, Any]] = [
    {"mode": "append"},
    {"mode": "append", "partition_by": ["n"]},
    {"mode": "upsert", "key": ["id"]},
    {"mode": "history", "key": ["id"]},
]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=["append", "partitions", "upsert", "history"])
def test_a_table_is_rewritten_with_the_wider_type_and_rows_of_the_narrower_one_still_come(
    bench: Bench, mode: dict[str, Any]
) -> None:
    sink = {"format": "delta", "path": "lake", **mode}
    name = bench.make(WINDOW, sink, evolve="widen")
    narrow = bench.make({**WINDOW, "table": "narrow"}, sink)
    bench.sql("create table narrow (id int primary key, n smallint)")
    bench.run(name)
    retype(bench, "bigint", "3000000000")
    bench.run(name)
    assert kind("n") == "int64"
    bench.sql("insert into narrow values (3, 5)")
    bench.run(narrow)
    assert lake("id", "n") == [(1, 7), (2, 3000000000), (3, 5)]
    assert bench.client.list_schema_changes(name)[0].type == "int64"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "value", "after", "more", "becomes"),
    [
        ("int", "7", "numeric(12,2)", "1.50", "decimal128(12, 2)"),
        ("numeric(5,2)", "7", "numeric(9,3)", "123456.789", "decimal128(9, 3)"),
        ("real", "0.5", "float8", "1e300", "double"),
        ("int", "2147483647", "float8", "0.25", "double"),
        ("date", "'2030-01-31'", "timestamp", "'2030-01-31 12:00'", "timestamp[us]"),
    ],
)
def test_no_value_is_lost_by_a_wider_type(
    bench: Bench, before: str, value: str, after: str, more: str, becomes: str
) -> None:
    bench.sql(f"drop table source; create table source (id int, n {before})")
    bench.sql(f"insert into source values (1, {value})")
    name = bench.make(WINDOW, {"format": "delta", "path": "lake"}, evolve="widen")
    bench.run(name)
    retype(bench, after, more)
    bench.run(name)
    assert kind("n") == becomes
    bench.sql(f"insert into source values (1, {value})")
    assert lake("id", "n") == [tuple(row) for row in bench.sql("select * from source order by id")]


@pytest.mark.slow
def test_what_loses_a_value_is_no_wider_type() -> None:
    for there, given in (
        (pa.int64(), pa.float64()),
        (pa.float64(), pa.decimal128(5, 2)),
        (pa.string(), pa.int32()),
        (pa.date32(), pa.timestamp("us", "UTC")),
        (pa.decimal128(38, 0), pa.decimal128(38, 2)),
    ):
        assert holding(there, given) is None
    assert holding(pa.int32(), pa.float32()) == pa.float64()


@pytest.mark.slow
def test_a_refused_type_names_the_way_out_which_works(bench: Bench) -> None:
    sink = {"format": "delta", "path": "lake"}
    name = bench.make(WINDOW, sink)
    bench.run(name)
    retype(bench, "bigint", "3000000000")
    with pytest.raises(InvalidPipeline, match='column "n" of lake is int32 and comes as int64') as caught:
        bench.run(name)
    assert 'evolve = "widen" makes it int64' in str(caught.value)
    # The run that it refused goes on by it.
    bench.make(WINDOW, sink, name=name, evolve="widen")
    bench.run(name)
    assert lake("id", "n") == [(1, 7), (2, 3000000000)]


@pytest.mark.slow
def test_a_rewrite_that_dies_changes_nothing_or_is_found_done(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = bench.make(WINDOW, {"format": "delta", "path": "lake"}, evolve="widen")
    bench.run(name)
    retype(bench, "bigint", "3000000000")
    original = rewrite.write_deltalake

    def after(*given: Any, **more: Any) -> None:
        original(*given, **more)
        raise ZeroDivisionError

    for dies, becomes in ((lambda *_, **__: 1 / 0, "int32"), (after, "int64")):
        with monkeypatch.context() as patched:
            patched.setattr(rewrite, "write_deltalake", dies)
            with pytest.raises(ZeroDivisionError):
                bench.run(name)
        assert (kind("n"), lake("id", "n")) == (becomes, [(1, 7)])
    bench.run(name)
    assert lake("id", "n") == [(1, 7), (2, 3000000000)]


@pytest.mark.slow
def test_a_row_that_another_writes_meanwhile_is_rewritten_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = bench.make(WINDOW, {"format": "delta", "path": "lake"}, evolve="widen")
    bench.run(name)
    retype(bench, "bigint", "3000000000")
    original, met = rewrite.write_deltalake, []

    def meeting(*given: Any, **more: Any) -> None:
        if not met:
            met.append(1)
            write_deltalake("lake", DeltaTable("lake").to_pyarrow_table(), mode="append")
        original(*given, **more)

    monkeypatch.setattr(rewrite, "write_deltalake", meeting)
    bench.run(name)
    assert lake("id", "n") == [(1, 7), (1, 7), (2, 3000000000)]


@pytest.mark.slow
def test_rows_that_were_staged_for_the_narrower_type_are_staged_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = {"format": "delta", "path": "lake"}
    wide, narrow = bench.make(WINDOW, sink, evolve="widen"), bench.make({**WINDOW, "table": "narrow"}, sink)
    bench.sql("create table narrow (id int, n int); insert into narrow values (5, 5)")
    bench.run(wide)
    retype(bench, "bigint", "3000000000")
    original, met = delta.DeltaSink._try, []

    def meeting(self: Any, run: Any, write: Any) -> bool:
        if run.pipeline == narrow and not met:
            met.append(1)
            bench.run(wide)
        return original(self, run, write)

    monkeypatch.setattr(delta.DeltaSink, "_try", meeting)
    with pytest.raises(Outrun, match='column "n" of lake is int64 since rows were staged for it'):
        bench.run(narrow)
    bench.run(narrow)
    assert lake("id", "n") == [(1, 7), (2, 3000000000), (5, 5)]


@pytest.mark.slow
def test_files_of_parquet_get_the_wider_type_which_readers_unify_and_never_a_narrower_one(
    bench: Bench,
) -> None:
    sink = {"format": "parquet", "path": "files"}
    name = bench.make(WINDOW, sink)
    bench.run(name)
    retype(bench, "bigint", "3000000000")
    with pytest.raises(InvalidPipeline, match='column "n" of files is int32 and comes as int64'):
        bench.run(name)
    bench.client.cancel_pipeline(name)
    bench.make(WINDOW, sink, name=name, evolve="widen")
    bench.run(name)
    bench.sql("delete from source where id = 2; alter table source alter n type smallint")
    bench.sql("insert into source values (3, 3)")
    bench.run(name)
    files = sorted(map(str, Path("files").rglob("*.parquet")))
    kinds = [str(ds.dataset(file).schema.field("n").type) for file in files]
    assert sorted(kinds) == ["int32", "int64", "int64"]
    schema = pa.unify_schemas([ds.dataset(file).schema for file in files], promote_options="permissive")
    rows = ds.dataset(files, schema=schema).to_table().to_pylist()
    assert sorted((row["id"], row["n"]) for row in rows) == [(1, 7), (2, 3000000000), (3, 3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "sink",
    [
        {"format": "table", "table": "moved"},
        {"format": "delta", "path": "lake"},
        {"format": "parquet", "path": "files"},
    ],
    ids=lambda sink: sink["format"],
)
def test_with_freeze_no_sink_is_made_and_no_column_changes_and_each_is_said_before_anything_runs(
    bench: Bench, sink: dict[str, Any]
) -> None:
    target = sink.get("table", sink.get("path"))
    name = bench.make(ALL, sink, evolve="freeze")
    with pytest.raises(InvalidPipeline, match=f'{target} is not there, and evolve says tables = "refuse"'):
        bench.run(name)
    assert bench.client.list_runs(name) == []
    # The way out that it names.
    bench.make(ALL, sink, name=name, evolve={"tables": "add", "columns": "refuse"})
    bench.run(name)
    bench.make(ALL, sink, name=name, evolve="freeze")
    bench.run(name)
    bench.sql("alter table source add more text default 'x'")
    with pytest.raises(InvalidPipeline, match=f'column "more" is new: {target} has none'):
        bench.run(name)
    bench.client.cancel_pipeline(name)
    bench.make(ALL, sink, name=name)
    assert bench.run(name)["rows_out"] == 1
