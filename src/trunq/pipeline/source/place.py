"""Where files of a source lie: a directory of this machine, or a storage."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from typing import BinaryIO, Protocol

from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.part import directory_of
from trunq.pipeline.definition.storage import Storage as Options
from trunq.pipeline.definition.storage import is_remote
from trunq.pipeline.storage import Entry, open_storage, pattern, split


class Place(Protocol):
    """What is asked of it; paths are whole."""

    def find(self, path: str) -> Iterator[Entry]:
        """The files that match a pattern."""

    def look(self, path: str) -> Entry | None:
        """A file, if it is there."""

    def open(self, path: str) -> BinaryIO:
        """Read a file."""

    def require_directory(self, path: str) -> None:
        """Refuse a pattern whose directory is not there."""


class Directory:
    """A directory of this machine."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline

    def find(self, path: str) -> Iterator[Entry]:
        for each in glob.glob(path, recursive=True):
            if (found := self.look(os.path.abspath(each))) is not None:
                yield found

    def look(self, path: str) -> Entry | None:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        return Entry(path, status.st_size, status.st_mtime_ns) if os.path.isfile(path) else None

    def open(self, path: str) -> BinaryIO:
        return open(path, "rb")

    def require_directory(self, path: str) -> None:
        directory = directory_of(path)
        if not os.path.isdir(directory):
            raise InvalidPipeline(
                f"pipeline {self._pipeline}: there is no directory {directory} on the machine of this runner",
                "make it, or correct path",
            )


class AtStorage:
    """A bucket, or a host."""

    def __init__(self, pipeline: str, path: str, options: Options | None) -> None:
        self._pipeline, self._base = pipeline, split(path)[0]
        self._storage = open_storage(pipeline, path, options)

    def find(self, path: str) -> Iterator[Entry]:
        for entry in pattern.find(self._storage, self._below(path)):
            yield Entry(f"{self._base}/{entry.path}", entry.size, entry.modified_at)

    def look(self, path: str) -> Entry | None:
        return self._storage.look(self._below(path))

    def open(self, path: str) -> BinaryIO:
        return self._storage.open(self._below(path))

    def require_directory(self, path: str) -> None:
        directory = pattern.directory_of(self._below(path))
        if not self._storage.has_directory(directory):
            raise InvalidPipeline(
                f"pipeline {self._pipeline}: there is no directory {self._base}/{directory}",
                "make it, or correct path",
            )

    def _below(self, path: str) -> str:
        base, below = split(path)
        if base != self._base:
            raise InvalidPipeline(
                f"pipeline {self._pipeline}: {path} is not at {self._base}, which its source reads from"
            )
        return below


def place(pipeline: str, path: str, options: Options | None) -> Place:
    """The place of a path."""
    return AtStorage(pipeline, path, options) if is_remote(path) else Directory(pipeline)
