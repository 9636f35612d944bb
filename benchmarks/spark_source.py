"""Spark reading a queue: format("trunq") against Spark's own JDBC source over the same rows.

Both read 1,000,000 messages of 200 bytes in the same Spark session, in two partitions with the same bounds,
all nine columns, over TCP; JDBC with a fetch size of 10,000. Into no sink, and into Parquet files. JDBC needs
the driver: Debian's package libpostgresql-jdbc-java, or --jar.
"""

from __future__ import annotations

import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.sql import DataFrame, SparkSession

from _bench import (
    QUEUE,
    Options,
    Table,
    at_least,
    connect,
    copy_in,
    in_turn,
    main,
    new_database,
    seconds,
    server,
)
from trunq import spark as trunq_spark
from trunq.spark.connection import Database
from trunq.spark.source.column import BY_NAME
from trunq.spark.source.log import QueueLog
from trunq.spark.source.option import Options as SourceOptions
from trunq.spark.source.reader import START, plan

JAR: Final = Path("/usr/share/java/postgresql.jar")
PARTITIONS: Final = 2
TARGET: Final = 0.8


def measure(options: Options) -> Iterator[Table]:
    """Noop and Parquet, both sources in turn, the best run of each."""
    jar = options.extra.jar
    if not jar.exists():
        sys.exit(
            f"{jar} is not there: apt-get install libpostgresql-jdbc-java, or name the driver with --jar"
        )
    messages = options.size(400_000, 50_000)
    rounds = options.rounds(quick=1)
    port = _free_port()
    with server(options, listen_addresses="127.0.0.1", port=port) as running:
        dsn = make_conninfo(new_database(running), host="127.0.0.1", port=port)
        with connect(dsn) as connection:
            copy_in(connection, f"trunq_log.{QUEUE}", messages)
            connection.execute("select trunq.tick(%s, p_force => true)", (QUEUE,))
        session = trunq_spark.session("benchmark", f"local[{PARTITIONS}]", "3g", {"spark.jars": str(jar)})
        sources = {"trunq": lambda: _ours(session, dsn), "JDBC": lambda: _jdbc(session, dsn)}
        table = Table(
            f"Spark source, {messages:,} messages, rows/s",
            f"{PARTITIONS} cores and partitions, best of {rounds} runs in turn,"
            f" Spark {session.version}, over TCP.",
            ("sink", *sources, "ratio", "target"),
        )
        for sink, write in (("none", _discard), ("Parquet files", _write_parquet)):
            arms = {name: _arm(source, write, messages) for name, source in sources.items()}
            figures = in_turn(arms, rounds, warm_up=arms)
            best = {name: max(found) for name, found in figures.items()}
            ratio = best["trunq"] / best["JDBC"]
            table.add(
                sink, *(f"{each:,.0f}" for each in best.values()), f"{ratio:.2f}", at_least(ratio, TARGET)
            )
        session.stop()
    yield table


def _arm(
    source: Callable[[], DataFrame], write: Callable[[DataFrame], None], messages: int
) -> Callable[[], float]:
    return lambda: messages / seconds(lambda: write(source()))


def _ours(session: SparkSession, dsn: str) -> DataFrame:
    given = {"dsn": dsn, "queue": QUEUE, "minPartitions": str(PARTITIONS)}
    return session.read.format("trunq").options(**given).load()


def _jdbc(session: SparkSession, dsn: str) -> DataFrame:
    address = conninfo_to_dict(dsn)
    chosen = ", ".join(column.sql for column in BY_NAME.values())
    columns = f"{chosen}, txid, subscription_id"
    return session.read.jdbc(
        f"jdbc:postgresql://{address['host']}:{address['port']}/{address['dbname']}",
        f"(select {columns} from trunq_log.{QUEUE} g) messages",
        predicates=_predicates(dsn),
        properties={"user": str(address["user"]), "driver": "org.postgresql.Driver", "fetchsize": "10000"},
    ).select(*BY_NAME)


def _predicates(dsn: str) -> list[str]:
    """The bounds of our own partitions."""
    database = Database(lambda: dsn)
    log = QueueLog(database, QUEUE)
    parts = plan(log, START, log.newest_tick(), SourceOptions(QUEUE, dsn, min_partitions=PARTITIONS))
    database.close()
    return [f"({' or '.join(each.part.conditions())}) and subscription_id is null" for each in parts]


def _discard(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _write_parquet(frame: DataFrame) -> None:
    directory = tempfile.mkdtemp()
    try:
        frame.write.mode("overwrite").parquet(directory)
    finally:
        shutil.rmtree(directory)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def arguments() -> tuple[tuple[str, dict[str, Any]], ...]:
    """What only this benchmark knows."""
    return (("--jar", {"type": Path, "default": JAR, "help": f"the JDBC driver ({JAR})"}),)


if __name__ == "__main__":
    main(__doc__, measure, *arguments())
