"""Twenty subscriptions that read 5 % of a queue each, against one that reads all of it; and beside them, one
subscription whose twenty workers ask for 5 % of it each.

Every subscription walks over the whole log, so all together do the work of twenty looks at each message and
of one lease and ack. Measured is the processor time of the server process that leases (500 at a time) and
acks for all of them in turn, and compared is what one plain subscription takes for the same messages. Leases
that ask share a position: what the others ask for is set aside, once for each message, and taken from there.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from _bench import (
    QUEUE,
    Options,
    Table,
    at_least,
    connect,
    main,
    median_ratio,
    microseconds,
    new_database,
    server,
    server_time,
)

READERS = 20
AT_A_TIME = 500
TARGETS = {"kinds": 0.35, "headers": 0.3}
APART = "asked"
"""A queue of their own: what is taken lies in the log again, where the others would walk over it."""
ASKED = {"asks, kinds": "kinds", "asks, headers": "headers"}

LEASE = f"select lease_id, token, id from trunq_queue.{QUEUE}_lease(%s, 'w', {AT_A_TIME})"
ASK = f"select lease_id, token, id from trunq_queue.{APART}_lease(%s, 'w', {AT_A_TIME}, p_asks => %s)"
ACK = f"select trunq_queue.{QUEUE}_ack(%s, %s, %s, %s::bigint[])"
ACK_APART = f"select trunq_queue.{APART}_ack(%s, %s, %s, %s::bigint[])"
FILL = f"""
insert into trunq_log.{{}} (kind, headers, payload)
select 'kind_' || n %% {READERS}, jsonb_build_object('reader', n %% {READERS}, 'trace', md5(n::text)),
  jsonb_build_object('n', n, 'text', repeat('x', 150))
from generate_series(1, %s) n
"""

Connection = psycopg.Connection[Any]


def measure(options: Options) -> Iterator[Table]:
    """Processor time a message, by what the filters look at."""
    messages, rounds = options.size(22_000, 2_000), options.rounds(quick=1)
    table = Table(
        f"filters, Postgres {options.postgres}",
        f"{READERS} subscriptions of 5 % each, against one that reads everything: lease (500) and ack of "
        f"{messages:,} messages of 250 bytes; median of {rounds} rounds, kinds in turn.",
        ["filters by", "a message", "unfiltered", "ratio", "target"],
    )
    with server(options) as running, connect(new_database(running)) as connection:
        names: dict[str, list[str]] = {"plain": ["default"]}
        for what in TARGETS:
            names[what] = [subscribe(connection, what, number) for number in range(READERS)]
        connection.execute(f"select trunq.create_queue('{APART}')".encode())
        names |= {what: ["default"] for what in ASKED}
        figures: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(rounds):
            connection.execute(FILL.format(QUEUE).encode(), (messages,))
            for name, subscriptions in names.items():
                if name in ASKED:
                    connection.execute(FILL.format(APART).encode(), (messages,))
                figures[name].append(used(connection, subscriptions, messages, ASKED.get(name)))
        for what, target in TARGETS.items():
            ratio = median_ratio(figures, "plain", what)
            own, plain = (microseconds(statistics.median(figures[name])) for name in (what, "plain"))
            table.add(what, own, plain, f"{ratio:.2f}", at_least(ratio, target))
        for what in ASKED:
            own, plain = (microseconds(statistics.median(figures[name])) for name in (what, "plain"))
            table.add(what, own, plain, f"{median_ratio(figures, 'plain', what):.2f}", "none")
    yield table


def subscribe(connection: Connection, what: str, number: int) -> str:
    """A subscription of one message in twenty; its name."""
    filter = part(what, number)
    name = f"{what}_{number}"
    connection.execute(f"select trunq.subscribe('{QUEUE}', '{name}', p_filter => '{filter}')".encode())
    return name


def part(what: str, number: int) -> str:
    """A filter, or what a lease asks for: one message in twenty."""
    return f'{{"kinds": ["kind_{number}"]}}' if what == "kinds" else f'{{"headers": {{"reader": {number}}}}}'


def used(
    connection: Connection, subscriptions: Sequence[str], messages: int, asked: str | None = None
) -> float:
    """Seconds of a processor for each of so many messages."""
    seen = []
    seconds = server_time(
        connection,
        lambda: seen.append(
            drain(connection, subscriptions)
            if asked is None
            else drain_asked(connection, subscriptions[0], asked)
        ),
    )
    if seen != [messages]:
        raise RuntimeError(f"{seen[0]} messages came of {messages}")
    return seconds / messages


def drain(connection: Connection, subscriptions: Sequence[str]) -> int:
    """Lease and ack until nothing is left; how many messages that were."""
    total = 0
    for name in subscriptions:
        while rows := connection.execute(LEASE.encode(), (name,)).fetchall():
            ids = [id for _, _, id in rows]
            connection.execute(ACK.encode(), (name, *rows[0][:2], ids))
            total += len(ids)
    return total


def drain_asked(connection: Connection, name: str, what: str) -> int:
    """The same by leases of one subscription that ask for a part each, in turn."""
    total, idle = 0, 0
    while idle < READERS:
        idle = 0
        for number in range(READERS):
            rows = connection.execute(ASK.encode(), (name, part(what, number))).fetchall()
            idle += not rows
            if rows:
                connection.execute(ACK_APART.encode(), (name, *rows[0][:2], [id for _, _, id in rows]))
            total += len(rows)
    return total


if __name__ == "__main__":
    main(__doc__, measure)
