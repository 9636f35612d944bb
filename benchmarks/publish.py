"""Publishing against the least Postgres can do: the same rows into a bare table.

The bare table has the log's columns with their defaults, but is one plain table without an index, a
constraint or a trigger. Many at a time: COPY into the log (columns kind and payload) and
`Client.publish_many`, each in transactions of the same size as the baseline, a COPY into the bare table.
What one call can reach at best shows the INSERT of an array, made beforehand, into the bare table.
One at a time: INSERT into the log, the queue's own function `trunq_queue.q_publish(...)`,
`trunq.publish('q', ...)` and `Client.publish`, against an INSERT into the bare table; by pgbench (prepared,
one connection) in databases with 1, 65 and 1,000 queues, or by psycopg where the client is what is measured.
All of it also without the wait for the disk, where the difference is widest.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
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
    microseconds,
    new_database,
    payload,
    percentile,
    pgbench,
    seconds,
    server,
    server_time,
    settle,
)
from trunq import Client
from trunq.embedded import Embedded
from trunq.wire.array import adapt_arrays, jsonb_array
from trunq.wire.json import RawJson

LOG = f"trunq_log.{QUEUE}"
QUEUES = (1, 65, 1000)
"""In the database, for single publishes."""

BARE = f"""
create table bare (like {LOG} including defaults);
create sequence bare_id cache 32;
alter table bare alter id set default nextval('bare_id');
"""

VALUES = f"p_payload => '{payload()}', p_kind => '{KIND}'"
SCRIPTS = {
    "bare INSERT": f"insert into bare (kind, payload) values ('{KIND}', '{payload()}');",
    "INSERT into the log": f"insert into {LOG} (kind, payload) values ('{KIND}', '{payload()}');",
    f"trunq_queue.{QUEUE}_publish": f"select trunq_queue.{QUEUE}_publish({VALUES});",
    f"trunq.publish('{QUEUE}', ...)": f"select trunq.publish(p_queue => '{QUEUE}', {VALUES});",
}

MANY_TARGETS = {"COPY into the log": 0.75, "Client.publish_many": 0.6}
ONE_TARGETS = {f"trunq_queue.{QUEUE}_publish": 0.8, f"trunq.publish('{QUEUE}', ...)": 0.55}
CLIENT_TARGETS = {"Client.publish(connection=...)": 0.8}
"""Without the wait for the disk: after one, the same Python takes several times as long."""


def measure(options: Options) -> Iterator[Table]:
    """Many at a time, then one at a time."""
    with server(options) as running:
        dsn = new_database(running)
        with connect(dsn) as connection:
            connection.execute(BARE.encode(), prepare=False)
            for chunk in (1_000, 10_000):
                yield many(options, dsn, connection, chunk)
        addresses = databases(options, running)
        yield one(options, running, addresses)
        yield by_processor(options, addresses)
        yield by_client(options, dsn)


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
                client.publish_many(QUEUE, payloads, kind=KIND)

        works: dict[str, Callable[[], None]] = {
            "bare COPY": partial(copy_in, connection, "bare", messages, chunk),
            "COPY into the log": partial(copy_in, connection, LOG, messages, chunk),
            "Client.publish_many": publish_many,
            "INSERT of an array into the bare table": insert_array,
        }
        arms = {name: partial(rate, dsn, work, messages) for name, work in works.items()}
        figures = in_turn(arms, rounds=options.rounds(25, 1), warm_up=works)
    table = Table(
        f"publish, {chunk:,} at a time, Postgres {options.postgres}",
        f"{messages:,} messages of 200 bytes in transactions of {chunk:,}, one connection; median of "
        f"{len(figures['bare COPY'])} rounds in turn, a checkpoint before each; both tables had "
        f"{messages:,} before.",
        ["way", "messages/s", "ratio", "target"],
    )
    add_rows(table, figures, "bare COPY", targets=MANY_TARGETS)
    return table


def rate(dsn: str, work: Callable[[], None], messages: int) -> float:
    """Messages a second."""
    settle(dsn)
    return messages / seconds(work)


def one(options: Options, running: Embedded, addresses: dict[int, str]) -> Table:
    """Single publishes by pgbench, as durable as the server is set, and without the wait for the disk."""
    length, rounds = options.size(1, 1), options.rounds(15, 1)
    table = Table(
        f"publish, one at a time, Postgres {options.postgres}",
        f"A transaction for each message of 200 bytes, one connection, pgbench, prepared, {length} s an arm; "
        f"median of {rounds} rounds in turn, each with all numbers of queues.",
        ["way", "messages/s", "ratio", "target"],
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for wait in ("on", "off"):
            arms = {}
            for count, dsn in addresses.items():
                address = make_conninfo(dsn, options=f"-c synchronous_commit={wait}")
                for number, (name, script) in enumerate(SCRIPTS.items()):
                    path = Path(folder, str(number))
                    path.write_text(script)
                    arms[(count, name)] = partial(pgbench, running, address, path, clients=1, seconds=length)
            figures = in_turn(arms, rounds)
            for count in addresses:
                some = {name: figures[(count, name)] for name in SCRIPTS}
                note = f"; {count:,} queue{'s' * (count > 1)}" + unwaited(wait)
                add_rows(table, some, "bare INSERT", note, ONE_TARGETS)
    return table


def by_processor(options: Options, addresses: dict[int, str]) -> Table:
    """What single publishes cost the server: the figure that a busy machine or a slow disk hides least."""
    calls = options.size(1500, 20)
    table = Table(
        f"publish, one at a time: processor time of the server, Postgres {options.postgres}",
        f"The same statements, {calls:,} times each in turn, without the wait for the disk; the tenth "
        "percentile. The ratio is the bare INSERT's time to this one's.",
        ["way", "a message", "ratio"],
    )
    for count, dsn in addresses.items():
        times: dict[str, list[float]] = {name: [] for name in SCRIPTS}
        with connect(dsn, synchronous_commit="off") as connection:
            for _ in range(calls):
                for name, script in SCRIPTS.items():
                    times[name].append(server_time(connection, partial(connection.execute, script.encode())))
        typical = {name: percentile(taken, 0.1) for name, taken in times.items()}
        for name, figure in typical.items():
            note = f"; {count:,} queue{'s' * (count > 1)}"
            table.add(name + note, microseconds(figure), f"{typical['bare INSERT'] / figure:.2f}")
    return table


def databases(options: Options, running: Embedded) -> dict[int, str]:
    """Addresses by the number of queues."""
    return {count: database_of(running, options.size(count, min(count, 3))) for count in QUEUES}


def unwaited(wait: str) -> str:
    """How a row says that it did not wait for the disk."""
    return "" if wait == "on" else ", synchronous_commit off"


def database_of(running: Embedded, queues: int) -> str:
    """A database with this many queues, and the bare table."""
    dsn = new_database(running)
    with connect(dsn) as connection:
        connection.execute(BARE.encode(), prepare=False)
        for number in range(1, queues):
            connection.execute("select trunq.create_queue(%s)", (f"other_{number}",))
        connection.execute("vacuum analyze")
    return dsn


def by_client(options: Options, dsn: str) -> Table:
    """The client against psycopg itself."""
    table = Table(
        f"publish by the client, one at a time, Postgres {options.postgres}",
        "A transaction for each message of 200 bytes, psycopg, prepared; ways in turn message by message, "
        "1,500 of each, 4,000 without the wait for the disk. The median time of a call.",
        ["way", "a message", "ratio", "target"],
    )
    body = RawJson(payload())
    for wait, calls in (("on", options.size(1500, 20)), ("off", options.size(4000, 20))):
        address = make_conninfo(dsn, options=f"-c synchronous_commit={wait}")
        with connect(address) as connection, Client(address) as client:
            works: dict[str, Callable[[], object]] = {
                "bare INSERT by psycopg": partial(
                    connection.execute, "insert into bare (kind, payload) values (%s, %s)", (KIND, body.text)
                ),
                "Client.publish": partial(client.publish, QUEUE, body, kind=KIND),
                "Client.publish(connection=...)": partial(
                    client.publish, QUEUE, body, kind=KIND, connection=connection
                ),
            }
            times = in_turn(
                {name: partial(seconds, work) for name, work in works.items()}, calls, warm_up=works
            )
        typical = {name: statistics.median(taken) for name, taken in times.items()}
        for name, figure in typical.items():
            ratio = typical["bare INSERT by psycopg"] / figure
            target = CLIENT_TARGETS.get(name) if wait == "off" else None
            judged = "" if target is None else at_least(ratio, target)
            table.add(name + unwaited(wait), microseconds(figure), f"{ratio:.2f}", judged)
    return table


def add_rows(
    table: Table,
    figures: dict[str, list[float]],
    baseline: str,
    note: str = "",
    targets: Mapping[str, float] | None = None,
) -> None:
    """A row an arm, with the target for those that are judged by it."""
    for name, rates in figures.items():
        ratio = median_ratio(figures, name, baseline)
        target = at_least(ratio, targets[name]) if targets and name in targets else ""
        table.add(name + note, a_second(statistics.median(rates)), f"{ratio:.2f}", target)


if __name__ == "__main__":
    main(__doc__, measure)
