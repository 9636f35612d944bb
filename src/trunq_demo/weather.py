"""The weather as files, some days each. The last one is late, and has days again that others brought.

For those days the other files have what was forecast: no rain. Whichever file is read first, the hours that
were measured stand, since they are issued later.
"""

from __future__ import annotations

import csv
import os
import time
from pathlib import Path

from trunq_demo.month import Row

DAYS = 4
"""Of a file."""
LATE = range(25, 32)
"""The days of the late file; the first of them are in another one, too."""
IN_TIME = range(1, 29)
BROKEN = "EWR,2013-07-01T00:00:00Z,a line that breaks off"
"""In the first file."""

COLUMNS = ("origin", "time_hour", "temp", "precip", "visib", "issued")
TYPES = {"temp": "double", "precip": "double", "visib": "double", "issued": "int64"}
KEY = ["origin", "time_hour"]

_AGE = 60.0
"""Seconds: a file that is moved in place whole need not wait until it has settled."""


def write_in_time(hours: list[Row], directory: Path) -> int:
    """Write the files that come in time, and return how many there are."""
    starts = range(IN_TIME.start, IN_TIME.stop, DAYS)
    for start in starts:
        days = range(start, start + DAYS)
        rows = [_forecast(row) if row["day"] in LATE else row for row in hours if row["day"] in days]
        _write(directory / f"weather-{start:02}.csv", rows, start, BROKEN if start == starts[0] else None)
    return len(starts)


def write_late(hours: list[Row], directory: Path) -> Path:
    """Write the late file."""
    rows = [row for row in hours if row["day"] in LATE]
    path = directory / "weather-late.csv"
    _write(path, rows, LATE.stop)
    return path


def _forecast(row: Row) -> Row:
    return row | {"precip": 0.0}


def _write(path: Path, rows: list[Row], issued: int, last: str | None = None) -> None:
    hidden = path.with_suffix(".part")
    with hidden.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(COLUMNS)
        lines.writerows([row[name] for name in COLUMNS[:-1]] + [issued] for row in rows)
        if last is not None:
            file.write(last + "\r\n")
    written = time.time() - _AGE
    os.utime(hidden, (written, written))
    hidden.rename(path)
