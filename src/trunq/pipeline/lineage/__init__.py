"""What runs of pipelines tell of themselves to OpenLineage: by HTTP or into a file, where settings say so.

A run never waits for whoever listens: events go through a queue to a thread. What has not been sent when the
runner ends has a few seconds; what a server that is away misses is gone, and the log says so once.

    telling   the events, and where they go (needs `pip install 'trunq[lineage]'`)
    dataset   what sources and sinks are called
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from trunq.errors import InvalidArgument
from trunq.pipeline.control import Run
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.errors import RunOver, Wait
from trunq.pipeline.redact import redact
from trunq.settings import Lineage as Wanted

if TYPE_CHECKING:
    from trunq.pipeline.lineage.telling import Events

log = logging.getLogger("trunq.pipeline")

Made = TypeVar("Made")

_MOST: Final = 1000
"""Events that wait at most; more are left out."""
_LAST: Final = 5.0
"""Seconds in which the rest is sent when the runner ends."""


class Told:
    """What an event at the end of a run says."""

    def __init__(self) -> None:
        self.answer: Mapping[str, Any] = {}

    def ended(self, answer: Mapping[str, Any]) -> None:
        """Its outcome and its rows."""
        self.answer = answer


class Lineage:
    """Tells of runs; `wanted` says where. Raises InvalidArgument without the package that it needs."""

    def __init__(self, wanted: Wanted, dsn: str) -> None:
        try:
            from trunq.pipeline.lineage.telling import Events  # noqa: PLC0415  # only where it is asked for
        except ModuleNotFoundError as error:
            raise InvalidArgument(
                f"lineage needs {error.name}, which is not installed", "pip install 'trunq[lineage]'"
            ) from error
        self._events: Events = Events(wanted, dsn)
        self._waiting: queue.Queue[Any] = queue.Queue(_MOST)
        self._is_away = False
        self._thread = threading.Thread(target=self._send, name="trunq-lineage", daemon=True)
        self._thread.start()

    @contextmanager
    def run(self, pipeline: Pipeline, run: Run) -> Iterator[Told]:
        """START, then COMPLETE, FAIL, or ABORT when it is cancelled or goes on elsewhere."""
        told = Told()
        one = self._made(lambda: self._events.one(pipeline, run))
        if one is None:
            yield told
            return
        self._put(one.started)
        try:
            yield told
        except (RunOver, Wait):
            self._put(lambda: one.ended("ABORT"))
            raise
        except Exception as error:
            why = redact(pipeline, f"{type(error).__name__}: {error}")
            self._put(lambda: one.ended("FAIL", error=why))
            raise
        else:
            is_cancelled = told.answer.get("outcome") == "cancelled"
            self._put(lambda: one.ended("ABORT" if is_cancelled else "COMPLETE", told.answer))

    def close(self) -> None:
        """Send what waits, as far as a few seconds last."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(_LAST)

    def _put(self, make: Callable[[], Any]) -> None:
        if (event := self._made(make)) is None:
            return
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self._say(f"{_MOST} events wait")

    def _made(self, make: Callable[[], Made]) -> Made | None:
        """What a run has no words for fails no run."""
        try:
            return make()
        except Exception as error:
            self._say(f"{type(error).__name__}: an event could not be made")
            return None

    def _send(self) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                self._events.send(event)
            except Exception as error:
                self._say(f"{type(error).__name__}: {error}")
            else:
                self._is_away = False

    def _say(self, why: str) -> None:
        """Once, until it works again."""
        if not self._is_away:
            self._is_away = True
            log.warning("lineage is not told to %s, runs go on without: %s", self._events.where, why)


@contextmanager
def told(lineage: Lineage | None, pipeline: Pipeline, run: Run) -> Iterator[Told]:
    """Around a run, whether its lineage is to be told or not."""
    if lineage is None:
        yield Told()
        return
    with lineage.run(pipeline, run) as ending:
        yield ending


def open_lineage(wanted: Wanted, dsn: str) -> Lineage | None:
    """None where the settings name no place."""
    if wanted.url is None and wanted.file is None:
        return None
    return Lineage(wanted, dsn)
