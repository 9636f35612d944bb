"""One run of a worker: the connections opened, everything at work, the end in good order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, Literal

import psycopg
from psycopg import AsyncConnection

from trunq import signals
from trunq._async.connection import check_schema
from trunq._async.execute import execute, value
from trunq.call import Call
from trunq.connection.backoff import first_line
from trunq.connection.link import Link
from trunq.connection.outage import Outage
from trunq.errors import InvalidArgument, SubscriptionNotFound, WrongMode
from trunq.leader import Leader
from trunq.message import Reject
from trunq.rank import Ranker, Ranks
from trunq.wire.array import text_array
from trunq.worker.answer import Outbox
from trunq.worker.backlog import Backlog
from trunq.worker.bell import Bell
from trunq.worker.ending import STUBBORN, end_all, wait_all
from trunq.worker.fetch import Fetcher
from trunq.worker.heartbeat import Heartbeat
from trunq.worker.lease import Lease, Source, Statistics
from trunq.worker.outcome import Outcomes
from trunq.worker.pulse import Pulse
from trunq.worker.registry import Registry
from trunq.worker.session import EVERY, WATCH
from trunq.worker.settle import NoHandler, Settlement
from trunq.worker.slot import Slot
from trunq.worker.transaction import Transactions

log = logging.getLogger("trunq.worker")

_POLICY_EVERY: Final = 60.0
"""Seconds between looks at the subscriptions' policy, which may be changed while we run."""

_ATTEND_EVERY: Final = 10.0
"""Seconds between two times that the database is told of our slots."""

_FOR_HANDLERS: Final = 0.8
"""This share of the grace is for handlers."""
_FOR_ANSWERS: Final = 0.9
"""Until then is the time of their answers; the rest is for the end."""
_FOR_LEASE: Final = 0.25
"""This share of the grace is for the answer of a lease that was asked for before."""
_LEAVING: Final = 1.0
"""Seconds in which the database is told that our slots are gone."""
_KINDS_SAID: Final = 10
_OF_LEADER: Final = 3
"""Connections of a leader: for its election, and for each of its two lines of duties."""

_POLICY: Final = ("subscription", "mode", "lease_time", "time_out", "rate", "paused")
_LEFT: Final = ("subscription", "ready", "leased", "delayed")
_CAN_WATCH: Final = (
    f"select case current_setting('{WATCH}') when '0' then set_config('{WATCH}', '{EVERY}', true) end"
)

UnknownKinds = Literal["wait", "reject"]


@dataclass(frozen=True, slots=True)
class Options:
    """What a worker was asked for; worker/__init__.py says what each means."""

    queues: tuple[str, ...]
    subscription: str
    dsn: str
    identity: str
    is_named: bool
    concurrency: int
    prefetch: int | None
    poll: float
    lease_time: float | None
    reserve: float | None
    grace: float | None
    max_connections: int | None
    notify: bool | None
    lead: bool
    until_empty: bool
    until_idle: bool
    unknown_kinds: UnknownKinds
    ranks: Ranks | None
    shuffle: bool
    process_pool: int


def connections(options: Options, registry: Registry) -> tuple[int, int]:
    """How many connections a worker opens at most, and how many of them each pool of transactions has.

    Leases, answers, the bell and what ranks have one each, the leader three. Async handlers in a transaction
    have a pool, and sync ones another. Not counted: one for each subscription that is ranked by a function
    with a connection.
    """
    fixed = 2 + (options.notify is not False) + _OF_LEADER * options.lead + (options.ranks is not None)
    pools = registry.colours_of_transactions
    most = options.max_connections
    if most is None:
        most = fixed + pools * options.concurrency
    if most < fixed + pools:
        raise InvalidArgument(f"this worker needs at least {fixed + pools} connections, not {most}")
    share = min(options.concurrency, (most - fixed) // pools) if pools else 1
    return fixed + pools * share, share


class Run:
    """All parts of a running worker, and their order of life."""

    def __init__(self, options: Options, registry: Registry, statistics: Statistics) -> None:
        self._options = options
        self._statistics = statistics
        title = f"trunq worker {options.identity}"
        # Losing a lease only redelivers: it need not wait for the disk. An answer must.
        outage = Outage()
        self._leases = Link(options.dsn, title, {"synchronous_commit": "off"}, outage=outage)
        self._answers = Link(options.dsn, title, outage=outage)
        self._listening = Link(options.dsn, title, outage=outage)
        self._sources = [Source(queue, options.subscription) for queue in options.queues]
        self._backlog = Backlog(registry.handlers.values(), is_shuffled=options.shuffle)
        self.max_connections, share = connections(options, registry)
        self._transactions = Transactions(options.dsn, title, share)
        self._outcomes = Outcomes()
        self._pulse = Pulse(statistics, self._backlog, self._outcomes)
        self._registry = registry
        registry.processes.open(options.process_pool)
        self._leader = Leader(options.dsn, options.identity, outage=outage) if options.lead else None
        ranks = options.ranks
        self._ranker = Ranker(options.dsn, options.identity, ranks, outage) if ranks is not None else None
        self._bell = Bell(
            self._listening, self._sources, self._backlog.changed, options.notify, self._called_off
        )
        self._outbox = Outbox(
            self._answers,
            statistics,
            self._outcomes,
            self._lost,
            self._renewed,
            self._cancelled,
        )
        settlement = Settlement(registry, self._outbox)
        self._slots = [
            Slot(
                number,
                self._backlog,
                registry,
                self._outbox,
                self._transactions,
                settlement,
                Reject if options.unknown_kinds == "reject" else NoHandler,
                options.reserve,
                options.identity,
            )
            for number in range(options.concurrency)
        ]
        self._fetcher = Fetcher(
            self._leases,
            self._sources,
            self._backlog,
            self._outbox,
            self._bell,
            registry,
            statistics,
            worker=options.identity,
            concurrency=options.concurrency,
            prefetch=options.prefetch,
            shuffle=options.shuffle,
            poll=options.poll,
            is_empty=self._is_empty if options.until_empty or options.until_idle else None,
        )
        self._heartbeat = Heartbeat(
            self._sources, self._slots, self._backlog, self._fetcher.ahead, statistics
        )
        self._background: set[asyncio.Task[None]] = set()
        self._attends = True
        self._overdue = asyncio.Event()
        self._waits_for: set[str] = set()
        """Queues of which it was said, serving until idle, that only what is delayed is left."""
        self._ends_at: float | None = None

    def stop(self) -> None:
        """Lease no more, give back what has not started, finish what runs, as far as the grace lasts."""
        if self._fetcher.is_stopped:
            return
        grace, running = self._options.grace, self._backlog.busy
        have = "" if grace is None else f", {grace:g} s at most"
        who = "1 handler still runs" if running == 1 else f"{running} handlers still run"
        still = f": {who}{have}, Ctrl-C again ends {'it' if running == 1 else 'them'}" if running else ""
        log.info("stopping%s", still, extra={"running": running})
        if grace is not None:
            loop = asyncio.get_running_loop()
            # A handler that blocks this loop may have kept us from hearing of it.
            now = monotonic()
            since = now - (signals.heard_at or now)
            self._ends_at = now - since + grace
            loop.call_later(max(0.0, min(grace * _FOR_LEASE, STUBBORN) - since), self._lease_no_longer)
            loop.call_later(max(0.0, grace * _FOR_HANDLERS - since), self._give_up)
            loop.call_later(max(0.0, grace * _FOR_ANSWERS - since), self._overdue.set)
        self._fetcher.stop()

    def _lease_no_longer(self) -> None:
        """Wait no longer for what a lease, or the bell, answers: their connections may be silent."""
        if self._leases.is_busy:
            self._leases.cut()
        if self._bell.is_busy:
            self._listening.cut()

    def _give_up(self) -> None:
        """Wait for handlers no longer: what is left of the grace is for their answers."""
        for slot in self._slots:
            if slot.running.work is not None:
                slot.give_up(
                    TimeoutError(f"its worker was stopped, and had {self._options.grace:g} s to end")
                )

    async def serve(self) -> None:
        """Work until stopped, or until nothing is left when asked to."""
        slots: set[asyncio.Task[None]] = set()
        try:
            await self._open()
            self._say_start()
            self._start_background()
            slots = {asyncio.create_task(slot.run()) for slot in self._slots}
            try:
                await self._watch(self._fetcher.run(), slots)
            except Exception:
                # What runs is finished and answered all the same, as long as answers go out.
                if not self._sending.done():
                    await self._drain({slot for slot in slots if not slot.done()})
                raise
            await self._drain(slots)
            self._pulse.end()
        except asyncio.CancelledError:
            log.warning("ended at once: %s", _cut_off(self._backlog.busy))
            raise
        finally:
            await self._close(slots)

    def _say_start(self) -> None:
        options, kinds = self._options, self._registry.kinds
        more = f" and {len(kinds) - _KINDS_SAID} more" if len(kinds) > _KINDS_SAID else ""
        log.info(
            "%s serves %s; kinds: %s%s; %s handlers at a time, with %s connections at most; Ctrl-C ends it",
            options.identity,
            ", ".join(options.queues),
            ", ".join(kinds[:_KINDS_SAID]),
            more,
            options.concurrency,
            self.max_connections,
            extra={"worker": options.identity, "queues": options.queues},
        )

    def _lost(self, lease: Lease) -> None:
        self._heartbeat.lost(lease)

    def _renewed(self, lease: Lease) -> None:
        self._heartbeat.renewed(lease)

    def _cancelled(self, lease: Lease, ids: list[int]) -> None:
        self._heartbeat.cancelled(lease, frozenset(ids), self._outbox)

    def _called_off(self, source: Source, ids: frozenset[int] | None) -> None:
        self._heartbeat.ask(self._outbox, source.queue, ids)

    async def _open(self) -> None:
        """Connect, once and without patience: whoever starts a worker by hand should hear what is wrong."""
        connection = await self._leases.open()
        await check_schema(connection)
        await self._follow_policy(connection)
        await self._attend(connection)
        if self._registry.colours_of_transactions and not self._leases.pooled:
            await self._watch_statements(connection)
        if self._options.is_named:
            for source in self._sources:
                await self._reclaim(connection, source)
        await self._answers.open()
        await self._bell.open()

    async def _watch_statements(self, connection: AsyncConnection[Any]) -> None:
        # Not every system can: refused when a session starts, it would be refused each time. What is set by
        # the administrator stays.
        try:
            row = await (await connection.execute(_CAN_WATCH)).fetchone()
        except psycopg.errors.InvalidParameterValue:
            return
        if row != (None,):
            self._transactions.watch()

    async def _reclaim(self, connection: AsyncConnection[Any], source: Source) -> None:
        name = self._options.identity
        if leases := await value(connection, Call("reclaim", {**source.names, "worker": name})):
            log.info(
                "took back %s of %s from a former worker %s; if it still runs, each needs a name of its own",
                "a lease" if leases == 1 else f"{leases} leases",
                f"{source.queue}/{source.subscription}",
                name,
                extra={"queue": source.queue},
            )

    async def _follow_policy(self, connection: AsyncConnection[Any]) -> None:
        for source in self._sources:
            policies = await execute(connection, Call("list_subscriptions", {"queue": source.queue}, _POLICY))
            found = [policy for name, *policy in policies if name == source.subscription]
            if not found:
                raise SubscriptionNotFound(
                    f'queue "{source.queue}" has no subscription "{source.subscription}"',
                    "trunq.list_subscriptions() shows what there is, trunq.subscribe() makes one",
                )
            ((mode, lease_time, time_out, rate, paused),) = found
            if mode != "shared":
                raise WrongMode(
                    f'subscription "{source.subscription}" of queue "{source.queue}" is {mode}:'
                    " no worker can lease from it",
                    "give the worker a shared subscription, or read batches with next_batch",
                )
            source.is_limited = paused or rate is not None
            source.time_out = None if time_out is None else time_out.total_seconds()
            source.lease_time = self._options.lease_time or lease_time.total_seconds()
            if (reserve := self._options.reserve) is not None and reserve >= source.lease_time:
                raise InvalidArgument(
                    f"a reserve of {reserve:g} s leaves nothing of a lease of {source.lease_time:g} s",
                    "take a smaller reserve, or a longer lease_time",
                )

    async def _attend(self, connection: AsyncConnection[Any]) -> None:
        """Tell the database of our slots."""
        options = self._options
        arguments = {
            "worker": options.identity,
            "queues": text_array("queues", options.queues),
            "subscription": options.subscription,
            "slots": options.concurrency,
        }
        try:
            await execute(connection, Call("_attend", arguments))
        except psycopg.errors.InsufficientPrivilege as error:
            # A role with fewer rights works all the same.
            self._attends = False
            log.warning("its slots are not among those of the fleet: %s", first_line(error))

    async def _keep_attending(self) -> None:
        while True:
            await asyncio.sleep(_ATTEND_EVERY)
            # Whoever drains has no slots to offer.
            if self._attends and not self._fetcher.is_stopped:
                try:
                    await self._leases.run(self._attend)
                except psycopg.Error:
                    if not self._fetcher.is_stopped:
                        raise

    async def _leave(self) -> None:
        connection = self._leases.connection
        timer = asyncio.get_running_loop().call_later(_LEAVING, self._leases.cut)
        with contextlib.suppress(psycopg.Error):
            if connection is not None and not connection.closed:
                await execute(connection, Call("_leave", {"worker": self._options.identity}))
        timer.cancel()

    async def _keep_following(self) -> None:
        while True:
            await asyncio.sleep(_POLICY_EVERY)
            try:
                await self._leases.run(self._follow_policy)
            except psycopg.Error:
                # The last messages need no policy, and must not be given up for a database that is away.
                if not self._fetcher.is_stopped:
                    raise

    def _start_background(self) -> None:
        """What goes on beside leasing and handling. None of it ends by itself, except by an error."""
        self._sending = asyncio.create_task(self._outbox.run())
        works: list[Coroutine[Any, Any, None]] = [
            self._bell.run(),
            self._heartbeat.run(self._outbox),
            self._keep_following(),
            self._keep_attending(),
            self._pulse.run(),
        ]
        if self._leader is not None:
            # A worker that handles messages does not end because there was no connection left for the leader.
            works.append(self._leader.run_async(is_patient=True))
        if self._ranker is not None:
            works.append(self._ranker.run())
        self._background = {self._sending, *(asyncio.create_task(work) for work in works)}

    async def _watch(
        self, work: Coroutine[Any, Any, None], beside: Iterable[asyncio.Task[None]] = ()
    ) -> None:
        """Do `work`; whatever another part dies of ends it."""
        task = asyncio.create_task(work)
        others = {*self._background, *beside}
        try:
            while not task.done():
                done, _ = await asyncio.wait({task, *others}, return_when=asyncio.FIRST_COMPLETED)
                for other in done - {task}:
                    # Forgotten, or it would end the next watch too.
                    others.discard(other)
                    self._background.discard(other)
                    other.result()
            task.result()
        finally:
            await end_all(task)

    async def _drain(self, slots: set[asyncio.Task[None]]) -> None:
        """Give back what has not started, let finish what runs, deliver all answers."""
        for lease in list(self._outbox.open.values()):
            ids = [message.id for _, message in self._backlog.withdraw(lease)]
            ids += [message.id for message in lease.parked]
            lease.parked.clear()
            if ids:
                self._outbox.release(lease, ids)
        self._backlog.close()
        await self._watch(self._in_time(wait_all(slots)), slots)
        await self._watch(self._in_time(self._outbox.flushed()))

    async def _in_time(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work`, but no longer than the grace lasts."""
        task, overdue = asyncio.create_task(work), asyncio.create_task(self._overdue.wait())
        try:
            await asyncio.wait({task, overdue}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            else:
                log.error("the grace is over: %s messages run, %s answers are lost", *self._undone())
        finally:
            task.cancel()
            overdue.cancel()

    def _undone(self) -> tuple[int, int]:
        return sum(slot.running.work is not None for slot in self._slots), self._outbox.unsent

    async def _close(self, slots: set[asyncio.Task[None]]) -> None:
        for slot in self._slots:
            slot.abort()
            slot.close()
        if self._leader is not None:
            self._leader.stop()
        if self._overdue.is_set():
            self._answers.cut()
        await self._end_in_time(slots)
        await self._registry.processes.close()
        await self._transactions.close()
        await self._leave()
        for link in (self._leases, self._answers):
            await link.close()
        await self._bell.close()

    async def _end_in_time(self, slots: set[asyncio.Task[None]]) -> None:
        """A handler may refuse to end: half of what is left of the grace is for closing the connections."""
        left = STUBBORN if self._ends_at is None else max(0.0, (self._ends_at - monotonic()) / 2)
        await end_all(*slots, *self._background, within=left)

    async def _is_empty(self) -> bool:
        async def left(connection: AsyncConnection[Any]) -> int:
            total = self._statistics.unhandled = 0
            async with connection.transaction():
                # One snapshot: what becomes ready between two counts would be seen in neither place.
                await connection.execute("set transaction isolation level repeatable read, read only")
                for source in self._sources:
                    rows = await execute(connection, Call("status", {"queue": source.queue}, _LEFT))
                    for name, ready, leased, delayed in rows:
                        if name == source.subscription:
                            total += await self._left(connection, source, ready + leased, delayed)
            return total

        return await self._leases.run(left) == 0

    async def _left(self, connection: AsyncConnection[Any], source: Source, now: int, delayed: int) -> int:
        """How many messages this worker has to wait for: of delayed ones only when it serves until idle."""
        if now > 0 or delayed == 0:
            return now
        arguments = {**source.names, "kinds": text_array("kinds", self._registry.kinds)}
        is_any = self._registry.default is not None
        if self._options.until_idle and (is_any or await value(connection, Call("_has_delayed", arguments))):
            if source.queue not in self._waits_for:
                self._waits_for.add(source.queue)
                other = 0 if is_any else await value(connection, Call("_count_unhandled", arguments))
                log.info("waits until what is delayed is due: %s of %s", f"{delayed - other:,}", source.queue)
            return delayed
        if not is_any:
            self._statistics.unhandled += await value(connection, Call("_count_unhandled", arguments))
        return 0


def _cut_off(running: int) -> str:
    if running == 1:
        return "1 handler was cut off; its message comes back when its lease ends"
    return f"{running} handlers were cut off; their messages come back when their leases end"
