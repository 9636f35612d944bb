"""Executions of runs that stop at each point of the protocol, one moving at a time, so that a test chooses
how they meet, and at which point one dies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from trunq.pipeline.control import Asked, Control
from trunq.pipeline.monitor import Monitor
from trunq.pipeline.run import Executor
from trunq.pipeline.sink.table import PostgresSink
from trunq.pipeline.source.table import TableSource

_LONG = 60.0
_AFTER = (
    (Control, "open"),
    (TableSource, "plan"),
    (TableSource, "plan_range"),
    (Control, "begin"),
    (Control, "note_nothing"),
    (Control, "attempt"),
    (PostgresSink, "begin"),
    (PostgresSink, "stage"),
    (Control, "stage"),
    (PostgresSink, "commit"),
    (PostgresSink, "applied"),
    (Control, "finish"),
)

Heard = Callable[["Execution", str, tuple[Any, ...], Any], None]
"""What a test hears of each point: who, the name of what has returned, what it was given, what it gave."""


class Killed(BaseException):
    """The process is no more: nothing that would tidy up hears of it."""


class Execution:
    """One process at work on a message, in a thread that waits at each point until it is told to go on."""

    def __init__(self, executor: Executor, asked: Asked, *, is_attentive: bool) -> None:
        self.asked = asked
        self.point = "started"
        self.is_over = self.is_dead = self.dies_in_commit = False
        self.is_attentive = is_attentive
        """It hears at each chance whether its run goes on; others hear of it too late."""
        self.result: dict[str, Any] | None = None
        self.error: BaseException | None = None
        self.seen: dict[str, Any] = {}
        """For the test's notes."""
        self._executor = executor
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Go to the next point, or to the end."""
        if not self.is_over:
            self._go.release()
            assert self._stopped.acquire(timeout=_LONG), f"hangs after {self.point}"

    def to_end(self) -> None:
        while not self.is_over:
            self.step()

    def kill(self) -> None:
        """Die here."""
        self.is_dead = True
        self.to_end()

    def reach(self, point: str) -> None:
        """Wait here until told."""
        self.point = point
        self._stopped.release()
        self._go.acquire()
        self.live()

    def live(self) -> None:
        """Raise when it is dead."""
        if self.is_dead:
            raise Killed

    def _run(self) -> None:
        _here.execution = self
        self._go.acquire()
        try:
            self.live()
            self.result = self._executor.execute(self.asked)
        except BaseException as error:  # the test judges it
            self.error = error.with_traceback(None)
        self.is_over = True
        self._stopped.release()


_here = threading.local()

Function = Callable[..., Any]


def _current() -> Execution | None:
    return getattr(_here, "execution", None)


@contextmanager
def points(heard: Heard) -> Iterator[None]:
    """Executions stop at the points; whoever is no execution notices nothing."""
    with pytest.MonkeyPatch.context() as patches:

        def put(owner: Any, name: str, made: Callable[[Function], Function]) -> None:
            patches.setattr(owner, name, made(getattr(owner, name)))

        for owner, name in _AFTER:
            put(owner, name, partial(_stopping, name, heard))
        put(TableSource, "read", partial(_reading, heard))
        put(PostgresSink, "_require_all", _counting)
        put(PostgresSink, "discard", _discarding)
        put(Monitor, "check", _checking)
        # Chances, not seconds, decide who hears of what.
        patches.setattr("trunq.pipeline.monitor._EVERY", 3600.0)
        yield


def _stopping(name: str, heard: Heard, original: Function) -> Function:
    def stopping(*given: Any, **named: Any) -> Any:
        execution = _current()
        if execution is None:
            return original(*given, **named)
        execution.live()
        result = original(*given, **named)
        heard(execution, name, given, result)
        execution.reach(name)
        return result

    return stopping


def _reading(heard: Heard, original: Function) -> Function:
    def read(*given: Any) -> Any:
        if (execution := _current()) is not None:
            heard(execution, "read", given, None)
        yield from original(*given)

    return read


def _counting(original: Function) -> Function:
    """In the transaction of a commit, nobody stops: others would wait for it. Who is to die there does."""

    def require_all(*given: Any) -> None:
        original(*given)
        execution = _current()
        if execution is not None and execution.dies_in_commit:
            execution.is_dead = True
            execution.live()

    return require_all


def _discarding(original: Function) -> Function:
    def discard(*given: Any) -> None:
        if (execution := _current()) is None or not execution.is_dead:
            original(*given)

    return discard


def _checking(original: Function) -> Function:
    def check(watch: Monitor) -> None:
        if (execution := _current()) is not None and execution.is_attentive:
            watch._tell()
        original(watch)

    return check
