"""Waiting for replies: one connection and one thread serve all who wait in a client, and end with them.

The thread listens first and looks then, so that no reply falls between the two; a notification names the
messages to look for. What cannot be notified (a transaction with `trunq.notify = off`, a pooler in
transaction mode in between) is found by looking again. A connection that is lost is opened again, and all is
looked for anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import psycopg
from psycopg import Cursor, Notify
from psycopg.rows import tuple_row

from trunq.client.attending import Attendant
from trunq.connection._sync.listener import Listener
from trunq.connection._sync.opening import open_connection
from trunq.connection.backoff import is_retryable
from trunq.connection.ear import Ear
from trunq.errors import MessageFailed, MessageTooLarge, translate
from trunq.record import Reply
from trunq.wire.array import adapt_arrays, bigint_array
from trunq.wire.call import Call
from trunq.wire.scalar import ids_told

log = logging.getLogger("trunq.client")

T = TypeVar("T")

FIRST_CHECK: Final = 0.25
"""Seconds until a message without a reply is searched for: one that will never have one is refused then."""
_CHECKS: Final = (4, 60.0)
"""Each further check comes so many times later, up to so many seconds."""
_AT_ONCE: Final = 200
"""Messages checked by one call."""
_LOOK: Final = 5.0
"""Seconds between two looks at everything while notifications come."""
FIRST_POLL: Final = 0.05
LONGEST_POLL: Final = 1.0
"""Seconds between two looks where none come, at first and later."""
_LINGER: Final = 1.0
"""Seconds for which the connection stays when nobody waits: who asks one thing after the other keeps it."""
_PART: Final = 10_000


class Question(NamedTuple):
    """What somebody waits for."""

    queue: str
    subscription: str
    id: int


@dataclass(slots=True)
class Waiting:
    """Those who wait for one reply, and when to ask whether it will ever come."""

    futures: list[Future[Reply]] = field(default_factory=list)
    check_at: float = 0.0
    pause: float = FIRST_CHECK


class Replies(Attendant["_Listening"]):
    """Replies that somebody waits for, by any number of threads and tasks."""

    doing = "listening for replies"
    closed = "this client was closed while a result was awaited"

    def __init__(self, conninfo: str) -> None:
        super().__init__(conninfo)
        self._waiting: dict[Question, Waiting] = {}
        self._new: set[Question] = set()

    def wait_for(self, question: Question) -> Future[Reply]:
        """A future that gets the reply, or the error why there will be none. `leave` it afterwards."""
        future: Future[Reply] = Future()
        with self._lock:
            self._begin()
            waiting = self._waiting.setdefault(question, Waiting(check_at=monotonic() + FIRST_CHECK))
            waiting.futures.append(future)
            self._new.add(question)
        return future

    def leave(self, question: Question, future: Future[Reply]) -> None:
        """Wait no more."""
        with self._lock:
            waiting = self._waiting.get(question)
            if waiting is not None and future in waiting.futures:
                waiting.futures.remove(future)
                if not waiting.futures:
                    del self._waiting[question]
                    self._ear.wake()

    # In the thread

    def _open(self) -> _Listening:
        return _Listening(self._conninfo, self._ear)

    def _is_wanted(self) -> bool:
        return bool(self._waiting)

    def _fail_all(self, error: Exception) -> None:
        self._fail(self._asked(), error)

    def _attend(self, line: _Listening) -> None:
        """Look, and wait for the next reason to look, until nobody waits."""
        questions: set[Question] = set()
        look_at, poll, idle_since = 0.0, FIRST_POLL, monotonic()
        while True:
            with self._lock:
                questions |= self._new
                if self._new:
                    poll = FIRST_POLL
                self._new = set()
            now = monotonic()
            if now >= look_at:
                questions = set(self._asked())
                look_at = now + (_LOOK if line.listens else poll)
                poll = min(2 * poll, LONGEST_POLL)
            self._look(line, questions)
            self._check(line, now)
            if self._waiting:
                idle_since = now
            elif now >= idle_since + (0 if self._closed.is_set() else _LINGER) and self._may_end():
                return
            with self._lock:
                until = min([look_at, *(each.check_at for each in self._waiting.values())])
            heard = line.wait(max(0.0, (until if self._waiting else idle_since + _LINGER) - monotonic()))
            questions = self._heard(heard)

    def _heard(self, heard: dict[str, set[int] | None]) -> set[Question]:
        """The questions that notifications were about; None: any of the queue."""
        if not heard:
            return set()
        with self._lock:
            return {
                each
                for each in self._waiting
                if each.queue in heard and ((ids := heard[each.queue]) is None or each.id in ids)
            }

    def _look(self, listening: _Listening, questions: Iterable[Question]) -> None:
        groups: dict[tuple[str, str], list[Question]] = {}
        for each in questions:
            if each in self._waiting:
                groups.setdefault((each.queue, each.subscription), []).append(each)
        for (queue, subscription), asked in groups.items():
            try:
                listening.listen(queue)
                for start in range(0, len(asked), _PART):
                    ids = [each.id for each in asked[start : start + _PART]]
                    for reply in listening.replies(queue, subscription, ids, check=False):
                        self._settle(Question(queue, subscription, reply.id), reply)
            except psycopg.Error as error:
                self._fail(asked, _ours(error))

    def _check(self, listening: _Listening, now: float) -> None:
        """Search for messages whose reply is long in coming: those that are nowhere fail."""
        groups: dict[tuple[str, str], list[Question]] = {}
        with self._lock:
            for each, waiting in self._waiting.items():
                if waiting.check_at <= now:
                    times, longest = _CHECKS
                    waiting.pause = min(times * waiting.pause, longest)
                    waiting.check_at = now + waiting.pause
                    groups.setdefault((each.queue, each.subscription), []).append(each)
        parts = [
            group[start : start + _AT_ONCE]
            for group in groups.values()
            for start in range(0, len(group), _AT_ONCE)
        ]
        while parts:
            part = parts.pop()
            queue, subscription, _ = part[0]
            try:
                ids = [each.id for each in part]
                for reply in listening.replies(queue, subscription, ids, check=True):
                    self._settle(Question(queue, subscription, reply.id), reply)
            except psycopg.Error as error:
                ours, half = _ours(error), len(part) // 2
                if half:
                    # One of them is to blame: find it.
                    parts += [part[:half], part[half:]]
                else:
                    self._fail(part, ours)

    def _asked(self) -> list[Question]:
        with self._lock:
            return list(self._waiting)

    def _settle(self, question: Question, reply: Reply) -> None:
        with self._lock:
            waiting = self._waiting.pop(question, None)
        for future in waiting.futures if waiting is not None else ():
            if future.set_running_or_notify_cancel():
                future.set_result(reply)

    def _fail(self, questions: Iterable[Question], error: Exception) -> None:
        for each in questions:
            with self._lock:
                waiting = self._waiting.pop(each, None)
            for future in waiting.futures if waiting is not None else ():
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)


def _ours(error: psycopg.Error) -> Exception:
    """What those who asked are told; what another try may mend is raised again."""
    if is_retryable(error):
        raise error
    return translate(error) or error


class _Listening:
    """A connection that listens, and how to wait on it. Raises psycopg.Error when it is lost."""

    def __init__(self, conninfo: str, ear: Ear) -> None:
        self._listener = Listener(open_connection(conninfo), self._hear, ear)
        self.listens = not self._listener.is_pooled
        """Whether notifications come; through a pooler they do not."""
        self._queues: dict[str, str] = {}
        self._heard: dict[str, set[int] | None] = {}
        self._strange: set[str] = set()

    def listen(self, queue: str) -> None:
        """Hear of a queue's replies from now on."""
        if not self.listens or queue in self._queues.values():
            return
        ((channel,),) = self._execute(Call("reply_channel", {"queue": queue}))
        self._listener.listen(channel)
        self._queues[channel] = queue

    def replies(self, queue: str, subscription: str, ids: list[int], *, check: bool) -> list[Reply]:
        """Those there are."""
        arguments = {"queue": queue, "ids": bigint_array(ids), "subscription": subscription, "check": check}
        return [Reply._make(row) for row in self._execute(Call("list_replies", arguments, Reply._fields))]

    def wait(self, seconds: float) -> dict[str, set[int] | None]:
        """Wait for a notification, or the bell; returns what was heard, by queue."""
        self._listener.wait(seconds)
        heard, self._heard = self._heard, {}
        return heard

    def close(self) -> None:
        """Close the connection."""
        self._listener.close()

    def _execute(self, call: Call) -> list[tuple[Any, ...]]:
        cursor = Cursor(self._listener.connection, row_factory=tuple_row)
        adapt_arrays(cursor)
        return cursor.execute(call.statement, call.values, binary=call.has_arrays).fetchall()

    def _hear(self, notification: Notify) -> None:
        channel, payload = notification.channel, notification.payload
        if (queue := self._queues.get(channel)) is None:
            return
        ids = ids_told(payload)
        if len(ids) < len(payload.split()) and channel not in self._strange:
            self._strange.add(channel)
            log.warning(
                "a notification on channel %s is no id of a message: %s", channel, ascii(payload[:100])
            )
        known = self._heard.get(queue, set())
        self._heard[queue] = None if known is None or not ids else known | ids


class Closing(Protocol):
    """What has a thread that is to end."""

    def close(self) -> None:
        """End it."""


class Patience:
    """How a thread waits."""

    @staticmethod
    def outcome(future: Future[T], seconds: float | None) -> T:
        """What the future gets. Raises TimeoutError."""
        try:
            return future.result(seconds)
        except NotYet:
            if future.done():
                return future.result()
            raise TimeoutError from None

    @staticmethod
    def ended(ending: Closing) -> None:
        """Close it."""
        ending.close()

    @staticmethod
    def pause(seconds: float) -> None:
        """Do nothing for a while."""
        sleep(seconds)


class AsyncPatience:
    """How a task waits."""

    @staticmethod
    async def outcome(future: Future[T], seconds: float | None) -> T:
        """What the future gets. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            return await asyncio.wrap_future(future)

    @staticmethod
    async def ended(ending: Closing) -> None:
        """Close it; its thread may be about to connect."""
        await asyncio.to_thread(ending.close)

    @staticmethod
    async def pause(seconds: float) -> None:
        """Do nothing for a while."""
        await asyncio.sleep(seconds)


_SAID: Final = {
    "rejected": "was rejected",
    "failed": "failed in its last attempt",
    "timed_out": "took too long in its last attempt",
    "lease_expired": "was given up, because workers died with it or took too long",
    "expired": "expired before a worker took it",
    "cancelled": "was cancelled",
    "replaced": "was replaced",
    "outdated": "was older than its subscription takes",
}


def result_of(queue: str, reply: Reply) -> Any:
    """The result of a message. Raises MessageFailed, or MessageTooLarge for a result that was too large."""
    if reply.outcome == "success":
        if reply.error is not None:
            raise MessageTooLarge(
                f"message {reply.id} of {queue} succeeded, but {reply.error}",
                "let the handler keep what is large elsewhere, and return where it is",
            )
        return reply.result
    because = f": {reply.error}" if reply.error else ""
    said = f"message {reply.id} of {queue} {_SAID.get(reply.outcome, reply.outcome)}{because}"
    raise MessageFailed(
        said,
        outcome=reply.outcome,
        error=reply.error,
        reference=reply.reference,
        public=reply.public,
    )
