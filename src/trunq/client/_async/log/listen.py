"""Listening: messages of a queue as they are committed, and notifications of a channel."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Self, TypeVar, overload
from uuid import uuid4

import psycopg
from psycopg import AsyncConnection
from tenacity import AsyncRetrying

from trunq.client._async.passing import AsyncPassing
from trunq.client.heard import READ, Channel, Heard, Missed, Notification, Steps
from trunq.client.hearing import Hearing, Inbox
from trunq.client.message import Payload
from trunq.client.outgoing import Outgoing
from trunq.client.payload import PayloadType
from trunq.client.reply import AsyncPatience
from trunq.connection._async.execute import execute
from trunq.connection.backoff import async_retrying, first_line
from trunq.connection.bridge import AsyncBridge
from trunq.connection.given import AsyncGiven, require_connection
from trunq.errors import ClientClosed, InvalidArgument, TickNotFound
from trunq.record import Place
from trunq.wire.call import Call, explained
from trunq.wire.json import json_text
from trunq.wire.name import check_name
from trunq.wire.scalar import Interval, decode_timestamp, interval, moment
from trunq.word import Start

log = logging.getLogger("trunq.client")

Item = TypeVar("Item")

_POLL: Final = 5.0
"""Seconds between two looks at a queue whose bell is heard: `trunq.notify = off` rings none."""
_DEAF_POLL: Final = 0.5
"""The same where nothing can be heard."""
_PAGE: Final = 1000
_AGAIN: Final = timedelta(minutes=1)
"""How far before where it stood a listener begins all of whose places a failover lost: clocks of servers
differ.
"""
STAMP: Final = "trunq_client"
"""The header by which a client knows what it published itself."""


class AsyncListens(AsyncPassing):
    """Listening, and notifying."""

    _hearing: Hearing | None
    _outgoing: Outgoing | None
    _stamp: str | None = None

    @overload
    def listen(
        self, heard: Channel[Payload], /, *, size: int = 1000, no_local: bool = False
    ) -> AsyncListening[Notification[Payload] | Missed]: ...

    @overload
    def listen(
        self,
        heard: str,
        /,
        *,
        payload_type: type[Payload],
        start: Start | None = None,
        at: datetime | None = None,
        after: str | None = None,
        filter: Mapping[str, Any] | None = None,
        poll: Interval | None = None,
        no_local: bool = False,
    ) -> AsyncListening[Heard[Payload] | Missed]: ...

    @overload
    def listen(
        self,
        heard: str,
        /,
        *,
        payload_type: None = None,
        start: Start | None = None,
        at: datetime | None = None,
        after: str | None = None,
        filter: Mapping[str, Any] | None = None,
        poll: Interval | None = None,
        no_local: bool = False,
    ) -> AsyncListening[Heard[Any] | Missed]: ...

    def listen(
        self,
        heard: str | Channel[Any],
        /,
        *,
        payload_type: Any = None,
        start: Start | None = None,
        at: datetime | None = None,
        after: str | None = None,
        filter: Mapping[str, Any] | None = None,
        poll: Interval | None = None,
        size: int = 1000,
        no_local: bool = False,
    ) -> AsyncListening[Any]:
        """Loop over the messages of a queue as they are committed, or over the notifications of a `Channel`,
        until you stop, and with no trace of you in the database.

        Of a queue, each message comes once, in the order of a stream, over lost connections too: from now on,
        from the earliest that it keeps (`start`), from a time (`at`), or after the `place` of a message that
        you heard before. `filter` is written as in `subscribe`. Payloads are read as `payload_type`, else by
        their kind as this client's `payload_types`. What waits is read as you take it, so that a slow loop
        holds nothing. Only what the queue kept no longer, as nothing waits for a listener, is missed.

        Of a channel, what is notified while the connection is lost is missed, and so is the oldest of more
        than `size` that you did not take. Either way the loop gets a `Missed` in the place of it.

        All that listens in a client shares one connection, which is opened again when it is lost, and closed
        with the last. It begins with the loop, or with the block `with client.listen(...) as heard`, and ends
        with `close()`, from any thread. With `no_local` nothing comes that this client published or notified
        meanwhile; its messages then have the header `trunq_client`.

        Behind a connection pooler in transaction mode, and with a pool of yours, nothing can be heard: a
        queue is looked at each `poll` (half a second; else it is a net, 5 seconds), and a channel raises
        InvalidArgument.
        """
        if isinstance(heard, Channel):
            others = (payload_type, start, at, after, filter, poll)
            if any(other is not None for other in others):
                raise InvalidArgument(
                    "a channel has no past and no kinds",
                    "its type is the channel's, Channel(name, type); what must not be missed is for a queue",
                )
            if type(size) is not int or size < 1:
                raise InvalidArgument(f"size is a number of notifications, 1 or more, not {size!r}")
            return AsyncChannelListening(self, heard, size, no_local=no_local)
        check_name("queue", heard)
        if sum(given is not None for given in (start, at, after)) > 1:
            raise InvalidArgument("a listener begins at one place", "give start, at or after")
        types = _Types(None if payload_type is None else PayloadType(payload_type), self._outgoing)
        return AsyncQueueListening(self, heard, types, (start, at, after), filter, poll, no_local=no_local)

    async def notify(
        self,
        channel: Channel[Payload] | str,
        payload: Payload | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> None:
        """Tell whoever listens to a channel, when the transaction commits; `payload` is anything JSON.

        Nothing keeps it. Raises InvalidArgument for a payload that does not fit the channel's type, and
        MessageTooLarge from 8,000 bytes on: publish that into a queue, and listen to the queue.
        """
        to: Channel[Any] = Channel(channel) if isinstance(channel, str) else channel
        text = to.written(payload)
        call = Call("notify", {"channel": to.name, "payload": text})
        hearing = self._hearing
        is_bridged = connection is not None and await AsyncBridge.over(connection) is not None
        if hearing is None or is_bridged:
            ((pid,),) = await self._execute(connection, call)
            if hearing is not None:
                hearing.sends(pid, to.name, text)
            return
        with explained:
            if connection is not None:
                given = require_connection(connection, AsyncConnection)
                hearing.sends(given.info.backend_pid, to.name, text)
                await execute(given, call)
                return
            async with self._borrow() as own:
                # Before: it may be heard before this is answered.
                hearing.sends(own.info.backend_pid, to.name, text)
                await execute(own, call)

    async def close(self) -> None:
        """Close what listens, too."""
        with self._swapping:
            hearing, self._hearing = self._hearing, None
        if hearing is not None:
            await AsyncPatience.ended(hearing)
        await super().close()

    def _start_afresh(self) -> None:
        self._hearing = None
        super()._start_afresh()
        if self._stamp is not None:
            # The parent, which has this one, hears what a child publishes.
            self._stamp = None
            self._mark_own()

    def _hear(self) -> Hearing:
        with self._swapping:
            if self._hearing is None:
                assert self._conninfo is not None
                self._hearing = Hearing(self._conninfo)
            return self._hearing

    def _mark_own(self) -> str:
        """Have what this client publishes say so from now on; returns how."""
        with self._swapping:
            if self._stamp is None:
                self._stamp = str(uuid4())
                self._outgoing = (self._outgoing or Outgoing((), None)).stamped(STAMP, self._stamp)
            return self._stamp


class _Types:
    """As what the payloads of a queue are read."""

    def __init__(self, wanted: PayloadType | None, outgoing: Outgoing | None) -> None:
        self._wanted = wanted
        self._outgoing = outgoing

    def of(self, kind: str | None) -> PayloadType | None:
        """That of a kind; None: anything."""
        if self._wanted is not None or self._outgoing is None:
            return self._wanted
        return self._outgoing.type_of(kind)


class AsyncListening(ABC, Generic[Item]):
    """A loop over what is heard; leave it with `close`, or by its block."""

    def __init__(self, client: AsyncListens, *, no_local: bool) -> None:
        self._client = client
        self._no_local = no_local
        self._process = os.getpid()
        self._inbox: Inbox | None = None
        self._hearing: Hearing | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        if os.getpid() != self._process:
            raise InvalidArgument(
                "this listens in the process that this one was forked from", "call listen in this process"
            )
        await self._open()
        while not self._is_closed:
            if (item := await self._take()) is not None:
                return item
        raise StopAsyncIteration

    def close(self) -> None:
        """End the loop, from any thread: it stops where it waits."""
        self._is_closed = True
        inbox, hearing = self._inbox, self._hearing
        if os.getpid() == self._process and inbox is not None:
            inbox.close()
            if hearing is not None:
                hearing.leave(inbox)

    def __del__(self) -> None:
        hearing, inbox = getattr(self, "_hearing", None), getattr(self, "_inbox", None)
        if hearing is not None and inbox is not None and os.getpid() == self._process:
            hearing.forget(inbox)

    @abstractmethod
    async def _open(self) -> None:
        """Begin, unless it has begun."""

    @abstractmethod
    async def _take(self) -> Item | None:
        """The next; None: look again whether this is closed."""

    async def _join(self, inbox: Inbox, queue: str | None = None) -> None:
        """Have the inbox hear. Raises InvalidArgument where nothing can be heard."""
        if self._client._conninfo is None:
            raise InvalidArgument(
                "a client that was given a pool cannot listen by itself", "give it a connection string"
            )
        # Says why the database cannot be reached, or does not fit.
        await self._client._ready_pool()
        hearing = self._client._hear()
        joined = hearing.join(inbox, queue)
        try:
            await AsyncPatience.outcome(joined, None)
        except BaseException:
            hearing.leave(inbox)
            raise
        self._inbox, self._hearing = inbox, hearing
        if self._is_closed:
            self.close()

    async def _wait(self, inbox: Inbox, seconds: float | None) -> None:
        waiting = inbox.wait()
        try:
            await AsyncPatience.outcome(waiting, seconds)
        except TimeoutError:
            pass
        finally:
            waiting.cancel()


class AsyncChannelListening(AsyncListening[Notification[Payload] | Missed]):
    """Over the notifications of a channel."""

    def __init__(self, client: AsyncListens, channel: Channel[Payload], size: int, *, no_local: bool) -> None:
        super().__init__(client, no_local=no_local)
        self._channel = channel
        self._size = size

    async def _open(self) -> None:
        if self._inbox is None and not self._is_closed:
            await self._join(Inbox(self._channel.name, self._size, no_local=self._no_local))

    async def _take(self) -> Notification[Payload] | Missed | None:
        assert self._inbox is not None
        told = self._inbox.take()
        if told is None:
            await self._wait(self._inbox, None)
            return None
        if isinstance(told, Missed):
            return told
        return Notification(self._channel, told.payload, told.pid, told.at)


class AsyncQueueListening(AsyncListening[Heard[Payload] | Missed]):
    """Over the messages of a queue: reads on from a place whenever its bell rings, and now and then."""

    def __init__(
        self,
        client: AsyncListens,
        queue: str,
        types: _Types,
        begin: tuple[Start | None, datetime | None, str | None],
        filter: Mapping[str, Any] | None,
        poll: Interval | None,
        *,
        no_local: bool,
    ) -> None:
        super().__init__(client, no_local=no_local)
        self._queue = queue
        self._types = types
        self._begin = begin
        self._filter = json_text("filter", filter)
        given = interval("poll", poll)
        if given is not None and given.total_seconds() <= 0:
            raise InvalidArgument(f"poll must be positive, not {poll}", "give seconds, a timedelta or text")
        self._poll = None if given is None else given.total_seconds()
        self._place: str | None = None
        self._read_at: datetime | None = None
        """Up to this time of the database all was read."""
        self._steps = Steps()
        self._page: deque[tuple[Any, ...]] = deque()
        self._stamp = client._mark_own() if no_local else None

    async def _open(self) -> None:
        if self._place is not None or self._is_closed:
            return
        start, at, after = self._begin
        await self._hear_bell()
        if after is not None:
            self._place = after
        else:
            (found,) = await self._client.find_place(self._queue, start, moment("at", at))
            self._place, self._read_at = found
            self._steps.add(*found)

    async def _hear_bell(self) -> None:
        """Hear when there is something to read, where that is possible."""
        channel = await self._client.queue_channel(self._queue)
        if (former := self._inbox) is not None:
            if former.channel == channel:
                return
            # Another queue has this name by now.
            if self._hearing is not None:
                self._hearing.leave(former)
        try:
            await self._join(Inbox(channel, 0), self._queue)
        except InvalidArgument:
            # It looks without being called.
            log.info("nothing is heard of queue %s through this connection: it is polled", self._queue)
            self._inbox = Inbox(channel, 0)

    async def _take(self) -> Heard[Payload] | Missed | None:
        inbox = self._inbox
        assert inbox is not None
        while self._page:
            row = self._page.popleft()
            self._place = row[-1]
            if row[0] is None:
                self._read_at = decode_timestamp(row[READ.index("created_at")])
                self._steps.add(row[-1], self._read_at)
                continue
            heard: Heard[Payload] = Heard(row, self._queue, self._types.of(row[1]))
            if self._stamp is None or not self._is_own(heard.headers):
                return heard
        # Before the look: what rings meanwhile calls for another one.
        inbox.take()
        try:
            try:
                self._page.extend(await self._read())
            except TickNotFound:
                missed: Missed = await self._tries()(self._begin_again)
                return missed
        except (psycopg.Error, ClientClosed):
            if self._is_closed:
                return None
            raise
        if not self._page:
            if self._hearing is not None:
                self._hearing.rest(inbox)
            await self._wait(inbox, self._poll or (_DEAF_POLL if self._hearing is None else _POLL))
        return None

    def _is_own(self, headers: Any) -> bool:
        # Whoever inserts by SQL may write any JSON there.
        return isinstance(headers, dict) and headers.get(STAMP) == self._stamp

    async def _read(self) -> list[tuple[Any, ...]]:
        """The next page."""
        page: list[tuple[Any, ...]] = await self._tries()(
            self._client._execute, None, self._page_at(self._place)
        )
        return page

    def _page_at(self, place: str | None, limit: int = _PAGE) -> Call:
        arguments = {"queue": self._queue, "place": place, "limit": limit, "filter": self._filter}
        return Call("read_on", arguments, READ, raw=True)

    def _tries(self) -> AsyncRetrying:
        """Does it again as long as the database is away."""

        def say(error: BaseException, _failures: int, _pause: float) -> None:
            log.warning("not reading queue %s for now: %s", self._queue, first_line(error))

        return async_retrying(is_over=lambda: self._is_closed, say=say)

    async def _begin_again(self) -> Missed:
        """What came after the place is gone; or the place is, by a failover that lost it."""
        await self._hear_bell()
        found = await self._find_again()
        since, (self._place, self._read_at) = self._read_at, found
        until = found.created_at
        return Missed(since and min(since, until), max(since or until, until))

    async def _find_again(self) -> Place:
        # What a failover lost lay behind all that is left, of which no more comes again than need be.
        for step in self._steps.newest_first():
            with suppress(TickNotFound):
                await self._client._execute(None, self._page_at(step.place, 1))
                self._steps.go_back(step)
                return Place(step.place, step.read_at)
        self._steps.go_back()
        if self._read_at is not None:
            with suppress(TickNotFound):
                (found,) = await self._client.find_place(self._queue, None, self._read_at - _AGAIN)
                self._steps.add(*found)
                return found
        (found,) = await self._client.find_place(self._queue, "earliest")
        self._steps.add(*found)
        return found
