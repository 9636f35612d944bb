"""Hearing notifications: one connection and one thread serve all that listens in a client, and end with it.

Each listen has an inbox. The thread puts into it what it hears and never waits for who takes it: an inbox of
a channel keeps so many and drops the oldest, one of a queue only knows that there is something to read, as
the log has the messages. A connection that is lost is opened again, and each inbox told from when to when
nothing was heard.

For those that listen to a queue and have read all, the thread takes the bell of the queue
(functions/work/bell.sql), so that publishers notify while somebody rests and pay nothing while nobody does.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from time import monotonic
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import Cursor, Notify, sql
from psycopg.rows import tuple_row

from trunq.client.attending import Attendant
from trunq.client.heard import Missed
from trunq.connection._sync.listener import Listener
from trunq.connection._sync.opening import open_connection
from trunq.connection.backoff import is_retryable
from trunq.connection.ear import Ear
from trunq.errors import InvalidArgument
from trunq.wire.call import Call

log = logging.getLogger("trunq.client")

_FIRST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.5
"""Seconds until the next look while an open publisher keeps the bell from being taken, at first and later."""
_SENT: Final = 10_000
"""Notifications of this client that are remembered until they are heard."""


class Told(NamedTuple):
    """A notification in an inbox."""

    payload: str
    pid: int
    at: datetime


class Inbox:
    """What one listen has heard and nobody has taken; `size` 0 keeps nothing but that there was something."""

    def __init__(self, channel: str, size: int, *, no_local: bool = False) -> None:
        self.channel = channel
        self.no_local = no_local
        self.is_closed = False
        self._size = size
        self._lock = threading.Lock()
        self._items: deque[Told | Missed] = deque()
        self._gap: Missed | None = None
        """What was dropped before the first of them."""
        self._is_rung = False
        self._error: Exception | None = None
        self._waiting: list[Future[None]] = []

    def put(self, told: Told) -> None:
        """Keep it for whoever takes it; the oldest goes when there is no room."""
        with self._lock:
            if self._size:
                self._make_room()
                self._items.append(told)
            self._stir()

    def miss(self, missed: Missed) -> None:
        """Nothing was heard for a while."""
        with self._lock:
            if self._size and self._items and isinstance(last := self._items[-1], Missed):
                self._items[-1] = last.joined(missed)
            elif self._size:
                self._make_room()
                self._items.append(missed)
            self._stir()

    def ring(self) -> None:
        """There may be something."""
        with self._lock:
            self._stir()

    def fail(self, error: Exception) -> None:
        """There will be no more: whoever takes gets this error, after what is there."""
        with self._lock:
            self._error = error
            self._stir()

    def close(self) -> None:
        """There will be no more, and nobody takes what is there."""
        with self._lock:
            self.is_closed = True
            self._stir()

    def take(self) -> Told | Missed | None:
        """The oldest; None: there is none. Raises the error of `fail` behind the last."""
        with self._lock:
            self._is_rung = False
            if (gap := self._gap) is not None:
                self._gap = None
                return gap
            if self._items:
                return self._items.popleft()
            if self._error is not None:
                raise self._error
            return None

    def wait(self) -> Future[None]:
        """A future that is done when there may be something to take. Cancel it when you wait no more."""
        future: Future[None] = Future()
        with self._lock:
            self._waiting = [each for each in self._waiting if not each.done()]
            if self._is_rung or self._items or self._gap is not None or self.is_closed or self._error:
                future.set_result(None)
            else:
                self._waiting.append(future)
        return future

    def _make_room(self) -> None:
        while len(self._items) >= self._size:
            first = self._items.popleft()
            gone = first if isinstance(first, Missed) else Missed(first.at, first.at, 1)
            self._gap = gone if self._gap is None else self._gap.joined(gone)

    def _stir(self) -> None:
        self._is_rung = True
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_result(None)


@dataclass(slots=True)
class _Bell:
    """The bell of a queue that somebody listens to."""

    queue: str
    is_held: bool = False
    is_wanted: bool = False
    is_rung: bool = False
    pause: float = _FIRST_PAUSE
    look_at: float = inf


class Hearing(Attendant["_Line"]):
    """All that listens in a client."""

    doing = "listening"
    closed = "this client was closed while it listened"
    level = logging.WARNING

    def __init__(self, conninfo: str) -> None:
        super().__init__(conninfo)
        self._inboxes: dict[str, list[Inbox]] = {}
        self._joining: list[tuple[Inbox, Future[None]]] = []
        self._bells: dict[str, _Bell] = {}
        """By the channel of their queue."""
        self._sent: OrderedDict[tuple[int, str, int], int] = OrderedDict()
        self._line: _Line | None = None
        self._deaf_since: datetime | None = None

    def join(self, inbox: Inbox, queue: str | None = None) -> Future[None]:
        """A future that is done when the inbox hears; of a queue, by its bell. `leave` it afterwards."""
        future: Future[None] = Future()
        with self._lock:
            self._begin()
            self._inboxes.setdefault(inbox.channel, []).append(inbox)
            if queue is not None:
                self._bells.setdefault(inbox.channel, _Bell(queue))
            self._joining.append((inbox, future))
        return future

    def leave(self, inbox: Inbox) -> None:
        """Hear no more; from any thread."""
        inbox.close()
        self.forget(inbox)

    def forget(self, inbox: Inbox) -> None:
        """The same for a finalizer: it may interrupt whoever has a lock, so it takes none."""
        inbox.is_closed = True
        with suppress(OSError):
            self._ear.wake()

    def rest(self, inbox: Inbox) -> None:
        """Whoever listens to a queue has read all: have its publishers ring."""
        with self._lock:
            bell = self._bells.get(inbox.channel)
            if bell is not None and (bell.is_rung or not bell.is_held):
                bell.is_wanted = True
                self._ear.wake()

    def sends(self, pid: int, channel: str, payload: str) -> None:
        """A session of this client is about to notify, or has done so in a transaction that is open."""
        with self._lock:
            if not any(inbox.no_local for inbox in self._inboxes.get(channel, ())):
                return
            # Not the text, which may be long.
            sent = (pid, channel, hash(payload))
            self._sent[sent] = self._sent.pop(sent, 0) + 1
            if len(self._sent) > _SENT:
                self._sent.popitem(last=False)

    # In the thread

    def _open(self) -> _Line:
        return _Line(self._conninfo, self._ear, self._hear)

    def _attend(self, line: _Line) -> None:
        self._line = line
        try:
            self._attend_while_heard(line)
        except BaseException:
            self._deaf_since = self._deaf_since or line.heard_until
            raise

    def _is_wanted(self) -> bool:
        self._leave_out_closed()
        if self._inboxes:
            return True
        self._deaf_since = None
        self._bells.clear()
        return False

    def _leave_out_closed(self) -> None:
        for channel, inboxes in list(self._inboxes.items()):
            if left := [inbox for inbox in inboxes if not inbox.is_closed]:
                self._inboxes[channel] = left
            else:
                del self._inboxes[channel]

    def _attend_while_heard(self, line: _Line) -> None:
        """Hear, until nobody listens."""
        while line.is_pooled:
            self._fail_all(
                InvalidArgument(
                    "nothing can listen behind a connection pooler in transaction mode",
                    "give this client the address of the server itself",
                )
            )
            if self._may_end():
                return
        listened: set[str] = set()
        with self._lock:
            for bell in self._bells.values():
                bell.is_held, bell.look_at = False, inf
        while True:
            listened = self._change(line, listened)
            self._see_to_bells(line)
            if self._may_end():
                return
            with self._lock:
                look_at = min((bell.look_at for bell in self._bells.values()), default=inf)
            line.wait(max(0.0, look_at - monotonic()))

    def _change(self, line: _Line, listened: set[str]) -> set[str]:
        """Listen to what is new, and no longer to what nobody wants; returns to what it listens now."""
        with self._lock:
            self._leave_out_closed()
            joining, self._joining = self._joining, []
            wanted = set(self._inboxes)
            left = [self._bells.pop(channel) for channel in self._bells.keys() - wanted]
        try:
            line.listen(wanted - listened, listened - wanted)
            for bell in left:
                if bell.is_held:
                    self._of_a_queue(bell, line.give_bell)
            if self._deaf_since is not None:
                self._tell_missed(Missed(self._deaf_since, line.now()), {id(inbox) for inbox, _ in joining})
        except BaseException:
            with self._lock:
                self._joining = joining + self._joining
            raise
        for _, future in joining:
            if future.set_running_or_notify_cancel():
                future.set_result(None)
        return wanted

    def _tell_missed(self, missed: Missed, new: set[int]) -> None:
        self._deaf_since = None
        for inbox in self._all():
            if id(inbox) not in new:
                inbox.miss(missed)

    def _see_to_bells(self, line: _Line) -> None:
        """Give back what has rung, and take what somebody rests by."""
        now = monotonic()
        with self._lock:
            bells = list(self._bells.items())
        for channel, bell in bells:
            if bell.is_rung:
                # In this order: who rests meanwhile finds it rung, or free.
                was_held, bell.is_held = bell.is_held, False
                bell.is_rung = False
                if was_held:
                    self._of_a_queue(bell, line.give_bell)
            if bell.look_at <= now:
                bell.look_at = inf
                self._ring(channel)
            elif bell.is_wanted and not bell.is_held:
                bell.is_wanted = False
                state = self._of_a_queue(bell, line.take_bell)
                if state == "publisher":
                    # It saw nobody at rest: it will not notify what it commits.
                    bell.look_at = monotonic() + bell.pause
                    bell.pause = min(2 * bell.pause, _LONGEST_PAUSE)
                    continue
                bell.pause, bell.look_at = _FIRST_PAUSE, inf
                bell.is_held = state == "held"
                if state != "sleeper":
                    # Once more: something may have come before. Or the queue is gone, which a look tells.
                    self._ring(channel)

    def _of_a_queue(self, bell: _Bell, call: Callable[[str], str]) -> str | None:
        """What a function says of the bell; None: the queue is gone."""
        try:
            return call(bell.queue)
        except psycopg.Error as error:
            if is_retryable(error):
                raise
            return None

    def _ring(self, channel: str) -> None:
        with self._lock:
            inboxes = list(self._inboxes.get(channel, ()))
        for inbox in inboxes:
            inbox.ring()

    def _all(self) -> list[Inbox]:
        with self._lock:
            return [inbox for inboxes in self._inboxes.values() for inbox in inboxes]

    def _fail_all(self, error: Exception) -> None:
        with self._lock:
            inboxes = [inbox for inboxes in self._inboxes.values() for inbox in inboxes]
            self._inboxes.clear()
            joining, self._joining = self._joining, []
        for inbox in inboxes:
            inbox.fail(error)
        for _, future in joining:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    def _hear(self, notification: Notify) -> None:
        channel, payload, pid = notification.channel, notification.payload, notification.pid
        line = self._line
        if line is None:
            return
        with self._lock:
            inboxes = list(self._inboxes.get(channel, ()))
            bell = self._bells.get(channel)
            is_own = self._is_own(pid, channel, payload)
        if bell is not None:
            is_given = payload == "bell"
            bell.is_rung |= not is_given
            if is_given and pid != line.pid:
                bell.is_wanted = True
        told = Told(payload, pid, line.clock())
        for inbox in inboxes:
            if not (is_own and inbox.no_local):
                inbox.put(told)

    def _is_own(self, pid: int, channel: str, payload: str) -> bool:
        sent = (pid, channel, hash(payload))
        if (count := self._sent.get(sent)) is None:
            return False
        # Another process may have this id one day.
        if count > 1:
            self._sent[sent] = count - 1
        else:
            del self._sent[sent]
        return True


class _Line:
    """The connection that listens. Raises psycopg.Error when it is lost."""

    def __init__(self, conninfo: str, ear: Ear, hear: Callable[[Notify], None]) -> None:
        # Before anything is heard.
        self._seen: tuple[datetime, float] | None = None
        self._listener = Listener(open_connection(conninfo), hear, ear)
        self.is_pooled = self._listener.is_pooled
        self.pid = self._listener.connection.pgconn.backend_pid
        try:
            self.now()
        except BaseException:
            self.close()
            raise

    @property
    def heard_until(self) -> datetime:
        """Until then nothing was missed, by the database's clock."""
        return self._at(self._listener.alive_at)

    def clock(self) -> datetime:
        """About the time of the database."""
        return self._at(monotonic())

    def now(self) -> datetime:
        """The time of the database, which it is asked for."""
        (row,) = self._execute(b"select pg_catalog.clock_timestamp()")
        self._seen = (row[0], monotonic())
        return self._seen[0]

    def listen(self, new: Iterable[str], gone: Iterable[str]) -> None:
        """Hear of some channels, and of others no longer: all of them at once."""
        said = [sql.SQL("listen {}").format(sql.Identifier(channel)) for channel in sorted(new)]
        said += [sql.SQL("unlisten {}").format(sql.Identifier(channel)) for channel in sorted(gone)]
        if said:
            self._listener.connection.execute(sql.SQL("; ").join(said), prepare=False)

    def take_bell(self, queue: str) -> str:
        """Take the bell of a queue; what of it."""
        return self._call("take_bell", queue)

    def give_bell(self, queue: str) -> str:
        """Give it back."""
        return self._call("give_bell", queue)

    def wait(self, seconds: float) -> None:
        """Wait for a notification, or for the ear to be woken."""
        self._listener.wait(seconds)

    def close(self) -> None:
        """Close the connection."""
        self._listener.close()

    def _at(self, moment: float) -> datetime:
        assert self._seen is not None
        at, seen = self._seen
        return at + timedelta(seconds=moment - seen)

    def _call(self, function: str, queue: str) -> str:
        call = Call(function, {"queue": queue})
        (row,) = self._execute(call.statement, call.values)
        return str(row[0])

    def _execute(self, statement: bytes, values: Any = None) -> list[tuple[Any, ...]]:
        cursor = Cursor(self._listener.connection, row_factory=tuple_row)
        return cursor.execute(statement, values).fetchall()
