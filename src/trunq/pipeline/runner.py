"""The runner: a worker of the queue `pipelines` whose handlers are runs. `trunq worker
trunq.pipeline.runner:worker`.

A run takes no transaction of the worker's: over hours it would keep vacuum from the whole database.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from trunq import Client, Message
from trunq.client.message import Reject
from trunq.connection.address import address
from trunq.errors import InvalidPipeline, PipelineNotFound, TrunqError
from trunq.pipeline.awaited import TRIES, Awaited
from trunq.pipeline.control import Asked
from trunq.pipeline.errors import MessageRefused, RunCrashed, RunOver, Wait
from trunq.pipeline.in_hand import InHand
from trunq.pipeline.isolated import Isolation
from trunq.pipeline.lineage import open_lineage
from trunq.pipeline.run import Executor
from trunq.pipeline.traced import Tracing
from trunq.pipeline.triggering import Triggers
from trunq.process.thread import Thread
from trunq.process.together import together
from trunq.settings import load
from trunq.wire.scalar import seconds
from trunq.worker import Worker
from trunq.worker.run import Run

if TYPE_CHECKING:
    from trunq.telemetry import Telemetry

log = logging.getLogger("trunq.pipeline")

QUEUE: Final = "pipelines"

_CRASHES: Final = 3
"""So many processes a run may crash before its message is dead."""
_LOOK_EVERY: Final = 1.0
"""Seconds between two looks at what becomes of the message that somebody waits for."""
_FOR_RUNS: Final = 0.8
"""This share of the grace, less what it takes to give runs back, is for them to end."""
_TO_GIVE_BACK: Final = 3.0


class Runner(Worker):
    """A worker that runs pipelines, `concurrency` at a time, all in one Spark session; and does what triggers
    ask of it. With `until_empty` it does what waits, and leaves triggers alone.

    Where a pipeline needs Spark, the session does an empty job first, and runs that need it are put off until
    then; others are done meanwhile, and /readyz says so until that job is done. Stopped with a `grace`, runs
    that do not end in time are given up, and go on elsewhere at once.

    `awaited` is the id of a message that somebody waits for: the runner ends when any runner has done that
    one, and nothing else is ready (what failed earlier is for later), when its third attempt fails, or the
    first for a reason that lies in the pipeline, or in Spark's Java or Python, and when its run is put off
    for longer than a minute; `failure` is why. With `telemetry`, runs have spans of OpenTelemetry under
    their message's, and so has what Spark does for them.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        concurrency: int = 4,
        until_empty: bool = False,
        awaited: int | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        super().__init__(
            QUEUE,
            dsn=dsn,
            concurrency=concurrency,
            prefetch=0,
            until_idle=until_empty,
            telemetry=telemetry,
        )
        self._awaited = Awaited(awaited)
        self._in_hand = InHand()
        self._executor: Executor | None = None
        self._is_stopped = False
        self._stopped = asyncio.Event()
        self.handler("*", transaction=False)(self._handle)

    @property
    def failure(self) -> Exception | None:
        """Why what was awaited has failed."""
        return self._awaited.failure

    async def run_async(self) -> None:
        if self._executor is not None:
            raise RuntimeError("this runner is running already")
        self._is_stopped, self._stopped, self._in_hand = False, asyncio.Event(), InHand()
        await super().run_async()

    async def _serve(self, run: Run) -> None:
        dsn, thread = address(self.dsn), Thread("trunq-runner")
        with Client(dsn, max_connections=2 * self.concurrency + 2) as client:
            self._executor = executor = Executor(
                client,
                dsn,
                isolation=Isolation(dsn),
                tracing=Tracing(self.telemetry),
                lineage=open_lineage(load().lineage, dsn),
            )
            executor.engine.is_patient = True
            triggers = None
            try:
                if not self.until_idle and await thread.run(self._prepare):
                    triggers = Triggers(dsn, executor.control)
                    triggers.start()
                if self._is_stopped:
                    return
                async with together() as group:
                    ending = group.create_task(self._give_up_in_time(thread))
                    following = group.create_task(self._follow(thread))
                    await super()._serve(run)
                    ending.cancel()
                    following.cancel()
            finally:
                thread.close()
                if triggers is not None:
                    triggers.stop()
                with suppress(Exception):
                    executor.engine.close()
                if executor.lineage is not None:
                    await asyncio.to_thread(executor.lineage.close)
                self._executor = None

    async def _why_not_ready(self) -> str | None:
        why = await super()._why_not_ready()
        return why if why is not None or self._executor is None else self._executor.engine.cold

    def stop(self) -> None:
        """As of any worker; no more runs are asked for, and those that outlast the grace are given up."""
        self._is_stopped = True
        super().stop()
        if self._run is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)

    async def _give_up_in_time(self, thread: Thread) -> None:
        """Once stopped, have runs that do not end in time go on elsewhere."""
        await self._stopped.wait()
        if (grace := seconds("grace", self.grace)) is not None:
            at = max(grace * _FOR_RUNS / 2, grace * _FOR_RUNS - _TO_GIVE_BACK)
            await asyncio.sleep(at)
            self._in_hand.give_up()
            await asyncio.sleep((grace * _FOR_RUNS - at) / 2)
            await thread.run(partial(self._in_hand.give_back, self._work))

    async def _follow(self, thread: Thread) -> None:
        """Another runner may do what is awaited here."""
        while self._awaited.id is not None:
            await asyncio.sleep(_LOOK_EVERY)
            # A database that is away for a moment is the worker's to tell.
            with suppress(Exception):
                await thread.run(self._look)

    def _look(self) -> None:
        self._awaited.look(self._work.client.show_message(QUEUE, self._awaited.id or 0))
        self._end_if_done()

    @property
    def _work(self) -> Executor:
        assert self._executor is not None
        return self._executor

    def _prepare(self) -> bool:
        """What comes before the first message; whether triggers are to be followed."""
        try:
            definitions = [row.definition for row in self._work.client.list_pipelines()]
        except TrunqError as error:
            # The worker says it, in its way.
            log.debug("no pipelines: %s", error)
            return False
        if any(map(_needs_our_session, definitions)) and not self._is_stopped:
            log.info("starting Spark")
            self._work.engine.warm()
        return not self._is_stopped

    def _handle(self, message: Message, lost: threading.Event) -> Any:
        """One message."""
        awaited = self._awaited
        try:
            with self._in_hand.taking(message, lost):
                answer = self._execute(message, lost)
            if message.id == awaited.id and answer is not None:
                awaited.is_answered = True
            return answer
        except Exception as error:
            if isinstance(error, TrunqError) or awaited.id not in (None, message.id):
                # What others' functions do is for who looks after them.
                error.says_all = True  # type: ignore[attr-defined]
            if message.id == awaited.id:
                awaited.raised(message, error)
            raise
        finally:
            self._end_if_done()

    def _end_if_done(self) -> None:
        """Whoever waited hears why it failed, or has the answer, and those that run after it are over too."""
        awaited = self._awaited
        if awaited.failure or (awaited.is_answered and not self._in_hand.runs and not self._count_ready()):
            self.stop()

    def _count_ready(self) -> int:
        with suppress(Exception):
            return sum(row.ready for row in self._work.client.status(QUEUE) if row.subscription == "default")
        return 1

    def _execute(self, message: Message, lost: threading.Event) -> Any:
        if message.kind is None:
            return Reject("a message of the queue pipelines has the name of a pipeline as its kind")
        executor = self._work
        try:
            return executor.execute(asked(message), lost)
        except (PipelineNotFound, Wait, RunOver) as stopped:
            return self._put_off(message, lost, stopped)
        except Exception as error:
            if self._give_up_share(message, error):
                return {"outcome": "failed", "error": f"{type(error).__name__}: {error}"}
            if isinstance(error, MessageRefused):
                return Reject(str(error))
            if isinstance(error, RunCrashed) and error.crashes >= _CRASHES:
                return Reject(f"{error}; it has crashed {error.crashes} times")
            raise

    def _give_up_share(self, message: Message, error: Exception) -> bool:
        """Whether the message was for a share of a backfill, which has been tried often enough."""
        if not asked(message).is_backfill:
            return False
        if not isinstance(error, (InvalidPipeline, MessageRefused)) and message.attempt < TRIES:
            return False
        why = f"{type(error).__name__}: {error}"
        return self._work.control.fail_share(str(message.kind), message.id, why)

    def _put_off(self, message: Message, lost: threading.Event, stopped: Exception) -> Any:
        """What becomes of a message whose run was not to be, or not now."""
        after = 0.0
        if isinstance(stopped, PipelineNotFound):
            return Reject(str(stopped))
        if isinstance(stopped, Wait):
            # It was not started: the attempt does not count.
            after = stopped.seconds
            self._work.client.release(message, after=timedelta(seconds=after))
            if message.id == self._awaited.id and stopped.put_off is not None:
                self._awaited.put_off(stopped.put_off)
        elif self._in_hand.is_given_up or not lost.is_set():
            after = 0.0 if self._in_hand.is_given_up else 1.0
            self._work.client.release(message, after=timedelta(seconds=after))
        return None


def asked(message: Message) -> Asked:
    """What a message asks for, by its headers."""
    headers = message.headers if isinstance(message.headers, dict) else {}
    chain = headers.get("chain")
    try:
        known = None if chain is None else UUID(str(chain))
    except ValueError:
        known = None
    return Asked(
        str(message.kind),
        message.id,
        message.payload,
        is_backfill=headers.get("backfill") is True,
        is_resend=headers.get("resend") is True,
        left=str(headers["left"]) if "left" in headers else None,
        chain=known,
        started_by=None if known is None else str(headers.get("by")),
    )


def _needs_our_session(definition: Any) -> bool:
    return (
        isinstance(definition, Mapping)
        and (
            definition.get("engine") == "spark"
            or bool(definition.get("sql") or definition.get("transform"))
            or _has_expressions(definition)
        )
        and not definition.get("isolate")
    )


def _has_expressions(definition: Mapping[str, Any]) -> bool:
    checks = definition.get("checks")
    return isinstance(checks, list) and any(isinstance(each, Mapping) and "holds" in each for each in checks)


worker = Runner()
"""For `trunq worker trunq.pipeline.runner:worker`."""
