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

    handler    which function handles what, and in which process
    answer     leases, and the answers under them on their way to the database
    slot       a message handled: its turn, its transaction, its time, what becomes of it
    run        the order of life: leasing, being woken, keeping leases, the end
    executor   workers as tasks of Spark
    now        a message handled without all these, for tests
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, time
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, overload

from trunq.connection.address import address
from trunq.connection.bridge.transaction import Library
from trunq.errors import InvalidArgument, translated
from trunq.leader.rank import Ranks
from trunq.process.health import Health, why_not
from trunq.process.signals import run_with_signals
from trunq.schedule import Schedule
from trunq.wire.habit import WorkerHabits, mark
from trunq.wire.json import json_text
from trunq.wire.name import own_name
from trunq.wire.scalar import Interval, Label, label, seconds
from trunq.word import Backoff, Missed, Overlap
from trunq.worker.answer.lease import Statistics
from trunq.worker.handler import DEFAULT_KIND, Function, Handler, Registry, Settings, child
from trunq.worker.handler.batched import Batching
from trunq.worker.handler.incoming import Incoming, OnInvalid
from trunq.worker.handler.policy import policy, require_names, require_whole
from trunq.worker.handler.process import Processes
from trunq.worker.now import Now
from trunq.worker.run import Run
from trunq.worker.run.options import Options, UnknownKinds

if TYPE_CHECKING:
    from trunq.telemetry import Telemetry

__all__ = ["Statistics", "UnknownKinds", "Worker"]


class Worker(Now, WorkerHabits):
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
    for leases, answers and the bell and three for the leader; the log says at the start how many that is.
    `lead=False` keeps it from standing for election as leader. With `ranks` it calls the functions among them
    by which lanes of any queue are ranked, unless another process does. With `shuffle` it handles messages in
    random order, those of a smaller priority first: it leases up to 1,000 ahead, or `prefetch`, and mixes
    them. With `until_empty`, it ends when nothing of its subscription can be leased and nothing is held, by
    whatever worker; what is delayed, a retry too, is left for later. With `until_idle`, it waits for that as
    well: nothing is delayed either, except for want of a handler, or parked. A message whose kind has no
    handler waits for a worker that has one, which counts no attempt; with `unknown_kinds="reject"` it is
    dead. `engine` is SQLAlchemy's, sync or async, or a sessionmaker: a handler with a parameter `session`
    gets a session of it, in a transaction. A payload that does not fit the type a handler is annotated with
    is rejected; `on_invalid` is "retry", or a function of the message and pydantic's error, which gives the
    answer. Handlers with `process=True` share `process_pool` processes, or as many as `concurrency` says.
    With `public_ids`, messages have a `public_id`, for which each lease asks once more. With `asks`, it gets
    a part of its subscription, as in `{"kinds": ["mail"], "key_prefix": "eu-"}`: a filter as for `subscribe`,
    or with a `key_prefix`; others get the rest, and each message one of them. `health` is a port, or host and
    port, where it answers an orchestrator's GET /healthz (the event loop turns) and /readyz (the database
    answers, and it is not about to end). With `telemetry`, leases, handlers and answers have spans of
    OpenTelemetry. Times are seconds, timedelta or text ("10 minutes").
    """

    _process_start: str | None = None
    """`module:name` of what a process calls before it imports handlers; it gives what goes around each."""

    def __init__(
        self,
        *queues: str,
        subscription: str = "default",
        dsn: str | None = None,
        name: str | None = None,
        concurrency: int = 10,
        prefetch: int | None = None,
        poll: Interval | None = None,
        lease_time: Interval | None = None,
        reserve: Interval | None = None,
        grace: Interval | None = None,
        max_connections: int | None = None,
        notify: bool | None = None,
        lead: bool = True,
        until_empty: bool = False,
        until_idle: bool = False,
        unknown_kinds: UnknownKinds = "wait",
        ranks: Ranks | None = None,
        shuffle: bool = False,
        engine: Any = None,
        on_invalid: OnInvalid = "reject",
        process_pool: int | None = None,
        public_ids: bool = False,
        asks: Mapping[str, Any] | None = None,
        health: str | int | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        require_names(queues)
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
        self.until_idle = until_idle
        self.unknown_kinds = unknown_kinds
        self.ranks = ranks
        self.shuffle = shuffle
        self.public_ids = public_ids
        self.asks = asks
        self.health = health
        self.telemetry = telemetry
        self.statistics = Statistics()
        self.schedules: list[Schedule] = []
        """Those of `schedule`."""
        self.process_pool = process_pool
        self._registry = Registry(_library(engine), Incoming(on_invalid), Processes(self._process_start))
        self._run: Run | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @overload
    def handler(self, function: Function, /) -> Function: ...

    @overload
    def handler(
        self,
        *kinds: Label,
        transaction: bool | None = None,
        process: bool = False,
        time_out: Interval | None = None,
        concurrency: int | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        backoff_base: Interval | None = None,
        backoff_cap: Interval | None = None,
        jitter: float | None = None,
    ) -> Callable[[Function], Function]: ...

    def handler(
        self,
        *kinds: Any,
        transaction: bool | None = None,
        process: bool = False,
        time_out: Interval | None = None,
        concurrency: int | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        backoff_base: Interval | None = None,
        backoff_cap: Interval | None = None,
        jitter: float | None = None,
    ) -> Any:
        """Register a function for kinds; for `*`, or none at all, it has all that have none of their own.

            @worker.handler                    messages that no other handler is for
            @worker.handler("placed", "paid")  messages of two kinds

        It is called with the message. A first parameter annotated as a pydantic model or a dataclass gets
        the payload as that, one annotated `Message[Order]` the message with such a payload. A second
        parameter named `connection`, or annotated as a psycopg connection, gets the transaction (with
        `transaction=True` whatever it is called; False never). A sync
        function runs in a thread of its own; one with a parameter annotated `threading.Event` can see there
        that it should give up: its lease was lost, it took longer than its `time_out`, or somebody cancelled
        its message. An async one is cancelled. What took too long is retried by the policy; a message's own
        time-out goes before `time_out`, that before the subscription's.

        So many as `concurrency` of its messages, whatever their kind, run at a time in this worker; the
        others take no slot and no attempt meanwhile. `max_attempts` (0: for ever) and the policy of back-off
        are as in `subscribe`: what is given goes before the subscription's policy, and a message's own
        `max_attempts` before both.

        With `process` it runs in a process of its own, for work that keeps a CPU busy or may crash. That
        imports the function by its module and name, once, and handles one message after the other. It is
        killed when the time is over, somebody cancels the message or the lease is lost; if it dies, that is
        an attempt of this message alone. It has no transaction, and no event.

        Raises TypeError for a function that cannot be called so, ValueError for a kind that has a handler or
        a policy that cannot be.
        """
        settings: Settings = {
            "time_out": _seconds(time_out, "time_out"),
            "concurrency": _places(concurrency) or (self.process_pool if process else None),
            "policy": policy(max_attempts, backoff, backoff_base, backoff_cap, jitter),
        }

        def inspect(function: Callable[..., Any]) -> Handler:
            if process:
                return self._registry.inspect_apart(function, transaction, **settings)
            return self._registry.inspect(self._prepared(function), transaction, **settings)

        return self._register(kinds, inspect)

    @overload
    def batch(self, function: Function, /) -> Function: ...

    @overload
    def batch(
        self,
        *kinds: Label,
        size: int = 100,
        wait: Interval = 0.05,
        transaction: bool | None = None,
        time_out: Interval | None = None,
        concurrency: int | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        backoff_base: Interval | None = None,
        backoff_cap: Interval | None = None,
        jitter: float | None = None,
    ) -> Callable[[Function], Function]: ...

    def batch(
        self,
        *kinds: Any,
        size: int = 100,
        wait: Interval = 0.05,
        transaction: bool | None = None,
        time_out: Interval | None = None,
        concurrency: int | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        backoff_base: Interval | None = None,
        backoff_cap: Interval | None = None,
        jitter: float | None = None,
    ) -> Any:
        """Register a function that handles several messages at once, of kinds as for `handler`.

        It is called with a list: of messages, or as its annotation says (`list[Order]`,
        `list[Message[Order]]`; a payload that does not fit is left out and rejected). It returns a list of
        outcomes, one for each in their order (a result, a `Retry`, a `Reject`, or an exception, which fails
        that message), or None when all are done. What it raises, or returns as a `Retry` or `Reject`, is for
        all of them. In a transaction, what it writes and all outcomes commit together; a raise rolls back.

        A batch has messages of one queue. It starts when there are `size` of them, or `wait` after the first,
        sooner when their leases run out; it takes one slot, and `concurrency` counts batches. Its time-out is
        the shortest among its messages. On its last attempt, unless that is the first, a message runs alone.
        The rest is as for `handler`.
        """
        require_whole("size", size, 1, "1 or more")
        settings: Settings = {
            "time_out": _seconds(time_out, "time_out"),
            "concurrency": _places(concurrency),
            "policy": policy(max_attempts, backoff, backoff_base, backoff_cap, jitter),
            "batching": Batching(size, _wait(wait)),
        }

        def inspect(function: Callable[..., Any]) -> Handler:
            return self._registry.inspect(self._prepared(function), transaction, **settings)

        return self._register(kinds, inspect)

    def _register(self, kinds: tuple[Any, ...], inspect: Callable[[Callable[..., Any]], Handler]) -> Any:
        if len(kinds) == 1 and callable(kinds[0]) and not isinstance(kinds[0], type | Enum):
            return self._register((), inspect)(kinds[0])
        names = [_kind(kind) for kind in kinds] or [DEFAULT_KIND]

        def register(function: Function) -> Function:
            handler = inspect(function)
            for kind in names:
                self._registry.add(kind, handler)
            mark(function, names[0])
            return function

        return register

    def schedule(
        self,
        schedule: str,
        *,
        payload: Any = None,
        cron: str | None = None,
        zone: str | None = None,
        every: Interval | None = None,
        start_at: datetime | None = None,
        at: time | str | None = None,
        missed: Missed | None = None,
        overlap: Overlap | None = None,
        max_age: Interval | None = None,
        transaction: bool | None = None,
    ) -> Callable[[Function], Function]:
        """Register a function as the handler of a schedule: its name is the kind of the messages.

        They go into the worker's first queue. The schedule itself is in `schedules`, for
        `client.sync_schedules(worker.schedules)` or `trunq schedule sync MODULE:WORKER` at each deployment;
        the worker makes none. Arguments are those of `create_schedule`, and `transaction` as for `handler`.
        """
        made = Schedule(
            schedule=schedule,
            queue=self.queues[0],
            kind=schedule,
            payload=payload,
            cron=cron,
            zone=zone,
            every=every,
            start_at=start_at,
            at=at,
            missed=missed,
            overlap=overlap,
            max_age=max_age,
        )
        # What cannot be read is said here, not at the next deployment.
        made.given(datetime.now(UTC))

        def register(function: Function) -> Function:
            self._registry.add(schedule, self._registry.inspect(self._prepared(function), transaction))
            self.schedules.append(made)
            return function

        return register

    def upcast(self, kind: str, *, from_: int) -> Callable[[Function], Function]:
        """Register a function that makes a payload of version `from_` of a kind one of the next version.

        The header `version` says which version a payload is, 1 where it is missing. The functions run in
        turn, before the payload is read as its type. A message of a later version than they lead to is
        retried: a newer worker may know it.
        """

        def register(function: Function) -> Function:
            self._registry.add_upcast(kind, from_, function)
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
            async with Health(self.health, self._why_not_ready):
                with translated:
                    await self._serve(self._run)
        finally:
            self._run = None

    async def _serve(self, run: Run) -> None:
        """What probes are answered beside."""
        await run.serve()

    def stop(self) -> None:
        """Lease no more, give back what has not started, finish what runs, then end. From any thread."""
        if self._run is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._run.stop)

    async def _why_not_ready(self) -> str | None:
        state = "stopping" if self._run is None else self._run.state
        if state != "serving":
            return f"it is {state}"
        return await why_not(address(self.dsn), "trunq health")

    def _prepared(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """What is called for a handler."""
        return function

    def _options(self) -> Options:
        if not self.queues:
            raise ValueError("a worker needs a queue: Worker('orders')")
        if not self._registry.handlers:
            raise ValueError("this worker has no handlers: @worker.handler('kind') registers one")
        if child.is_child:
            raise RuntimeError(
                "this process was started to run handlers, and imports the program for that:"
                ' put worker.run() under if __name__ == "__main__":'
            )
        self._registry.check()
        if self.process_pool is not None:
            require_whole("process_pool", self.process_pool, 1, "1 or more")
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
            public_ids=self.public_ids,
            asks=json_text("asks", self.asks),
            poll=poll if poll is not None else 1.0 if self.notify is False else 5.0,
            lease_time=_seconds(self.lease_time, "lease_time"),
            reserve=_seconds(self.reserve, "reserve"),
            grace=_seconds(self.grace, "grace"),
            max_connections=self.max_connections,
            notify=self.notify,
            lead=self.lead,
            until_empty=self.until_empty,
            until_idle=self.until_idle,
            unknown_kinds=self.unknown_kinds,
            ranks=self.ranks,
            shuffle=self.shuffle,
            process_pool=self.process_pool or self.concurrency,
            telemetry=self.telemetry,
        )


def _library(engine: Any) -> Library | None:
    if engine is None or isinstance(engine, Library):
        return engine
    if type(engine).__module__.partition(".")[0] != "sqlalchemy":
        raise TypeError(f"engine is one of SQLAlchemy, or a sessionmaker, not {type(engine).__name__}")
    from trunq.connection.bridge.sqlalchemy import Sessions  # noqa: PLC0415

    return Sessions(engine)


_NAME_THE_KIND: Final = "name the kind: @worker.handler('kind'); @worker.handler alone is for all others"


def _kind(kind: Label) -> str:
    try:
        name = label("kind", kind)
    except InvalidArgument as error:
        raise TypeError(_NAME_THE_KIND) from error
    if name is None:
        raise TypeError(_NAME_THE_KIND)
    return name


def _places(concurrency: int | None) -> int | None:
    if concurrency is not None:
        require_whole("concurrency", concurrency, 1, "1 or more")
    return concurrency


def _wait(value: Interval) -> float:
    length = seconds("wait", value)
    if length is None or not 0 <= length < math.inf:
        raise ValueError(f"wait is a time, 0 or more, not {value}")
    return length


def _seconds(value: Interval | None, what: str) -> float | None:
    length = seconds(what, value)
    if length is not None and not length > 0:
        raise ValueError(f"{what} must be positive, not {value}")
    return length
