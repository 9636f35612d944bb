"""A file of a storage, read from any place of it."""

from __future__ import annotations

import io
from abc import abstractmethod
from typing import Any


class Reader(io.RawIOBase):
    """A file of so many bytes; `_fetch` asks the storage for some of them."""

    def __init__(self, size: int) -> None:
        self._at, self._size = 0, size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        found = self._fetch(self._at, wanted)
        buffer[: len(found)] = memoryview(found)
        self._at += len(found)
        return len(found)

    @abstractmethod
    def _fetch(self, start: int, length: int) -> Any:
        """Bytes from a place on, one at least."""
