"""One process that leads several databases, each by itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from trunq.connection.backoff import async_retrying, first_line
from trunq.connection.outage import Said
from trunq.errors import TrunqError
from trunq.leader.election import Leader
from trunq.leader.rank import Ranks
from trunq.metrics import Metrics
from trunq.process.health import Health, why_not
from trunq.process.signals import run_with_signals
from trunq.process.together import together
from trunq.wire.name import own_name

log = logging.getLogger("trunq.leader")

Find = Callable[[], Awaitable[list[str]]]
"""Which databases there are: their addresses."""

_LOGGERS: Final = ("trunq.leader", "trunq.link", "trunq.rank", "trunq.client")

_database: ContextVar[str | None] = ContextVar("database", default=None)
"""The database that the running coroutine leads."""


class _Naming(logging.Filter):
    """Says in each line which database it is about."""

    def filter(self, record: logging.LogRecord) -> bool:
        if (name := _database.get()) is not None and not hasattr(record, "database"):
            record.msg, record.args = f"{name}: {record.getMessage()}", ()
            record.database = name
        return True


@dataclass
class _Led:
    """One database that is led, or is to be."""

    label: str
    leader: Leader
    running: asyncio.Task[None]


class Leaders:
    """Leads all databases that `find` tells, one Leader each; SIGHUP has it ask again.

    What it finds then and did not know is led, what is gone is let go. A database that is away, or has no
    trunq, is tried again, and disturbs no other; a single one raises to begin with, as Leader does.
    `name`, `lease_time`, `ranks` and `statistics` are as in Leader. `health` is a port, or host and port,
    where it answers an orchestrator's GET /healthz and /readyz: ready when each of its databases answers.
    `metrics` is one where it answers GET /metrics as well, for Prometheus: figures of its databases.
    """

    def __init__(
        self,
        find: Find,
        name: str | None = None,
        lease_time: float = 15.0,
        ranks: Ranks | None = None,
        statistics: float | None = None,
        health: str | int | None = None,
        metrics: str | int | None = None,
    ) -> None:
        self.name = name or own_name()
        self.performed: dict[str, dict[str, int]] = {}
        """By database: how much each duty did. Of one that was let go, too."""
        self._find = find
        self._lease_time = lease_time
        self._ranks = ranks
        self._statistics = statistics
        self._health = health
        self._metrics = metrics
        self._led: dict[str, _Led] = {}
        self._woken = asyncio.Event()
        self._is_reloading = False
        self._is_stopping = False

    @property
    def terms(self) -> dict[str, int | None]:
        """The databases at hand, and the term in which each is led; None: another leads, or it is away."""
        return {each.label: each.leader.term for each in self._led.values()}

    def run(self) -> None:
        """Run until SIGTERM or SIGINT; SIGHUP looks for databases again."""
        run_with_signals(self._run_as_process, self.stop)

    def stop(self) -> None:
        """Resign everywhere. On the event loop."""
        self._is_stopping = True
        self._woken.set()

    def reload(self) -> None:
        """Look for databases again. On the event loop."""
        self._is_reloading = True
        self._woken.set()

    async def _run_as_process(self) -> None:
        # Not in a thread, not on Windows.
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError, AttributeError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reload)
        await self.run_async()

    async def run_async(self) -> None:
        """Run until `stop`. Raises what `find` raises at the start; later on it keeps what it has."""
        naming = _Naming()
        for each in _LOGGERS:
            logging.getLogger(each).addFilter(naming)
        try:
            wanted = await self._find()
            async with self._serving(), together() as group:
                self._change(group, wanted, is_alone=len(wanted) == 1)
                if not wanted:
                    log.warning("there is no database to lead; SIGHUP looks again")
                try:
                    await self._serve(group)
                finally:
                    await self._let_go(list(self._led))
        finally:
            for each in _LOGGERS:
                logging.getLogger(each).removeFilter(naming)

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        """Answer probes, and whoever asks for figures; both may have one port."""
        async with AsyncExitStack() as stack:
            if str(self._health) != str(self._metrics):
                await stack.enter_async_context(Health(self._health, self._why_not_ready))
            if self._metrics is not None:
                metrics = Metrics(lambda: {each.label: dsn for dsn, each in self._led.items()})
                pages = {"/metrics": (await stack.enter_async_context(metrics)).page}
                await stack.enter_async_context(Health(self._metrics, self._why_not_ready, pages))
            yield

    async def _why_not_ready(self) -> str | None:
        if self._is_stopping:
            return "it is stopping"
        led = list(self._led.items())
        answers = await asyncio.gather(*(why_not(dsn, "trunq health") for dsn, _ in led))
        said = [
            f"{each.label}: {why}" for (_, each), why in zip(led, answers, strict=True) if why is not None
        ]
        return "; ".join(said) or None

    async def _serve(self, group: asyncio.TaskGroup) -> None:
        while not self._is_stopping:
            await self._woken.wait()
            self._woken.clear()
            if self._is_reloading and not self._is_stopping:
                self._is_reloading = False
                await self._reload(group)

    async def _reload(self, group: asyncio.TaskGroup) -> None:
        try:
            wanted = await self._find()
        except (psycopg.Error, TrunqError, OSError) as error:
            log.error("could not look for databases, and goes on with those it has: %s", first_line(error))
            return
        gone = [dsn for dsn in self._led if dsn not in wanted]
        new = [dsn for dsn in wanted if dsn not in self._led]
        await self._let_go(gone)
        self._change(group, wanted, is_alone=False)
        log.info("looked for databases: %s new, %s gone, %s led", len(new), len(gone), len(self._led))

    def _change(self, group: asyncio.TaskGroup, wanted: list[str], *, is_alone: bool) -> None:
        labels = _labels(wanted)
        for dsn in wanted:
            if dsn in self._led:
                continue
            leader = self._new(dsn)
            work = self._lead(dsn, labels[dsn], is_alone=is_alone)
            self._led[dsn] = _Led(labels[dsn], leader, group.create_task(work))

    def _new(self, dsn: str) -> Leader:
        return Leader(dsn, self.name, self._lease_time, ranks=self._ranks, statistics=self._statistics)

    async def _lead(self, dsn: str, label: str, *, is_alone: bool) -> None:
        """Lead one database until it is let go."""
        if not is_alone:
            _database.set(label)
        said = Said()

        def say(error: BaseException, *_: object) -> None:
            hint = error.hint if isinstance(error, TrunqError) else None
            why = first_line(error) + (f"; {hint}" if hint else "")
            if said.is_new(dsn, why):
                log.error("cannot be led, and is tried again: %s", why)

        async def lead() -> None:
            leader = self._led[dsn].leader
            try:
                await leader.run_async(is_patient=not is_alone)
            finally:
                self._count(label, leader)
                self._led[dsn].leader = self._new(dsn)

        await async_retrying(also=Exception, is_over=lambda: is_alone, say=say)(lead)

    async def _let_go(self, dsns: list[str]) -> None:
        """Resign from databases."""
        led = [self._led[dsn] for dsn in dsns]
        for each in led:
            each.leader.stop()
        tasks = {each.running for each in led}
        # One that waits until it tries again does not lead; a leader that resigns is waited for.
        for each in led:
            if each.leader.term is None and not each.leader.is_running:
                each.running.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for dsn in dsns:
            del self._led[dsn]

    def _count(self, label: str, leader: Leader) -> None:
        done = self.performed.setdefault(label, {})
        for duty, count in leader.performed.done.items():
            done[duty] = done.get(duty, 0) + count


def _labels(dsns: list[str]) -> dict[str, str]:
    """What to call each database: its name, or with its server where two have one name."""
    parts: Mapping[str, dict[str, Any]] = {dsn: conninfo_to_dict(dsn) for dsn in dsns}
    names = {dsn: str(each.get("dbname") or each.get("user") or "default") for dsn, each in parts.items()}
    labels = {}
    for dsn, name in names.items():
        is_one = list(names.values()).count(name) == 1
        server = f"{parts[dsn].get('host', '')}:{parts[dsn].get('port', 5432)}"
        labels[dsn] = name if is_one else f"{server}/{name}"
    return labels
