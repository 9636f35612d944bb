"""What a runner does for triggers: it moves messages of users' queues on, and looks for continuous pipelines
whether their sources have something new.

One thread on one connection. It asks for runs by messages, as everybody does; the worker's slots do them.
Where nothing is new it writes nothing: it waits for the bell of the queue that is the source, or looks again
after a pause that grows to a second, and to twenty times what a look takes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import Connection, sql
from psycopg.rows import namedtuple_row

from trunq.connection.address import complete
from trunq.connection.backoff import first_line
from trunq.connection.session import looks_pooled
from trunq.pipeline import source as sources
from trunq.pipeline.control import Control
from trunq.pipeline.model import Pipeline, QueueSource, read_definition
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


class Lookout:
    """The thread. `stop` may be called from any other."""

    def __init__(self, dsn: str, control: Control) -> None:
        self._dsn = dsn
        self._control = control
        self._waking, self._wake = os.pipe()
        self._stopped = threading.Event()
        self._loops: dict[int, _Loop] = {}
        self._said: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="trunq pipelines", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Ask for no more runs; returns when that is so, or a source does not answer within a moment."""
        if not self._stopped.is_set():
            self._stopped.set()
            os.close(self._wake)
            self._thread.join(2.0)

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    address = complete(self._dsn, "trunq pipelines")
                    with psycopg.connect(address, autocommit=True) as connection:
                        self._said.pop("", None)
                        self._serve(connection)
                except Exception as error:
                    what = first_line(error) if isinstance(error, psycopg.Error) else repr(error)
                    self._say("", f"triggers wait: {what}")
                self._loops.clear()
                self._stopped.wait(_OFTEN)
        finally:
            os.close(self._waking)

    def _serve(self, connection: Connection[Any]) -> None:
        is_pooled = looks_pooled(connection)
        if is_pooled:
            connection.prepare_threshold = None
        else:
            connection.execute("listen trunq_pipelines")
        while not self._stopped.is_set():
            pause = self._look(connection, is_pooled)
            if self._stopped.is_set():
                return
            heard = [self._waking] if is_pooled else [self._waking, connection.fileno()]
            select.select(heard, [], [], min(pause, _OFTEN) if is_pooled else pause)
            if not is_pooled:
                channels = {each.channel for each in connection.notifies(timeout=0)}
                for loop in self._loops.values():
                    loop.hear(channels)

    def _look(self, connection: Connection[Any], is_pooled: bool) -> float:
        """Do what is to be done; seconds until the next look."""
        with connection.cursor(row_factory=namedtuple_row) as cursor:
            rows = [_Row(*row) for row in cursor.execute("select * from trunq._list_triggered()").fetchall()]
        pause = _POLL
        continuous = {row.pipeline_id: row for row in rows if "continuous" in row.definition["trigger"]}
        for row in rows:
            if row.pipeline_id not in continuous:
                pause = min(pause, self._relay(connection, row.pipeline))
        for gone in self._loops.keys() - continuous.keys():
            self._loops.pop(gone).leave(connection)
        for id, row in continuous.items():
            loop = self._loops.get(id)
            if loop is None or loop.definition != row.definition:
                held = loop is not None and loop.is_mine
                if loop is not None:
                    loop.give_bell(connection)
                loop = self._loops[id] = _Loop(
                    id, row.definition, self._dsn, self._control, is_pooled, is_mine=held
                )
            try:
                pause = min(pause, loop.look(connection, row))
                self._said.pop(row.pipeline, None)
            except Exception as error:
                if connection.broken:
                    raise
                self._say(row.pipeline, f"pipeline {row.pipeline}, which is continuous: {loop.told(error)}")
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
        self._said.pop(pipeline, None)
        return _AT_ONCE if row and row[0] else _OFTEN

    def _say(self, what: str, text: str) -> None:
        if self._said.get(what) != text:
            self._said[what] = text
            log.warning("%s", text)


@dataclass
class _Loop:
    """A continuous pipeline: one runner at a time looks after it."""

    pipeline_id: int
    definition: dict[str, Any]
    dsn: str
    control: Control
    is_pooled: bool
    is_mine: bool = False
    _pipeline: Pipeline | None = None
    _source: sources.Source | None = None
    _next_at: float = 0.0
    _pause: float = _AT_ONCE
    _failures: int = 0
    _asked: int | None = None
    _done: int = 0
    _channel: str | None = None
    _has_bell: bool = False
    _heard: bool = False

    def hear(self, channels: set[str]) -> None:
        """Something was notified."""
        if self._channel in channels or ("trunq_pipelines" in channels and self._asked is not None):
            self._heard = True

    def look(self, connection: Connection[Any], row: _Row) -> float:
        """Ask for a run if there is something new; seconds until the next look."""
        now = monotonic()
        if now < self._next_at and not (self._heard and not self._failures):
            return self._next_at - now
        self._heard = False
        if not self._own(connection):
            return self._again_in(_POLL)
        if self._asked is not None and not self._is_over(connection, row):
            return self._again_in(_OFTEN)
        if self._failures and now < self._next_at:
            return self._next_at - now
        # An open run that nobody has asked for is one whose message died.
        if not row.is_open and not self._has_new(connection, row):
            return self._idle(connection, monotonic() - now)
        self.give_bell(connection)
        self._ask(connection, row)
        return self._again_in(_OFTEN)

    def told(self, error: Exception) -> str:
        """An error in a line, without passwords."""
        text = first_line(error)
        return text if self._pipeline is None else redact(self._pipeline, text)

    def put_off(self, *, error: bool = False) -> float:
        """After a failure, the next look is the later the more there were."""
        self._failures += 1
        longest = 60.0 if error else _LONGEST
        return self._again_in(min(longest, 2.0**self._failures))

    def give_bell(self, connection: Connection[Any]) -> None:
        """Let others have the bell of the source."""
        if self._has_bell:
            self._has_bell = False
            connection.execute("select trunq.give_bell(%s)", (self._queue,))

    def leave(self, connection: Connection[Any]) -> None:
        """It is paused, or not continuous any more."""
        with contextlib.suppress(psycopg.Error):
            self.give_bell(connection)
        if self._channel is not None:
            connection.execute(sql.SQL("unlisten {}").format(sql.Identifier(self._channel)))
        if self.is_mine and not self.is_pooled:
            connection.execute(
                "select pg_advisory_unlock(trunq._lock_class('continuous'), %s)", (self.pipeline_id,)
            )

    def _own(self, connection: Connection[Any]) -> bool:
        """Behind a pooler a lock of the session would stick to a stranger: there each runner looks."""
        if not self.is_mine and not self.is_pooled:
            row = connection.execute(
                "select pg_try_advisory_lock(trunq._lock_class('continuous'), %s)",
                (self.pipeline_id,),
            ).fetchone()
            self.is_mine = bool(row and row[0])
        return self.is_mine or self.is_pooled

    def _is_over(self, connection: Connection[Any], row: _Row) -> bool:
        """Whether the run that was asked for is over."""
        if row.done != self._done:
            self._asked, self._failures = None, 0
            return True
        try:
            found = connection.execute(
                "select m.state from trunq.show_message('pipelines', %s) m where m.subscription = 'default'",
                (self._asked,),
            ).fetchone()
        except psycopg.Error:
            if connection.broken:
                raise
            found = None
        if found is not None and found[0] in OPEN:
            return False
        # It died, or found nothing where we had seen something.
        self._asked = None
        self.put_off()
        return True

    def _has_new(self, connection: Connection[Any], row: _Row) -> bool:
        if self._source is None:
            self._pipeline = read_definition(row.pipeline, row.definition).expanded()
            self._source = sources.make(self._pipeline, self.dsn, self.control)
            if self._queue is not None and not self.is_pooled:
                found = connection.execute("select trunq.queue_channel(%s)", (self._queue,)).fetchone()
                self._channel = str(found and found[0])
                connection.execute(sql.SQL("listen {}").format(sql.Identifier(self._channel)))
        return self._source.has_new(row.state)

    @property
    def _queue(self) -> str | None:
        """The queue of this database that is the source."""
        source = self._pipeline and self._pipeline.source
        return source.queue if isinstance(source, QueueSource) and source.dsn is None else None

    def _idle(self, connection: Connection[Any], took: float) -> float:
        self._failures = 0
        if self._channel is None:
            self._pause = min(_OFTEN, self._pause * 2)
            return self._again_in(max(self._pause, min(_SHARE * took, _LONGEST)))
        if self._has_bell:
            return self._again_in(_POLL)
        found = connection.execute("select trunq.take_bell(%s)", (self._queue,)).fetchone()
        self._has_bell = bool(found and found[0] == "held")
        if found and found[0] == "publisher":
            return self._again_in(_AT_ONCE)
        # What came before we had the bell told nobody.
        return self._again_in(0.0 if self._has_bell else _OFTEN)

    def _ask(self, connection: Connection[Any], row: _Row) -> None:
        found = connection.execute("select trunq._ask_run(%s)", (row.pipeline,)).fetchone()
        self._asked, self._done, self._pause = found and found[0], row.done, _AT_ONCE

    def _again_in(self, seconds: float) -> float:
        self._next_at = monotonic() + seconds
        return seconds
