"""What the driver asks of a queue: its ticks, the position of a subscription, probes of the log's index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import sql

from trunq.connection._sync.execute import execute
from trunq.errors import QueueNotFound
from trunq.spark.connection import Connection, Database
from trunq.spark.errors import DataLoss, NeedsPrimary
from trunq.spark.source.column import Column, own
from trunq.spark.source.range import Snapshot, Transaction, Window
from trunq.wire.call import Call

SAMPLE: Final = 1000
"""A transaction's rows are counted up to this number; above it, the range of ids is the estimate."""

# The log has no planner statistics: without these settings Postgres would scan all of it.
BY_INDEX: Final = ("enable_seqscan", "enable_bitmapscan", "enable_sort")


TICK: Final = ("tick_id", "snapshot", "last_message_id", "reachable")


@dataclass(frozen=True, slots=True)
class Tick:
    """A stored snapshot of the queue, and the highest message id when it was cut.

    It is reachable, at the time it was looked up, while every message after it is still in the log.
    """

    tick_id: int
    snapshot: str
    last_message_id: int
    reachable: bool = True

    def between(self, hi: Tick) -> Window:
        """The transactions from this tick to a later one."""
        return Window.between(Snapshot.parse(self.snapshot), Snapshot.parse(hi.snapshot))


class QueueLog:
    """One queue, over a connection that reopens; you may call any method again after a failure."""

    def __init__(self, database: Database, queue: str) -> None:
        self._database = database
        self._queue = queue

    def queue_id(self) -> int:
        """The queue's id, which changes if the queue is dropped and created again. Raises `QueueNotFound`."""
        rows = self._call("list_queues", ("queue", "queue_id"))
        found = [queue_id for queue, queue_id in rows if queue == self._queue]
        if not found:
            raise QueueNotFound(
                f'there is no queue "{self._queue}"', "`trunq queue list` shows those there are"
            )
        return int(found[0])

    def own_columns(self) -> list[Column]:
        """The columns that the user added to the queue. Raises `QueueNotFound`."""
        return [own(*row) for row in self._call("list_columns", ("name", "type"), queue=self._queue)]

    def tick(self, tick_id: int) -> Tick | None:
        """A tick by its number; None if it is gone."""
        rows = self._call("list_ticks", TICK, queue=self._queue, from_=tick_id, to=tick_id)
        return Tick(*rows[0]) if rows else None

    def oldest_tick(self) -> Tick | None:
        """The oldest tick after which every message is still in the log; None if there is none."""
        query = "select * from trunq.list_ticks(%s) where reachable order by tick_id limit 1"
        found = self._ticks(query, self._queue)
        return found[0] if found else None

    def require_reachable(self, tick_id: int) -> None:
        """Raises `DataLoss` if messages after the tick are gone, whether the tick itself is kept or not.

        Call it after a look at the log: a segment may be emptied just before the look.
        """
        if self._rows(still_reachable(self._queue, tick_id)) != [(True,)]:
            raise out_of_reach(self._queue, tick_id)

    def newest_tick(self, from_tick_id: int | None = None) -> Tick:
        """The newest tick; the search starts at `from_tick_id` if that is given."""
        query = "select * from trunq.list_ticks(%s, %s) order by tick_id desc limit 1"
        found = self._ticks(query, self._queue, from_tick_id)
        if not found:
            raise self._set_back(from_tick_id)
        return found[0]

    def still_and_newest(self, known: Tick) -> tuple[Tick | None, Tick]:
        """What now has the number of a known tick (None if none has), and the newest tick, from one look.

        After a failover to a standby that had not received the tick, the number may belong to another.
        """
        query = """
            with kept as materialized (select * from trunq.list_ticks(%s, %s))
            select * from kept
            where tick_id in ((select min(tick_id) from kept), (select max(tick_id) from kept))
            order by tick_id"""
        found = self._ticks(query, self._queue, known.tick_id)
        if not found:
            raise self._set_back(known.tick_id)
        return (found[0] if found[0].tick_id == known.tick_id else None), found[-1]

    def require_primary(self) -> None:
        """Raises `NeedsPrimary` on a standby."""
        if self._value("select pg_is_in_recovery()"):
            raise NeedsPrimary(
                "a stream needs the primary, and this server is a standby: a stream writes its position",
                "give the address of the primary, or several hosts with target_session_attrs=read-write",
            )

    def tick_within(self, start: Tick, target_id: int, messages: int | None) -> Tick:
        """The last tick up to `target_id` with at most `messages` after `start`; at least the next tick."""
        query = """
            select * from (
              select t.*, row_number() over (order by t.tick_id) as step from trunq.list_ticks(%s, %s, %s)
              t) t
            where t.step = 1 or t.last_message_id <= coalesce(%s::bigint, 9223372036854775807)
            order by t.tick_id desc limit 1"""
        most = None if messages is None else start.last_message_id + messages
        found = self._ticks(query, self._queue, start.tick_id + 1, target_id, most)
        return found[0] if found else start

    def tick_for_everything(self, known: int | None = None) -> Tick:
        """A tick that includes all committed messages: the newest, or a new one if messages came after it.

        On a standby it is the newest: a standby cannot cut a tick, and its own snapshots have no meaning
        here.
        """
        newest = self.newest_tick(known)
        if self._value("select pg_is_in_recovery()"):
            return newest
        now = Snapshot.parse(self._call("snapshot")[0][0])
        if self.is_empty(Window.between(Snapshot.parse(newest.snapshot), now)):
            return newest
        cut = self._call("tick", queue=self._queue, force=True)[0][0]
        return self.tick(cut) or self.newest_tick(newest.tick_id)

    def is_empty(self, window: Window) -> bool:
        """Whether a window holds no message, apart from retries."""
        if window.is_empty:
            return True
        query = sql.SQL("select 1 from {log} where {condition} and subscription_id is null limit 1")
        return not any(
            self._rows(query.format(log=self._table, condition=sql.SQL(condition)), by_index=True)
            for condition in window.whole(0).conditions()
        )

    def subscribe(self, subscription: str, start: str, tick_id: int | None, *, strict: bool) -> bool:
        """Creates the exclusive subscription if it does not exist; returns whether it did so.

        A new one starts at the tick, if that is given; if it is out of reach, `strict` raises `DataLoss` and
        creates nothing. Raises `WrongMode` if a shared subscription has that name.
        """
        named = {"queue": self._queue, "subscription": subscription}

        def work(connection: Connection) -> bool:
            made = execute(connection, Call("subscribe", {**named, "mode": "exclusive", "start": start}))
            if made[0][0] and tick_id is not None:
                moved = execute(connection, Call("advance", {**named, "tick_id": tick_id}))
                if strict and moved[0][0] != tick_id:
                    raise out_of_reach(self._queue, tick_id)
            return bool(made[0][0])

        return self._database.run(work)

    def position(self, subscription: str) -> int:
        """The tick up to which the subscription has read."""
        return int(self._call("position", queue=self._queue, subscription=subscription)[0][0])

    def advance(self, subscription: str, tick_id: int) -> int:
        """Moves the subscription forward to a tick, never back; returns its position."""
        moved = self._call("advance", queue=self._queue, subscription=subscription, tick_id=tick_id)
        return int(moved[0][0])

    def is_paused(self, subscription: str) -> bool:
        """Whether the subscription is paused, by itself or with its queue."""
        rows = self._call("list_subscriptions", ("subscription", "paused"), queue=self._queue)
        return (subscription, True) in rows

    def filter_condition(self, subscription: str) -> str | None:
        """The condition of the subscription's filter on a row g of the log; None: it reads every message."""
        query = """
            select trunq._filter_condition(s.filter, 'g') from trunq.subscription s join trunq.queue q
            using (queue_id) where q.name = %s and s.name = %s and s.filter is not null"""
        found = self._rows(sql.SQL(query), self._queue, subscription)
        return found[0][0] if found else None

    # The protocol range.Log.

    def sizes(self, txids: Sequence[int]) -> list[Transaction]:
        """Those of the transactions that wrote rows."""
        return self._transactions(sql.SQL("select txid from unnest(%s::xid8[]) each(txid)"), _array(txids))

    def walk(self, low: int, high: int, limit: int) -> list[Transaction]:
        """The first transactions with rows from `low` to `high`, each found by one probe of the index."""
        steps = sql.SQL("""
            select w.txid from (
              with recursive walk(txid, step) as (
                (select l.txid, 1 from {log} l where l.txid >= %s::xid8 and l.txid < %s::xid8 order by
                l.txid limit 1) union all select n.txid, w.step + 1 from walk w cross join lateral (
                  select l.txid from {log} l where l.txid > w.txid and l.txid < %s::xid8 order by l.txid
                  limit 1) n
                where w.step < %s
              ) select txid from walk) w""")
        return self._transactions(steps.format(log=self._table), str(low), str(high), str(high), limit)

    def first_id(self, low: int, high: int) -> int | None:
        """The smallest id of the first transaction with rows from `low` to `high`."""
        query = sql.SQL(
            "select l.id from {log} l where l.txid >= %s::xid8 and l.txid < %s::xid8"
            " order by l.txid, l.id limit 1"
        )
        found = self._rows(query.format(log=self._table), str(low), str(high), by_index=True)
        return found[0][0] if found else None

    def _transactions(self, txids: sql.SQL | sql.Composed, *values: Any) -> list[Transaction]:
        query = sql.SQL("""
            select t.txid::text::bigint, f.id, l.id,
              (select count(*) from (select from {log} g where g.txid = t.txid limit {sample}) counted)
            from ({txids}) t
            cross join lateral (select g.id from {log} g where g.txid = t.txid order by g.id limit 1) f
            cross join lateral (select g.id from {log} g where g.txid = t.txid order by g.id desc limit 1) l
            order by t.txid""")
        composed = query.format(log=self._table, txids=txids, sample=sql.Literal(SAMPLE))
        return [
            Transaction(txid, first, last, count if count < SAMPLE else last - first + 1)
            for txid, first, last, count in self._rows(composed, *values, by_index=True)
        ]

    def _set_back(self, tick_id: int | None) -> DataLoss:
        return DataLoss(
            f'queue "{self._queue}" has no tick {tick_id} or newer: it is not the one read before',
            "was the database set back to an earlier state? Start with a new checkpoint",
        )

    @property
    def _table(self) -> sql.Identifier:
        return sql.Identifier("trunq_log", self._queue)

    def _call(self, function: str, columns: tuple[str, ...] = (), **arguments: Any) -> list[Any]:
        """The rows of one of trunq's functions."""
        call = Call(function, arguments, columns)
        return self._database.run(lambda connection: execute(connection, call))

    def _ticks(self, query: str, *values: Any) -> list[Tick]:
        shown = "select tick_id, snapshot::text, last_message_id, reachable from ({}) t"
        return [Tick(*row) for row in self._rows(sql.SQL(shown.format(query)), *values)]

    def _value(self, query: str, *values: Any) -> Any:
        return self._rows(sql.SQL(query), *values)[0][0]

    def _rows(self, query: sql.SQL | sql.Composed, *values: Any, by_index: bool = False) -> list[Any]:
        def work(connection: Connection) -> list[Any]:
            if by_index:
                plan_by_index(connection)
            found: list[Any] = connection.execute(query, values).fetchall()
            return found

        return self._database.run(work)


def still_reachable(queue: str, tick_id: int) -> sql.Composed:
    """A query that returns true while every message after a tick is in the log."""
    # Not list_ticks: it may have forgotten an old tick that a batch began at.
    query = sql.SQL("select reachable_tick_id <= {} from trunq.queue where name = {}")
    return query.format(sql.Literal(tick_id), sql.Literal(queue))


def out_of_reach(queue: str, tick_id: int) -> DataLoss:
    """The error for a span whose first messages were emptied."""
    return DataLoss(
        f'messages after tick {tick_id} of queue "{queue}" are gone: they were older than its retention and '
        "no subscription held them, or somebody emptied it",
        f"trunq.list_ticks('{queue}') tells which ticks are reachable; start a stream with a new "
        "checkpointLocation, or set failOnDataLoss to false to read what is left",
    )


def plan_by_index(connection: Connection) -> None:
    """Makes the statements of this transaction scan the index (txid, id)."""
    for setting in BY_INDEX:
        connection.execute(sql.SQL("set local {} = off").format(sql.Identifier(setting)))


def _array(txids: Sequence[int]) -> str:
    return "{" + ",".join(str(txid) for txid in txids) + "}"
