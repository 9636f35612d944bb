"""Workers: they lease messages, hand them to your functions and answer for them.

    worker = Worker("orders")

    @worker.handler("order_placed")
    async def ship(message, connection):
        await connection.execute("insert into parcel (order_id) values (%s)", (message.payload["id"],))

    worker.run()

A handler's answer is a value. What it returns is the result (JSON), `Retry(after=30)` runs the message again,
`Reject("why")` makes it a dead one, returned or raised; what else it raises is retried by the subscription's
policy, the error kept. A handler with a parameter `connection` gets a transaction: its writes and the ack
commit together, or neither.

    fetch      leases in batches, sleeps when there is nothing (bell: how it is woken)
    backlog    leased, not started
    slot       runs handlers (thread, transaction: those that are not plain coroutines)
    outcome    what the log says of those that did not succeed
    pulse      what it says of the work as a whole
    answer     sends answers in groups
    heartbeat  extends the leases of what still runs
    run        the order of life of all these
    now        a message handled without all these, for tests
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from trunq.connection.address import address
from trunq.errors import translated
from trunq.leader import own_name
from trunq.message import Message
from trunq.signals import run_with_signals
from trunq.wire.scalar import Label
from trunq.worker import now
from trunq.worker.lease import Statistics
from trunq.worker.registry import Function, Registry
from trunq.worker.run import Options, Run, UnknownKinds

__all__ = ["Statistics", "UnknownKinds", "Worker"]

Seconds = float | timedelta


class Worker:
    """Serves one queue, or several in turn, with handlers by kind.

    `dsn` is the database; when not given, that of the settings (TRUNQ_DSN, trunq.toml). `name` is for a
    worker that is the only one of its name at any time (a StatefulSet's pod, a systemd unit): started again,
    it gets back at once what its former self had leased. `concurrency` handlers run at a time. `prefetch`
    messages are leased beyond those at most; when not given, as many as are handled in a quarter of a second.
    `poll` is how often an idle worker looks without being woken: 5 seconds, or 1 with `notify=False`.
    `notify` None means: unless a connection pooler is in between; True: behind one in session mode as well.
    `lease_time` overrules the subscription's. With `reserve`, a handler gets no longer than the lease less
    that reserve, instead of extensions for as long as it runs. `grace` is the time from a stop to the end:
    handlers that take longer fail (when not given, they are waited for). `max_connections` bounds the
    connections to the database; when not given, each handler in a transaction can have one, besides one each
    for leases, answers, the bell and the leader; the log says at the start how many that is. `lead=False`
    keeps it from standing for election as leader. With `until_empty`, it ends when nothing of its
    subscription is waiting, running or delayed any more, except for want of a handler. A message whose kind
    has no handler waits for a worker that has one, which counts no attempt; with `unknown_kinds="reject"` it
    is dead. Times are seconds or timedelta.
    """

    def __init__(
        self,
        *queues: str,
        subscription: str = "default",
        dsn: str | None = None,
        name: str | None = None,
        concurrency: int = 10,
        prefetch: int | None = None,
        poll: Seconds | None = None,
        lease_time: Seconds | None = None,
        reserve: Seconds | None = None,
        grace: Seconds | None = None,
        max_connections: int | None = None,
        notify: bool | None = None,
        lead: bool = True,
        until_empty: bool = False,
        unknown_kinds: UnknownKinds = "wait",
    ) -> None:
        self.queues = queues
        self.subscription = subscription
        self.dsn = dsn
        self.name = name
        self.concurrency = concurrency
        self.prefetch = prefetch
        self.poll = poll
        self.lease_time = lease_time
        self.reserve = reserve
        self.grace = grace
        self.max_connections = max_connections
        self.notify = notify
        self.lead = lead
        self.until_empty = until_empty
        self.unknown_kinds = unknown_kinds
        self.statistics = Statistics()
        self._registry = Registry()
        self._run: Run | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def handler(self, *kinds: str, transaction: bool | None = None) -> Callable[[Function], Function]:
        """Register a function for one or several kinds; `*` for all that have none of their own.

        It is called with the message; a second parameter named `connection`, or annotated as a psycopg
        connection, gets the transaction (with `transaction=True` whatever it is called; False never). A sync
        function runs in a thread of its own; one with a parameter annotated `threading.Event` can see there
        that its lease was lost and it should give up. An async one is cancelled. Raises TypeError for a
        function that cannot be called so, ValueError for a kind that has a handler.
        """
        if not kinds or not all(isinstance(kind, str) for kind in kinds):
            raise TypeError("name the kind: @worker.handler('kind'), or '*' for all others")

        def register(function: Function) -> Function:
            for kind in kinds:
                self._registry.add(kind, function, transaction)
            return function

        return register

    @property
    def kinds(self) -> list[str]:
        """The kinds that have a handler."""
        return self._registry.kinds

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then finish what runs and give back the rest; a second signal ends
        it at once.

        Uses uvloop where it is installed. Raises psycopg.OperationalError when there is no database to begin
        with (later on it is waited for), and trunq's errors for a queue or subscription that does not exist.
        """
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("an event loop is running here: await worker.run_async()")
        run_with_signals(self.run_async, self.stop, _seconds(self.grace, "grace"))

    async def run_async(self) -> None:
        """`run` on the event loop you have, without signals; `stop` ends it, cancelling ends it at once."""
        if self._run is not None:
            raise RuntimeError("this worker is running already")
        options = self._options()
        self._loop = asyncio.get_running_loop()
        self._run = Run(options, self._registry, self.statistics)
        try:
            with translated:
                await self._run.serve()
        finally:
            self._run = None

    def stop(self) -> None:
        """Lease no more, give back what has not started, finish what runs, then end. From any thread."""
        if self._run is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._run.stop)

    def handle_now(
        self,
        payload: Any = None,
        *,
        kind: Label | None = None,
        key: Label | None = None,
        headers: Any = None,
        body: bytes | None = None,
        attempt: int | None = None,
        max_attempts: int | None = None,
        connection: Any = None,
    ) -> Any:
        """Have the handler of this kind handle a message here and now, without a database: for tests.

        `payload` and the rest are as `publish` takes them, or `payload` is a Message. Returns what a worker
        would answer: the result of an ack (None when the handler returns none), a Retry or a Reject. What
        else the handler raises is raised. A handler in a transaction gets `connection`, whose transaction is
        rolled back unless the answer is an ack; anything may stand in for one.
        """
        published = now.Published(payload, kind, key, headers, body, attempt, max_attempts)
        return now.handle_sync(self._registry, self._message(published), connection)

    async def handle_now_async(
        self,
        payload: Any = None,
        *,
        kind: Label | None = None,
        key: Label | None = None,
        headers: Any = None,
        body: bytes | None = None,
        attempt: int | None = None,
        max_attempts: int | None = None,
        connection: Any = None,
    ) -> Any:
        """`handle_now` in the event loop you have; sync handlers run in a thread."""
        published = now.Published(payload, kind, key, headers, body, attempt, max_attempts)
        return await now.handle(self._registry, self._message(published), connection)

    def _message(self, published: now.Published) -> Message:
        return published.message(self.queues[0] if self.queues else "", self.subscription)

    def _options(self) -> Options:
        if not self.queues:
            raise ValueError("a worker needs a queue: Worker('orders')")
        if not self._registry.handlers:
            raise ValueError("this worker has no handlers: @worker.handler('kind') registers one")
        if self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {self.concurrency}")
        if self.prefetch is not None and self.prefetch < 0:
            raise ValueError(f"prefetch cannot be negative, not {self.prefetch}")
        if self.unknown_kinds not in ("wait", "reject"):
            raise ValueError(f"unknown_kinds is 'wait' or 'reject', not {self.unknown_kinds!r}")
        poll = _seconds(self.poll, "poll")
        return Options(
            queues=tuple(dict.fromkeys(self.queues)),
            subscription=self.subscription,
            dsn=address(self.dsn),
            identity=self.name or own_name(),
            is_named=self.name is not None,
            concurrency=self.concurrency,
            prefetch=self.prefetch,
            poll=poll if poll is not None else 1.0 if self.notify is False else 5.0,
            lease_time=_seconds(self.lease_time, "lease_time"),
            reserve=_seconds(self.reserve, "reserve"),
            grace=_seconds(self.grace, "grace"),
            max_connections=self.max_connections,
            notify=self.notify,
            lead=self.lead,
            until_empty=self.until_empty,
            unknown_kinds=self.unknown_kinds,
        )


def _seconds(value: Seconds | None, what: str) -> float | None:
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not seconds > 0:
        raise ValueError(f"{what} must be positive, not {value}")
    return seconds
