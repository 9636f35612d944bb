"""What was leased and has not started, between the fetcher and the slots."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Container, Iterable

from trunq.worker.answer.lease import Lease
from trunq.worker.handler import Handler
from trunq.worker.handler.batched import Batching
from trunq.worker.slot.batch import Gathering
from trunq.worker.slot.limit import Limit
from trunq.worker.slot.work import Entry


class Backlog:
    """Leased messages that wait for a slot, and slots that wait for a message.

    The slots take from `waiting` themselves; `low` is the level at which they call for more through
    `changed`. With `is_shuffled`, each of those that wait is as likely to be the next as any other of its
    priority, and a smaller priority comes first. What a limit keeps from starting waits with that limit, and
    what waits for a batch in its gathering: they count for none of this.
    """

    def __init__(self, handlers: Iterable[Handler] = (), *, is_shuffled: bool = False) -> None:
        self._is_shuffled = is_shuffled
        self.waiting: deque[Entry] = deque()
        self.limits = {
            each: Limit(each.concurrency, 1 if each.batching is None else each.batching.size)
            for each in handlers
            if each.concurrency is not None
        }
        self._gatherings: dict[tuple[Handler, str], Gathering] = {}
        self.turned_away = 0
        """Messages, ever, that a limit kept from starting when a slot took them."""
        self.changed = asyncio.Event()
        self.low = 0
        self.busy = 0
        """Handlers that run."""
        self.is_closed = False
        self.is_paused = False
        self._idle: deque[asyncio.Future[None]] = deque()

    @property
    def held(self) -> int:
        """Messages leased and not answered, but for those that a limit keeps from starting or that wait for a
        batch; a batch that runs counts as one.
        """
        return len(self.waiting) + self.busy

    @property
    def missing(self) -> int:
        """So many messages fill the batches that are being gathered."""
        return sum(gathering.missing for gathering in self._gatherings.values())

    @property
    def not_started(self) -> list[Entry]:
        """All that waits: for a slot, with a limit, for a batch."""
        return [*self.waiting, *(entry for waiting in self._aside for entry in waiting)]

    @property
    def _aside(self) -> list[deque[Entry]]:
        gathered = [gathering.waiting for gathering in self._gatherings.values()]
        return [limit.waiting for limit in self.limits.values()] + gathered

    def gathering(self, handler: Handler, batching: Batching, queue: str) -> Gathering:
        """Where messages of a handler and a queue wait for their batch."""
        if (found := self._gatherings.get((handler, queue))) is None:
            found = Gathering(handler, batching, self.limits.get(handler), self._start)
            self._gatherings[handler, queue] = found
        return found

    def _start(self, entry: Entry) -> None:
        self.waiting.appendleft(entry)
        self._wake(1)

    def add(self, entries: list[Entry]) -> None:
        """Hand messages to the slots."""
        self.waiting.extend(entries)
        if self._is_shuffled:
            # In place: the slots know this deque.
            mixed = random.sample(self.waiting, len(self.waiting))
            # Keeps that order among those of one priority. In a plain queue all have the same.
            mixed.sort(key=_priority)
            self.waiting.clear()
            self.waiting.extend(mixed)
        self._wake(len(entries))

    def withdraw(self, lease: Lease | None = None, ids: Container[int] | None = None) -> list[Entry]:
        """Take back what waits, all of it or that of one lease, or those messages."""
        taken = _taken(self.waiting, lease, ids)
        if taken:
            self.changed.set()
        for waiting in self._aside:
            taken += _taken(waiting, lease, ids)
        self.resume()
        return taken

    def enter(self, handler: Handler) -> bool:
        """Take a place of a handler with a limit, if there is one. For a batch, a gathering takes it."""
        if handler.batching is not None:
            return False
        limit = self.limits[handler]
        if limit.running >= limit.concurrency:
            return False
        limit.running += 1
        return True

    def leave(self, handler: Handler, seconds: float) -> None:
        """Give the place back after so long: the next that waits for one may start, before all others."""
        limit = self.limits[handler]
        limit.ended(seconds)
        if limit.waiting:
            self.waiting.appendleft(limit.waiting.popleft())
        for gathering in self._gatherings.values():
            if gathering.handler is handler:
                gathering.rouse()

    def resume(self) -> None:
        """Let start what waits with a limit that is not reached, and batches that are due: nobody else would,
        once none runs of it, or the message that was to start it is gone.
        """
        for gathering in self._gatherings.values():
            gathering.rouse()
        for limit in self.limits.values():
            for _ in range(min(len(limit.waiting), limit.concurrency - limit.running)):
                self.waiting.appendleft(limit.waiting.popleft())
                self._wake(1)

    def close(self) -> None:
        """Nothing more will come: idle slots end."""
        self.is_closed = True
        self._wake(len(self._idle))

    async def wait(self) -> None:
        """Sleep, as a slot, until there may be a message."""
        future = asyncio.get_running_loop().create_future()
        self._idle.append(future)
        self.changed.set()
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():
                # Woken and cancelled at once: the message is another's to take.
                self._wake(1)
            raise

    def _wake(self, count: int) -> None:
        while count > 0 and self._idle:
            future = self._idle.popleft()
            if not future.done():
                future.set_result(None)
                count -= 1


def _priority(entry: Entry) -> int:
    return entry[1].priority


def _taken(waiting: deque[Entry], lease: Lease | None, ids: Container[int] | None) -> list[Entry]:
    taken: list[Entry] = []
    kept: list[Entry] = []
    for entry in waiting:
        held, message = entry
        is_meant = (lease is None or held is lease) and (ids is None or message.id in ids)
        (taken if is_meant else kept).append(entry)
    if taken:
        waiting.clear()
        waiting.extend(kept)
    return taken
