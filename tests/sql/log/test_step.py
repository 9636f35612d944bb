"""Intervals by the calendar of a zone: their times, what the duties make of them, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from itertools import islice, pairwise, product
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from dateutil.rrule import DAILY, MONTHLY, rrule

from calling import ask, call, fetch, move_clock, refused
from engine import Engine
from trunq.schedule import steps

PRAGUE = ZoneInfo("Europe/Prague")
"""Its clocks go forward at 2:00 on 31 March 2030, back at 3:00 on 27 October."""

START = datetime(2030, 1, 1, tzinfo=UTC)


def set_clock(connection: psycopg.Connection[Any], to: datetime) -> None:
    now = fetch(connection, "select clock_timestamp()")
    move_clock(connection, f"{(to - now) / timedelta(microseconds=1):.0f} microseconds")


@pytest.fixture
def work(connection: psycopg.Connection[Any]) -> Engine:
    set_clock(connection, START)
    return Engine(connection, "work").create()


def schedule(work: Engine, **given: Any) -> None:
    work.ask("create_schedule", schedule="s", **{"every": "2 days", "zone": "Europe/Prague"} | given)


def row(work: Engine) -> Any:
    ((found),) = call(work.connection, "list_schedules")
    return found


def preview(work: Engine, count: int) -> list[datetime]:
    found: list[datetime] = ask(work.connection, "preview_schedule", schedule="s", limit=count)
    return found


def shown(times: list[datetime], zone: ZoneInfo = PRAGUE) -> list[str]:
    """Times as a clock in the zone shows them, with its distance from UTC."""
    return [f"{each.astimezone(zone):%Y-%m-%d %H:%M %z}" for each in times]


def fire(work: Engine, at: datetime) -> list[datetime]:
    """Perform the duty at a time; what it fired."""
    before = {run.due_at for run in call(work.connection, "list_schedule_runs", schedule="s") if run.id}
    set_clock(work.connection, at)
    ask(work.connection, "fire")
    runs = call(work.connection, "list_schedule_runs", schedule="s")
    return sorted(run.due_at for run in runs if run.id and run.due_at not in before)


def first_moment(local: datetime, zone: ZoneInfo) -> datetime:
    """The first moment at which clocks in a zone show this or later, looked for quarter by quarter."""
    moment = local.replace(tzinfo=zone).astimezone(UTC)
    while moment.astimezone(zone).replace(tzinfo=None) >= local or moment.astimezone(zone).fold:
        moment -= timedelta(hours=3)
    while moment.astimezone(zone).replace(tzinfo=None) < local:
        moment += timedelta(minutes=15)
    return moment


def by_rrule(start: datetime, months: int, days: int, zone: ZoneInfo) -> Iterator[datetime]:
    """The same times by another library: of iCalendar's rules, the last of the days up to the start's."""
    if months:
        last = tuple(range(min(28, start.day), start.day + 1))
        rule = rrule(MONTHLY, dtstart=start, interval=months, bymonthday=last, bysetpos=-1)
    else:
        rule = rrule(DAILY, dtstart=start, interval=days)
    last_due = None
    for local in rule:
        if (due := first_moment(local, zone)) != last_due:
            yield due
        last_due = due


@pytest.mark.parametrize(
    "zone",
    [
        *("Europe/Prague", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"),
        *("Antarctica/Troll", "America/Sao_Paulo", "Asia/Tehran", "UTC"),
    ],
)
def test_each_time_is_what_icalendar_says_over_years_of_changes(work: Engine, zone: str) -> None:
    there = ZoneInfo(zone)
    # Apia left out 30 December 2011; Sao Paulo changed at midnight.
    for day, at, (months, days) in product(
        [date(2011, 12, 1), date(2016, 2, 29), date(2017, 1, 31)],
        [time(0), time(2, 30), time(9)],
        [(0, 1), (0, 7), (1, 0), (12, 0)],
    ):
        every, start = f"{months} months {days} days", datetime.combine(day, time(0), there)
        set_clock(work.connection, start - timedelta(hours=2))
        schedule(work, every=every, start_at=start, at=at, zone=zone)
        count = 400 if days == 1 else 20
        expected = list(islice(by_rrule(datetime.combine(day, at), months, days, there), count))
        found = preview(work, count)
        assert len(found) >= count - 1
        assert found == expected[: len(found)]
        assert found[:20] == steps(every, start, start - timedelta(1), 20, zone, at)
        ask(work.connection, "delete_schedule", schedule="s")


def test_every_two_days_at_nine_in_summer_and_winter(work: Engine) -> None:
    schedule(work, at="09:00", start_at=datetime(2030, 3, 29, tzinfo=PRAGUE))
    assert shown(preview(work, 3)) == [
        *("2030-03-29 09:00 +0100", "2030-03-31 09:00 +0200", "2030-04-02 09:00 +0200")
    ]
    assert (row(work).every, row(work).calendar, row(work).at) == (None, "2 days", time(9))


def test_the_31st_is_the_last_day_of_a_short_month_and_comes_again(work: Engine) -> None:
    schedule(work, every="1 month", start_at=datetime(2030, 1, 31, 9, tzinfo=PRAGUE))
    assert [each[5:10] for each in shown(preview(work, 5))] == ["01-31", "02-28", "03-31", "04-30", "05-31"]


def test_29_february_is_the_28th_in_common_years(work: Engine) -> None:
    schedule(work, every="1 year", start_at=datetime(2032, 2, 29, 9, tzinfo=PRAGUE))
    assert [each[:10] for each in shown(preview(work, 5))] == [
        *("2032-02-29", "2033-02-28", "2034-02-28", "2035-02-28", "2036-02-29")
    ]


def test_a_start_in_the_hour_that_is_left_out(work: Engine) -> None:
    schedule(work, every="1 day", at="02:30", start_at=datetime(2030, 3, 31, tzinfo=PRAGUE))
    assert shown(preview(work, 2)) == ["2030-03-31 03:00 +0200", "2030-04-01 02:30 +0200"]


def test_a_start_in_the_hour_that_comes_twice(work: Engine) -> None:
    schedule(work, every="1 day", at="02:30", start_at=datetime(2030, 10, 27, tzinfo=PRAGUE))
    assert shown(preview(work, 2)) == ["2030-10-27 02:30 +0200", "2030-10-28 02:30 +0100"]
    # A start that is a moment is that moment, in the second of the two hours, too.
    schedule(work, every="1 day", start_at=datetime(2030, 10, 27, 2, 30, tzinfo=PRAGUE, fold=1))
    assert shown(preview(work, 2)) == ["2030-10-27 02:30 +0100", "2030-10-28 02:30 +0100"]


def test_a_time_of_the_day_that_is_over_comes_an_interval_later(work: Engine) -> None:
    set_clock(work.connection, datetime(2030, 1, 1, 10, tzinfo=PRAGUE))
    schedule(work, at="09:00")
    assert shown(preview(work, 1)) == ["2030-01-03 09:00 +0100"]
    schedule(work, at="11:00")  # the day from which it counts stays
    assert shown(preview(work, 1)) == ["2030-01-01 11:00 +0100"]


def test_months_without_a_zone_are_those_of_utc(work: Engine) -> None:
    schedule(work, every="1 month", zone=None, start_at=START)
    assert (row(work).zone, row(work).calendar) == ("UTC", "1 mon")
    assert preview(work, 2) == [datetime(2030, month, 1, tzinfo=UTC) for month in (2, 3)]


def test_a_year_of_days_is_fired_each_once(work: Engine) -> None:
    schedule(work, every="1 day", at="02:30", missed="all")
    fired: list[datetime] = []
    for day in range(0, 365, 5):
        fired += fire(work, START + timedelta(days=day))
    assert len(fired) == 360
    assert len({each.astimezone(PRAGUE).date() for each in fired}) == 360
    odd = {each[:10]: each[11:] for each in shown(fired) if each[11:16] != "02:30"}
    assert odd == {"2030-03-31": "03:00 +0200"}
    assert all(
        timedelta(hours=23) <= later - sooner <= timedelta(hours=25) for sooner, later in pairwise(fired)
    )


@pytest.mark.parametrize(("missed", "fired"), [("skip", []), ("one", [5]), ("all", [1, 3, 5])])
def test_missed_days_are_skipped_collapsed_or_made_up_for(
    work: Engine, missed: str, fired: list[int]
) -> None:
    schedule(work, at="09:00", missed=missed)
    found = fire(work, datetime(2030, 1, 6, tzinfo=PRAGUE))
    assert [each.astimezone(PRAGUE).day for each in found] == fired
    runs = call(work.connection, "list_schedule_runs", schedule="s")
    assert sum(run.runs for run in runs) == 3
    assert shown([row(work).next_due]) == ["2030-01-07 09:00 +0100"]


def test_what_was_due_during_a_pause_does_not_come_again(work: Engine) -> None:
    schedule(work, at="09:00", missed="all")
    ask(work.connection, "pause_schedule", schedule="s")
    assert fire(work, datetime(2030, 1, 4, tzinfo=PRAGUE)) == []
    ask(work.connection, "resume_schedule", schedule="s")
    assert shown(fire(work, datetime(2030, 1, 6, tzinfo=PRAGUE))) == ["2030-01-05 09:00 +0100"]


def test_told_again_it_keeps_its_next_time_and_30_days_are_no_month(work: Engine) -> None:
    schedule(work, every="1 month", at="09:00")
    before = row(work)
    set_clock(work.connection, START + timedelta(days=3))
    schedule(work, every="1 month", at="09:00", kind="k")
    assert (row(work).next_due, row(work).start_at) == (before.next_due, before.start_at)
    schedule(work, every="30 days", at="09:00")
    assert row(work).calendar == "30 days"
    assert row(work).start_at != before.start_at


def test_hours_of_a_client_are_days_of_a_calendar(work: Engine) -> None:
    wanted = '[{"schedule": "s", "queue": "work", "every": "172800000000 microseconds", "at": "09:00"}]'
    for expected in (["created"], []):
        changes = call(work.connection, "sync_schedules", schedules=wanted)
        assert [each.change for each in changes] == expected
    assert (row(work).calendar, row(work).zone) == ("2 days", "UTC")


@pytest.mark.parametrize("by", ["-1 hour", "1 hour"])
def test_new_rules_of_a_zone_give_no_day_two_times(work: Engine, by: str) -> None:
    schedule(work, every="1 day", at="09:00")
    work.connection.execute("update trunq.schedule set next_due = next_due + %s::interval", (by,))
    fired = fire(work, datetime(2030, 1, 1, 8, 30, tzinfo=PRAGUE))
    fired += fire(work, datetime(2030, 1, 1, 12, tzinfo=PRAGUE))
    assert shown(fired) == ["2030-01-01 09:00 +0100"]
    assert shown([row(work).next_due]) == ["2030-01-02 09:00 +0100"]


def test_the_session_s_own_zone_and_style_change_nothing(work: Engine) -> None:
    work.connection.execute("set timezone = 'America/New_York'")
    work.connection.execute("set intervalstyle = 'iso_8601'")
    schedule(work, every="1 month", at="00:30", start_at=datetime(2030, 3, 31, tzinfo=PRAGUE))
    assert row(work).calendar == "1 mon"
    assert shown(preview(work, 2)) == ["2030-03-31 00:30 +0100", "2030-04-30 00:30 +0200"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"every": "1 month 1 hour"}, "a calendar counts days, months and years"),
        ({"every": "1 day", "zone": "Mars/Base"}, 'no time zone "Mars/Base"'),
        ({"every": "1 month -1 day"}, "none of its parts negative"),
        ({"every": "101 years"}, "up to 100 years"),
        ({"every": "0 days", "zone": "UTC"}, "a second to 1000 years"),
        ({"every": "1 day", "at": "24:00"}, "before 24:00"),
        (
            {"cron": "0 * * * *", "every": None, "at": "09:00", "due_times": [START]},
            "p_at goes with an interval",
        ),
        (
            {"cron": "0 * * * *", "every": None, "start_at": START, "due_times": [START]},
            "a start goes with an interval",
        ),
    ],
)
def test_what_a_calendar_does_not_count_is_refused_with_the_way_out(
    work: Engine, given: dict[str, Any], words: str
) -> None:
    with refused("TQ017", words), work.connection.transaction():
        schedule(work, **given)
    assert call(work.connection, "list_schedules") == []
