"""The gate: what a queue takes, and what it tells of it."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final

import psycopg
from psycopg import Notify

from trunq.client._async.passing import AsyncPassing
from trunq.connection._async.listener import AsyncListener
from trunq.connection.backoff import async_retrying, first_line, is_away
from trunq.errors import InvalidArgument
from trunq.record import Announced
from trunq.wire.scalar import LARGEST

log = logging.getLogger("trunq.client")

_ANNOUNCED: Final = re.compile(r"([0-9]{1,19})-([0-9]{1,19})")


class AsyncGates(AsyncPassing):
    """Rules by which queues take messages."""

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
