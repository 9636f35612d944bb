"""What goes on beside an attempt: it says how far the run is, and hears whether it goes on."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final

from trunq.pipeline.control import Control, Run
from trunq.pipeline.engine import Engine
from trunq.pipeline.errors import RunCancelled, RunOver

_EVERY: Final = 1.0
"""Seconds between two looks."""


class Monitor:
    """A thread for one attempt. With an engine it ends the jobs of an attempt that is to stop, as often as it
    takes: what the attempt does between two jobs ends by itself, when it asks `check`.
    """

    def __init__(
        self, control: Control, engine: Engine | None, run: Run, holder: int, lost: threading.Event
    ) -> None:
        self._control, self._engine, self._run, self._holder, self._lost = control, engine, run, holder, lost
        self._verdict: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name=f"trunq pipeline {run.pipeline}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self) -> None:
        """The attempt is over."""
        self._ended.set()
        self._thread.join()

    def check(self) -> None:
        """Raise RunCancelled, or RunOver when it is not ours any more."""
        run = self._run
        if self._verdict == "cancelled":
            raise RunCancelled(f"run {run.number} of pipeline {run.pipeline} is cancelled")
        if self._verdict is not None or self._lost.is_set():
            raise RunOver(f"run {run.number} of pipeline {run.pipeline} is not ours any more")

    def _look(self) -> None:
        while not self._ended.wait(_EVERY):
            if self._verdict is None and not self._lost.is_set():
                self._tell()
            if self._engine is not None and (self._verdict is not None or self._lost.is_set()):
                with suppress(Exception):
                    self._engine.end(self._run)

    def _tell(self) -> None:
        if self._engine is not None:
            # Spark's answer is news, no more.
            with suppress(Exception):
                self._run.progress.update(self._engine.follow(self._run))
        # A database that is away for a moment stops nobody: the lease says when it is too long.
        with suppress(Exception):
            self._verdict = self._control.hold(self._run, self._holder)
