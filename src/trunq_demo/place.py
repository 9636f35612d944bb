"""The directory of a run: its layout, its lock, and the removal of the previous run."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MARK = ".trunq-demo"
ELSEWHERE = "name another directory: trunq demo DIR"
NOTE = "trunq demo keeps its runs here: the next one replaces lake, checkpoint, log and report.\n"


class PlaceUnusable(Exception):
    """The directory cannot hold a run; the text says why and what to do."""


class Place:
    """The files of a run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.database = self.directory / "database"
        self.lake = self.directory / "lake" / "flights"
        self.month = self.directory / "lake" / "month"
        self.incoming = self.directory / "incoming"
        self.landing = self.directory / "landing"
        self.checkpoint = self.directory / "checkpoint"
        self.logs = self.directory / "log"
        self.report = self.directory / "report.html"
        self.figures = self.logs / "spark.json"

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Create the directory, or remove the previous run, and lock it against other runs.

        Raises PlaceUnusable if the directory is not writable, holds other files, or is in use.
        """
        self._claim()
        with (self.directory / MARK).open("r+") as mark:
            try:
                fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PlaceUnusable(
                    f"Another trunq demo runs in {self.directory}. Wait for it, or {ELSEWHERE}."
                ) from None
            self._clear()
            yield

    def _claim(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if not (self.directory / MARK).exists():
                others = sorted(path.name for path in self.directory.iterdir())
                if others:
                    raise PlaceUnusable(
                        f"{self.directory} holds other things ({others[0]}), not to be mixed with a run. "
                        "Name an empty directory, or one that does not exist: trunq demo DIR."
                    )
                (self.directory / MARK).write_text(NOTE)
            if not os.access(self.directory, os.W_OK):
                raise PermissionError(13, "permission denied")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise PlaceUnusable(
                f"The demo cannot write to {self.directory}: {reason}. Mend that, or {ELSEWHERE}."
            ) from error

    def _clear(self) -> None:
        # The database stays: a second run also shows an installation into an existing database.
        for old in (self.lake.parent, self.incoming, self.landing, self.checkpoint, self.logs):
            shutil.rmtree(old, ignore_errors=True)
        self.report.unlink(missing_ok=True)
        self.logs.mkdir()
        self.lake.parent.mkdir()
        self.incoming.mkdir()
