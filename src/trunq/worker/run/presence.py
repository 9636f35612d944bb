"""What the database is told of a worker, and what it says of the subscriptions that the worker serves."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from importlib.metadata import version
from socket import gethostname
from time import monotonic, time
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection

from trunq import display
from trunq.connection._async.execute import execute, value
from trunq.connection.backoff import first_line
from trunq.errors import InvalidArgument, SubscriptionNotFound, WrongMode
from trunq.wire.array import text_array
from trunq.wire.call import Call
from trunq.wire.json import json_text
from trunq.word import LastWord
from trunq.worker.answer.lease import Source
from trunq.worker.run.options import Options
from trunq.worker.slot.running import Running

log = logging.getLogger("trunq.worker")

_TOLD: Final = 100
"""Messages that a report names."""
_KIND: Final = 100
"""Characters of a kind that it tells: what a message says of itself must not make it too long."""

_DEFECT: Final = ("queue", "object", "kind", "defect", "repair")
_POLICY: Final = ("subscription", "mode", "lease_time", "time_out", "rate", "paused")


class Presence:
    """A worker as the database knows it: its slots, and the leases of its name."""

    def __init__(self, options: Options, sources: Sequence[Source], running: Sequence[Running]) -> None:
        self._options = options
        self._sources = sources
        self._running = running
        self._attends = True
        self._began = monotonic()
        self.last_word: LastWord = "killed"
        """What it says at its end: drained, once its last message was."""

    async def attend(self, connection: AsyncConnection[Any]) -> None:
        """Tell the database of our slots."""
        if not self._attends:
            return
        options = self._options
        arguments = {
            "worker": options.identity,
            "queues": text_array("queues", options.queues),
            "subscription": options.subscription,
            "slots": options.concurrency,
        }
        try:
            await execute(connection, Call("_attend", arguments))
            await self._report(connection)
        except psycopg.errors.InsufficientPrivilege as error:
            # A role with fewer rights works all the same.
            self._attends = False
            log.warning("its slots are not among those of the fleet: %s", first_line(error))

    async def tell(self, connection: AsyncConnection[Any]) -> None:
        """Say that we are still there, and what our slots handle: who drains offers them to nobody."""
        if self._attends:
            await self._report(connection)

    async def leave(self, connection: AsyncConnection[Any]) -> None:
        """Tell it that they are gone."""
        with contextlib.suppress(psycopg.Error):
            await execute(connection, Call("_leave_worker", {"worker": self._options.identity}))
            if self._attends:
                await self._report(connection, self.last_word)

    async def _report(self, connection: AsyncConnection[Any], last_word: LastWord | None = None) -> None:
        """Say who we are, and what we do."""
        options, now = self._options, monotonic()
        handling = [
            {
                "queue": message.queue,
                "id": message.id,
                "kind": message.kind and message.kind[:_KIND],
                "seconds": now - each.since,
            }
            for each in self._running
            for _, message in each.entries[:_TOLD]
        ]
        arguments = {
            "worker": options.identity,
            "queues": text_array("queues", options.queues),
            "subscription": options.subscription,
            "host": gethostname(),
            "pid": os.getpid(),
            "seconds": now - self._began,
            "version": version("trunq"),
            "slots": options.concurrency,
            "handling": json_text("handling", handling[:_TOLD]),
            "last_word": last_word,
            "clock": time(),
        }
        await execute(connection, Call("_report", arguments))

    async def reclaim(self, connection: AsyncConnection[Any]) -> None:
        """Take back what a former worker of this name had leased, if it is the only one at any time."""
        if not self._options.is_named:
            return
        name = self._options.identity
        for source in self._sources:
            if leases := await value(connection, Call("reclaim", {**source.names, "worker": name})):
                log.info(
                    "took back %s of %s from a former worker %s;"
                    " if it still runs, each needs a name of its own",
                    display.counted(leases, "lease"),
                    f"{source.queue}/{source.subscription}",
                    name,
                    extra={"queue": source.queue},
                )

    async def look_for_defects(self, connection: AsyncConnection[Any]) -> None:
        """Warn of what the tables of our queues lack: without an index it works, and slowly."""
        for queue in dict.fromkeys(source.queue for source in self._sources):
            try:
                found = await execute(connection, Call("list_defects", {"queue": queue}, _DEFECT))
            except psycopg.errors.InsufficientPrivilege as error:
                log.info("nobody looked for defects: %s", first_line(error), extra={"queue": queue})
                continue
            for _, _, _, defect, _ in found:
                log.warning("%s: trunq db upgrade --repair puts it back", defect, extra={"queue": queue})

    async def follow(self, connection: AsyncConnection[Any]) -> None:
        """Look at the policy of each subscription, which may be changed while we run."""
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
