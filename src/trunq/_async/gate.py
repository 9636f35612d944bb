"""The gate: what a queue takes, and what it tells of it."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, sql

from trunq._async.passing import AsyncPassing
from trunq.connection.backoff import async_retrying, first_line, is_away
from trunq.connection.session import PROBE, is_pooled
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
        connection = await self._listen_on(channel)
        while True:
            try:
                async for notification in connection.notifies():
                    # Whoever is connected may notify, and say what he likes.
                    said = _ANNOUNCED.fullmatch(notification.payload)
                    if said and (first := int(said[1])) <= (last := int(said[2])) <= LARGEST:
                        yield Announced(first, last)
            except psycopg.OperationalError as error:
                if not is_away(error):
                    raise
                log.warning("not listening to queue %s for now: %s", queue, first_line(error))
            finally:
                await connection.close()
            connection = await async_retrying()(self._listen_on, channel)

    async def _listen_on(self, channel: str) -> AsyncConnection[Any]:
        connection = await self.connect()
        try:
            probed = await (await connection.execute(PROBE)).fetchone()
            if probed is not None and is_pooled(connection, probed):
                raise InvalidArgument(
                    "nothing can listen behind a connection pooler in transaction mode",
                    "give this client the address of the server itself",
                )
            await connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        except BaseException:
            await connection.close()
            raise
        return connection
