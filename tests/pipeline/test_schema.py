"""A column that the source renames, every version of a schema, and what a plan says of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable

from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline.errors import SinkUnwritable
from trunq.pipeline.plan import Planned, plan_pipeline

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


@pytest.mark.parametrize(
    "sink",
    [
        {"format": "table", "table": "moved"},
        {"format": "table", "table": "moved", "mode": "upsert", "key": ["id"]},
        {"format": "delta", "path": "lake"},
        {"format": "delta", "path": "lake", "partition_by": ["n"]},
    ],
    ids=["table", "upsert", "delta", "partitions"],
)
def test_a_column_that_the_source_renames_is_renamed_in_the_sink_with_its_values(
    bench: Bench, sink: dict[str, Any]
) -> None:
    name = bench.make(WINDOW, sink)
    bench.run(name)
    bench.sql("delete from source; alter table source rename n to amount")
    bench.sql("alter table source alter amount type bigint; insert into source values (2, 3000000000)")
    later = {**sink, "partition_by": ["amount"]} if "partition_by" in sink else sink
    evolve = {"rename": {"n": "amount"}, "types": "widen"}
    bench.make(WINDOW, later, name=name, evolve=evolve)
    bench.run(name)
    expected = [(1, 7), (2, 3000000000)]
    if sink["format"] == "delta":
        assert lake("id", "amount") == expected
        assert len(DeltaTable("lake").schema().fields) == 2
    else:
        assert bench.sql("select * from moved order by id") == expected
    first, then = reversed(bench.client.list_schemas(name))
    assert (first.version, sorted(first.columns), first.number) == (1, ["id", "n"], 1)
    assert (then.version, sorted(then.columns), then.number) == (2, ["amount", "id"], 2)
    assert (then.changed["n"], set(then.changed)) == (None, {"n", "amount"})
    # It is done once, and goes on.
    bench.sql("insert into source values (3, 9)")
    bench.run(name)
    assert len(bench.client.list_schemas(name)) == 2


def test_a_renamed_key_keeps_its_index(bench: Bench) -> None:
    upsert = {"format": "table", "table": "moved", "mode": "upsert"}
    name = bench.make(WINDOW, {**upsert, "key": ["id"]})
    bench.run(name)
    bench.sql("alter table source rename id to number; update source set n = 8")
    bench.make(WINDOW, {**upsert, "key": ["number"]}, name=name, evolve={"rename": {"id": "number"}})
    bench.run(name)
    assert bench.sql("select number, n from moved") == [(1, 8)]


def test_a_table_that_is_held_is_renamed_by_the_next_attempt(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = bench.make(WINDOW, {"format": "table", "table": "moved"}, evolve={"rename": {"n": "amount"}})
    bench.run(name)
    bench.sql("alter table source rename n to amount; insert into source values (2, 2)")
    monkeypatch.setattr("trunq.pipeline.sink.widening._WAIT", "50ms")
    with psycopg.connect(bench.dsn) as other:
        other.execute("select count(*) from moved")
        with pytest.raises(SinkUnwritable, match="a column of moved is to be renamed, and others have held"):
            bench.run(name)
    bench.run(name)
    assert bench.sql("select id, amount from moved order by id") == [(1, 7), (2, 2)]


def test_what_cannot_be_renamed_is_refused_with_a_way_out_that_works(bench: Bench) -> None:
    files = {"format": "parquet", "path": "files"}
    for sink, rename, words in (
        (files, {"n": "amount"}, "files of Parquet that are there keep theirs"),
        ({"format": "queue", "queue": "q"}, {"n": "amount"}, "a sink of format 'queue' has no columns"),
        (files, {"a": "c", "b": "c"}, "rename has 'c' twice"),
        (files, {"a": "b", "b": "c"}, "rename has 'b' twice"),
        (files, {"a": ""}, "a name has 1 to 63 bytes"),
    ):
        with pytest.raises(InvalidPipeline, match=words):
            bench.make(ALL, sink, evolve={"rename": rename})
    name = bench.make(ALL, files)
    bench.run(name)
    bench.sql("alter table source rename n to amount")
    bench.make(ALL, files, name=name, columns={"rename": {"amount": "n"}}, evolve={"columns": "refuse"})
    assert bench.run(name)["rows_out"] == 1


def test_every_version_of_a_schema_is_kept_with_the_run_that_brought_it(bench: Bench) -> None:
    name = bench.make(ALL, {"format": "table", "table": "moved", "mode": "replace"}, evolve="widen")
    assert bench.client.list_schemas(name) == []
    bench.run(name)
    bench.sql("alter table source alter n type bigint")
    bench.run(name)
    bench.run(name)
    bench.sql("alter table source add more text")
    bench.run(name)
    found = bench.client.list_schemas(name)
    assert [(each.version, each.number, each.columns, each.changed) for each in found] == [
        (3, 4, {"id": "integer", "n": "bigint", "more": "text"}, {"more": "text"}),
        (2, 2, {"id": "integer", "n": "bigint"}, {"n": "bigint"}),
        (1, 1, {"id": "integer", "n": "integer"}, {"id": "integer", "n": "integer"}),
    ]
    assert [each.version for each in bench.client.list_schemas(name, 1)] == [3]


def test_a_plan_says_what_would_become_of_columns_and_what_would_be_refused(bench: Bench) -> None:
    for sink, target in (
        ({"format": "table", "table": "moved"}, "moved"),
        ({"format": "delta", "path": "lake"}, "lake"),
    ):
        name = bench.make(ALL, sink)
        bench.run(name)
        bench.sql("alter table source alter n type text")

        def planned(evolve: Any, sink: dict[str, Any] = sink, name: str = name) -> Planned:
            bench.make(ALL, sink, name=name, evolve=evolve)
            return plan_pipeline(name, bench.dsn)

        kept = planned("quarantine")
        assert any("values of n that do not fit int" in note for note in kept.notes)
        refused = planned("freeze")
        assert f'column "n" of {target} is int' in str(refused.refused)
        bench.sql("alter table source alter n type int using n::int; alter table source rename n to amount")
        renamed = planned({"rename": {"n": "amount"}})
        assert f"column n of {target} is renamed amount" in renamed.notes
        bench.sql("alter table source rename amount to n")
