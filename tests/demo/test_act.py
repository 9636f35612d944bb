"""What the second act reads: an API that refuses and fails, writers, files of weather."""

from __future__ import annotations

import csv
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import psycopg

from trunq_demo import api, board, flights, month, weather
from trunq_demo.flights import Flight
from trunq_demo.writer import PARTS, Writers
from waiting import wait_until


def flight(row: int, **change: Any) -> Flight:
    """A flight that landed in time."""
    base = {"row": row, "carrier": "UA", "flight": 1, "tailnum": "N1", "origin": "JFK", "dest": "BOS"}
    later = {"time_hour": "2013-07-01T10:00:00Z", "distance": 187, "dep_delay": 1, "arr_delay": row}
    return base | later | change


def test_the_api_gives_every_page_refuses_what_comes_too_fast_and_fails_at_one_in_ten() -> None:
    planes = [{"tailnum": f"N{number}"} for number in range(2_050)]
    headers, found, after = {"Authorization": f"Bearer {api.TOKEN}"}, [], 0
    with api.serving(planes) as register, httpx.Client(headers=headers) as client:
        assert httpx.get(register.url).status_code == 401
        while after is not None:
            answer = client.get(register.url, params={"after": after})
            if answer.status_code == 200:
                found += answer.json()["planes"]
                after = answer.json()["next"]
            elif answer.status_code == 429:
                assert answer.headers["Retry-After"] == "1"
        assert found == planes
        assert register.failed == 2
        assert register.calls == register.refused + register.failed + 21


def test_writers_leave_the_table_as_the_input_has_it_a_part_at_a_time(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    connection.execute(files("trunq_demo").joinpath("tables.sql").read_bytes())
    never = {"dep_delay": None, "arr_delay": None}
    some = [flight(row) for row in range(1, 6_001)]
    some += [flight(6_001, **never), flight(6_002, arr_delay=None), flight(6_003, tailnum=None, **never)]
    with Writers(database, some, 0.1) as writers:
        for _ in range(1, PARTS):
            assert not writers.are_done
            writers.go_on()
        wait_until(lambda: writers.are_done, 120)
    found = connection.execute(
        "select id, tailnum, status, dep_delay, arr_delay, revision from demo.flight order by id"
    ).fetchall()
    assert found == [
        *((row, "N1", "landed", 1, row, 3) for row in range(1, 6_001)),
        (6_001, "N1", "cancelled", None, None, 2),
        (6_002, "N1", "diverted", 1, None, 3),
        (6_003, None, "cancelled", None, None, 2),
    ]


def test_the_late_file_has_hours_again_that_others_brought(tmp_path: Path) -> None:
    hours = month.weather()
    assert weather.write_in_time(hours, tmp_path) == 7
    weather.write_late(hours, tmp_path)
    count: Counter[tuple[str, str]] = Counter()
    newest: dict[tuple[str, str], tuple[int, str]] = {}
    for path in tmp_path.glob("*.csv"):
        with path.open(newline="") as lines:
            for row in csv.DictReader(lines):
                if row["issued"] is not None:
                    key = (row["origin"], row["time_hour"])
                    count[key] += 1
                    newest[key] = max(newest.get(key, (0, "")), (int(row["issued"]), row["precip"]))
    assert {key: float(rain) for key, (_, rain) in newest.items()} == {
        (hour["origin"], hour["time_hour"]): hour["precip"] for hour in hours
    }
    assert Counter(count.values())[2] > 200


def test_an_airport_writes_its_own_flights_and_one_of_them_longer_numbers_from_a_part_on() -> None:
    some = [flight(row, origin=("EWR", "JFK", "LGA")[row % 3], day=15) for row in range(300)]
    lines = {airport.code: airport.rows(some) for airport in board.AIRPORTS}
    assert sorted(line[0] for each in lines.values() for line in each) == list(range(300))
    assert {line[1] for code in ("ewr", "jfk") for line in lines[code]} == {1}
    assert [line[1] for line in lines["lga"]] == [1] * 50 + [150_001] * 50


def test_newark_alone_has_more_flights_than_a_customer_may_bring_on_a_day() -> None:
    limits = board.pipeline().definition["limits"]
    july = month.flights_of(list(flights.read()))
    good = {each.code: [row for row in each.rows(july) if row[3] is not None] for each in board.AIRPORTS}
    over = {code for code, rows in good.items() if len(rows) >= limits["rows_a_day"]}
    assert over == {board.THROTTLED.code} == {"ewr"}
    # Already before its last part, whose request is the one that waits.
    last = len(board.THROTTLED.rows(july)) // board.THROTTLED.parts + 1
    assert len(good["ewr"]) - last >= limits["rows_a_day"]
