"""Pages of an API as they came, in a directory a run.

A page is a file: its place (what is asked for next) in the first line, and the answer below. It appears
whole, by a link that fails when the page is there: of two processes that fetch one page the first one's
counts, for both. So each page was asked for as the one before it says. A killed process goes on behind the
last one.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
import uuid
from pathlib import Path
from typing import Any, Final

from trunq.errors import InvalidPipeline
from trunq.pipeline.sink.directory import sync

_WEEK: Final = 7 * 86_400.0
_BACKFILL: Final = "backfill"
_NEW: Final = "new"
_REFUSED: Final = "refused"

Place = dict[str, Any]


class Landing:
    """The pages of one run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def page(self, number: int) -> Path:
        """The file of a page; the first one is 1."""
        return self.directory / f"page-{number:06d}.json"

    def place(self, number: int) -> Place | None:
        """The place of a page; None: it is not there."""
        try:
            with self.page(number).open("rb") as file:
                line = file.readline()
        except FileNotFoundError:
            return None
        place: Place = json.loads(line.rstrip().removesuffix(b",") + b"}")["place"]
        return place

    def answer(self, number: int) -> Any:
        """What the API said."""
        return json.loads(self.page(number).read_bytes())["answer"]

    def land(self, number: int, place: Place, answer: str) -> None:
        """Write a page, to the disk, unless another was first."""
        self._write(self.page(number), f'{{"place": {json.dumps(place)},\n"answer": {answer}}}\n')

    def refuse(self, why: str) -> None:
        """Note that the API gives no pages of this, whatever came of it, unless another was first."""
        self._write(self.directory / _REFUSED, why)

    def refused(self) -> str | None:
        """Why the API gives none; None: it does."""
        try:
            return (self.directory / _REFUSED).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def move(self, directory: Path) -> None:
        """Have another name, unless another process was first."""
        try:
            self.directory.rename(directory)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY):
                raise
        else:
            sync(directory.parent)
        self.directory = directory

    def remove(self) -> None:
        """Remove the pages."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _write(self, path: Path, text: str) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        waiting = self.directory / f".{uuid.uuid4()}"
        try:
            with waiting.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            self._link(waiting, path)
        finally:
            waiting.unlink(missing_ok=True)
        sync(self.directory)

    def _link(self, waiting: Path, path: Path) -> None:
        try:
            os.link(waiting, path)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK):
                raise
            raise InvalidPipeline(
                f"{self.directory} is on a file system without hard links, on which two runners at one page"
                " could mix their answers",
                "give landing a directory elsewhere",
            ) from error


class Landings:
    """The directory of one pipeline, in which each run has its own."""

    def __init__(self, root: str, pipeline: str) -> None:
        if "://" in root:
            raise InvalidPipeline(f"pipeline {pipeline}: landing {root} is no directory of this machine")
        self._root = Path(root) / pipeline

    def new(self, key: str) -> Landing:
        """That of a run that is still being planned."""
        return Landing(self._root / f"{_NEW}-{key}")

    def of(self, number: int, key: str, *, is_backfill: bool) -> Landing:
        """That of a run."""
        name = f"{_BACKFILL}-{key}" if is_backfill else f"{number:08d}-{key}"
        landing = self.new(key)
        if landing.directory.exists():
            landing.move(self._root / name)
        return Landing(self._root / name)

    def sweep(self, number: int) -> None:
        """Remove what runs before this one left, and what nobody has touched for a week."""
        for directory in self._root.glob("*-*"):
            kind = directory.name.partition("-")[0]
            is_over = kind.isdecimal() and int(kind) < number
            if is_over or _is_old(directory):
                shutil.rmtree(directory, ignore_errors=True)


def _is_old(directory: Path) -> bool:
    try:
        return directory.stat().st_mtime < time.time() - _WEEK
    except FileNotFoundError:
        return False
