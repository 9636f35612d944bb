"""The input of the second act: a month of the flights, with the weather, planes and airports of that time."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trunq_demo import flights
from trunq_demo.flights import Flight

MONTH = 7
"""July 2013, the month with the most delays above three hours."""
NAME = "July 2013"

Row = dict[str, Any]

_NUMBERS = {"temp": float, "precip": float, "visib": float, "year": int, "seats": int, "engines": int}


def flights_of(year: list[Flight]) -> list[Flight]:
    """The flights of the month."""
    return [flight for flight in year if flight["month"] == MONTH]


def weather() -> list[Row]:
    """The hours of the month at each airport, with the `day` of New York."""
    kept = ("origin", "time_hour", "temp", "precip", "visib")
    return [
        {"day": int(row["day"])} | {name: _value(name, row[name]) for name in kept}
        for row in _rows("weather.csv")
        if int(row["month"]) == MONTH
    ]


def planes() -> list[Row]:
    """The register of aircraft."""
    kept = ("tailnum", "year", "manufacturer", "model", "engines", "seats")
    return [{name: _value(name, row[name]) for name in kept} for row in _rows("planes.csv")]


def airports() -> Path:
    """The file of airports."""
    return flights.data_directory() / "airports.csv"


def airport_codes() -> set[str]:
    """The airports that it knows."""
    return {row["faa"] for row in _rows("airports.csv")}


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (flights.data_directory() / name).open(newline="", encoding="utf-8") as lines:
        yield from csv.DictReader(lines)


def _value(name: str, text: str) -> Any:
    return None if text in ("NA", "") else _NUMBERS.get(name, str)(text)
