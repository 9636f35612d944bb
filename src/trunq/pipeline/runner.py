"""The runner: a worker of the queue `pipelines` whose handlers are runs. `trunq worker
trunq.pipeline.runner:worker`.

A run takes no transaction of the worker's: over hours it would keep vacuum from the whole database.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from trunq import Client, Message
from trunq.client.message import Reject
from trunq.connection.address import address
from trunq.errors import InvalidPipeline, PipelineNotFound, TrunqError
from trunq.pipeline.control import Asked
from trunq.pipeline.errors import RunCrashed, RunFailed, RunOver, Wait
from trunq.pipeline.isolated import Isolation
from trunq.pipeline.run import Executor
from trunq.pipeline.triggering import Triggers
from trunq.process.thread import Thread
from trunq.record import MessageState
from trunq.wire.scalar import seconds
from trunq.word import OPEN
from trunq.worker import Worker

log = logging.getLogger("trunq.pipeline")

QUEUE: Final = "pipelines"

_CRASHES: Final = 3
"""So many processes a run may crash before its message is dead."""
_TRIES: Final = 3
"""After so many attempts, who waits for a run is told that it failed."""
_LOOK_EVERY: Final = 1.0
"""Seconds between two looks at what becomes of the message that somebody waits for."""
_FOR_RUNS: Final = 0.8
"""This share of the grace, less what it takes to give runs back, is for them to end."""
_TO_GIVE_BACK: Final = 3.0


class Runner(Worker):
    """A worker that runs pipelines, `concurrency` at a time, all in one Spark session; and does what triggers
    ask of it. With `until_empty` it does what waits, and leaves triggers alone.

    Where a pipeline needs Spark, the session does an empty job first, and runs that need it are put off until
    then; others are done meanwhile. Stopped with a `grace`, runs that do not end in time are given up, and go
    on elsewhere at once.

    `awaited` is the id of a message that somebody waits for: the runner ends when any runner has done that
    one, and nothing else is ready (what failed earlier is for later), and when its third attempt fails, or
    the first for a reason that lies in the pipeline; `failure` is why.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        concurrency: int = 4,
        until_empty: bool = False,
        awaited: int | None = None,
    ) -> None:
        super().__init__(QUEUE, dsn=dsn, concurrency=concurrency, prefetch=0, until_idle=until_empty)
        self.failure: Exception | None = None
        self._awaited = awaited
        self._is_answered = False
        self._has_ended = threading.Event()
        self._opening = threading.Lock()
        self._executor: Executor | None = None
        self._handling: dict[int, tuple[Message, threading.Event]] = {}
        self._is_stopped = False
        self._gives_up = False
        self._timers: list[threading.Timer] = []
        self._triggers: Triggers | None = None
        self.handler("*", transaction=False)(self._handle)

    async def run_async(self) -> None:
        self._is_stopped = self._gives_up = False
        self._has_ended.clear()
        try:
            if not self.until_idle:
                thread = Thread("trunq-warm")
                try:
                    await thread.run(self._prepare)
                finally:
                    thread.close()
            if self._awaited is not None:
                threading.Thread(target=self._follow, name="trunq awaited", daemon=True).start()
            if not self._is_stopped:
                await super().run_async()
        finally:
            self._has_ended.set()
            self._end()

    def stop(self) -> None:
        """As of any worker; no more runs are asked for, and those that outlast the grace are given up."""
        self._is_stopped = True
        super().stop()
        grace = seconds("grace", self.grace)
        if grace is not None and not self._timers:
            at = max(grace * _FOR_RUNS / 2, grace * _FOR_RUNS - _TO_GIVE_BACK)
            hard = (at + grace * _FOR_RUNS) / 2
            self._timers = [threading.Timer(at, self._give_up), threading.Timer(hard, self._give_back)]
            for timer in self._timers:
                timer.daemon = True
                timer.start()

    def _prepare(self) -> None:
        """What comes before the first message."""
        try:
            executor = self._get()
            definitions = [row.definition for row in executor.client.list_pipelines()]
        except TrunqError as error:
            # The worker says it, in its way.
            log.debug("no pipelines: %s", error)
            return
        if self._is_stopped:
            return
        if any(map(_needs_our_session, definitions)):
            log.info("starting Spark")
            executor.engine.warm()
        self._triggers = Triggers(executor.dsn, executor.control)
        self._triggers.start()

    def _end(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers = []
        if self._triggers is not None:
            self._triggers.stop()
            self._triggers = None
        with self._opening:
            executor, self._executor = self._executor, None
        if executor is not None:
            with suppress(Exception):
                executor.engine.close()
            executor.client.close()

    def _handle(self, message: Message, lost: threading.Event) -> Any:
        """One message."""
        try:
            answer = self._execute(message, lost)
        except Exception as error:
            is_another = self._awaited not in (None, message.id)
            if isinstance(error, TrunqError) or is_another:
                # What others' functions do is for who looks after them.
                error.says_all = True  # type: ignore[attr-defined]
            is_final = isinstance(error, InvalidPipeline) or message.attempt >= _TRIES
            if message.id == self._awaited and is_final:
                self.failure = error
                self.stop()
            raise
        finally:
            self._end_if_done()
        if message.id == self._awaited and answer is not None:
            self._is_answered = True
            self._end_if_done()
        return answer

    def _follow(self) -> None:
        """Another runner may do what is awaited here."""
        while not self._has_ended.wait(_LOOK_EVERY):
            # A database that is away for a moment is the worker's to tell.
            with suppress(Exception):
                self._look(self._get().client.show_message(QUEUE, self._awaited or 0))

    def _look(self, rows: list[MessageState]) -> None:
        row = next(row for row in rows if row.subscription == "default")
        if row.state not in OPEN:
            self._is_answered = True
            self._end_if_done()
        elif row.state == "retrying" and sum(bool(each["error"]) for each in row.attempts) >= _TRIES:
            self.failure = self.failure or RunFailed(str(row.error))
            self.stop()

    def _end_if_done(self) -> None:
        """Whoever waited has the answer, and those that run after it are over too."""
        if self._is_answered and not self._handling and not self._count_ready():
            self.stop()

    def _count_ready(self) -> int:
        with suppress(Exception):
            return sum(row.ready for row in self._get().client.status(QUEUE) if row.subscription == "default")
        return 1

    def _execute(self, message: Message, lost: threading.Event) -> Any:
        if message.kind is None:
            return Reject("a message of the queue pipelines has the name of a pipeline as its kind")
        executor = self._get()
        self._handling[message.id] = (message, lost)
        if self._gives_up:
            lost.set()
        try:
            return executor.execute(asked(message), lost)
        except PipelineNotFound as error:
            return Reject(str(error))
        except RunCrashed as error:
            if error.crashes >= _CRASHES:
                return Reject(f"{error}; it has crashed {error.crashes} times")
            raise
        except Wait as wait:
            # It was not started: the attempt does not count.
            executor.client.release(message, after=timedelta(seconds=wait.seconds))
            return None
        except RunOver:
            if self._gives_up or not lost.is_set():
                executor.client.release(message, after=timedelta(seconds=0 if self._gives_up else 1))
            return None
        finally:
            self._handling.pop(message.id, None)

    def _give_up(self) -> None:
        """Runs that still go on stop where they are, as soon as they hear of it."""
        self._gives_up = True
        if self._handling:
            log.warning("giving up what runs, to go on elsewhere: %s", _runs(len(self._handling)))
        for _, lost in list(self._handling.values()):
            lost.set()

    def _give_back(self) -> None:
        """Those that do not hear of it, since a function of the user's takes long, are given back all the
        same.
        """
        executor = self._executor
        for message, _ in list(self._handling.values()):
            if executor is None:
                return
            with suppress(Exception):
                if (run := executor.running.get(message.id)) is not None:
                    executor.control.let_go(run, message.id)
                executor.client.release(message, after=timedelta(0))

    def _get(self) -> Executor:
        with self._opening:
            if self._executor is None:
                dsn = address(self.dsn)
                client = Client(dsn, max_connections=2 * self.concurrency + 2)
                self._executor = Executor(client, dsn, isolation=Isolation(dsn))
            return self._executor


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
        chain=known,
        started_by=None if known is None else str(headers.get("by")),
    )


def _needs_our_session(definition: Any) -> bool:
    return (
        isinstance(definition, Mapping)
        and any(definition.get(part) for part in ("sql", "transform", "checks"))
        and not definition.get("isolate")
    )


def _runs(count: int) -> str:
    return "a run" if count == 1 else f"{count} runs"


worker = Runner()
"""For `trunq worker trunq.pipeline.runner:worker`."""
