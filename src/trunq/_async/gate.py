"""The gate: what a queue takes, and what it tells of it."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

import psycopg
from psycopg import Notify

from trunq._async.access import AsyncAccess
from trunq.connection._async.listener import AsyncListener
from trunq.connection.backoff import async_retrying, first_line, is_away
from trunq.connection.given import AsyncGiven
from trunq.errors import InvalidArgument
from trunq.record import Announced
from trunq.wire.array import kind_array
from trunq.wire.scalar import LARGEST, Label

log = logging.getLogger("trunq.client")

_ANNOUNCED: Final = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")


class AsyncGates(AsyncAccess):
    """Rules by which queues take messages."""

    async def set_publishing(
        self,
        queue: str,
        *,
        kinds: Iterable[Label] | None = None,
        max_waiting: int | None = None,
        max_per_transaction: int | None = None,
        announce: bool | None = None,
        connection: AsyncGiven | None = None,
    ) -> None:
        """Change what is given of the rules by which a queue takes messages, however they are published.

        Only these `kinds` (empty: any; else InvalidArgument). No more while the slowest shared subscription
        has `max_waiting` messages waiting (0: no limit; else QueueFull), a soft limit: each session looks
        every 100 ms. At most `max_per_transaction` in one transaction (0: no limit; else
        TransactionTooLarge). `announce` sends a NOTIFY with the ids of each statement, for `listen`.
        """
        await self._value(
            connection,
            "set_publishing",
            queue=queue,
            kinds=kind_array(kinds),
            max_waiting=max_waiting,
            max_per_transaction=max_per_transaction,
            announce=announce,
        )

    async def close_queue(self, queue: str, *, connection: AsyncGiven | None = None) -> None:
        """Refuse to publish into a queue (QueueClosed); what it holds is handled as before."""
        await self._value(connection, "close_queue", queue=queue)

    async def open_queue(self, queue: str, *, connection: AsyncGiven | None = None) -> None:
        """Let a queue that was closed take messages again."""
        await self._value(connection, "open_queue", queue=queue)

    async def announcement_channel(self, queue: str, *, connection: AsyncGiven | None = None) -> str:
        """The channel to LISTEN on for the ids of messages; InvalidArgument when the queue announces none."""
        channel: str = await self._value(connection, "announcement_channel", queue=queue)
        return channel

    async def listen(self, queue: str) -> AsyncIterator[Announced]:
        """The ids of messages as they are published: first and last of each statement, until you stop.

        It has a connection of its own, which it opens again when it is lost. What is published meanwhile is
        not announced: a reader that must see every message has a subscription. Raises InvalidArgument for a
        queue that announces nothing (`set_publishing`), and behind a connection pooler.
        """
        channel = await self.announcement_channel(queue)
        heard: deque[Announced] = deque()

        def hear(notification: Notify) -> None:
            said = _ANNOUNCED.fullmatch(notification.payload)
            if said and (first := int(said[1])) <= (last := int(said[2])) <= LARGEST:
                heard.append(Announced(first, last))

        listener = await self._listen_on(channel, hear)
        while True:
            try:
                while True:
                    await listener.wait()
                    while heard:
                        yield heard.popleft()
            except psycopg.OperationalError as error:
                if not is_away(error):
                    raise
                log.warning("not listening to queue %s for now: %s", queue, first_line(error))
            finally:
                await listener.close()
            listener = await async_retrying()(self._listen_on, channel, hear)

    async def _listen_on(self, channel: str, hear: Callable[[Notify], None]) -> AsyncListener:
        listener = await AsyncListener.on(await self.connect(), channel, hear)
        if listener is None:
            raise InvalidArgument(
                "nothing can listen behind a connection pooler in transaction mode",
                "give this client the address of the server itself",
            )
        return listener
