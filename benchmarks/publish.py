"""Publishing against the least Postgres can do: the same rows into a bare table.

The bare table has the log's columns with their defaults, but is one plain table without an index, a
constraint or a trigger. Many at a time: COPY into the log (columns kind and payload) and
`Client.publish_many`, each in transactions of the same size as the baseline, a COPY into the bare table.
What one call can reach at best shows the INSERT of an array, made beforehand, into the bare table.
One at a time: INSERT into the log, `select trunq.publish(...)` and `Client.publish`, against an INSERT into
the bare table; by pgbench (prepared, one connection) or by psycopg where the client is what is measured.
Single ones are also shown without the wait for the disk, where the difference is widest.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from _bench import (
    KIND,
    QUEUE,
    Options,
    Table,
    a_second,
    at_least,
    connect,
    copy_in,
    in_turn,
    main,
    median_ratio,
    new_database,
    payload,
    pgbench,
    seconds,
    server,
    settle,
)
from trunq import Client
from trunq.embedded import Embedded
from trunq.wire.array import adapt_arrays, jsonb_array
from trunq.wire.json import RawJson

TARGET = 0.8
LOG = f"trunq_log.{QUEUE}"

BARE = f"""
create table bare (like {LOG} including defaults);
create sequence bare_id cache 32;
alter table bare alter id set default nextval('bare_id');
"""

SCRIPTS = {
    "bare INSERT": f"insert into bare (kind, payload) values ('{KIND}', '{payload()}');",
    "INSERT into the log": f"insert into {LOG} (kind, payload) values ('{KIND}', '{payload()}');",
    "trunq.publish": f"select trunq.publish(p_queue => '{QUEUE}', p_payload => '{payload()}', p_kind => "
    "'{KIND}');",
}


ONE_AT_A_TIME = ("INSERT into the log", "trunq.publish", "Client.publish", "Client.publish(connection=...)")


def measure(options: Options) -> Iterator[Table]:
    """Many at a time, then one at a time."""
    with server(options) as running:
        dsn = new_database(running)
        with connect(dsn) as connection:
            connection.execute(BARE.encode(), prepare=False)
            for chunk in (1_000, 10_000):
                yield many(options, dsn, connection, chunk)
            yield one(options, running, dsn)


def many(options: Options, dsn: str, connection: psycopg.Connection[Any], chunk: int) -> Table:
    """COPY and publish_many."""
    messages = options.size(20_000, chunk)
    for name in ("bare", LOG):
        connection.execute(f"truncate {name}".encode())
        copy_in(connection, name, messages)
    payloads = [RawJson(payload(number)) for number in range(chunk)]
    with Client(dsn) as client, connection.cursor() as cursor:
        adapt_arrays(cursor)
        array = jsonb_array("payloads", payloads)

        def insert_array() -> None:
            for _ in range(0, messages, chunk):
                cursor.execute(
                    "insert into bare (kind, payload) select %s, unnest(%s::jsonb[])", (KIND, array)
                )

        def publish_many() -> None:
            for _ in range(0, messages, chunk):
                client.publish_many(QUEUE, payloads, kinds=KIND)

        works: dict[str, Callable[[], None]] = {
            "bare COPY": partial(copy_in, connection, "bare", messages, chunk),
            "COPY into the log": partial(copy_in, connection, LOG, messages, chunk),
            "Client.publish_many": publish_many,
            "INSERT of an array into the bare table": insert_array,
        }
        arms = {name: partial(rate, dsn, work, messages) for name, work in works.items()}
        figures = in_turn(arms, rounds=options.size(25, 1), warm_up=works)
    table = Table(
        f"publish, {chunk:,} at a time, Postgres {options.postgres}",
        f"{messages:,} messages of 200 bytes in transactions of {chunk:,}, one connection; median of "
        f"{len(figures['bare COPY'])} rounds in turn, a checkpoint before each; both tables had "
        f"{messages:,} before.",
        ["way", "messages/s", "ratio", "target"],
    )
    add_rows(table, figures, "bare COPY", judged=("COPY into the log", "Client.publish_many"))
    return table


def rate(dsn: str, work: Callable[[], None], messages: int) -> float:
    """Messages a second."""
    settle(dsn)
    return messages / seconds(work)


def one(options: Options, running: Embedded, dsn: str) -> Table:
    """Single publishes, as durable as the server is set, and without the wait for the disk."""
    length, rounds = options.size(1, 1), options.size(20, 1)
    table = Table(
        f"publish, one at a time, Postgres {options.postgres}",
        f"A transaction for each message of 200 bytes, one connection, {length} s an arm; median of "
        f"{rounds} rounds in turn. "
        "The first part by pgbench, prepared; the second by psycopg, prepared.",
        ["way", "messages/s", "ratio", "target"],
    )
    for wait in ("on", "off"):
        address = make_conninfo(dsn, options=f"-c synchronous_commit={wait}")
        note = "" if wait == "on" else ", synchronous_commit off"
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            arms = {}
            for name, script in SCRIPTS.items():
                path = Path(folder, name.replace(" ", "_"))
                path.write_text(script)
                arms[name] = partial(pgbench, running, address, path, clients=1, seconds=length)
            judged = ONE_AT_A_TIME if wait == "on" else ()
            add_rows(table, in_turn(arms, rounds), "bare INSERT", note, judged)
        add_rows(table, by_client(address, length, rounds), "bare INSERT by psycopg", note, judged)
    return table


def by_client(dsn: str, length: int, rounds: int) -> dict[str, list[float]]:
    """The client against psycopg itself."""
    body = RawJson(payload())
    with connect(dsn) as connection, Client(dsn) as client:

        def insert() -> None:
            connection.execute("insert into bare (kind, payload) values (%s, %s)", (KIND, body.text))

        def publish() -> None:
            client.publish(QUEUE, body, kind=KIND)

        def publish_here() -> None:
            client.publish(QUEUE, body, kind=KIND, connection=connection)

        works = {
            "bare INSERT by psycopg": insert,
            "Client.publish": publish,
            "Client.publish(connection=...)": publish_here,
        }
        return in_turn(
            {name: partial(repeated, work, length) for name, work in works.items()}, rounds, warm_up=works
        )


def repeated(work: Callable[[], None], length: float) -> float:
    """How often a second it can be done."""
    calls, took = 0, 0.0
    while took < length:
        took += seconds(work)
        calls += 1
    return calls / took


def add_rows(
    table: Table,
    figures: dict[str, list[float]],
    baseline: str,
    note: str = "",
    judged: Collection[str] = (),
) -> None:
    """A row an arm, with the target for those that are judged by it."""
    for name, rates in figures.items():
        ratio = median_ratio(figures, name, baseline)
        target = at_least(ratio, TARGET) if name in judged else ""
        table.add(name + note, a_second(statistics.median(rates)), f"{ratio:.2f}", target)


if __name__ == "__main__":
    main(__doc__, measure)
