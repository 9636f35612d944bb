"""The numbers of the second act: computed from the input alone, and found where the pipelines wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from trunq_demo import flights, lake, month, refund
from trunq_demo.evidence import Check
from trunq_demo.flights import Flight
from trunq_demo.place import Place

Connection = psycopg.Connection[Any]

LABELS = {
    "source": "Flights in the table that writers changed",
    "source_minutes": "… their minutes of arrival delay",
    "lake": "Flights in the lake table",
    "lake_different": "… different ones",
    "lake_departure_minutes": "… their minutes of departure delay",
    "quarantined": "Flights in quarantine",
    "no_tail_number": "… for want of a tail number",
    "unknown_plane": "… because the register does not know the aircraft",
    "unknown_airport": "… because the destination is not among the airports",
    "twice": "Versions of flights that are in quarantine twice",
    "together": "Minutes of arrival delay, lake and quarantine together",
    "hours": "Hours of weather",
    "rain": "… rain in hundredths of an inch, as measured",
    "broken_lines": "… lines that could not be read, in quarantine",
    "planes": "Aircraft from the API",
    "seats": "… their seats",
    "airlines": "Rows of the aggregate, by airline",
    "airline_flights": "… their flights",
    "airline_minutes": "… their minutes of arrival delay",
    "in_rain": "… their flights in rain",
    "delays": "Messages for delays of three hours or more",
    "refunds": "Compensations for them",
    "refunded": "… of different flights",
    "euros": "… in euros",
    "open": "Runs that have not ended",
    "cut": "Runs that were open when the runner was killed, and ended well",
}


@dataclass(frozen=True, slots=True)
class Sums:
    """Each number by itself is in LABELS."""

    source: int
    source_minutes: int
    lake: int
    lake_different: int
    lake_departure_minutes: int
    quarantined: int
    no_tail_number: int
    unknown_plane: int
    unknown_airport: int
    twice: int
    together: int
    hours: int
    rain: int
    broken_lines: int
    planes: int
    seats: int
    airlines: int
    airline_flights: int
    airline_minutes: int
    in_rain: int
    delays: int
    refunds: int
    refunded: int
    euros: int
    open: int
    cut: int


Run = tuple[str, int]
"""Pipeline and number."""


def compare(expected: Sums, found: Sums) -> list[Check]:
    """Each number twice."""
    have = asdict(found)
    return [Check(LABELS[name], number, have[name]) for name, number in asdict(expected).items()]


def expect(some: Sequence[Flight], killed: int) -> Sums:
    """From the input; `killed` is how many runs were open when the runner was killed."""
    planes, hours = month.planes(), month.weather()
    tails, codes = {plane["tailnum"] for plane in planes}, month.airport_codes()
    rainy = {(hour["origin"], hour["time_hour"]) for hour in hours if (hour["precip"] or 0) > 0}
    reasons = [_reasons(flight, tails, codes) for flight in some]
    good = [flight for flight, broken in zip(some, reasons, strict=True) if not broken]
    count = Counter(reason for broken in reasons for reason in broken)
    late = [flight for flight in some if flights.kind(flight) == "late"]
    minutes = sum(flight["arr_delay"] or 0 for flight in some)
    return Sums(
        source=len(some),
        source_minutes=minutes,
        lake=len(good),
        lake_different=len(good),
        lake_departure_minutes=sum(flight["dep_delay"] or 0 for flight in good),
        quarantined=len(some) - len(good),
        no_tail_number=count[lake.NO_TAIL_NUMBER],
        unknown_plane=count[lake.UNKNOWN_PLANE],
        unknown_airport=count[lake.UNKNOWN_AIRPORT],
        twice=0,
        together=minutes,
        hours=len(hours),
        rain=sum(round(100 * (hour["precip"] or 0)) for hour in hours),
        broken_lines=1,
        planes=len(planes),
        seats=sum(plane["seats"] for plane in planes),
        airlines=len({flight["carrier"] for flight in good}),
        airline_flights=len(good),
        airline_minutes=sum(flight["arr_delay"] or 0 for flight in good),
        in_rain=sum((flight["origin"], flight["time_hour"]) in rainy for flight in good),
        delays=len(late),
        refunds=len(late),
        refunded=len({flight["row"] for flight in late}),
        euros=sum(refund.owed(flight["distance"]) for flight in late),
        open=0,
        cut=killed,
    )


def _reasons(flight: Flight, tails: set[str], codes: set[str]) -> list[str]:
    """Which checks a flight breaks."""
    broken = []
    if flight["tailnum"] is None:
        broken.append(lake.NO_TAIL_NUMBER)
    elif flight["tailnum"] not in tails:
        broken.append(lake.UNKNOWN_PLANE)
    if flight["dest"] not in codes:
        broken.append(lake.UNKNOWN_AIRPORT)
    return broken


def find(connection: Connection, place: Place, killed: Collection[Run]) -> Sums:
    """In the tables, the lake, the quarantine and the queue; `killed` are runs."""
    rows = DeltaTable(str(place.month)).to_pyarrow_table(columns=["id", "dep_delay", "arr_delay"])
    kept = _quarantined(connection)
    reasons = Counter(reason for broken, _ in kept.newest.values() for reason in broken)
    in_lake = _sum(rows["arr_delay"])
    source, minutes = _row(connection, "select count(*), sum(arr_delay) from demo.flight")
    hours, rain = _row(connection, "select count(*), sum(round(100 * precip)) from demo.weather")
    planes, seats = _row(connection, "select count(*), sum(seats) from demo.plane")
    airlines, airline_flights, airline_minutes, in_rain = _row(
        connection, "select count(*), sum(flights), sum(minutes), sum(in_rain) from demo.airline_month"
    )
    refunds, refunded, euros = _row(
        connection, "select count(*), count(distinct flight_id), sum(euros) from demo.refund"
    )
    return Sums(
        source=source,
        source_minutes=int(minutes),
        lake=rows.num_rows,
        lake_different=pc.count_distinct(rows["id"]).as_py(),
        lake_departure_minutes=_sum(rows["dep_delay"]),
        quarantined=len(kept.newest),
        no_tail_number=reasons[lake.NO_TAIL_NUMBER],
        unknown_plane=reasons[lake.UNKNOWN_PLANE],
        unknown_airport=reasons[lake.UNKNOWN_AIRPORT],
        twice=kept.rows - kept.versions,
        together=in_lake + sum(delay for _, delay in kept.newest.values()),
        hours=hours,
        rain=int(rain),
        broken_lines=_value(
            connection, "select count(*) from trunq.list_quarantine('weather', p_limit => 1000)"
        ),
        planes=planes,
        seats=int(seats),
        airlines=airlines,
        airline_flights=int(airline_flights),
        airline_minutes=int(airline_minutes),
        in_rain=int(in_rain),
        delays=_value(
            connection, "select count(distinct id) from trunq_log.delays where subscription_id is null"
        ),
        refunds=refunds,
        refunded=refunded,
        euros=int(euros or 0),
        open=_value(
            connection, "select count(*) from trunq.list_runs(p_limit => 1000) where outcome is null"
        ),
        cut=_value(
            connection,
            "select count(*) from trunq.list_runs(p_limit => 1000) where outcome = 'done'"
            " and pipeline || ' ' || number = any(%s)",
            [f"{pipeline} {number}" for pipeline, number in killed],
        ),
    )


@dataclass(frozen=True, slots=True)
class _Kept:
    """Rows of the quarantine; `newest`: of each flight the reasons and the delay of its newest version."""

    rows: int
    versions: int
    newest: dict[int, tuple[list[str], int]]


def _quarantined(connection: Connection) -> _Kept:
    rows = connection.execute(
        "select (content ->> 'id')::bigint, (content ->> 'revision')::int, reasons,"
        " coalesce((content ->> 'arr_delay')::int, 0)"
        " from trunq.list_quarantine('departures', p_limit => 100000)"
    ).fetchall()
    newest: dict[int, tuple[list[str], int]] = {}
    for id, _, reasons, delay in sorted(rows, key=lambda row: row[:2]):
        newest[id] = (reasons, delay)
    return _Kept(len(rows), len({row[:2] for row in rows}), newest)


def _sum(column: pa.ChunkedArray) -> int:
    total: int = pc.sum(column).as_py()
    return total


def _row(connection: Connection, query: str, *parameters: Any) -> tuple[Any, ...]:
    row = connection.execute(query.encode(), parameters or None).fetchone()
    assert row is not None
    found: tuple[Any, ...] = tuple(row)
    return found


def _value(connection: Connection, query: str, *parameters: Any) -> int:
    return int(_row(connection, query, *parameters)[0])
