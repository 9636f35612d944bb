"""Tables cut into ranges of blocks, for readers at the same time.

The last range of a table is open: what is written behind it after it was cut is in no snapshot of the slice,
but blocks are counted before the rows are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WORTH_A_SHARE: Final = 512
"""Blocks (4 MB): another reader takes longer to start than to read so many."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Blocks of a table, which has that file; stop None: up to the end."""

    table: int
    start: int
    stop: int | None
    file: int

    @property
    def condition(self) -> str:
        """In SQL, for a TID range scan."""
        until = "" if self.stop is None else f" and ctid < '({int(self.stop)},0)'"
        return f"ctid >= '({int(self.start)},0)'{until}"


Pieces = list[tuple[int, int, int | None, int]]


def cut(tables: list[tuple[int, int, int]], at_most: int) -> list[Pieces]:
    """Shares of about equal size, of tables with their blocks and files; each block is in one of them."""
    blocks = sum(each for _, each, _ in tables)
    count = max(1, min(at_most, blocks // WORTH_A_SHARE))
    size = max(1, -(-blocks // count))
    shares: list[Pieces] = [[]]
    room = size
    for table, there, file in tables:
        start = 0
        while there - start > room and len(shares) < count:
            if room:
                shares[-1].append((table, start, start + room, file))
            start += room
            shares.append([])
            room = size
        shares[-1].append((table, start, None, file))
        room -= there - start
    return shares
