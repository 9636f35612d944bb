"""Storages: files at s3://, gs://, abfs:// and sftp:// addresses, as sources and sinks use them.

Paths are those below the bucket or host. What is uploaded is there whole or not at all at an object store;
at sftp a reader may see half of it, so it is written where nobody reads, and renamed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.storage import Storage as Options
from trunq.pipeline.definition.storage import is_remote, scheme_of


@dataclass(frozen=True, slots=True)
class Entry:
    """A file."""

    path: str
    size: int
    modified_at: int
    """Nanoseconds, of whole seconds: storages tell no finer time the same way each time."""


class Storage(Protocol):
    """What all storages do. What is not there is no error where one lists, looks or removes.

    Each raises InvalidPipeline for what is wrong with address or options, StorageFailed for what may pass.
    """

    base: str
    """The address without a path, as s3://bucket."""

    def walk(self, directory: str, depth: int | None = None) -> Iterator[Entry]:
        """Files below a directory; depth 1: those in it alone, None: all."""

    def look(self, path: str) -> Entry | None:
        """A file, if it is there."""

    def has_directory(self, directory: str) -> bool:
        """Whether there is a directory; an object store has each that one names."""

    def open(self, path: str) -> BinaryIO:
        """Read a file, from any place of it."""

    def read(self, path: str) -> bytes | None:
        """All of a small file, if it is there."""

    def upload(self, file: Path | bytes, path: str) -> None:
        """Write a file."""

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files."""


_CLASSES: Final = {
    "s3": ("objects", "obstore"),
    "gs": ("objects", "obstore"),
    "abfs": ("objects", "obstore"),
    "sftp": ("sftp", "paramiko"),
}


def split(address: str) -> tuple[str, str]:
    """The bucket or host of an address, and the path below it."""
    scheme, _, rest = address.partition("://")
    name, _, path = rest.partition("/")
    return f"{scheme.lower()}://{name}", path.rstrip("/")


def open_storage(pipeline: str, address: str, options: Options | None) -> Storage:
    """The storage of an address. Raises InvalidPipeline where its library is not installed."""
    base, _ = split(address)
    given = tuple(sorted((options.given if options is not None else {}).items()))
    module, library = _CLASSES[scheme_of(base) or ""]
    try:
        # A process that was forked has connections of its own.
        return _opened(module, pipeline, base, given, os.getpid())
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise
        raise InvalidPipeline(
            f"pipeline {pipeline}: {base} needs {library}, which is not here", "pip install 'trunq[storage]'"
        ) from None


@lru_cache(16)
def _opened(module: str, pipeline: str, base: str, given: tuple[tuple[str, str], ...], pid: int) -> Storage:  # noqa: ARG001
    made: Storage = import_module(f"trunq.pipeline.storage.{module}").make(pipeline, base, dict(given))
    return made


__all__ = ["Entry", "Storage", "is_remote", "open_storage", "split"]
