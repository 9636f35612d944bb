"""What tasks do, without Spark: read a share, sort out rows that break rules, stage the others."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.piping import Bench
from trunq.arrow.batch import unified
from trunq.errors import InvalidPipeline, TrunqError
from trunq.pipeline import Check, Pipeline
from trunq.pipeline import sink as sinks
from trunq.pipeline import source as sources
from trunq.pipeline.control import Control, Run
from trunq.pipeline.engine import Engine, Staged
from trunq.pipeline.run import Executor
from trunq.pipeline.sink import Sink
from trunq.pipeline.source import Context, Source
from trunq.pipeline.work.rule import Sorter
from trunq.pipeline.work.share import Landed, Read, Reading, dealt, land, unsliced
from trunq.pipeline.work.stager import Stager
from trunq.pipeline.work.staging import Staging

TABLE = {"format": "table", "table": "source"}
MOVED = {"format": "table", "table": "moved"}
RULES = [
    Check(name="q", holds="."),
    Check(name="d", holds=".", otherwise="drop"),
    Check(name="w", holds=".", otherwise="warn"),
    Check(name="f", holds=".", otherwise="fail"),
]
BROKEN = pa.list_(pa.string())


def marked(broken: list[list[str]]) -> pa.RecordBatch:
    """Rows with ids from 0, and the rules that they break."""
    return pa.RecordBatch.from_arrays(
        [pa.array(range(len(broken))), pa.array(broken, BROKEN)], names=["id", "_broken"]
    )


def test_a_row_goes_where_the_strictest_of_its_rules_sends_it() -> None:
    kept: list[tuple[Any, list[str]]] = []
    sorter = Sorter(RULES, lambda rows, reasons: kept.extend(zip(rows, reasons, strict=True)))
    written = sorter.sort(marked([[], ["w"], ["d", "w"], ["q", "d", "w"], ["q"], []]))
    assert written.to_pydict() == {"id": [0, 1, 5]}
    assert kept == [({"id": 3}, ["q", "d"]), ({"id": 4}, ["q"])]
    assert sorter.broken == {"q": 2, "d": 2, "w": 3}
    assert sorter.failed is None
    assert sorter.sort(marked([[], []])).num_rows == 2
    sorter.sort(marked([["q"], ["f", "q"]]))
    assert sorter.failed == {"check": "f", "row": '{"id": 1}'}


class Tasks(Engine):
    """In place of Spark: each share is read and staged here, and the first task is repeated after its end."""

    def stage(
        self,
        pipeline: Pipeline,
        run: Run,
        source: Source | None,
        sink: Sink,
        context: Context,  # noqa: ARG002  # as Spark's
        check: Callable[[], None],  # noqa: ARG002
        dsn: str,
    ) -> Staged:
        assert source is not None
        schema = source.schema(run.slice)
        assert schema is not None
        shares = source.shares(run.slice, 4)
        pickled = pickle.dumps(Reading(pipeline, dsn, unsliced(run), shares, schema))
        reading = pickle.loads(pickled)  # noqa: S301
        marked = schema.append(pa.field("_broken", BROKEN))
        sink.begin(run, schema)
        stager = Stager(pipeline, dsn, unsliced(run), schema)
        reads: dict[int, Read] = {}

        def rows(number: int) -> Iterator[pa.RecordBatch]:
            for batch in reading.read(number, reads.__setitem__):
                broken = [["even"] if id % 2 else [] for id in batch.column("id").to_pylist()]
                yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(broken, BROKEN)], schema=marked)

        stager.stage(rows(0))
        told = [stager.stage(rows(number)) for number in range(len(shares))]
        run.progress["rows_in"] = sum(read.rows for read in reads.values())
        bad = sum(each["bad"] for each in told) + sum(read.bad for read in reads.values())
        kept = [read.part for read in reads.values()]
        return Staged([each["part"] for each in told], sum(each["rows"] for each in told), bad, kept)

    def check(self, pipeline: Pipeline) -> None:
        """There is no Spark to ask."""


def test_what_a_repeated_task_left_behind_is_in_no_list(bench: Bench, tmp_path: Path) -> None:
    for part in range(3):
        lines = "".join(f"{part * 10 + n},w\n" for n in range(10))
        (tmp_path / f"{part}.csv").write_text(f"id,word\n{lines}0,too,many\n")
    name = bench.make(
        {"format": "csv", "path": f"{tmp_path}/*.csv", "settled": 0}, MOVED,
        checks=[{"name": "even", "holds": "."}],
    )  # fmt: skip
    bench.executor = Executor(bench.client, bench.dsn, Tasks())
    done = bench.run(name)
    assert (done["rows_in"], done["rows_out"], done["rows_bad"]) == (30, 15, 18)
    assert bench.sql("select count(*), sum(id) from moved") == [(15, sum(range(0, 30, 2)))]
    counted = [row[:2] for row in bench.client.count_quarantine(name)]
    assert counted == [("even", 15), ("another number of columns", 3)]
    assert bench.one("select count(*) from trunq.quarantine") == 18
    # A task that goes on after the run has ended keeps nothing.
    attempt = bench.one("select attempt from trunq.pipeline_attempt")
    run = Run(name, "", 1, 1, 1, {}, attempt=attempt)
    Control(bench.client).quarantine(run, [["late"]], [{"id": 1}], "late")
    assert bench.one("select count(*) from trunq.quarantine") == 18


def test_files_say_their_columns_and_are_split_by_size(bench: Bench, tmp_path: Path) -> None:
    for name, rows in {
        "a": "id,w\n1,x\n",
        "b": "id,more\n0.5,2030-01-01\n",
        "c": "id\n" + "1\n" * 50,
    }.items():
        (tmp_path / f"{name}.csv").write_text(rows)
    made = Pipeline("p", source={"format": "csv", "path": f"{tmp_path}/*", "settled": 0}, sink=MOVED)
    source = sources.make(made, bench.dsn, Control(bench.client))
    slice = source.plan_range({"path": f"{tmp_path}/*.csv"})
    schema = source.schema(slice)
    assert schema is not None
    found = {field.name: field.type for field in schema}
    assert found == {"id": pa.float64(), "w": pa.string(), "more": pa.date32()}
    shares = source.shares({**slice, "after": {}}, 2)
    # In their order, whatever their size.
    assert [[Path(path).name for path, *_ in share["files"]] for share in shares] == [
        ["a.csv", "b.csv"], ["c.csv"],
    ]  # fmt: skip
    run = Run("p", "", 1, 1, 1, {})
    reading = Reading(made, bench.dsn, run, shares, schema)
    rows = [row for number in (0, 1) for batch in reading.read(number) for row in batch.to_pylist()]
    assert (len(rows), sum(row["id"] for row in rows)) == (52, 51.5)
    (tmp_path / "d.csv").write_text("id,w\n1,5\n")
    with pytest.raises(InvalidPipeline, match="rows do not go together"):
        source.schema(source.plan_range({"path": f"{tmp_path}/[ad].csv"}))


def test_the_columns_of_a_slice_are_looked_for_once(bench: Bench, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("id\n1\n")
    made = Pipeline("p", source={"format": "csv", "path": "x", "settled": 0}, sink=MOVED)
    control = Control(bench.client)
    source = sources.make(made, bench.dsn, control)
    peeked: list[str] = []
    peek = source._peek  # type: ignore[attr-defined]
    source._peek = lambda path: peeked.append(path) or peek(path)  # type: ignore[attr-defined]
    run = Run("p", "", 1, 1, 1, source.plan_range({"path": f"{tmp_path}/*.csv"}))
    spark: Any = None
    sink = sinks.make(made, bench.dsn)
    staging = Staging(spark, made, run, source, sink, Context("p", 1), lambda: None, bench.dsn)
    with staging._found(control) as (found, slice, schema):
        assert (found, slice, schema) == (source, run.slice, pa.schema([("id", pa.int64())]))
    assert len(peeked) == 2


def test_rows_land_in_files_and_come_from_there(tmp_path: Path) -> None:
    given = [
        pa.RecordBatch.from_pylist([{"id": 1, "word": None}]),
        pa.RecordBatch.from_pylist([{"id": 2, "word": "w"}]),
    ]
    source, slice = land("p", iter(given), tmp_path)
    assert source.schema(slice) == pa.schema([("id", pa.int64()), ("word", pa.string())])
    shares = source.shares(slice, 8)
    assert len(shares) == 2
    rows = [
        row
        for share in shares
        for batch in Landed([]).read(share, Context("p", 1))
        for row in batch.to_pylist()
    ]
    assert rows == [{"id": 1, "word": None}, {"id": 2, "word": "w"}]
    assert unified("p", []) is None


@pytest.mark.parametrize(("count", "at_most", "lengths"), [(0, 3, []), (2, 5, [1, 1]), (7, 3, [3, 2, 2])])
def test_items_are_dealt(count: int, at_most: int, lengths: list[int]) -> None:
    lists = dealt(list(range(count)), at_most)
    assert [len(some) for some in lists] == lengths
    assert [each for some in lists for each in some] == list(range(count))


def test_without_spark_it_is_said_how_to_get_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.sql("create table source as select 1 as id")
    name = bench.make(TABLE, MOVED, sql=["select * from input"])
    for module in ("pyspark", "pyspark.errors", "pyspark.sql"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TrunqError, match="Spark is not installed") as caught:
        bench.run(name)
    assert caught.value.hint == "pip install 'trunq[spark]'"
    assert bench.client.list_runs(name) == []
