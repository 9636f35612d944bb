"""Object stores: S3 and what speaks like it, Google Cloud Storage, Azure. An object is written whole or not,
and a condition on the write is how one of two writers is refused.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from trunq.pipeline.definition.storage import scheme_of
from trunq.pipeline.storage import Entry
from trunq.pipeline.storage.option import bucket_of, client, config, retry
from trunq.pipeline.storage.reader import Reader
from trunq.pipeline.storage.told import told

_AT_ONCE: Final = 1000
"""Objects that one request removes."""
_COPIED: Final = 5 * 10**9
"""Bytes that S3 copies in one request."""
_READ: Final = 4 << 20
"""Bytes of a request, where a file is read from its beginning to its end."""

Tag = Mapping[str, str]
"""What tells one version of an object from another: S3 and Azure compare `e_tag`, Google `version`."""


class ObjectStorage:
    """A bucket."""

    def __init__(self, pipeline: str, base: str, given: Mapping[str, str]) -> None:
        self.base, self._pipeline = base, pipeline
        made: Any = {"s3": S3Store, "gs": GCSStore, "abfs": AzureStore}[scheme_of(base) or ""]
        with self._told():
            self._store = made(
                bucket_of(base),
                config=config(base, given),
                client_options=client(given),
                retry_config=retry(),
            )

    def walk(self, directory: str, depth: int | None = None) -> Iterator[Entry]:
        prefix = f"{directory.rstrip('/')}/" if directory else None
        with self._told():
            if depth == 1:
                found = obstore.list_with_delimiter(self._store, prefix)["objects"]
                yield from map(_entry, found)
                return
            for some in obstore.list(self._store, prefix, chunk_size=1000):
                yield from map(_entry, some)

    def look(self, path: str) -> Entry | None:
        with self._told():
            try:
                return _entry(obstore.head(self._store, path))
            except FileNotFoundError:
                return None

    def has_directory(self, directory: str) -> bool:  # noqa: ARG002  # as all storages
        return True

    def open(self, path: str) -> BinaryIO:
        with self._told():
            return cast(BinaryIO, io.BufferedReader(_Reader(self, path), _READ))

    def read(self, path: str) -> bytes | None:
        found = self.read_tagged(path)
        return None if found is None else found[0]

    def upload(self, file: Path | bytes, path: str) -> None:
        with self._told():
            obstore.put(self._store, path, file)

    def remove(self, paths: Iterable[str]) -> None:
        all_of_them = list(paths)
        with self._told():
            for start in range(0, len(all_of_them), _AT_ONCE):
                try:
                    obstore.delete(self._store, all_of_them[start : start + _AT_ONCE])
                except FileNotFoundError:
                    self._remove_each(all_of_them[start : start + _AT_ONCE])

    def _remove_each(self, paths: Iterable[str]) -> None:
        for path in paths:
            try:
                obstore.delete(self._store, path)
            except FileNotFoundError:
                continue

    def read_tagged(self, path: str) -> tuple[bytes, Tag] | None:
        """All of a small object with the tag of its version, if it is there."""
        with self._told():
            try:
                found = obstore.get(self._store, path)
            except FileNotFoundError:
                return None
            return bytes(found.bytes()), _tag(found.meta)

    def swap(self, path: str, content: bytes, tag: Tag | None) -> bool:
        """Write an object in place of the version with this tag, or of none; False: another is there.

        False is also said of a write of our own whose first answer was lost.
        """
        with self._told():
            try:
                obstore.put(
                    self._store,
                    path,
                    content,
                    mode="create" if tag is None else cast(Any, tag),
                    use_multipart=False,
                )
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return False
            return True

    def copy(self, path: str, target: str) -> bool:
        """Copy an object, in the storage; False: it is not there."""
        with self._told():
            try:
                if obstore.head(self._store, path)["size"] <= _COPIED:
                    obstore.copy(self._store, path, target)
                else:
                    obstore.put(self._store, target, obstore.get(self._store, path).stream(_READ))
            except FileNotFoundError:
                return False
            return True

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if (known := told(self._pipeline, self.base, error)) is None:
                raise
            raise known from None
        except (exceptions.BaseError, OSError, ValueError) as error:
            raise told(self._pipeline, self.base, error) or error from None


class _Reader(Reader):
    """An object as a file, a request each time."""

    def __init__(self, storage: ObjectStorage, path: str) -> None:
        super().__init__(obstore.head(storage._store, path)["size"])
        self._storage, self._path = storage, path

    def _fetch(self, start: int, length: int) -> Any:
        with self._storage._told():
            return obstore.get_range(self._storage._store, self._path, start=start, length=length)


def _entry(found: Any) -> Entry:
    return Entry(found["path"], found["size"], int(found["last_modified"].timestamp()) * 1_000_000_000)


def _tag(found: Any) -> Tag:
    return {name: found[name] for name in ("e_tag", "version") if found[name] is not None}


def make(pipeline: str, base: str, given: Mapping[str, str]) -> ObjectStorage:
    """The storage of a bucket."""
    return ObjectStorage(pipeline, base, given)
