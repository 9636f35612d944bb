"""One run of a worker: the connections opened, everything at work, the end in good order.

options    what the worker was asked for
leasing    leases in batches, sleeps when there is nothing (bell: how it is woken)
heartbeat  extends the leases of what still runs
presence   what the database knows of the worker (remaining: what is left for it to do)
pulse      what the log says of the work as a whole
parts      what goes on beside each other (grace: how long it may take to end)
traced     handlers in spans of OpenTelemetry, where somebody asked for those
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, Literal

import psycopg
from psycopg import AsyncConnection

from trunq.client._async.database import check_schema
from trunq.client.message import Reject
from trunq.connection._async.link import AsyncLink
from trunq.connection.outage import Outage
from trunq.leader import Leader
from trunq.leader.rank import Ranker
from trunq.worker.answer import Outbox
from trunq.worker.answer.lease import Source, Statistics
from trunq.worker.answer.outcome import Outcomes
from trunq.worker.handler import Registry
from trunq.worker.run.bell import Bell
from trunq.worker.run.grace import Grace
from trunq.worker.run.heartbeat import Heartbeat
from trunq.worker.run.leasing import Ahead, Fetcher, Mixed
from trunq.worker.run.options import Options, connections
from trunq.worker.run.parts import Parts, wait_all
from trunq.worker.run.presence import Presence
from trunq.worker.run.pulse import Pulse
from trunq.worker.run.remaining import Remaining
from trunq.worker.run.traced import traced
from trunq.worker.slot import Slot
from trunq.worker.slot.backlog import Backlog
from trunq.worker.slot.cleaning import EVERY, WATCH
from trunq.worker.slot.settle import NoHandler, Settlement
from trunq.worker.slot.transaction import Transactions

log = logging.getLogger("trunq.worker")

_POLICY_EVERY: Final = 60.0
"""Seconds between looks at the subscriptions' policy, which may be changed while we run."""

_ATTEND_EVERY: Final = 10.0
"""Seconds between two times that the database is told of our slots."""

_LEAVING: Final = 1.0
"""Seconds in which the database is told that our slots are gone."""
_KINDS_SAID: Final = 10

_CAN_WATCH: Final = (
    f"select case current_setting('{WATCH}') when '0' then set_config('{WATCH}', '{EVERY}', true) end"
)


class Run:
    """All parts of a running worker, and their order of life."""

    def __init__(self, options: Options, registry: Registry, statistics: Statistics) -> None:
        self._options = options
        self._statistics = statistics
        if options.telemetry is not None:
            registry = registry.around(partial(traced, options.telemetry))
        title = f"trunq worker {options.identity}"
        # Losing a lease only redelivers: it need not wait for the disk. An answer must.
        outage = Outage()
        self._leases = AsyncLink(options.dsn, title, {"synchronous_commit": "off"}, outage=outage)
        self._answers = AsyncLink(options.dsn, title, outage=outage)
        self._listening = AsyncLink(options.dsn, title, outage=outage)
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
        self._outbox = Outbox(self._answers, statistics, self._outcomes, options.telemetry)
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
        ahead = (Mixed if options.shuffle else Ahead)(options.prefetch, options.concurrency)
        self._heartbeat = Heartbeat(
            self._sources, self._slots, self._backlog, self._outbox, ahead, statistics
        )
        self._bell = Bell(
            self._listening, self._sources, self._backlog.changed, options.notify, self._heartbeat.ask
        )
        self._fetcher = Fetcher(
            self._leases,
            self._sources,
            self._backlog,
            self._outbox,
            self._bell,
            ahead,
            statistics,
            options,
            self._is_empty if options.until_empty or options.until_idle else None,
        )
        self._presence = Presence(options, self._sources, [slot.running for slot in self._slots])
        self._remaining = Remaining(
            self._sources, registry, statistics, options.asks, until_idle=options.until_idle
        )
        self._grace = Grace(options.grace)
        self._parts = Parts()
        self._is_open = False

    @property
    def state(self) -> Literal["starting", "serving", "stopping"]:
        """How far it is: only one that serves leases messages."""
        if self._fetcher.is_stopped:
            return "stopping"
        return "serving" if self._is_open else "starting"

    def stop(self) -> None:
        """Lease no more, give back what has not started, finish what runs, as far as the grace lasts."""
        if self._fetcher.is_stopped:
            return
        grace, running = self._options.grace, self._backlog.busy
        have = "" if grace is None else f", {grace:g} s at most"
        who = "1 handler still runs" if running == 1 else f"{running} handlers still run"
        still = f": {who}{have}, Ctrl-C again ends {'it' if running == 1 else 'them'}" if running else ""
        log.info("stopping%s", still, extra={"running": running})
        self._grace.begin(self._lease_no_longer, self._give_up)
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
            if slot.running.entries:
                slot.give_up(
                    TimeoutError(f"its worker was stopped, and had {self._options.grace:g} s to end")
                )

    async def serve(self) -> None:
        """Work until stopped, or until nothing is left when asked to."""
        try:
            await self._open()
            self._is_open = True
            self._say_start()
            sending = self._start_parts()
            slots = [self._parts.start(slot.run()) for slot in self._slots]
            try:
                await self._parts.beside(self._fetcher.run())
            except Exception:
                # What runs is finished and answered all the same, as long as answers go out.
                if not sending.done():
                    await self._drain([slot for slot in slots if not slot.done()])
                raise
            await self._drain(slots)
            if not self._grace.is_over:
                self._presence.last_word = "drained"
            self._pulse.end()
        except asyncio.CancelledError:
            log.warning("ended at once: %s", _cut_off(self._backlog.busy))
            raise
        finally:
            await self._close()

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

    async def _open(self) -> None:
        """Connect, once and without patience: whoever starts a worker by hand should hear what is wrong."""
        connection = await self._leases.open()
        await check_schema(connection)
        await self._presence.follow(connection)
        await self._presence.attend(connection)
        if self._registry.colours_of_transactions and not self._leases.pooled:
            await self._watch_statements(connection)
        await self._presence.reclaim(connection)
        await self._presence.look_for_defects(connection)
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

    async def _repeat(self, seconds: float, look: Callable[[AsyncConnection[Any]], Awaitable[None]]) -> None:
        """Do something every so many seconds until stopped: the last messages need no policy, must not be
        given up for a database that is away, and whoever drains has no slots to offer.
        """
        while True:
            await asyncio.sleep(seconds)
            if self._fetcher.is_stopped:
                return
            try:
                await self._leases.run(look)
            except psycopg.Error:
                if not self._fetcher.is_stopped:
                    raise

    async def _attend(self) -> None:
        """Be known to the database, to the last handler's end; but nothing ends for it that drains."""
        await self._repeat(_ATTEND_EVERY, self._presence.attend)
        while True:
            with contextlib.suppress(psycopg.Error):
                await self._leases.run(self._presence.tell)
            await asyncio.sleep(_ATTEND_EVERY)

    def _start_parts(self) -> asyncio.Task[None]:
        """What goes on beside leasing and handling. Returns the part that sends answers."""
        sending = self._parts.start(self._outbox.run())
        self._parts.start(self._bell.run())
        self._parts.start(self._heartbeat.run())
        self._parts.start(self._repeat(_POLICY_EVERY, self._presence.follow))
        self._parts.start(self._attend())
        self._parts.start(self._pulse.run())
        if self._leader is not None:
            # A worker that handles messages does not end because there was no connection left for the leader.
            self._parts.start(self._leader.run_async(is_patient=True))
        if self._ranker is not None:
            self._parts.start(self._ranker.run())
        return sending

    async def _drain(self, slots: list[asyncio.Task[None]]) -> None:
        """Give back what has not started, let finish what runs, deliver all answers."""
        for lease in list(self._outbox.open.values()):
            ids = [message.id for _, message in self._backlog.withdraw(lease)]
            ids += [message.id for message in lease.parked]
            lease.parked.clear()
            if ids:
                self._outbox.release(lease, ids)
        self._backlog.close()
        await self._in_time(wait_all(slots))
        await self._in_time(self._outbox.flushed())

    async def _in_time(self, work: Coroutine[Any, Any, None]) -> None:
        await self._parts.beside(self._grace.bound(work, self._say_over))

    def _say_over(self) -> None:
        running = sum(bool(slot.running.entries) for slot in self._slots)
        log.error("the grace is over: %s messages run, %s answers are lost", running, self._outbox.unsent)

    async def _close(self) -> None:
        for slot in self._slots:
            slot.abort()
            slot.close()
        if self._leader is not None:
            self._leader.stop()
        if self._grace.is_over:
            self._answers.cut()
        await self._parts.end(self._grace.for_tasks)
        await self._registry.processes.close()
        await self._transactions.close()
        await self._leave()
        for link in (self._leases, self._answers):
            await link.close()
        await self._bell.close()

    async def _leave(self) -> None:
        connection = self._leases.connection
        if connection is not None and not connection.closed:
            timer = asyncio.get_running_loop().call_later(_LEAVING, self._leases.cut)
            await self._presence.leave(connection)
            timer.cancel()

    async def _is_empty(self) -> bool:
        return await self._leases.run(self._remaining.count) == 0


def _cut_off(running: int) -> str:
    if running == 1:
        return "1 handler was cut off; its message comes back when its lease ends"
    return f"{running} handlers were cut off; their messages come back when their leases end"
