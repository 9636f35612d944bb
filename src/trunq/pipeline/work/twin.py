"""`unique` without Spark: all rows of a run are written into files first, and by what they are the same into
a database in one of them, so memory does not grow with the run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa

_AT_ONCE: Final = 500
"""Keys of a statement; SQLite takes 999 parameters in each of its versions."""


class Twins:
    """Which keys came more than once, by the number of their check."""

    def __init__(self, path: Path) -> None:
        # Whoever reads batches may do so in a thread of their own, one at a time.
        self._base = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for setting in ("journal_mode = off", "synchronous = off", "cache_size = -16000"):
            self._base.execute(f"pragma {setting}")
        self._base.execute(
            "create table seen (of int, key blob, again int, primary key (of, key)) without rowid"
        )
        self._base.execute("begin")

    def add(self, number: int, keys: Sequence[bytes | None]) -> None:
        """Note the keys of rows."""
        self._base.executemany(
            "insert into seen values (?, ?, 0) on conflict (of, key) do update set again = 1",
            ((number, key) for key in keys if key is not None),
        )

    def wrong(self, number: int, keys: Sequence[bytes | None]) -> pa.Array:
        """Which rows have a key that others have, too."""
        again: set[bytes] = set()
        distinct = list({key for key in keys if key is not None})
        for at in range(0, len(distinct), _AT_ONCE):
            some = distinct[at : at + _AT_ONCE]
            places = ", ".join("?" * len(some))
            query = f"select key from seen where of = ? and again and key in ({places})"
            again.update(key for (key,) in self._base.execute(query, [number, *some]))
        return pa.array([key in again for key in keys], pa.bool_())

    def close(self) -> None:
        """Let go of the file."""
        self._base.close()


@contextmanager
def twins(directory: Path) -> Iterator[Twins]:
    """In a file of a directory, until the end."""
    made = Twins(directory / "twins")
    try:
        yield made
    finally:
        made.close()
