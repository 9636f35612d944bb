"""Whether a lease costs more when more is waiting.

Two queues on one server, one with five thousand messages waiting, one with five million. Leases are taken
and acked in both in turn, and after each turn as many are published as were leased, so that both stay as
they are.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg

from _bench import (
    Options,
    Table,
    at_most,
    connect,
    copy_in,
    main,
    microseconds,
    new_database,
    server,
    settle,
)
from _bench import seconds as timed

TARGET = 1.1
FEW = 5_000
SIZES = {100: 50, 1: 500}
"""Messages at a time: pairs a turn."""

LEASE = (
    "select * from trunq.lease(p_queue => %s, p_subscription => 'default', p_worker => 'w',"
    " p_max_messages => %s)"
)
ACK = (
    "select trunq.ack(p_queue => %s, p_subscription => 'default', p_lease_id => %s, p_token => %s,"
    " p_ids => %s::bigint[])"
)

Connection = psycopg.Connection[Any]


def measure(options: Options) -> Iterator[Table]:
    """One table, lease and pair by size."""
    many = options.extra.waiting or options.size(5_000_000, 50_000)
    queues = {"few": FEW, "many": many}
    with server(options) as running:
        dsn = new_database(running, queue=False)
        with connect(dsn, synchronous_commit="off") as lease, connect(dsn) as answer:
            for queue, waiting in queues.items():
                answer.execute("select trunq.create_queue(%s)", (queue,))
                copy_in(answer, f"trunq_log.{queue}", waiting)
            settle(dsn)
            yield compare(options, lease, answer, queues)


def compare(options: Options, lease: Connection, answer: Connection, queues: dict[str, int]) -> Table:
    """Turns of both queues."""
    rounds = options.rounds(15)
    table = Table(
        f"backlog, Postgres {options.postgres}",
        f"Leases, and leases with their acks, of two queues with {queues['few']:,} and {queues['many']:,} "
        f"messages waiting (200 "
        f"bytes, published a thousand at a time); median of {rounds} turns' medians, refilled after each "
        f"turn.",
        [
            "messages at a time",
            "what",
            f"{queues['few']:,} waiting",
            f"{queues['many']:,} waiting",
            "ratio",
            "target",
        ],
    )
    for size, full in SIZES.items():
        pairs = min(options.size(full, 10), FEW // size)
        turns: dict[str, list[tuple[float, float]]] = {queue: [] for queue in queues}
        order = list(queues)
        for number in range(rounds + 1):
            for queue in order:
                medians = turn(lease, answer, queue, size, pairs)
                if number:  # the first warms up
                    turns[queue].append(medians)
            order.reverse()
        for which, what in enumerate(("lease", "lease + ack")):
            figures = {queue: [medians[which] for medians in turns[queue]] for queue in queues}
            few, many = (statistics.median(figures[queue]) for queue in queues)
            ratio = statistics.median(b / a for a, b in zip(figures["few"], figures["many"], strict=True))
            table.add(
                str(size), what, microseconds(few), microseconds(many), f"{ratio:.2f}", at_most(ratio, TARGET)
            )
    return table


def turn(lease: Connection, answer: Connection, queue: str, size: int, pairs: int) -> tuple[float, float]:
    """`number` pairs, then the refill. Returns the median lease and the median pair."""
    leases, both = [], []
    for _ in range(pairs):
        rows: list[Any] = []
        first = timed(partial(take, lease, queue, size, rows))
        second = timed(partial(give, answer, queue, rows))
        leases.append(first)
        both.append(first + second)
    copy_in(answer, f"trunq_log.{queue}", size * pairs)
    return statistics.median(leases), statistics.median(both)


def take(connection: Connection, queue: str, size: int, rows: list[Any]) -> None:
    """Lease into `rows`."""
    rows += connection.execute(LEASE, (queue, size), binary=True).fetchall()
    assert len(rows) == size


def give(connection: Connection, queue: str, rows: list[Any]) -> None:
    """Ack them."""
    lease_id, token, *_ = rows[0]
    ids = "{" + ",".join(str(row[2]) for row in rows) + "}"
    connection.execute(ACK, (queue, lease_id, token, ids))


if __name__ == "__main__":
    main(__doc__, measure, ("--waiting", {"type": int, "help": "messages in the long queue (5,000,000)"}))
