"""What one lease and the ack of its messages cost, by how many are leased at a time.

The two calls as the worker makes them, each on its own connection (leases do not wait for the disk, acks
do), with nothing else of a worker: fetched rows are counted, not decoded. Beside it the classic way with a
table that is updated and deleted from: claim by UPDATE ... FOR UPDATE SKIP LOCKED, finish by DELETE, with
no history, in its best case: nothing holds the horizon, and the table is vacuumed before every round. The
median of the pairs counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
from psycopg.types.string import ByteaBinaryLoader

from _bench import (
    QUEUE,
    Options,
    Table,
    a_second,
    connect,
    copy_in,
    in_turn,
    main,
    median_ratio,
    microseconds,
    new_database,
    seconds,
    server,
    settle,
)

SIZES = {1: 1000, 10: 500, 100: 200, 1000: 40}
"""Messages at a time: pairs a round."""

LEASE = (
    f"select * from trunq.lease(p_queue => '{QUEUE}', p_subscription => 'default', p_worker => 'w',"
    " p_max_messages => %s)"
)
ACK = (
    f"select trunq.ack(p_queue => '{QUEUE}', p_subscription => 'default', p_lease_id => %s, p_token => %s,"
    " p_ids => %s::bigint[])"
)

CLASSIC = """
create table classic (id bigserial primary key, state smallint not null default 0, kind text, payload jsonb);
create index classic_waiting on classic (id) where state = 0;
"""
CLAIM = """
update classic set state = 1 where ctid = any(array(
  select ctid from classic where state = 0 order by id limit %s for update skip locked))
returning id, kind, payload
"""
FINISH = "delete from classic where id = any(%s::bigint[])"

Connection = psycopg.Connection[Any]
Pair = Callable[[int], None]


def measure(options: Options) -> Iterator[Table]:
    """One table: messages at a time downwards."""
    with server(options) as running:
        dsn = new_database(running)
        with connect(dsn, synchronous_commit="off") as lease, connect(dsn) as answer:
            answer.execute(CLASSIC.encode(), prepare=False)
            for connection in (lease, answer):
                connection.adapters.register_loader("jsonb", ByteaBinaryLoader)
            yield pairs(options, dsn, lease, answer)


def pairs(options: Options, dsn: str, lease: Connection, answer: Connection) -> Table:
    """Lease and ack, claim and finish."""
    rounds = options.size(5, 1)
    table = Table(
        f"lease + ack, Postgres {options.postgres}",
        f"A lease and the ack of all its messages (200 bytes each), one after the other; median pair of "
        f"each of {rounds} "
        "rounds in turn. Beside it UPDATE ... SKIP LOCKED and DELETE at their best: vacuumed before each "
        "round, no history.",
        ["messages at a time", "a pair", "messages/s", "classic pair", "classic messages/s", "ratio"],
    )
    for size, full in SIZES.items():
        number = options.size(full, 10)
        figures = in_turn(
            {
                "trunq": partial(
                    median_pair,
                    partial(trunq_pair, lease, answer),
                    partial(fill, dsn, answer, f"trunq_log.{QUEUE}"),
                    size,
                    number,
                ),
                "classic": partial(
                    median_pair,
                    partial(classic_pair, lease, answer),
                    partial(fill, dsn, answer, "classic"),
                    size,
                    number,
                ),
            },
            rounds,
        )
        ours, theirs = (statistics.median(figures[name]) for name in ("trunq", "classic"))
        table.add(
            f"{size:,}",
            microseconds(ours),
            a_second(size / ours),
            microseconds(theirs),
            a_second(size / theirs),
            f"{median_ratio(figures, 'classic', 'trunq'):.1f}",
        )
    return table


def fill(dsn: str, connection: Connection, table: str, messages: int) -> None:
    """Messages in transactions of a thousand, nothing dirty, no dead rows."""
    copy_in(connection, table, messages)
    connection.execute("vacuum analyze classic")
    settle(dsn)


def median_pair(pair: Pair, fill: Callable[[int], None], size: int, number: int) -> float:
    """The median time of `number` pairs."""
    fill(size * number)
    return statistics.median([seconds(partial(pair, size)) for _ in range(number)])


def trunq_pair(lease: Connection, answer: Connection, size: int) -> None:
    """One lease and its ack."""
    rows = lease.execute(LEASE, (size,), binary=True).fetchall()
    assert len(rows) == size
    lease_id, token, *_ = rows[0]
    answer.execute(ACK, (lease_id, token, as_array([row[2] for row in rows])))


def classic_pair(claim: Connection, finish: Connection, size: int) -> None:
    """One claim and the deletion. The claim does not wait for the disk either."""
    rows = claim.execute(CLAIM, (size,), binary=True).fetchall()
    assert len(rows) == size
    finish.execute(FINISH, (as_array([row[0] for row in rows]),))


def as_array(ids: list[int]) -> str:
    """As Postgres reads it; psycopg takes longer for a list."""
    return "{" + ",".join(map(str, ids)) + "}"


if __name__ == "__main__":
    main(__doc__, measure)
