"""A queue of trunq, tick by tick; an exclusive subscription keeps the messages until they are written."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from psycopg import sql

from trunq import Client, record
from trunq.arrow.reader import fetch
from trunq.errors import InvalidPipeline, TickNotFound
from trunq.pipeline.control import Control
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.source import QueueSource as Model
from trunq.pipeline.source import Context, Foreseen, Plan, Size, Source, State
from trunq.pipeline.source.own import own_name
from trunq.pipeline.source.window import Clock
from trunq.spark.connection import Database
from trunq.spark.source.log import QueueLog, Tick
from trunq.spark.source.range import BEGINNING, Interval, Part, Position, Snapshot, Split, split

_SCHEMA: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("kind", pa.string()),
        ("key", pa.string()),
        pa.field("payload", pa.string(), metadata={b"trunq.type": b"jsonb"}),
        ("created_at", pa.timestamp("us", "UTC")),
    ]
)
_START: Final = Tick(0, "0:0:", 0)
"""Before all messages."""
_COUNTED: Final = 1_000_000
"""Messages that a look counts."""
_WORTH_A_SHARE: Final = 20_000
"""Messages: another reader takes longer to start than to read so many."""


class QueueSource(Source):
    """A queue."""

    def __init__(self, pipeline: Pipeline, dsn: str, control: Control) -> None:  # noqa: ARG002  # as all sources
        assert isinstance(pipeline.source, Model)
        self._name = pipeline.name
        self._model = pipeline.source
        self._subscription = self._model.subscription or own_name("pipeline", pipeline.name)
        self._dsn = self._model.dsn or dsn

    def plan(self, state: State) -> Plan:
        queue = self._model.queue
        with Client(self._dsn, max_connections=1) as client:
            if "tick" not in state:
                client.subscribe(queue, self._subscription, mode="exclusive", start="earliest")
            lo = state.get("tick")
            if lo is None:
                lo = client.position(queue, self._subscription)
            if "tick" in state:
                self._require(client, lo, state.get("cut"))
            client.tick(queue, force=True)
            ticks = client.list_ticks(queue, lo)
            hi = ticks[-1].tick_id if ticks else lo
            has_some = hi > lo and self._has_some(client, lo, hi)
        after = {"tick": hi, "cut": cut_of(ticks[-1])} if ticks else {"tick": hi}
        return Plan({"lo": lo, "hi": hi} if has_some else None, after)

    def has_new(self, state: State) -> bool:
        """As `plan`, without a tick of its own: whatever is committed and was not seen by the last one."""
        if (tick_id := state.get("tick")) is None:
            return True
        with Client(self._dsn, max_connections=1) as client:
            ticks = client.list_ticks(self._model.queue, tick_id, tick_id)
            if tick_id and (not ticks or state.get("cut", cut_of(ticks[0])) != cut_of(ticks[0])):
                # A run says what is wrong.
                return True
            seen = Snapshot.parse(ticks[0].snapshot) if ticks else BEGINNING
            new = sql.SQL(
                "select exists (select from {0} where {1}) or exists (select from {0} where {2})"
            ).format(sql.Identifier("trunq_log", self._model.queue), *_news(seen))
            with client.transaction() as connection:
                row = connection.execute(new).fetchone()
        return bool(row and row[0])

    def foresee(self, state: State) -> Foreseen:
        """Up to what is committed: a run makes a tick, and the subscription."""
        queue = self._model.queue
        with Client(self._dsn, max_connections=1) as client:
            if (lo := state.get("tick")) is None:
                held = {row.subscription for row in client.status(queue)}
                lo = client.position(queue, self._subscription) if self._subscription in held else 0
            ticks = client.list_ticks(queue, lo, lo) if lo else []
            if lo:
                self._require(client, lo, state.get("cut"))
            seen = Snapshot.parse(ticks[0].snapshot) if ticks else BEGINNING
            count = sql.SQL("select count(*) from (select from {0} where {1} limit {2}) s").format(
                sql.Identifier("trunq_log", queue), _after(seen), sql.Literal(_COUNTED)
            )
            with client.transaction() as connection:
                row = connection.execute(count).fetchone()
        rows = row[0] if row else 0
        return Foreseen({"lo": lo, "hi": None} if rows else None, rows, is_exact=rows < _COUNTED)

    def plan_range(self, range: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002  # as all sources
        raise InvalidPipeline(
            f"pipeline {self._name} reads a queue, which keeps no messages to be read again",
            "a new pipeline with a subscription of its own begins with what the queue still has",
        )

    def schema(self, slice: dict[str, Any]) -> pa.Schema:  # noqa: ARG002  # as all sources
        """That of the batches which `read` gives."""
        return _SCHEMA

    def size(self, slice: dict[str, Any]) -> Size:
        """By the ids between its ticks; that of a plan has no second one yet."""
        if slice["hi"] is None:
            return Size()
        database = Database(lambda: self._dsn)
        try:
            first, last = self._ids(QueueLog(database, self._model.queue), *self._ticks(slice))
        finally:
            database.close()
        return Size(rows=max(0, last - first))

    def shares(self, slice: dict[str, Any], at_most: int) -> list[dict[str, Any]]:
        """Parts of a slice, which `read` takes in its place; each message is in one of them."""
        if at_most <= 1:
            return [slice]
        database = Database(lambda: self._dsn)
        try:
            log = QueueLog(database, self._model.queue)
            lo, hi = self._ticks(slice)
            ids = self._ids(log, lo, hi)
            wanted = min(at_most, (ids[1] - ids[0]) // _WORTH_A_SHARE)
            if wanted <= 1:
                return [slice]
            parts = split(lo.between(hi), log, ids, Split(max_rows=2**62, min_parts=wanted))
        finally:
            database.close()
        return [{**slice, "part": dataclasses.asdict(part)} for part in parts] or [slice]

    def read(self, slice: dict[str, Any], context: Context) -> Iterator[pa.RecordBatch]:
        lo, hi = self._ticks(slice)
        part = _part(slice["part"]) if "part" in slice else lo.between(hi).whole(0)
        if conditions := part.conditions():
            settings = {"enable_seqscan": "off", "enable_bitmapscan": "off"}
            query = _statement(self._model.queue, conditions)
            verify = Clock(self._name).verify
            yield from fetch(self._dsn, query, _SCHEMA, settings=settings, verify=verify, check=context.check)
        with Client(self._dsn, max_connections=1) as client:
            # Asked after reading: what was emptied meanwhile was not read.
            self._require(client, slice["lo"])

    def release(self, state: State) -> None:
        if "tick" in state:
            with Client(self._dsn, max_connections=1) as client:
                client.advance(self._model.queue, self._subscription, state["tick"])

    def _require(self, client: Client, tick_id: int, cut: str | None = None) -> None:
        """Refuse to go on from a tick whose messages are gone, or, with `cut`, that is not the same any more.
        Raises TickNotFound, InvalidPipeline.
        """
        ticks = client.list_ticks(self._model.queue, tick_id, tick_id)
        if ticks and cut is not None and cut != cut_of(ticks[0]):
            raise InvalidPipeline(
                f"pipeline {self._name}: the database of queue {self._model.queue} was set back, or has"
                f" failed over: tick {tick_id}, up to which messages were read, is another one, and what was"
                " read may be lost there",
                f"trunq pipeline state {self._name} --reset begins with what the queue still has",
            )
        if tick_id and not (ticks and ticks[0].reachable):
            raise TickNotFound(
                f"messages of queue {self._model.queue} that pipeline {self._name} has still to"
                f" read are gone:"
                f" subscription {self._subscription} was dropped, or moved by somebody else",
                f"trunq pipeline state {self._name} --reset begins with what the queue still has",
            )

    def _ticks(self, slice: dict[str, Any]) -> tuple[Tick, Tick]:
        with Client(self._dsn, max_connections=1) as client:
            return self._find(client, slice["lo"], slice["hi"])

    def _ids(self, log: QueueLog, lo: Tick, hi: Tick) -> tuple[int, int]:
        """Behind which id the messages of a slice are, and up to which."""
        first = log.first_id(Snapshot.parse(lo.snapshot).xmax, Snapshot.parse(hi.snapshot).xmax) or 1
        return max(lo.last_message_id, first - 1), hi.last_message_id

    def _find(self, client: Client, lo: int, hi: int) -> tuple[Tick, Tick]:
        """The ticks of a slice; the one before it may be that before all messages."""
        found = {
            tick.tick_id: Tick(tick.tick_id, tick.snapshot, tick.last_message_id)
            for tick in client.list_ticks(self._model.queue, lo, hi)
        }
        if hi not in found:
            self._require(client, hi)
        return found.get(lo, _START), found[hi]

    def _has_some(self, client: Client, lo: int, hi: int) -> bool:
        before, after = self._find(client, lo, hi)
        log = sql.Identifier("trunq_log", self._model.queue)
        query = sql.SQL("select exists (select from {} where subscription_id is null and {})")
        with client.transaction() as connection:
            for condition in before.between(after).whole(0).conditions():
                row = connection.execute(query.format(log, sql.SQL(condition))).fetchone()
                if row and row[0]:
                    return True
        return False


def cut_of(tick: record.Tick) -> str:
    """By which a tick is known again: a database that lost it gives its number to another."""
    told = f"{tick.snapshot} {tick.created_at.timestamp()}"
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _news(seen: Snapshot) -> tuple[sql.Composed, sql.Composed]:
    """The conditions of what was published by transactions that a snapshot did not see: each has an index."""
    running = sql.Literal("{" + ",".join(map(str, seen.running)) + "}")
    return (
        sql.SQL("subscription_id is null and txid = any({}::xid8[])").format(running),
        sql.SQL("subscription_id is null and (txid, id) >= ({}::xid8, 0)").format(
            sql.Literal(str(seen.xmax))
        ),
    )


def _after(seen: Snapshot) -> sql.Composed:
    return sql.SQL("({}) or ({})").format(*_news(seen))


def _statement(queue: str, conditions: list[str]) -> str:
    """In the order in which they were published, as far as each condition goes."""
    select = sql.SQL(
        "(select id, kind, key, payload::text, created_at from {} where subscription_id is null and {}"
        " order by txid, id)"
    )
    log = sql.Identifier("trunq_log", queue)
    selects = [select.format(log, sql.SQL(condition)) for condition in conditions]
    return sql.SQL(" union all ").join(selects).as_string(None)


def _part(given: dict[str, Any]) -> Part:
    intervals = tuple(Interval(Position(*start), Position(*stop)) for start, stop in given["intervals"])
    return Part(tuple(given["whole"]), intervals, tuple(given["running"]), given["rows"])
