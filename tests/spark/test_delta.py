"""The lake sink without Spark: files, their statistics, commits that are seen once, and what is refused."""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from trunq.arrow.delta import open_table
from trunq.errors import InvalidArgument
from trunq.spark.errors import LakeError, LakeMismatch, LakeUnwritable
from trunq.spark.lake.delta import DeltaSink, Series, WrittenFiles, compact, vacuum
from trunq.spark.lake.format import TrunqDelta

QUERY = "3c1f"
ODD = ["a b/ü%=", "", "2013-01", None, "a:b?*[x]{y}^'\"#\\", "..", "é"]
MOMENT = dt.datetime(2013, 1, 1, 2, 3, 4, 567891, tzinfo=dt.UTC)


def schema(**columns: str) -> StructType:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()
    ]
    return StructType.fromJson({"type": "struct", "fields": fields})


def writer(path: Path, partition_by: tuple[str, ...] = ("month",), **columns: str) -> DeltaSink:
    return DeltaSink(str(path), schema(**(columns or {"id": "long", "month": "string"})), partition_by)


def batch(of: DeltaSink, **columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns, schema=of.columns)


def months(of: DeltaSink, first: int, count: int) -> pa.RecordBatch:
    ids = list(range(first, first + count))
    return batch(of, id=ids, month=[f"2013-{id % 12 + 1:02}" for id in ids])


def files(path: Path) -> set[str]:
    return {str(each.relative_to(path)) for each in path.rglob("*.parquet") if "_delta_log" not in each.parts}


def test_a_batch_is_seen_once_by_every_reader(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    for batch_id in range(3):
        parts = [
            sink.write([months(sink, batch_id * 200 + n * 100, 100)], Series(QUERY, batch_id), n)
            for n in (0, 1)
        ]
        sink.commit(parts, Series(QUERY, batch_id))
    table = DeltaTable(tmp_path)
    assert table.count() == 600
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == list(range(600))
    plain = ds.dataset(table.file_uris(), partitioning="hive", partition_base_dir=str(tmp_path))
    assert sorted(plain.to_table()["id"].to_pylist()) == list(range(600))
    assert set(plain.to_table()["month"].to_pylist()) == {f"2013-{n:02}" for n in range(1, 13)}
    # No file lies there that the table does not name: a reader of the bare directory sees the same.
    assert files(tmp_path) == {str(Path(uri).relative_to(tmp_path)) for uri in table.file_uris()}


def test_a_replayed_batch_adds_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    for batch_id in (0, 1):
        sink.commit(
            [sink.write([months(sink, batch_id * 50, 50)], Series(QUERY, batch_id), 0)],
            Series(QUERY, batch_id),
        )
    before, version = files(tmp_path), DeltaTable(tmp_path).version()
    for batch_id in (0, 1):
        sink.commit(
            [sink.write([months(sink, batch_id * 50, 50)], Series(QUERY, batch_id), 0)],
            Series(QUERY, batch_id),
        )
    assert files(tmp_path) == before
    assert (DeltaTable(tmp_path).version(), DeltaTable(tmp_path).count()) == (version, 100)
    sink.commit(
        [sink.write([months(sink, 0, 50)], Series("another query", 0), 0)], Series("another query", 0)
    )
    assert DeltaTable(tmp_path).count() == 150


def test_an_aborted_batch_leaves_nothing_and_a_killed_one_only_what_vacuum_removes(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.commit([sink.write([months(sink, 0, 50)], Series(QUERY, 0), 0)], Series(QUERY, 0))
    before = files(tmp_path)
    sink.abort([sink.write([months(sink, 50, 50)], Series(QUERY, 1), 0)])
    assert files(tmp_path) == before

    def failing() -> Any:
        yield months(sink, 50, 50)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        sink.write(failing(), Series(QUERY, 1), 0)
    assert files(tmp_path) == before
    sink.write([months(sink, 50, 50)], Series(QUERY, 1), 0)
    assert DeltaTable(tmp_path).count() == 50
    assert len(files(tmp_path) - before) == 12
    assert len(vacuum(str(tmp_path), 0)) == 12
    assert files(tmp_path) == before


def log_entries(path: Path) -> list[Path]:
    return sorted((path / "_delta_log").glob("*.json"))


def test_compaction_joins_small_files_and_shortens_the_log(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    for batch_id in range(8):
        rows = batch(sink, id=list(range(70)), month=[ODD[n % 7] for n in range(70)])
        sink.commit([sink.write([rows], Series(QUERY, batch_id), 0)], Series(QUERY, batch_id))
    before = DeltaTable(tmp_path).to_pyarrow_table().sort_by([("month", "ascending"), ("id", "ascending")])
    for entry in log_entries(tmp_path):
        two_days_ago = entry.stat().st_mtime - 2 * 86_400
        os.utime(entry, (two_days_ago, two_days_ago))
    assert compact(str(tmp_path)) == 8 * (len(ODD) - 1)
    table = DeltaTable(tmp_path)
    assert len(table.file_uris()) == len(ODD) - 1
    assert table.to_pyarrow_table().sort_by([("month", "ascending"), ("id", "ascending")]) == before
    assert len(log_entries(tmp_path)) < 3
    vacuum(str(tmp_path), 0)
    assert len(files(tmp_path)) == len(ODD) - 1
    # What the query had applied is still known.
    sink.commit([sink.write([months(sink, 0, 50)], Series(QUERY, 7), 0)], Series(QUERY, 7))
    assert DeltaTable(tmp_path).count() == 560
    sink.commit([sink.write([months(sink, 0, 50)], Series(QUERY, 8), 0)], Series(QUERY, 8))
    assert DeltaTable(tmp_path).count() == 610


def everything(path: Path) -> int:
    """How many files a table consists of, those of its log included."""
    return sum(1 for each in path.rglob("*") if each.is_file())


def test_a_table_compacted_every_day_stays_as_small_as_it_was(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sizes = []
    for day in range(4):
        for batch_id in range(day * 60, (day + 1) * 60):
            rows = batch(sink, id=[batch_id], month=[f"2013-{batch_id % 3 + 1}"])
            sink.commit([sink.write([rows], Series(QUERY, batch_id), 0)], Series(QUERY, batch_id))
        assert len(files(tmp_path)) >= 60
        compact(str(tmp_path))
        vacuum(str(tmp_path), 0)
        assert len(files(tmp_path)) == 3
        sizes.append(everything(tmp_path))
        # The day ends: what is there is a day older.
        for each in (tmp_path / "_delta_log").iterdir():
            os.utime(each, (each.stat().st_mtime - 90_000,) * 2)
    # Without an end, the log alone would grow by sixty entries a day.
    assert max(sizes) < sizes[0] + 30, sizes
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table()["id"].to_pylist()) == list(range(4 * 60))


def test_compaction_beside_a_query_that_writes(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.commit([sink.write([months(sink, 0, 120)], Series(QUERY, 0), 0)], Series(QUERY, 0))

    def write() -> None:
        for batch_id in range(1, 20):
            written = sink.write([months(sink, batch_id * 120, 120)], Series(QUERY, batch_id), 0)
            sink.commit([written], Series(QUERY, batch_id))

    def compact_often() -> None:
        for _ in range(8):
            compact(str(tmp_path))

    at_once(write, compact_often)
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table()["id"].to_pylist()) == list(range(2400))


def at_once(*works: Callable[[], None]) -> None:
    """Runs pieces of work at the same moment: Delta's library lets go of the interpreter to commit."""
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], None]) -> None:
        barrier.wait()
        work()

    with ThreadPoolExecutor(len(works)) as pool:
        for done in [pool.submit(run, work) for work in works]:
            done.result()


def test_several_queries_may_create_the_table_at_once(tmp_path: Path) -> None:
    sinks = [writer(tmp_path) for _ in range(4)]
    written = [
        sink.write([months(sink, n * 100, 100)], Series(f"query {n}", 0), 0) for n, sink in enumerate(sinks)
    ]
    at_once(*(partial(sink.commit, [each], each.series) for sink, each in zip(sinks, written, strict=True)))
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table()["id"].to_pylist()) == list(range(400))


def test_two_drivers_of_one_query_commit_a_batch_once(tmp_path: Path) -> None:
    sinks = [writer(tmp_path) for _ in range(3)]
    for batch_id in range(5):
        written = [
            sink.write([months(sink, batch_id * 100, 100)], Series(QUERY, batch_id), 0) for sink in sinks
        ]
        at_once(
            *(partial(sink.commit, [each], each.series) for sink, each in zip(sinks, written, strict=True))
        )
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table()["id"].to_pylist()) == list(range(500))
    assert len(files(tmp_path)) == 5 * 12


def test_odd_partition_values_come_back_as_they_were(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    rows = batch(sink, id=list(range(70)), month=[ODD[n % 7] for n in range(70)])
    sink.commit([sink.write([rows], Series(QUERY, 0), 0)], Series(QUERY, 0))
    table = DeltaTable(tmp_path)
    found = {row["id"]: row["month"] for row in table.to_pyarrow_table().to_pylist()}
    assert found == {n: ODD[n % 7] or None for n in range(70)}
    # The empty text is null, as the protocol says.
    assert len(files(tmp_path)) == len(ODD) - 1


def test_several_partition_columns_of_several_types(tmp_path: Path) -> None:
    sink = writer(
        tmp_path,
        ("day", "flag", "hour", "at"),
        id="long",
        day="date",
        flag="boolean",
        hour="integer",
        at="timestamp",
    )
    days = [dt.date(2013, 1, 1), None, dt.date(2013, 2, 1)]
    rows = {
        "id": list(range(60)),
        "day": [days[n % 3] for n in range(60)],
        "flag": [[True, False, None][n // 20] for n in range(60)],
        "hour": [n % 2 or None for n in range(60)],
        "at": [MOMENT] * 60,
    }
    sink.commit([sink.write([batch(sink, **rows)], Series(QUERY, 0), 0)], Series(QUERY, 0))
    found = DeltaTable(tmp_path).to_pyarrow_table().sort_by("id").to_pydict()
    assert found == rows
    assert sorted(got(tmp_path), key=lambda row: row[0]) == list(zip(*rows.values(), strict=True))


def test_statistics_bound_every_value(tmp_path: Path) -> None:
    kinds = {"id": "long", "at": "timestamp", "text": "string", "number": "double", "day": "date"}
    sink = writer(tmp_path, (), **kinds, raw="binary", flag="boolean")
    rows = batch(
        sink,
        id=[3, None, -7],
        at=[MOMENT, MOMENT - dt.timedelta(days=1), None],
        text=["y" * 100, "b", "y" * 99],
        number=[1.5, None, -2.0],
        day=[dt.date(2013, 5, 1), dt.date(1969, 1, 1), None],
        raw=[b"1", None, None],
        flag=[True, None, False],
    )
    sink.commit([sink.write([rows], Series(QUERY, 0), 0)], Series(QUERY, 0))
    log = (tmp_path / "_delta_log" / "00000000000000000001.json").read_text().splitlines()
    added = [json.loads(line)["add"] for line in log if "add" in json.loads(line)]
    stats = json.loads(added[0]["stats"])
    assert stats["numRecords"] == 3
    assert stats["nullCount"] == {"id": 1, "at": 1, "text": 0, "number": 1, "day": 1, "raw": 2, "flag": 1}
    assert stats["minValues"] == {
        "id": -7, "at": "2012-12-31T02:03:04.567891Z", "text": "b", "number": -2.0, "day": "1969-01-01",
    }  # fmt: skip
    assert stats["maxValues"] == {
        "id": 3, "at": "2013-01-01T02:03:04.567891Z", "text": "y" * 64 + "\U0010ffff", "number": 1.5,
        "day": "2013-05-01",
    }  # fmt: skip
    table = DeltaTable(tmp_path)
    assert table.to_pyarrow_table(filters=[("text", ">", "y" * 98)]).num_rows == 2
    assert table.to_pyarrow_table(filters=[("at", ">=", MOMENT)]).num_rows == 1


def test_bounds_that_would_be_wrong_are_left_out(tmp_path: Path) -> None:
    sink = writer(tmp_path, (), number="double", text="string", price="decimal(10,2)")
    rows = batch(
        sink,
        number=[1.0, float("nan")],
        text=["a" * 64 + "\U0010ffff" + "z", "a"],
        price=[Decimal("1.10"), None],
    )
    (file,) = sink.write([rows], Series(QUERY, 0), 0).files
    stats = json.loads(file.statistics)
    assert stats == {
        "numRecords": 2, "minValues": {}, "maxValues": {}, "nullCount": {"number": 0, "text": 0, "price": 1},
    }  # fmt: skip


def test_rows_that_do_not_fit_the_table_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    sink.check()
    sink.commit([sink.write([months(sink, 0, 10)], Series(QUERY, 0), 0)], Series(QUERY, 0))
    before = files(tmp_path)
    for other, problem in (
        (writer(tmp_path, id="integer", month="string"), 'column "id" is long in the table and integer here'),
        (writer(tmp_path, id="long", month="string", more="long"), 'the table has no column "more"'),
        (writer(tmp_path, month="string", day="date"), 'column "id" is missing'),
        (writer(tmp_path, ()), r"partitioned by \(month\), not by \(\)"),
    ):
        with pytest.raises(LakeMismatch, match=problem):
            other.check()
    assert files(tmp_path) == before


def test_partition_columns_must_exist_and_leave_something(tmp_path: Path) -> None:
    for partition_by, problem in (
        (("moon",), 'partitioned by "moon", which is not a column'),
        (("price",), "cannot be partitioned by it"),
        (("id", "price"), "cannot be partitioned by it"),
    ):
        with pytest.raises(InvalidArgument, match=problem):
            writer(tmp_path, partition_by, id="long", price="double").check()
    with pytest.raises(InvalidArgument, match="nothing would be left"):
        writer(tmp_path, ("id",), id="long").check()


@pytest.mark.parametrize(("path", "problem"), [("", "needs a path"), ("s3://bucket/table", "not to s3://")])
def test_a_path_that_cannot_be_written_to_is_refused(path: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        TrunqDelta({"path": path}).streamWriter(schema(id="long"), False)


def test_a_sink_that_appends_refuses_to_replace() -> None:
    with pytest.raises(InvalidArgument, match="complete"):
        TrunqDelta({"path": "/x"}).streamWriter(schema(id="long"), True)


@pytest.mark.parametrize(
    "works", [TrunqDelta.schema, lambda sink: sink.streamWriter(schema(id="long"), False)]
)
def test_an_option_that_there_is_not_is_refused(works: Callable[[TrunqDelta], Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match='no option "partitionby2"') as caught:
        works(TrunqDelta({"path": str(tmp_path), "partitionby2": "id"}))
    assert caught.value.hint == "its options: path, partitionBy, checkpointLocation"


def put(path: Path, rows: dict[str, list[Any]], overwrite: bool, **options: str) -> None:
    """Writes rows as Spark's tasks and driver do."""
    source = TrunqDelta({"path": str(path), **options})
    driver = source.writer(schema(id="long", month="string"), overwrite)
    made = batch(driver.sink, **rows)
    tasks = [driver.sink.write(batches, Series(None, 0), n) for n, batches in enumerate(([made], []))]
    driver.commit([*tasks, None])


def got(path: Path, given: StructType | None = None) -> list[tuple[Any, ...]]:
    source = TrunqDelta({"path": str(path)})
    reader = pickle.loads(pickle.dumps(source.reader(given or source.schema())))  # noqa: S301
    parts = pickle.loads(pickle.dumps(reader.partitions()))  # noqa: S301
    return [tuple(row.values()) for part in parts for each in reader.read(part) for row in each.to_pylist()]


def test_a_batch_adds_rows_or_replaces_those_there_are(tmp_path: Path) -> None:
    put(tmp_path, {"id": [1, 2], "month": ["a", "b"]}, False, partitionBy="month")
    put(tmp_path, {"id": [3], "month": ["a"]}, False, partitionBy="month")
    assert sorted(got(tmp_path)) == [(1, "a"), (2, "b"), (3, "a")]
    with pytest.raises(LakeMismatch, match=r"partitioned by \(month\), not by \(\)"):
        put(tmp_path, {"id": [3], "month": ["a"]}, False)
    older = DeltaTable(tmp_path).version()
    put(tmp_path, {"id": [4], "month": ["c"]}, True, partitionBy="month")
    assert got(tmp_path) == [(4, "c")]
    put(tmp_path, {"id": [], "month": []}, True, partitionBy="month")
    assert got(tmp_path) == []
    assert DeltaTable(tmp_path, version=older).count() == 3


def test_a_batch_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    put(tmp_path, {"id": [1], "month": ["a"]}, False)
    before = files(tmp_path)
    driver = TrunqDelta({"path": str(tmp_path)}).writer(schema(id="long", month="string"), False)
    driver.abort([driver.sink.write([months(writer(tmp_path), 0, 3)], Series(None, 0), 0), None])
    assert files(tmp_path) == before


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    sink = writer(tmp_path)
    for batch_id in (0, 1):
        rows = batch(sink, id=list(range(70)), month=[ODD[n % 7] for n in range(70)])
        sink.commit([sink.write([rows], Series(QUERY, batch_id), 0)], Series(QUERY, batch_id))
    expected = sorted(2 * [(n, ODD[n % 7] or None) for n in range(70)])
    assert sorted(got(tmp_path)) == expected
    assert sorted(got(tmp_path, schema(month="string", id="long")), key=lambda row: row[1]) == [
        (m, n) for n, m in expected
    ]
    assert sorted(got(tmp_path, schema(id="long"))) == [(n,) for n, _ in expected]
    with pytest.raises(InvalidArgument, match='has no column "moon"'):
        got(tmp_path, schema(moon="string"))


def test_only_a_table_that_is_there_is_read_and_none_is_followed(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="no Delta table"):
        TrunqDelta({"path": str(tmp_path)}).schema()
    with pytest.raises(InvalidArgument, match="cannot be followed by a stream"):
        TrunqDelta({"path": str(tmp_path)}).streamReader(schema(id="long"))


def test_a_place_that_takes_no_files_is_said_so(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    sink = writer(file / "table")
    with pytest.raises(LakeUnwritable, match="Not a directory"):
        sink.write([months(sink, 0, 10)], Series(QUERY, 0), 0)
    with pytest.raises(LakeUnwritable, match="Not a directory"):
        sink.commit([WrittenFiles(Series(QUERY, 0), [])], Series(QUERY, 0))


@pytest.fixture
def small_files() -> Iterator[None]:
    """This process may write no file above 64 kB, which fails as a full disk does: amid a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
def test_a_disk_that_fills_up_leaves_nothing_half_committed(tmp_path: Path) -> None:
    sink = writer(tmp_path, (), id="long", text="string")
    sink.commit([sink.write([batch(sink, id=[1], text=["x"])], Series(QUERY, 0), 0)], Series(QUERY, 0))
    texts = [str(n * 7919 % 1_000_003) * 8 for n in range(50_000)]
    with pytest.raises(LakeUnwritable, match=f"cannot write the lake table {tmp_path}: File too large"):
        sink.write([batch(sink, id=list(range(50_000)), text=texts)], Series(QUERY, 1), 0)
    assert DeltaTable(tmp_path).count() == 1
    assert len(files(tmp_path)) == 1


def test_there_is_no_table_before_the_first_batch(tmp_path: Path) -> None:
    assert open_table(str(tmp_path / "none")) is None
    writer(tmp_path / "none").check()
    assert not (tmp_path / "none").exists()
