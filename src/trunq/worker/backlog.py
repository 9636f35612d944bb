"""What was leased and has not started, between the fetcher and the slots."""

from __future__ import annotations

import asyncio
from collections import deque

from trunq.message import Message
from trunq.worker.lease import Lease

Entry = tuple[Lease, Message]


class Backlog:
    """Leased messages that wait for a slot, and slots that wait for a message.

    The slots take from `waiting` themselves; `low` is the level at which they call for more through
    `changed`.
    """

    def __init__(self) -> None:
        self.waiting: deque[Entry] = deque()
        self.changed = asyncio.Event()
        self.low = 0
        self.busy = 0
        """Handlers that run."""
        self.is_closed = False
        self.is_paused = False
        self._idle: deque[asyncio.Future[None]] = deque()

    @property
    def held(self) -> int:
        """Messages leased and not answered."""
        return len(self.waiting) + self.busy

    def add(self, entries: list[Entry]) -> None:
        """Hand messages to the slots."""
        self.waiting.extend(entries)
        self._wake(len(entries))

    def withdraw(self, lease: Lease | None = None) -> list[Entry]:
        """Take back what waits, all of it or that of one lease."""
        taken = [entry for entry in self.waiting if lease is None or entry[0] is lease]
        if taken:
            kept = [entry for entry in self.waiting if not (lease is None or entry[0] is lease)]
            self.waiting.clear()
            self.waiting.extend(kept)
            self.changed.set()
        return taken

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
