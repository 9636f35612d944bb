"""Delta tables as sinks: partitions that are replaced whole, columns that come, upserts in batches."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet

from pipeline.attempting import Attempt, begin
from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline
from trunq.pipeline.control import Run
from trunq.pipeline.errors import Outrun
from trunq.pipeline.sink.delta import DeltaSink
from trunq.pipeline.sink.merge import one_a_key

ALL = {"format": "table", "table": "source", "changes": "all"}
TABLE = {"format": "table", "table": "moved"}
LAKE = {"format": "delta", "path": "lake", "mode": "replace_partitions", "partition_by": ["day", "shop"]}


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def sold(bench: Bench) -> Bench:
    """Rows of three days and some shops, of which one is not known."""
    bench.sql("create table source (id int, day date, shop text, n int)")
    for id, (day, shop) in enumerate(itertools.product((1, 2, 3), ("a b", "50% \u00fc/x=:", None)), 1):
        bench.sql("insert into source values (%s, make_date(2030, 1, %s), %s, 1)", id, day, shop)
    return bench


def lake(*columns: str) -> list[Any]:
    table = DeltaTable("lake").to_pyarrow_table()
    return sorted(tuple(row[name] for name in columns) for row in table.to_pylist())


def test_only_the_partitions_that_a_run_has_rows_of_are_replaced(sold: Bench) -> None:
    name = sold.make(ALL, LAKE)
    sold.run(name)
    assert lake("id", "n") == [(id, 1) for id in range(1, 10)]
    before = len(DeltaTable("lake").history())
    sold.sql("delete from source where day < '2030-01-03'")
    sold.sql("delete from source where shop = 'a b'")
    sold.sql("update source set n = 2; insert into source values (10, '2030-01-04', '', 2)")
    sold.run(name)
    assert lake("id", "n") == [*((id, 1) for id in range(1, 8)), (8, 2), (9, 2), (10, 2)]
    # The files that go and those that come are in one entry of the log.
    assert len(DeltaTable("lake").history()) == before + 1
    assert DeltaTable("lake").transaction_version("trunq:partitions") == 2
    sold.sql("delete from source")
    assert sold.run(name)["rows_out"] == 0
    assert len(lake("id")) == 10


def test_a_range_fills_whole_partitions_and_others_are_refused(sold: Bench) -> None:
    name = sold.make(ALL, LAKE)
    sold.run(name)
    sold.sql("update source set n = 3")
    done = sold.execute(
        sold.client.backfill_pipeline(name, {"column": "day", "from": "2030-01-02", "to": "2030-01-03"})
    )
    assert (done["rows_out"], done["outcome"]) == (3, "done")
    assert [id for id, n in lake("id", "n") if n == 3] == [4, 5, 6]
    with pytest.raises(InvalidPipeline, match="a range of id may have a part of one"):
        sold.client.backfill_pipeline(name, {"column": "id", "from": "1", "to": "5"})
    # A text that is empty lies with those that are null, and no range has these.
    sold.sql("insert into source values (10, '2030-01-01', '', 1)")
    message = sold.client.backfill_pipeline(name, {"column": "shop", "from": "", "to": "b"})
    with pytest.raises(InvalidPipeline, match="one partition with null"):
        sold.execute(message)
    assert 10 not in [id for (id,) in lake("id")]
    changed = sold.make(ALL, {**LAKE, "path": "other"}, function="pipeline.transforms:even_or_fixed")
    with pytest.raises(InvalidPipeline, match="nothing says that a range"):
        sold.client.backfill_pipeline(changed, {"column": "day", "from": "2030-01-02", "to": "2030-01-03"})


@pytest.mark.parametrize("late", ["first", "second"])
def test_who_began_to_read_before_another_replaced_partitions_reads_again(sold: Bench, late: str) -> None:
    name = sold.make(ALL, {"format": "delta", "path": "lake", "mode": "replace_partitions",
                           "partition_by": ["word"]})  # fmt: skip
    made, run = begin(sold, name)
    attempt = Attempt(sold, made, run(), "A", 3)
    other = sold.make(ALL, {**LAKE, "partition_by": ["word"]}, function="pipeline.test_lake:words")
    if late == "first":
        attempt.sink.applied(attempt.run)
        sold.run(other)
        next(attempt.steps)()
        with pytest.raises(Outrun, match="may hold older rows"):
            next(attempt.steps)()
        assert lake("id") == [(7,)]
    else:
        sold.run(other)
        attempt.sink.applied(attempt.run)
        for step in attempt.steps:
            step()
        assert lake("id") == [(100,), (101,), (102,)]
    # Who was late leaves no file behind; what was replaced stays for readers of the version before.
    files = list(Path("lake/word=A").glob("*.parquet"))
    assert len(files) - len(DeltaTable("lake").file_uris()) == (0 if late == "first" else 1)


def words(rows: pa.Table) -> pa.Table:
    return pa.table({"id": pa.array([7], pa.int32()), "word": ["A"]})


@pytest.mark.parametrize(
    ("source", "sink", "words"),
    [
        ({**ALL, "changes": "window"}, LAKE, "would drop the rest"),
        ({**ALL, "changes": "window"}, {"format": "table", "table": "t", "mode": "replace"}, "drop the rest"),
        ({"format": "queue", "queue": "q"}, LAKE, "would drop the others"),
        (ALL, {**LAKE, "partition_by": []}, "needs partition_by"),
    ],
)
def test_what_cannot_stand_for_all_rows_is_refused(
    source: dict[str, Any], sink: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidPipeline, match=words):
        Pipeline("p", source=source, sink=sink)


@pytest.mark.parametrize(
    ("sink", "words"),
    [
        ({"partition_by": ["nothing"]}, '"nothing", which is not a column'),
        ({"partition_by": ["id", "day", "shop", "n"]}, "every column"),
        ({"partition_by": ["shop"]}, r"partitioned by \(day\), and partition_by is \(shop\)"),
    ],
)
def test_a_table_that_is_partitioned_otherwise_is_refused(
    sold: Bench, sink: dict[str, Any], words: str
) -> None:
    if sink["partition_by"] == ["shop"]:
        sold.run(sold.make(ALL, {**LAKE, "partition_by": ["day"]}))
    with pytest.raises(InvalidPipeline, match=words):
        sold.run(sold.make(ALL, {**LAKE, **sink}))


@pytest.mark.parametrize("mode", ["append", "upsert", "replace"])
def test_columns_come_are_ignored_or_refused_and_types_do_not_change(sold: Bench, mode: str) -> None:
    key = {"key": ["id"]} if mode == "upsert" else {}
    names = {
        evolve: sold.make(ALL, {"format": "delta", "path": evolve, "mode": mode, **key}, evolve=evolve)
        for evolve in ("add", "ignore", "refuse")
    }
    for name in names.values():
        sold.run(name)
    sold.sql("alter table source add more int; update source set more = 1; update source set n = 5")
    sold.run(names["add"]), sold.run(names["ignore"])
    rows = {name: DeltaTable(name).to_pyarrow_table() for name in ("add", "ignore")}
    count = 18 if mode == "append" else 9
    assert [len(table) for table in rows.values()] == [count, count]
    assert sum(rows["add"]["more"].to_pylist()[each] == 1 for each in range(count)) == 9
    assert "more" not in rows["ignore"].column_names
    assert rows["ignore"]["n"].to_pylist().count(5) == 9
    with pytest.raises(InvalidPipeline, match='column "more" is new'):
        sold.run(names["refuse"])
    sold.sql("alter table source alter n type text")
    with pytest.raises(InvalidPipeline, match='column "n" of add is int32 and comes as string'):
        sold.run(names["add"])


def test_an_upsert_that_leaves_out_all_its_rows_is_a_run_and_the_next_one_goes_on(bench: Bench) -> None:
    bench.sql("create table source (id int, word text, n int); insert into source values (1, 'new', 5)")
    sink = {"format": "delta", "path": "lake", "mode": "upsert", "key": ["id"], "newest": "n"}
    name = bench.make({"format": "table", "table": "source"}, sink)
    bench.run(name)
    bench.sql("update source set word = 'older', n = 4")
    done = bench.run(name)
    assert (done["number"], done["outcome"], done["rows_out"]) == (2, "done", 1)
    bench.sql("insert into source values (2, 'next', 1)")
    assert bench.run(name)["number"] == 3
    assert lake("id", "word") == [(1, "new"), (2, "next")]
    # Of two attempts that have nothing to write, one is the run's.
    made, run = begin(bench, name)
    table = pa.table({"id": pa.array([1], pa.int32()), "word": ["older"], "n": pa.array([1], pa.int32())})
    late, early = (Staged(bench, made, run(), table) for _ in range(2))
    assert early.commit()
    assert not late.commit()
    assert lake("id", "word") == [(1, "new"), (2, "next")]


class Staged:
    """An attempt that has staged a table."""

    def __init__(self, bench: Bench, pipeline: Pipeline, run: Run, rows: pa.Table) -> None:
        self._run, self._rows = run, rows.num_rows
        run.attempt = bench.executor.control.attempt(run) or 0
        self._sink = DeltaSink(pipeline, bench.dsn)
        self._sink.applied(run)
        self._sink.begin(run, rows.schema)
        self._sink.stage(run, "part", rows.to_batches())

    def commit(self) -> bool:
        """Whether the sink took it."""
        return self._sink.commit(self._run, ["part"], self._rows)


def test_an_upsert_takes_one_row_a_key_from_files_read_batch_by_batch(tmp_path: Path) -> None:
    rows = [[{"id": 1, "at": 1}, {"id": 2, "at": 5}], [{"id": 1, "at": 3}, {"id": 3, "at": None}],
            [{"id": 1, "at": 2}, {"id": 3, "at": 0}]]  # fmt: skip
    files = [tmp_path / f"{number}.parquet" for number in range(3)]
    for path, some in zip(files, rows, strict=True):
        parquet.write_table(pa.Table.from_pylist(some), path)
    taken = pa.Table.from_batches(one_a_key(files, ["id"], "at")).to_pylist()
    assert taken == [{"id": 2, "at": 5}, {"id": 1, "at": 3}, {"id": 3, "at": 0}]
    lasts = pa.Table.from_batches(one_a_key(files, ["id"], None)).to_pylist()
    assert lasts == [{"id": 2, "at": 5}, {"id": 1, "at": 2}, {"id": 3, "at": 0}]
    assert len(list(one_a_key(files[:1], ["id"], "at"))) == 1


def test_what_is_no_number_is_itself_in_floats_and_refused_in_decimals(bench: Bench) -> None:
    bench.sql("create table source (f float8, n numeric(9,2)); insert into source values ('NaN', 1)")
    bench.sql("insert into source values ('-Infinity', 2)")
    bench.run(bench.make(ALL, {"format": "delta", "path": "lake"}))
    assert str(lake("f", "n")[0][0]) in ("nan", "-inf")
    bench.sql("update source set n = 'NaN'")
    with pytest.raises(InvalidPipeline, match='column "n" has NaN'):
        bench.run(bench.make(ALL, {"format": "delta", "path": "other"}))
    bench.client.create_queue("numbers")
    bench.run(bench.make(ALL, {"format": "queue", "queue": "numbers"}))
    assert sorted(bench.sql("select payload->>'f', payload->>'n' from trunq_log.numbers")) == [
        ("-Infinity", "NaN"), ("NaN", "NaN"),
    ]  # fmt: skip
    # As in captured rows.
    assert bench.one("select bool_and(l.payload = to_jsonb(s)) from source s"
                     " join trunq_log.numbers l on l.payload->>'f' = s.f::text")  # fmt: skip


def test_a_table_that_somebody_else_made_takes_rows(sold: Bench) -> None:
    there = pa.table({"id": pa.array([0], pa.int32()), "day": pa.array([None], pa.date32()), "note": ["x"]})
    write_deltalake("lake", there, partition_by=["day"])
    name = sold.make(ALL, {"format": "delta", "path": "lake"})
    sold.run(name)
    assert lake("id") == [(id,) for id in range(10)]
    notes = DeltaTable("lake").to_pyarrow_table()["note"].to_pylist()
    assert (notes.count("x"), notes.count(None)) == (1, 9)
