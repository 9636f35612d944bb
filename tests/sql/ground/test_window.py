"""The forms of "visible in hi, not in lo" are one set of rows, whatever the snapshots."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from calling import ask, burn, fetch
from trunq.spark.source.range import Snapshot, Window

Connection = psycopg.Connection[Any]
Row = tuple[int, int]

TRANSACTIONS = 24
BELOW_ALL = 500
"""After a rebase, rows have transaction ids below this; ids drawn here lie above."""


@dataclass(frozen=True)
class History:
    """Transactions that began one after the other and ended in any order."""

    first: int
    ended_at: tuple[float, ...]

    def snapshot(self, now: float) -> str:
        """As Postgres would write it at a time; transaction n begins at n."""
        begun = min(TRANSACTIONS, int(now))
        running = [self.first + n for n in range(begun) if self.ended_at[n] > now]
        xmax = self.first + begun
        return f"{min([*running, xmax])}:{xmax}:{','.join(map(str, running))}"


def invent(chance: random.Random, first: int) -> History:
    return History(first, tuple(n + 0.5 + chance.expovariate(0.2) for n in range(TRANSACTIONS)))


@pytest.fixture
def work(session: Connection, queue: str) -> str:
    """A queue, in a cluster that has given out enough transaction ids."""
    missing = BELOW_ALL + TRANSACTIONS + 10 - fetch(session, "select pg_current_xact_id()::text::bigint")
    burn(session, max(1, missing))
    return queue


@pytest.mark.parametrize("seed", range(30))
def test_all_forms_agree(session: Connection, work: str, seed: int) -> None:
    chance = random.Random(seed)
    session.execute("set enable_seqscan = off")
    newest = fetch(session, "select pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
    history = invent(chance, newest - TRANSACTIONS - 1)
    rows = fill(session, work, chance, history)
    at = sorted(chance.uniform(0, TRANSACTIONS + 2) for _ in range(2))
    lo, hi = history.snapshot(at[0]), history.snapshot(at[1])
    inside = [row for row in rows if in_window(session, row, lo, hi)]

    assert in_queue_window(session, work, lo, hi) == inside
    assert by_spark(session, work, lo, hi) == inside
    assert ask(session, "_has_new", queue=work, snapshot=lo) is any(
        in_window(session, row, lo, fetch(session, "select trunq.snapshot()::text")) for row in rows
    )

    last = chance.choice([(0, 0), *inside, (int(hi.split(":")[1]), 0)])
    unread = [row for row in rows if not is_read(session, row, lo, hi, last)]
    assert unread == [row for row in rows if not in_window_before(session, row, lo, hi, last)]
    subscription_id = move_to(session, work, lo, hi, last)
    query = (
        "select u.txid::text::bigint, u.id from trunq.queue q, trunq._unread(q, %s, 1000) u where q.name = %s"
    )
    found = session.execute(query, (subscription_id, work)).fetchall()
    assert sorted(found) == unread
    for segment in range(4):
        needed = fetch(
            session,
            "select %s = any (trunq._subscriptions_needing(q, %s)) from trunq.queue q where name = %s",
            subscription_id,
            segment,
            work,
        )
        assert needed is any(id % 4 == segment for _, id in unread)
    rest = [row for row in inside if row > last]
    assert leased(session, work, len(rest)) == rest


def fill(session: Connection, queue: str, chance: random.Random, history: History) -> list[Row]:
    """Up to three rows a transaction, over all segments; in order."""
    rows = []
    ids = iter(chance.sample(range(1, 1000), 3 * TRANSACTIONS))
    for n in range(TRANSACTIONS):
        rows += [(history.first + n, next(ids)) for _ in range(chance.randrange(4))]
    query = f"insert into trunq_log.{queue} (txid, id, segment) values (%s::text::xid8, %s, %s)"
    for txid, id in rows:
        session.execute(query.encode(), (str(txid), id, id % 4))
    return sorted(rows)


def in_window(session: Connection, row: Row, lo: str, hi: str) -> bool:
    return bool(fetch(session, "select trunq._in_window(%s::text::xid8, %s, %s)", str(row[0]), lo, hi))


def is_read(session: Connection, row: Row, lo: str, hi: str, last: Row) -> bool:
    query = "select trunq._is_read_at(%s::text::xid8, %s, %s, %s, %s::text::xid8, %s)"
    return bool(fetch(session, query, str(row[0]), row[1], lo, hi, str(last[0]), last[1]))


def in_window_before(session: Connection, row: Row, lo: str, hi: str, last: Row) -> bool:
    """Read: visible in lo, or in the window and not behind the position."""
    is_old = fetch(session, "select pg_visible_in_snapshot(%s::text::xid8, %s)", str(row[0]), lo)
    return bool(is_old) or (in_window(session, row, lo, hi) and row <= last)


def in_queue_window(session: Connection, queue: str, lo: str, hi: str) -> list[Row]:
    """In the order they come."""
    query = f"select txid::text::bigint, id from trunq_queue.{queue}_window(%s, %s)"
    return session.execute(query.encode(), (lo, hi)).fetchall()


def by_spark(session: Connection, queue: str, lo: str, hi: str) -> list[Row]:
    part = Window.between(Snapshot.parse(lo), Snapshot.parse(hi)).whole(0)
    rows: list[Row] = []
    for condition in part.conditions():
        query = f"select txid::text::bigint, id from trunq_log.{queue} where {condition}"
        rows += session.execute(query.encode()).fetchall()
    return sorted(rows)


def move_to(session: Connection, queue: str, lo: str, hi: str, last: Row) -> int:
    """Put the position of "default" there."""
    query = (
        f"insert into trunq_data.{queue}_lease"
        " (lease_id, subscription_id, token, lo, hi, last_txid, last_id, leased_at)"
        f" select nextval('trunq_data.{queue}_lease_id'), s.subscription_id, 0,"
        " %s, %s, %s::text::xid8, %s, now()"
        " from trunq.subscription s join trunq.queue q using (queue_id)"
        " where q.name = %s returning subscription_id"
    )
    return int(fetch(session, query, lo, hi, str(last[0]), last[1], queue))


def leased(session: Connection, queue: str, count: int) -> list[Row]:
    """The next messages, by leases of random size, as the leases say it."""
    rows: list[Row] = []
    while len(rows) < count:
        size = min(count - len(rows), 1 + len(rows) % 4)
        session.execute(f"select from trunq_queue.{queue}_lease('default', 'w', {size})".encode())
        query = (
            f"select txids::text::bigint[], ids from trunq_data.{queue}_lease order by lease_id desc limit 1"
        )
        row = session.execute(query.encode()).fetchone()
        assert row is not None
        assert row[1], "a lease of what lies before the end of the window is never empty"
        rows += zip(*row, strict=True)
    return rows
