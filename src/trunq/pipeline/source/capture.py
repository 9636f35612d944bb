"""A table of Postgres with all its changes: first the rows that are there, then what became of them.

Triggers publish each change into a queue (trunq.capture), in its transaction. The first slice is the table as
one snapshot sees it. Whatever that does not see was written by a transaction that locked the table after the
triggers were there, so its changes are in the queue; whatever it sees is in the rows. The slices after it are
the changes of transactions that one tick's snapshot sees and the one before does not, the first of them those
that the snapshot of the rows does not see. So each change comes once.

The snapshot is that of the transaction which reads the rows, and the state is of the attempt that has them: a
run that is killed there, and tried again, has a snapshot of its own. A slice with what leaves no image of the
rows (change.py) is the table anew, and the sink loses what is not there any more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql

from trunq import Client
from trunq.arrow.adbc import connect
from trunq.arrow.reader import READING, fetch, run, set_local
from trunq.errors import InvalidPipeline, QueueNotFound
from trunq.pipeline.control import Control
from trunq.pipeline.definition.change import CHANGED_AT, OP, OWN
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.reserved import PREFIX
from trunq.pipeline.definition.source import QueueSource as QueueModel
from trunq.pipeline.definition.source import TableSource as Model
from trunq.pipeline.source import Context, Foreseen, Plan, State, catalog, timeline
from trunq.pipeline.source.change import UNCLEAR, UPSERT, counted, each, messages, net, some, truncates
from trunq.pipeline.source.own import own_name
from trunq.pipeline.source.queue import QueueSource, cut_of
from trunq.pipeline.source.table import TableSource
from trunq.record import Capture
from trunq.spark.source.range import Snapshot, Window

log = logging.getLogger("trunq.pipeline")

_FIELDS: Final = [(OP, pa.string()), (CHANGED_AT, pa.timestamp("us", "UTC"))]

_TRUNCATED: Final = "it was truncated"

_Details = list[tuple[str, str, bool, bool, int]]


class CaptureSource(TableSource):
    """A table whose changes are captured."""

    def __init__(self, pipeline: Pipeline, dsn: str, control: Control) -> None:
        super().__init__(pipeline, dsn, control)
        assert isinstance(pipeline.source, Model)
        self._pipeline = pipeline
        self._capture_queue = self._model.queue or own_name("changes", pipeline.name)
        self._subscription = self._model.subscription or own_name("pipeline", pipeline.name)
        self._client_dsn = self._model.dsn or dsn
        self._is_elsewhere = self._model.dsn not in (None, dsn)
        self._applies = getattr(pipeline.sink, "mode", None) == "apply"
        self._only: list[str] | None = None
        """The columns that are captured; None: all."""

    def plan(self, state: State) -> Plan:
        with self._connected() as connection, Client(self._client_dsn, max_connections=1) as client:
            self._check_table(connection)
            self._require_trunq(connection)
            capture = self._captured(connection, client, state)
            self._subscribe(client, capture.queue, is_new="tick" not in state)
            if "timeline" in state:
                # Afterwards a tick that is still there tells it of itself.
                timeline.require_same(self._name, connection, state, timeline.find(connection))
            then, why = self._then(connection, capture, state)
            if "tick" not in state or why is not None:
                return self._anew(client, capture.queue, then, why)
            return self._changes(connection, client, capture.queue, state, then)

    def foresee(self, state: State) -> Foreseen:
        """The rows that are there, or the changes that are committed: a run captures the table, and ticks."""
        with self._connected() as connection, Client(self._client_dsn, max_connections=1) as client:
            self._check_table(connection)
            self._require_trunq(connection)
            capture = self._find_capture(connection, client, state)
            if capture is None:
                key = self._key(connection, self._details(connection), None)
                return self.estimate({"snapshot": True, "key": key, "only": None})
            then, why = self._then(connection, capture, state)
            told = {name: then[name] for name in ("names", "key", "only")} | {"queue": capture.queue}
            if "tick" in state and why is None:
                # A subscription that was dropped refuses it, as a run does.
                self._subscribe(client, capture.queue, is_new=False)
                lo = hi = self._since(client, capture.queue, state)
                if (row := connection.execute("select pg_current_snapshot()::text").fetchone()) is not None:
                    hi = row[0]
                found = self._messages(capture.queue, lo, hi, then["names"])
                slice = {"changes": [lo, hi], **told}
                if not self._applies or found is None or not _ask(connection, truncates(found)):
                    return self.estimate(slice)
                why = _TRUNCATED
            return self.estimate({"snapshot": True, **told} | ({"because": why} if why else {}))

    def estimate(self, slice: dict[str, Any]) -> Foreseen:
        """How many rows, or changes of them, a slice has."""
        if slice.get("snapshot"):
            return replace(super().estimate({"all": True}), slice=slice)
        lo, hi = slice["changes"]
        found = self._messages(slice["queue"], lo, hi, slice["names"])
        count = 0
        if found is not None:
            with self._connected() as connection:
                row = connection.execute(counted(found)).fetchone()
            count = row[0] if row else 0
        # Of several changes of a key, one may come.
        return Foreseen(slice if count else None, count, is_exact=not self._applies or not count)

    def foresee_schema(self, slice: dict[str, Any]) -> pa.Schema:
        """As the table is now."""
        self._only = slice.get("only", self._only)
        return super().schema(slice)

    def _then(
        self, connection: psycopg.Connection[Any], capture: Capture, state: State
    ) -> tuple[State, str | None]:
        """What the state after a slice has, whichever that is; and why that is the table anew."""
        self._only = capture.columns
        details = self._details(connection)
        then: State = {
            "queue": capture.queue,
            "captured": capture.created_at.isoformat(),
            "names": sorted({*state.get("names", ()), capture.published_as}),
            "columns": {name: kind for name, kind, *_ in details},
            # With those that were dropped: one that gets such a name is another.
            "places": {**state.get("places", {}), **{name: place for name, *_, place in details}},
            "labels": dict(connection.execute(catalog.LABELS.encode(), {"table": self._quoted}).fetchall()),
            "only": capture.columns,
            "key": self._key(connection, details, capture),
            "version": self._version(connection, capture),
        }
        return then, _changed(state, then, details) if "tick" in state and self._applies else None

    def has_new(self, state: State) -> bool:
        if "tick" not in state or self._of_queue(state["queue"]).has_new(_place(state)):
            return True
        with self._connected() as connection:
            # Of a table that was dropped and made again no change will ever tell: the run does.
            return not self._has_triggers(connection)

    def plan_range(self, range: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002  # as all sources
        raise InvalidPipeline(
            f"pipeline {self._name} has every change of its table: a range of it is in the sink already",
            f"trunq pipeline state {self._name} --reset has the next run read all of the table anew",
        )

    def schema(self, slice: dict[str, Any]) -> pa.Schema | None:  # noqa: ARG002  # as all sources
        """Nothing: the state after the rows that are there is known to who reads them."""
        return None

    def shares(self, slice: dict[str, Any], at_most: int) -> list[dict[str, Any]]:  # noqa: ARG002  # as all
        return [slice]

    def read(self, slice: dict[str, Any], context: Context) -> Iterator[pa.RecordBatch]:
        self._only = slice["only"]
        if slice.get("snapshot"):
            return self._read_rows(slice, context)
        return self._read_changes(slice, context)

    def release(self, state: State) -> None:
        if "since" not in state and "tick" in state:
            with Client(self._client_dsn, max_connections=1) as client:
                client.advance(state["queue"], self._subscription, state["tick"])

    def _anew(self, client: Client, queue: str, then: State, why: str | None) -> Plan:
        # The queue keeps what is behind this tick, which comes before any snapshot of the rows.
        client.tick(queue, force=True)
        tick = client.list_ticks(queue)[-1]
        then = {**then, "tick": tick.tick_id, "cut": cut_of(tick)}
        slice = {"snapshot": True, "key": then["key"], "only": then["only"], "then": then}
        return Plan({**slice, "because": why} if why else slice, None)

    def _changes(
        self, connection: psycopg.Connection[Any], client: Client, queue: str, state: State, then: State
    ) -> Plan:
        client.tick(queue, force=True)
        hi = client.list_ticks(queue, state["tick"])[-1]
        lo = self._since(client, queue, state)
        if not _is_after(lo, hi.snapshot):
            return Plan(None, state)
        after = {**then, "tick": hi.tick_id, "cut": cut_of(hi)}
        found = self._messages(queue, lo, hi.snapshot, then["names"])
        if found is None or not _ask(connection, some(found)):
            return Plan(None, after)
        if self._applies and _ask(connection, truncates(found)):
            return self._anew(client, queue, then, _TRUNCATED)
        slice = {"changes": [lo, hi.snapshot], "ticks": [state["tick"], hi.tick_id]}
        told = {name: then[name] for name in ("names", "key", "only")}
        return Plan({**slice, **told, "queue": queue}, after)

    def _since(self, client: Client, queue: str, state: State) -> str:
        """The snapshot from which on changes are new."""
        self._of_queue(queue)._require(client, state["tick"], state.get("cut"))
        of_tick = (tick.snapshot for tick in client.list_ticks(queue, state["tick"], state["tick"]))
        return str(state.get("since") or next(of_tick, "0:0:"))

    def _read_rows(self, slice: dict[str, Any], context: Context) -> Iterator[pa.RecordBatch]:
        if why := slice.get("because"):
            log.warning("pipeline %s reads all of %s anew: %s", self._name, self._model.table, why)
        with self._connected() as connection:
            columns, schema = self._columns(connection)
            place = timeline.find(connection) if self._is_elsewhere else {}
        op = UPSERT if self._applies else "snapshot"
        query = sql.SQL("select {}::text, null::timestamptz, {} from {}").format(
            sql.Literal(op), columns, self._table
        )
        with connect(self._dsn, "trunq pipeline") as reader, reader.cursor() as cursor:
            cursor.execute("set transaction isolation level repeatable read")
            # Before the snapshot: who rewrites the table has it empty for older ones.
            cursor.execute(f"lock table {self._quoted} in access share mode")
            cursor.execute(set_local(READING))
            cursor.fetchall()
            cursor.execute("select pg_current_snapshot()::text")
            context.state = {**slice["then"], "since": cursor.fetchone()[0], **place}
            for batch in run(cursor, query.as_string(None), schema):
                context.check()
                yield batch

    def _read_changes(self, slice: dict[str, Any], context: Context) -> Iterator[pa.RecordBatch]:
        with self._connected() as connection:
            columns, schema = self._columns(connection)
            kinds = self._kinds(connection)
        lo, hi = slice["changes"]
        found = self._messages(slice["queue"], lo, hi, slice["names"])
        assert found is not None
        if self._applies:
            query = net(found, kinds, slice["key"], columns)
        else:
            query = each(found, kinds, slice["key"], columns)
        rows = fetch(self._dsn, query.as_string(None), schema, verify=self._clock.verify, check=context.check)
        for batch in rows:
            if UNCLEAR in batch.column(OP).to_pylist():
                self._refuse_unclear(batch, slice["key"])
            yield batch
        with Client(self._client_dsn, max_connections=1) as client:
            # Asked after reading: what was emptied meanwhile was not read.
            self._of_queue(slice["queue"])._require(client, slice["ticks"][0])

    def _refuse_unclear(self, batch: pa.RecordBatch, key: list[str]) -> None:
        row = next(row for row in batch.to_pylist() if row[OP] == UNCLEAR)
        named = ", ".join(f"{name} = {row.get(name)}" for name in key)
        raise InvalidPipeline(
            f"pipeline {self._name}: changes of {self._model.table} where {named} do not follow from one"
            " another: several rows have that key, or the table was altered meanwhile",
            f"give a key that names one row; or read the table anew: trunq pipeline cancel {self._name}, then"
            f" trunq pipeline state {self._name} --reset",
        )

    def _messages(self, queue: str, lo: str, hi: str, names: list[str]) -> sql.Composed | None:
        window = Window.between(Snapshot.parse(lo), Snapshot.parse(hi))
        conditions = window.whole(0).conditions()
        return messages(queue, conditions, names) if conditions else None

    def _columns(self, connection: psycopg.Connection[Any]) -> tuple[sql.Composed, pa.Schema]:
        """Those of the table that are captured, and our own."""
        columns, schema = super()._columns(connection)
        if taken := [name for name in schema.names if name in OWN or name.startswith(PREFIX)]:
            raise InvalidPipeline(
                f'pipeline {self._name}: {self._model.table} has a column "{taken[0]}", which captured rows'
                " have of their own",
                f'give it another name: alter table {self._model.table} rename "{taken[0]}" to ...; or leave'
                " it out: columns = {exclude = [...]}",
            )
        return columns, pa.schema([*_FIELDS, *schema])

    def _found_columns(self, connection: psycopg.Connection[Any]) -> list[tuple[str, str, bool, str]]:
        taken = self._stored(connection)
        return [each for each in super()._found_columns(connection) if each[0] in taken]

    def _details(self, connection: psycopg.Connection[Any]) -> _Details:
        """The columns that are captured: name, type, whether it has a default, and whether it is virtual."""
        found = connection.execute(catalog.DETAILS.encode(), (self._quoted,)).fetchall()
        return [each for each in found if self._only is None or each[0] in self._only]

    def _kinds(self, connection: psycopg.Connection[Any]) -> list[tuple[str, str]]:
        """The columns that are captured, with the types that the values of their images are read as."""
        taken = self._stored(connection)
        found = connection.execute(catalog.KINDS.encode(), (self._quoted,)).fetchall()
        return [each for each in found if each[0] in taken]

    def _stored(self, connection: psycopg.Connection[Any]) -> set[str]:
        """The columns that are captured, and whose values an image has: not virtual ones."""
        return {name for name, _, _, is_virtual, _ in self._details(connection) if not is_virtual}

    def _key(
        self, connection: psycopg.Connection[Any], details: _Details, capture: Capture | None
    ) -> list[str]:
        """The columns of the table that name a row."""
        names = {name for name, *_ in details}
        given = list(getattr(self._pipeline.sink, "key", None) or ()) if self._applies else []
        columns = self._pipeline.columns
        old = {} if columns is None else {new: name for name, new in columns.rename.items()}
        key = [old.get(name, name) for name in given]
        if not key or not names.issuperset(key):
            key = [
                row[0] for row in connection.execute(catalog.PRIMARY_KEY.encode(), (self._quoted,)).fetchall()
            ]
        if not key and self._applies:
            raise InvalidPipeline(
                f"pipeline {self._name}: {self._model.table} has no primary key, and rows are found by it",
                "give the sink key = ['...'], columns that name one row",
            )
        only = None if capture is None else capture.columns
        if capture is not None and (lacking := [name for name in key if only and name not in only]):
            raise InvalidPipeline(
                f'pipeline {self._name}: the capture of {self._model.table} leaves out "{lacking[0]}", by'
                " which rows are found",
                f"capture all columns: trunq capture create {self._model.table} {capture.queue}",
            )
        return key

    def _version(self, connection: psycopg.Connection[Any], capture: Capture) -> str | None:
        """It changes when the table is captured otherwise, though it be for a while."""
        query = (
            "select c.xmin::text from trunq.capture c join trunq.queue q using (queue_id)"
            " where q.name = %s and c.created_at = %s"
        )
        row = connection.execute(query.encode(), (capture.queue, capture.created_at)).fetchone()
        return row and row[0]

    def _captured(self, connection: psycopg.Connection[Any], client: Client, state: State) -> Capture:
        """The capture of the table, made where there is none and nothing was read yet."""
        if (capture := self._find_capture(connection, client, state)) is not None:
            return capture
        queues = {queue.queue for queue in client.list_queues()}
        if self._capture_queue not in queues:
            client.create_queue(self._capture_queue, default_subscription=False)
        full_name, _ = self._full_name(connection)
        client.capture(_quoted(full_name, connection), self._capture_queue)
        made = self._find_capture(connection, client, {**state, "queue": self._capture_queue})
        if made is None:
            raise self._uncaptured()
        return made

    def _find_capture(
        self, connection: psycopg.Connection[Any], client: Client, state: State
    ) -> Capture | None:
        """The capture of the table; None: there is none, and nothing was read yet."""
        full_name, is_hidden = self._full_name(connection)
        if is_hidden:
            raise InvalidPipeline(
                f"pipeline {self._name}: policies hide rows of {self._model.table} from who reads it, and its"
                " changes have all rows",
                "read as the owner of the table, or as a role with bypassrls",
            )
        found = (
            self._of_table(client, full_name, state.get("queue")) if self._has_triggers(connection) else []
        )
        if not found and "tick" not in state:
            return None
        if not found or ("tick" in state and not _is_same(found[0], state)):
            raise self._uncaptured()
        capture = found[0]
        if self._model.queue and capture.queue != self._model.queue:
            raise InvalidPipeline(
                f"pipeline {self._name}: {self._model.table} is captured into {capture.queue}, not into"
                f" {self._model.queue}",
                f'queue = "{capture.queue}" reads that: a table is captured into one queue',
            )
        if capture.condition or capture.ignore:
            raise InvalidPipeline(
                f"pipeline {self._name}: the capture of {self._model.table} leaves changes out, by"
                f" {'where' if capture.condition else 'ignore'}",
                f"capture all of them: trunq capture create {self._model.table} {capture.queue}",
            )
        return capture

    def _full_name(self, connection: psycopg.Connection[Any]) -> tuple[str, bool]:
        """The name of the table with its schema, and whether policies hide rows of it."""
        row = connection.execute(catalog.FULL_NAME.encode(), (self._quoted,)).fetchone()
        assert row is not None
        return row[0], row[1]

    def _has_triggers(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether the table is captured, and not one of its name that was dropped since."""
        row = connection.execute(catalog.HAS_TRIGGERS.encode(), (self._quoted,)).fetchone()
        return bool(row and row[0])

    def _uncaptured(self) -> InvalidPipeline:
        return InvalidPipeline(
            f"pipeline {self._name}: {self._model.table} was not captured for a while, or into another"
            " queue: changes are missing",
            f"trunq pipeline state {self._name} --reset begins anew, with all rows that are there then",
        )

    def _of_table(self, client: Client, full_name: str, queue: str | None) -> list[Capture]:
        """The capture of a table, where it was looked for first: there may be one for each customer."""
        found: list[Capture] = []
        if queue is not None:
            with suppress(QueueNotFound):
                found = [each for each in client.list_captures(queue) if each.table_name == full_name]
        return found or [each for each in client.list_captures() if each.table_name == full_name]

    def _subscribe(self, client: Client, queue: str, *, is_new: bool) -> None:
        named = {each.subscription: each.mode for each in client.list_subscriptions(queue)}
        if self._subscription not in named and is_new:
            client.subscribe(queue, self._subscription, mode="exclusive")
        elif self._subscription not in named:
            raise InvalidPipeline(
                f"pipeline {self._name}: subscription {self._subscription} of queue {queue}, which kept"
                " changes until they were written, was dropped: changes may be missing",
                f"trunq pipeline state {self._name} --reset begins anew, with all rows that are there then",
            )
        elif named[self._subscription] != "exclusive":
            raise InvalidPipeline(
                f"pipeline {self._name}: subscription {self._subscription} of queue {queue} is shared, and"
                " does not keep changes until they are written",
                "name another one: subscription = '...'",
            )

    def _require_trunq(self, connection: psycopg.Connection[Any]) -> None:
        if not _ask(connection, sql.SQL("select to_regnamespace('trunq') is not null")):
            raise InvalidPipeline(
                f"pipeline {self._name}: the database of {self._model.table} has no trunq, whose triggers"
                " capture changes",
                "trunq db install puts it there; or changes = 'window' reads without it, but sees no deletes",
            )

    def _of_queue(self, queue: str) -> QueueSource:
        """The queue as a source, which knows ticks."""
        model = QueueModel.model_construct(queue=queue, subscription=self._subscription, dsn=self._model.dsn)
        of_queue = self._pipeline.model_copy(update={"source": model})
        return QueueSource(of_queue, self._client_dsn, None)  # type: ignore[arg-type]  # it asks nothing


def _place(state: State) -> State:
    """Where a state is in the queue of changes."""
    return {name: state[name] for name in ("tick", "cut") if name in state}


def _changed(state: State, now: State, details: _Details) -> str | None:
    """Why images of rows are not those of before, though rows have not changed; None: they are."""
    before: dict[str, str] = state["columns"]
    kinds: dict[str, str] = now["columns"]
    added = [each for each in details if each[0] not in before]
    is_renamed = bool(added) and not before.keys() <= kinds.keys()
    has_default = any(default and not is_virtual for _, _, default, is_virtual, _ in added)
    has_type = any(kinds.get(name, kind) != kind for name, kind in before.items())
    # Dropped and added again, a column is another one; and two may have changed names.
    is_other = any(now["places"][name] != place for name, place in state.get("places", {}).items())
    if is_renamed or has_default or has_type or is_other or now["key"] != state["key"]:
        return "its columns changed"
    if any(now["labels"].get(oid, label) != label for oid, label in state.get("labels", {}).items()):
        return "a value of an enum was renamed"
    if now["version"] != state["version"] or now["only"] != state["only"]:
        return "it was captured otherwise"
    return None


def _is_same(capture: Capture, state: State) -> bool:
    return capture.queue == state["queue"] and capture.created_at == datetime.fromisoformat(state["captured"])


def _is_after(lo: str, hi: str) -> bool:
    """Whether a snapshot sees all that an earlier one does: a tick may be one that was cut before."""
    before, after = Snapshot.parse(lo), Snapshot.parse(hi)
    hidden = (txid for txid in after.running if txid < before.xmax and txid not in before.running)
    return after.xmax >= before.xmax and next(hidden, None) is None


def _ask(connection: psycopg.Connection[Any], query: sql.SQL | sql.Composed) -> bool:
    row = connection.execute(query).fetchone()
    return bool(row and row[0])


def _quoted(full_name: str, connection: psycopg.Connection[Any]) -> str:
    return sql.Identifier(*full_name.split(".", 1)).as_string(connection)
