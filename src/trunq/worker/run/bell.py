"""Being woken: the bell of each queue, on a connection that listens.

NOTIFY takes a global lock at commit, so publishers send it only while somebody sleeps. One sleeping worker of
a queue holds its bell (a session lock); publishers try the same lock, shared, and notify ('m') only when that
fails. The holder alone answers 'm'. When it gets up it gives the bell back and says so ('bell'); of the
others the first takes it, and looks once more. So an idle fleet does not stir, and a message wakes one
worker, not all. After 'look' (a pause has ended, a limit has changed) all of them look. 'cancel', with ids or
without, is for those who run such messages.

This needs a session of one's own. Behind a pooler that lends a server connection for one transaction, the
lock and the LISTEN would stick to a stranger: there a worker polls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import psycopg
from psycopg import Notify

from trunq.connection._async.execute import value
from trunq.connection._async.link import AsyncLink
from trunq.connection._async.listener import AsyncListener
from trunq.connection.backoff import async_retrying, first_line, is_away
from trunq.wire.call import Call
from trunq.wire.scalar import ids_told
from trunq.worker.answer.lease import Source

log = logging.getLogger("trunq.worker")


class Bell:
    """Listens for all queues of a worker and takes and gives their bells.

    `changed` is set whenever a source was rung; `called_off` hears which messages somebody cancelled while
    they ran (None: many). `notify` None: not behind a pooler; True: even so (one in
    session mode).
    """

    def __init__(
        self,
        link: AsyncLink,
        sources: Sequence[Source],
        changed: asyncio.Event,
        notify: bool | None,
        called_off: Callable[[Source, frozenset[int] | None], None],
    ) -> None:
        self._link = link
        self._sources = sources
        self._by_channel: dict[str, Source] = {}
        self._changed = changed
        self._notify = notify
        self._called_off = called_off
        self._listener: AsyncListener | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a command waits for the database."""
        return self._listener is not None and self._listener.is_busy

    async def open(self) -> None:
        """Listen; raises psycopg.OperationalError when the database is away."""
        if self._notify is False:
            return
        connection = await self._link.open()
        if self._link.pooled and self._notify is None:
            self._notify = False
            log.warning("a connection pooler is in between: polling, no NOTIFY")
            await self._link.close()
            return
        listener = AsyncListener(connection, self._hear)
        for source in self._sources:
            source.channel = await value(connection, Call("queue_channel", {"queue": source.queue}))
            self._by_channel[source.channel] = source
            await listener.listen(source.channel)
        self._listener = listener

    async def run(self) -> None:
        """Keep listening until cancelled; once back after a loss, every queue is looked at."""
        while self._notify is not False:
            if self._listener is None:
                await async_retrying(also=psycopg.Error, say=self._say)(self._open_again)
            listener = self._listener
            try:
                while listener is not None and self._listener is listener:
                    await listener.wait()
            except psycopg.Error as error:
                self._break(listener, error)
            await self._link.close()

    async def _open_again(self) -> None:
        try:
            await self.open()
        except psycopg.Error:
            await self._link.close()
            raise
        self._link.answered()
        self._ring_all()

    async def take(self, source: Source) -> str:
        """Take the bell of a queue: 'held', 'publisher', 'sleeper' as SQL has it, or 'off' when nothing rings
        here.
        """
        if source.holds_bell:
            return "held"
        state = await self._command("take_bell", source)
        source.holds_bell = state == "held"
        return state or "off"

    async def give(self, source: Source) -> None:
        """Give the bell back, if it is ours."""
        if source.holds_bell:
            source.holds_bell = False
            await self._command("give_bell", source)

    async def close(self) -> None:
        """Stop listening; the server frees the bells."""
        self._listener = None
        await self._link.close()

    async def _command(self, function: str, source: Source) -> str | None:
        if (listener := self._listener) is None:
            return None
        try:
            answer = await value(listener.connection, Call(function, {"queue": source.queue}))
        except psycopg.Error as error:
            if error.sqlstate is None or not error.sqlstate.startswith("TQ"):
                self._break(listener, error)
            return None
        except BaseException:
            self._break(listener, None)
            raise
        finally:
            listener.wake()
        # Of one that another statement broke meanwhile, the server has the bells already, or soon.
        return str(answer) if self._listener is listener else None

    def _hear(self, notification: Notify) -> None:
        source = self._by_channel.get(notification.channel)
        listener = self._listener
        if source is None or listener is None:
            return
        if notification.payload == "bell":
            source.is_freed |= notification.pid != listener.connection.pgconn.backend_pid
        elif notification.payload == "look":
            source.is_rung = source.is_limited = True
        elif notification.payload.startswith("cancel"):
            _, *words = notification.payload.split()
            ids = frozenset(ids_told(notification.payload))
            if len(ids) < len(words) and not source.is_strange:
                source.is_strange = True
                strange = ascii(notification.payload[:100])
                log.warning(
                    "a notification on channel %s is no id of a message: %s",
                    notification.channel,
                    strange,
                )
            self._called_off(source, ids or None)
        else:
            source.is_rung |= source.holds_bell
        if source.is_rung or source.is_freed:
            self._changed.set()

    def _break(self, listener: AsyncListener | None, error: psycopg.Error | None) -> None:
        if self._listener is not listener:
            return
        if error is not None:
            self._link.notice(error)
        self._listener = None
        for source in self._sources:
            source.holds_bell = False

    def _say(self, error: BaseException, failures: int, pause: float) -> None:  # noqa: ARG002  # as Say
        if is_away(error):
            self._link.notice(error)
        else:
            log.warning("cannot listen, polling: %s", first_line(error))

    def _ring_all(self) -> None:
        for source in self._sources:
            source.is_rung = True
        self._changed.set()
