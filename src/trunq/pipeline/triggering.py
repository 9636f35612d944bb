"""What a runner does for triggers: it moves messages of users' queues on, and looks for continuous pipelines
whether their sources have something new.

One thread on one connection. It asks for runs by messages, as everybody does; the worker's slots do them.
Where nothing is new it writes nothing: it waits for the bell of the queue that is the source, or looks again
after a pause that grows to a second, and to twenty times what a look takes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import Connection, Notify
from psycopg.rows import namedtuple_row

from trunq.connection._sync.listener import Listener
from trunq.connection._sync.opening import open_connection
from trunq.connection.address import complete
from trunq.connection.backoff import Hurry, first_line, retrying
from trunq.connection.ear import Ear
from trunq.connection.outage import Said
from trunq.pipeline import source as sources
from trunq.pipeline.control import Control
from trunq.pipeline.definition.change import gives_changes
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.reading import read_definition
from trunq.pipeline.definition.source import QueueSource
from trunq.pipeline.redact import redact
from trunq.word import OPEN

log = logging.getLogger("trunq.pipeline")

_POLL: Final = 5.0
"""Seconds between two looks where something would wake us."""
_OFTEN: Final = 1.0
"""Where nothing would."""
_AT_ONCE: Final = 0.05
_SHARE: Final = 20
"""A look that finds nothing is followed by a pause of so many times what it took."""
_LONGEST: Final = 600.0


class _Row(NamedTuple):
    """Of trunq._list_triggered."""

    pipeline_id: int
    pipeline: str
    definition: dict[str, Any]
    state: dict[str, Any]
    done: int
    is_open: bool


class Triggers:
    """The thread. `stop` may be called from any other."""

    def __init__(self, dsn: str, control: Control) -> None:
        self._dsn = dsn
        self._control = control
        self._ear = Ear()
        self._stopped = Hurry()
        self._loops: dict[int, _Loop] = {}
        self._said = Said()
        self._thread = threading.Thread(target=self._run, name="trunq pipelines", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Ask for no more runs; returns when that is so, or a source does not answer within a moment."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._ear.wake()
            self._thread.join(2.0)

    def _run(self) -> None:
        stopped = self._stopped
        tries = retrying(also=Exception, is_over=stopped.is_set, say=self._lose, sleep=stopped.pause)
        # Whatever happens after `stop` concerns nobody.
        with contextlib.suppress(Exception), contextlib.closing(self._ear):
            tries(self._watch)

    def _watch(self) -> None:
        with open_connection(complete(self._dsn, "trunq pipelines")) as connection:
            self._said.forget("")
            self._serve(Listener(connection, self._hear, self._ear))

    def _lose(self, error: BaseException, *_: object) -> None:
        what = first_line(error) if isinstance(error, psycopg.Error) else repr(error)
        self._say("", f"triggers wait: {what}")
        self._loops.clear()

    def _serve(self, listener: Listener) -> None:
        if not listener.is_pooled:
            listener.listen("trunq_pipelines")
        while not self._stopped.is_set():
            pause = self._look(listener)
            listener.wait(min(pause, _OFTEN) if listener.is_pooled else pause)

    def _hear(self, notification: Notify) -> None:
        for loop in self._loops.values():
            loop.hear(notification.channel)

    def _look(self, listener: Listener) -> float:
        """Do what is to be done; seconds until the next look."""
        connection = listener.connection
        with connection.cursor(row_factory=namedtuple_row) as cursor:
            rows = [_Row(*row) for row in cursor.execute("select * from trunq._list_triggered()").fetchall()]
        pause = _POLL
        continuous = {row.pipeline_id: row for row in rows if "continuous" in row.definition["trigger"]}
        for row in rows:
            if row.pipeline_id not in continuous:
                pause = min(pause, self._relay(connection, row.pipeline))
        for gone in self._loops.keys() - continuous.keys():
            self._loops.pop(gone).leave()
        for id, row in continuous.items():
            loop = self._loops.get(id)
            if loop is None or loop.definition != row.definition:
                held = loop is not None and loop.is_mine
                if loop is not None:
                    loop.give_bell()
                loop = self._loops[id] = _Loop(
                    id, row.definition, self._dsn, self._control, listener, is_mine=held
                )
            try:
                pause = min(pause, loop.look(row))
                self._said.forget(row.pipeline)
            except Exception as error:
                if connection.broken:
                    raise
                self._say(
                    row.pipeline, f"pipeline {row.pipeline}, which is continuous: {loop.explain(error)}"
                )
                pause = min(pause, loop.put_off(error=True))
        return pause

    def _relay(self, connection: Connection[Any], pipeline: str) -> float:
        try:
            row = connection.execute("select trunq._relay(%s)", (pipeline,)).fetchone()
        except psycopg.Error as error:
            if connection.broken:
                raise
            self._say(pipeline, f"messages that are to start pipeline {pipeline} wait: {first_line(error)}")
            return _POLL
        self._said.forget(pipeline)
        return _AT_ONCE if row and row[0] else _OFTEN

    def _say(self, what: str, text: str) -> None:
        if self._said.is_new(what, text):
            log.warning("%s", text)


@dataclass
class _Loop:
    """A continuous pipeline: one runner at a time looks after it."""

    pipeline_id: int
    definition: dict[str, Any]
    dsn: str
    control: Control
    listener: Listener
    is_mine: bool = False
    _pipeline: Pipeline | None = None
    _source: sources.Source | None = None
    _next_at: float = 0.0
    _pause: float = _AT_ONCE
    _failures: int = 0
    _asked: int | None = None
    _done: int = 0
    _queue: str | None = None
    """The one that rings, and its channel."""
    _channel: str | None = None
    _has_bell: bool = False
    _heard: bool = False

    def hear(self, channel: str) -> None:
        """Something was notified."""
        if channel == self._channel or (channel == "trunq_pipelines" and self._asked is not None):
            self._heard = True

    def look(self, row: _Row) -> float:
        """Ask for a run if there is something new; seconds until the next look."""
        now = monotonic()
        if now < self._next_at and not (self._heard and not self._failures):
            return self._next_at - now
        self._heard = False
        if not self._own():
            return self._again_in(_POLL)
        if self._asked is not None and not self._is_over(row):
            return self._again_in(_OFTEN)
        if self._failures and now < self._next_at:
            return self._next_at - now
        # An open run that nobody has asked for is one whose message died.
        if not row.is_open and not self._has_new(row):
            return self._idle(monotonic() - now)
        self.give_bell()
        self._ask(row)
        return self._again_in(_OFTEN)

    def explain(self, error: Exception) -> str:
        """An error in a line, without passwords."""
        text = first_line(error)
        return text if self._pipeline is None else redact(self._pipeline, text)

    def put_off(self, *, error: bool = False) -> float:
        """After a failure, the next look is the later the more there were."""
        self._failures += 1
        longest = 60.0 if error else _LONGEST
        return self._again_in(min(longest, 2.0**self._failures))

    def give_bell(self) -> None:
        """Let others have the bell of the source."""
        if self._has_bell:
            self._has_bell = False
            self._value("trunq.give_bell(%s)", self._queue)

    def leave(self) -> None:
        """It is paused, or not continuous any more."""
        with contextlib.suppress(psycopg.Error):
            self.give_bell()
        if self._channel is not None:
            self.listener.unlisten(self._channel)
        if self.is_mine and not self.listener.is_pooled:
            self._value("pg_advisory_unlock(trunq._lock_class('continuous'), %s)", self.pipeline_id)

    def _own(self) -> bool:
        """Behind a pooler a lock of the session would stick to a stranger: there each runner looks."""
        if not self.is_mine and not self.listener.is_pooled:
            lock = "pg_try_advisory_lock(trunq._lock_class('continuous'), %s)"
            self.is_mine = self._value(lock, self.pipeline_id)
        return self.is_mine or self.listener.is_pooled

    def _is_over(self, row: _Row) -> bool:
        """Whether the run that was asked for is over."""
        if row.done != self._done:
            self._asked, self._failures = None, 0
            return True
        try:
            shown = "m.state from trunq.show_message('pipelines', %s) m where m.subscription = 'default'"
            state = self._value(shown, self._asked)
        except psycopg.Error:
            if self.listener.connection.broken:
                raise
            state = None
        if state in OPEN:
            return False
        # It died, or found nothing where we had seen something.
        self._asked = None
        self.put_off()
        return True

    def _has_new(self, row: _Row) -> bool:
        if self._source is None:
            self._pipeline = read_definition(row.pipeline, row.definition).expanded()
            self._source = sources.make(self._pipeline, self.dsn, self.control)
        self._listen_to(self._queue_of(row.state))
        return self._source.has_new(row.state)

    def _queue_of(self, state: sources.State) -> str | None:
        """The queue of this database from which the source comes; of a table it is known once it is read."""
        source = self._pipeline and self._pipeline.source
        if source is None or getattr(source, "dsn", None) is not None:
            return None
        if isinstance(source, QueueSource):
            return source.queue
        return state.get("queue") if gives_changes(source) else None

    def _listen_to(self, queue: str | None) -> None:
        if queue == self._queue or self.listener.is_pooled:
            return
        with contextlib.suppress(psycopg.Error):
            self.give_bell()
        if self._channel is not None:
            self.listener.unlisten(self._channel)
        self._queue, self._channel = queue, None
        if queue is not None:
            self._channel = str(self._value("trunq.queue_channel(%s)", queue))
            self.listener.listen(self._channel)

    def _idle(self, took: float) -> float:
        self._failures = 0
        if self._channel is None:
            self._pause = min(_OFTEN, self._pause * 2)
            return self._again_in(max(self._pause, min(_SHARE * took, _LONGEST)))
        if self._has_bell:
            return self._again_in(_POLL)
        state = self._value("trunq.take_bell(%s)", self._queue)
        self._has_bell = state == "held"
        if state == "publisher":
            return self._again_in(_AT_ONCE)
        # What came before we had the bell told nobody.
        return self._again_in(0.0 if self._has_bell else _OFTEN)

    def _ask(self, row: _Row) -> None:
        self._asked = self._value("trunq._ask_run(%s)", row.pipeline)
        self._done, self._pause = row.done, _AT_ONCE

    def _value(self, wanted: str, argument: object) -> Any:
        row = self.listener.connection.execute(f"select {wanted}".encode(), (argument,)).fetchone()
        return row and row[0]

    def _again_in(self, seconds: float) -> float:
        self._next_at = monotonic() + seconds
        return seconds
