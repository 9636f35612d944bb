"""Which rows lie between two snapshots, and how to cut them into parts for parallel tasks.

A tick's snapshot says which transactions were finished: all below `xmin`, none from `xmax` on, and between
the two all but those listed as running. The rows between two ticks are therefore those of

* the transactions that were running in the first snapshot and were finished in the second (late ones, all
  below the first `xmax`), and
* those from the first `xmax` to the second, less those still running in the second.

These conditions name transaction ids only, so they are plain comparisons on the log's index (txid, id). Any
cut of the index order into intervals is an exact partition of the rows; the places of the cuts decide only
how even the parts are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

ROWS_WORTH_A_TASK = 50_000
"""Starting a second task takes longer than reading this many rows."""

FEW = 256
"""Up to this many transactions are probed one by one."""


class Position(NamedTuple):
    """A position in the order of the log's index."""

    txid: int
    id: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Postgres' pg_snapshot."""

    xmin: int
    xmax: int
    running: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Reads `xmin:xmax:running,...`, as Postgres writes it."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), tuple(int(txid) for txid in running.split(",") if txid))


BEGINNING = Snapshot(0, 0)
"""It sees nothing, so everything comes after it."""


@dataclass(frozen=True, slots=True)
class Window:
    """The transactions whose rows are visible in one snapshot and not in an earlier one."""

    late: tuple[int, ...]
    low: int
    high: int
    running: tuple[int, ...]

    @classmethod
    def between(cls, lo: Snapshot, hi: Snapshot) -> Window:
        """The window from `lo`, the earlier, to `hi`."""
        still = set(hi.running)
        return cls(
            late=tuple(txid for txid in lo.running if txid not in still),
            low=lo.xmax,
            high=max(lo.xmax, hi.xmax),
            running=tuple(txid for txid in hi.running if txid >= lo.xmax),
        )

    @property
    def is_empty(self) -> bool:
        """Whether it has no transactions; a window with transactions may still have no rows."""
        return not self.late and self.low >= self.high

    def whole(self, rows: int) -> Part:
        """The whole window as one part, of about that many rows."""
        everything = Interval(Position(self.low, 0), Position(self.high, 0))
        return Part(self.late, (everything,) if self.low < self.high else (), self.running, rows)


class Interval(NamedTuple):
    """A range of positions: `start` included, `stop` excluded."""

    start: Position
    stop: Position


@dataclass(frozen=True, slots=True)
class Part:
    """What one task reads: whole late transactions, and intervals without the transactions still running."""

    whole: tuple[int, ...] = ()
    intervals: tuple[Interval, ...] = ()
    running: tuple[int, ...] = ()
    rows: int = 0

    def conditions(self) -> list[str]:
        """SQL conditions, each for one index scan; the part is the union of their rows."""
        found = [f"txid = any({_xids(self.whole)})"] if self.whole else []
        for start, stop in self.intervals:
            condition = f"(txid, id) >= {_literal(start)} and (txid, id) < {_literal(stop)}"
            if running := [txid for txid in self.running if start.txid <= txid <= stop.txid]:
                condition += f" and txid <> all({_xids(running)})"
            found.append(condition)
        return found

    def with_interval(self, interval: Interval, rows: int) -> Part:
        """The part with an interval appended."""
        before = self.intervals
        if before and before[-1].stop == interval.start:
            before, interval = before[:-1], Interval(before[-1].start, interval.stop)
        return replace(self, intervals=(*before, interval), rows=self.rows + rows)


@dataclass(frozen=True, slots=True)
class Transaction:
    """What one transaction wrote: its smallest and largest message id, and an estimate of its rows."""

    txid: int
    first_id: int
    last_id: int
    rows: int

    def cut(self, share: float) -> Position:
        """The position below which about that share of the rows lies: ids of a transaction ascend."""
        return Position(self.txid, self.first_id + round((self.last_id - self.first_id + 1) * share))


class Log(Protocol):
    """What `split` asks of the log; each answer takes a few probes of its index."""

    def sizes(self, txids: Sequence[int]) -> list[Transaction]:
        """Those of the transactions that wrote rows."""

    def walk(self, low: int, high: int, limit: int) -> list[Transaction]:
        """The first transactions with rows from `low` to `high`, in order."""

    def first_id(self, low: int, high: int) -> int | None:
        """The smallest id of the first transaction with rows from `low` to `high`."""


@dataclass(frozen=True, slots=True)
class Split:
    """How to cut a window: into parts of at most `max_rows`, and into at least `min_parts`."""

    max_rows: int = 500_000
    min_parts: int | None = None

    def parts(self, rows: int) -> int:
        """The number of parts for about that many rows; without `min_parts`, few rows make few parts."""
        wanted = self.min_parts or min(os.cpu_count() or 1, rows // ROWS_WORTH_A_TASK)
        return max(1, min(max(wanted, -(-rows // self.max_rows)), max(rows, 1)))


def split(window: Window, log: Log, ids: tuple[int, int], how: Split) -> list[Part]:
    """Cuts a window into parts of about the same size, together exactly its rows.

    `ids` are the highest message ids at its two snapshots; their difference is an estimate of the rows. Late
    transactions drew their ids before the first snapshot, so the log is asked for their sizes.
    """
    late = log.sizes(window.late) if window.late else []
    between = max(0, ids[1] - ids[0])
    rows = between + sum(each.rows for each in late)
    units = [_Unit(_of(each.txid), each.rows, each.cut) for each in late]
    if window.low < window.high:
        everything = Interval(Position(window.low, 0), Position(window.high, 0))
        if how.parts(rows) == 1:
            units.append(_Unit(everything, between, None))
        else:
            inside, between = _units_between(everything, window.running, log, ids)
            units += inside
            rows = between + sum(each.rows for each in late)
    return _pack(units, how.parts(rows), window)


@dataclass(frozen=True, slots=True)
class _Unit:
    """An interval with about `rows` rows."""

    interval: Interval
    rows: int
    cut: Callable[[float], Position] | None


def _units_between(
    interval: Interval, running: Sequence[int], log: Log, ids: tuple[int, int]
) -> tuple[list[_Unit], int]:
    """The units of the main range, and about how many rows it has.

    If there are few transactions, they are big ones (bulk loads): each is cut on its own, because loads at
    the same time draw alternating ids. If there are many, ids grow with the transactions, and a binary
    search finds the cuts.
    """
    low, high = interval.start.txid, interval.stop.txid
    found = log.walk(low, high, FEW)
    if len(found) == FEW:
        rows = max(ids[1] - ids[0], 1)

        def cut(share: float) -> Position:
            return bisect(log, low, high, ids[0] + 1 + round(rows * share))

        return [_Unit(interval, rows, cut)], rows
    found = [each for each in found if each.txid not in running]
    # Each unit reaches to the next one, so together they cover the whole range.
    stops = [Position(each.txid, 0) for each in found[1:]] + [interval.stop]
    starts = [interval.start, *stops[:-1]]
    units = [
        _Unit(Interval(start, stop), each.rows, each.cut)
        for start, stop, each in zip(starts, stops, found, strict=False)
    ]
    return units or [_Unit(interval, 0, None)], _covered(found)


def bisect(log: Log, low: int, high: int, id: int) -> Position:
    """The position of the first row with at least this id, by binary search: ids grow with transactions."""
    end = high
    while high - low > 1:
        middle = (low + high) // 2
        first = log.first_id(middle, end)
        if first is None or first > id:
            high = middle
        else:
            low = middle
    return Position(low, id)


def _covered(transactions: Sequence[Transaction]) -> int:
    """How many ids the transactions cover together: the ranges of loads at the same time overlap."""
    rows = reached = 0
    for each in sorted(transactions, key=lambda each: each.first_id):
        rows += min(each.rows, max(0, each.last_id - max(reached, each.first_id - 1)))
        reached = max(reached, each.last_id)
    return rows


def _pack(units: Sequence[_Unit], count: int, window: Window) -> list[Part]:
    """Fills `count` parts one after the other, cutting units where a part is full."""
    size = max(1, -(-sum(unit.rows for unit in units) // count))
    parts = [Part(running=window.running)]
    for unit in units:
        start, taken = unit.interval.start, 0
        while unit.cut is not None and parts[-1].rows + unit.rows - taken > size:
            room = size - parts[-1].rows
            if room > 0:
                taken += room
                stop = min(unit.cut(taken / unit.rows), unit.interval.stop)
                if stop > start:
                    parts[-1] = parts[-1].with_interval(Interval(start, stop), room)
                    start = stop
            parts.append(Part(running=window.running))
        parts[-1] = parts[-1].with_interval(Interval(start, unit.interval.stop), unit.rows - taken)
    return [_gather_whole(part, window.low) for part in parts if part.intervals]


def _gather_whole(part: Part, low: int) -> Part:
    """Late transactions that were not cut are read by one index scan together."""
    whole = [each for each in part.intervals if each.start.txid < low and _of(each.start.txid) == each]
    return replace(
        part,
        whole=tuple(each.start.txid for each in whole),
        intervals=tuple(each for each in part.intervals if each not in whole),
    )


def _of(txid: int) -> Interval:
    return Interval(Position(txid, 0), Position(txid + 1, 0))


def _literal(position: Position) -> str:
    return f"('{int(position.txid)}'::xid8, {int(position.id)})"


def _xids(txids: Sequence[int]) -> str:
    return f"'{{{','.join(str(int(txid)) for txid in txids)}}}'::xid8[]"
