"""Spark writing into Postgres: format("trunq") against Spark's own JDBC writer, with the same rows.

Both write 300,000 rows from Parquet files in the same Spark session, in two tasks, over TCP: into a table of
five columns, and into a queue, where JDBC inserts into the log. JDBC has reWriteBatchedInserts and batches
of 10,000; it is at least once, as is the protocol direct. JDBC needs the driver: Debian's package
libpostgresql-jdbc-java, or --jar.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.sql import DataFrame

from _bench import (
    QUEUE,
    Options,
    Table,
    at_least,
    connect,
    in_turn,
    main,
    median_ratio,
    new_database,
    seconds,
    server,
)
from spark_source import _free_port, arguments
from trunq import spark as trunq_spark

TASKS: Final = 2
ROWS: Final = (
    "id",
    "concat('customer-', id % 5000) as customer",
    "date_add(date'2026-01-01', int(id % 365)) as day",
    "id * 0.25d as total",
    "repeat(concat(id, ' is what was said about it. '), 6) as note",
)
MESSAGES: Final = (
    "'sold' as kind",
    "customer as key",
    "to_json(struct(*)) as payload",
)
COLUMNS: Final = "customer text, day date, total double precision, note text"
TABLES: Final = (
    f"create table landed (id bigint, {COLUMNS})",
    f"create table upserted (id bigint primary key, {COLUMNS})",
)
TARGETS: Final = {"staged": 0.9, "queue, staged": 0.7, "upsert": 0.5}

Arms = dict[str, Callable[[], float]]


def measure(options: Options) -> Iterator[Table]:
    """Tables and queues, every protocol and JDBC in turn; the median of the ratios of the rounds."""
    jar = options.extra.jar
    if not jar.exists():
        sys.exit(
            f"{jar} is not there: apt-get install libpostgresql-jdbc-java, or name the driver with --jar"
        )
    rows, rounds = options.size(100_000, 30_000), options.rounds(quick=1)
    port = _free_port()
    directory = tempfile.mkdtemp()
    try:
        with server(options, listen_addresses="127.0.0.1", port=port) as running:
            dsn = make_conninfo(new_database(running), host="127.0.0.1", port=port)
            with connect(dsn) as connection:
                for table in TABLES:
                    connection.execute(table.encode())
            session = trunq_spark.session("benchmark", f"local[{TASKS}]", "3g", {"spark.jars": str(jar)})
            session.range(0, rows, 1, TASKS).selectExpr(*ROWS).write.parquet(f"{directory}/rows")
            how = (
                f"{rows:,} rows, {TASKS} cores and tasks, median of {rounds} rounds in turn,"
                f" Spark {session.version}, over TCP."
            )
            frame = session.read.parquet(f"{directory}/rows")
            into_tables = _into_tables(frame, dsn, rows)
            yield _compared("Spark into a table, rows/s", how, into_tables, rounds, {"upsert": "staged"})
            yield _compared("Spark into a queue, messages/s", how, _into_queues(frame, dsn, rows), rounds)
            session.stop()
    finally:
        shutil.rmtree(directory)


def _compared(title: str, how: str, arms: Arms, rounds: int, others: dict[str, str] | None = None) -> Table:
    table = Table(title, how, ("writer", "rows/s", "ratio", "to", "target"))
    figures = in_turn(arms, rounds, warm_up=arms)
    for name, found in figures.items():
        baseline = (others or {}).get(name, "JDBC")
        ratio = median_ratio(figures, name, baseline)
        target = at_least(ratio, TARGETS[name]) if name in TARGETS else ""
        table.add(name, f"{sorted(found)[len(found) // 2]:,.0f}", f"{ratio:.2f}", baseline, target)
    return table


def _into_tables(frame: DataFrame, dsn: str, rows: int) -> Arms:
    def arm(write: Callable[[], None], table: str = "landed") -> Callable[[], float]:
        return _arm(dsn, table, rows, write)

    ours = {
        name: arm(lambda name=name: _write(frame, dsn, table="landed", commitProtocol=name))  # type: ignore[misc]
        for name in ("staged", "partition", "direct")
    }
    upsert = arm(lambda: _write(frame, dsn, table="upserted", upsertKey="id"), "upserted")
    return {"JDBC": arm(lambda: _jdbc(frame, dsn, "landed")), **ours, "upsert": upsert}


def _into_queues(frame: DataFrame, dsn: str, rows: int) -> Arms:
    messages = frame.selectExpr(*MESSAGES)
    log = f"trunq_log.{QUEUE}"

    def arm(write: Callable[[], None]) -> Callable[[], float]:
        return _arm(dsn, log, rows, write)

    def ours(given: DataFrame, protocol: str, **options: str) -> Callable[[], float]:
        return arm(lambda: _write(given, dsn, queue=QUEUE, commitProtocol=protocol, **options))

    of_columns = {"payloadColumn": "*", "keyColumn": "customer", "kind": "sold"}
    return {
        "JDBC": arm(lambda: _jdbc(messages, dsn, log)),
        "queue, staged": ours(messages, "staged"),
        "queue, partition": ours(messages, "partition"),
        "queue, direct": ours(messages, "direct"),
        "queue, staged, payload of all columns": ours(frame, "staged", **of_columns),
    }


def _arm(dsn: str, table: str, rows: int, write: Callable[[], None]) -> Callable[[], float]:
    def run() -> float:
        with connect(dsn) as connection:
            connection.execute(f"truncate {table}".encode())
        took = seconds(write)
        with connect(dsn) as connection:
            found = connection.execute(f"select count(*) from {table}".encode()).fetchone()
        assert found == (rows,)
        return rows / took

    return run


def _write(frame: DataFrame, dsn: str, **given: str) -> None:
    frame.write.format("trunq").options(dsn=dsn, **given).mode("append").save()


def _jdbc(frame: DataFrame, dsn: str, table: str) -> None:
    address = conninfo_to_dict(dsn)
    url = f"jdbc:postgresql://{address['host']}:{address['port']}/{address['dbname']}"
    properties: dict[str, Any] = {
        "user": str(address["user"]),
        "driver": "org.postgresql.Driver",
        "reWriteBatchedInserts": "true",
        "batchsize": "10000",
        # Lets Postgres read a text as what its column is: jsonb.
        "stringtype": "unspecified",
    }
    frame.write.jdbc(url, table, "append", properties)


if __name__ == "__main__":
    main(__doc__, measure, *arguments())
