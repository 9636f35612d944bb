"""The numbers that a run must produce, computed from the input alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from trunq_demo import flights
from trunq_demo.flights import Flight
from trunq_demo.job import DELAYED_MINUTES, MAX_ATTEMPTS, compensation


@dataclass(frozen=True, slots=True)
class Expectation:
    """Flights by outcome; `failures` counts failed attempts, `retried` flights with a failed attempt."""

    flights: int
    on_time: int
    delayed: int
    compensated: int
    diverted: int
    rejected: int
    given_up: int
    retried: int
    failures: int
    euros: int
    delay_minutes: int
    cells: int
    carriers: int
    """Those that owe compensation."""

    @property
    def handled(self) -> int:
        return self.on_time + self.delayed + self.compensated + self.diverted

    @property
    def cancelled(self) -> int:
        return self.rejected + self.given_up


def expect(year: Iterable[Flight]) -> Expectation:
    """Count the outcomes of the flights."""
    count: Counter[str] = Counter()
    cells, carriers = set(), set()
    for flight in year:
        outcome = _outcome(flight)
        stumbles = flights.stumbles(flight)
        count["flights"] += 1
        count[outcome] += 1
        count["euros"] += compensation(flight) if outcome == "compensated" else 0
        count["retried"] += outcome == "given_up" or stumbles
        # The last failure of a flight that is given up counts too: it is the reason of its death.
        count["failures"] += MAX_ATTEMPTS if outcome == "given_up" else stumbles
        count["delay_minutes"] += flight["dep_delay"] or 0
        cells.add((flight["carrier"], flight["hour"]))
        if outcome == "compensated":
            carriers.add(flight["carrier"])
    sets = {"cells": len(cells), "carriers": len(carriers)}
    counted = {name: count[name] for name in Expectation.__slots__ if name not in sets}
    return Expectation(**counted, **sets)


def _outcome(flight: Flight) -> str:
    match flights.kind(flight):
        case "cancelled":
            return "given_up" if flight["tailnum"] is None else "rejected"
        case "late":
            return "compensated"
        case "diverted":
            return "diverted"
        case _:
            return "delayed" if flight["arr_delay"] >= DELAYED_MINUTES else "on_time"
