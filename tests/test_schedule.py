"""What cron texts mean, where clocks change too, and whether Python and Postgres know the same time zones."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest

from trunq import InvalidArgument, InvalidSchedule
from trunq.schedule import AHEAD, MACROS, due_times, steps

PRAGUE = ZoneInfo("Europe/Prague")
"""Its clocks go forward at 2:00 on 31 March 2030, back at 3:00 on 27 October."""

SPRING = datetime(2030, 3, 31, tzinfo=PRAGUE)
AUTUMN = datetime(2030, 10, 27, tzinfo=PRAGUE)


def local(cron: str, after: datetime, count: int) -> list[str]:
    """The next times as a clock in Prague shows them, with its distance from UTC."""
    times = due_times(cron, "Europe/Prague", after, count)
    return [f"{time.astimezone(PRAGUE):%d %H:%M:%S %z}" for time in times]


@pytest.mark.parametrize("second", ["", "0 ", "30 "])
def test_a_fixed_time_in_the_hour_that_comes_twice_runs_once(second: str) -> None:
    shown = (second.strip() or "0").zfill(2)
    assert local(f"{second}30 2 * * *", AUTUMN, 2) == [f"27 02:30:{shown} +0200", f"28 02:30:{shown} +0100"]
    between = datetime(2030, 10, 27, 1, 10, tzinfo=UTC)  # in the second of the two hours
    assert local(f"{second}30 2 * * *", between, 1) == [f"28 02:30:{shown} +0100"]


@pytest.mark.parametrize("second", ["", "0 ", "30 "])
def test_a_fixed_time_in_the_hour_that_is_left_out_runs_once(second: str) -> None:
    shown = (second.strip() or "0").zfill(2)
    assert local(f"{second}30 2 * * *", SPRING, 2) == [f"31 03:00:{shown} +0200", f"01 02:30:{shown} +0200"]
    # Two of them become one.
    assert local(f"{second}0,30 2 * * *", SPRING, 2) == [f"31 03:00:{shown} +0200", f"01 02:00:{shown} +0200"]


def test_what_runs_every_so_often_goes_by_the_time_that_passes() -> None:
    for day in (SPRING, AUTUMN):
        times = due_times("*/20 * * * *", "Europe/Prague", day, 100)
        assert {later - sooner for sooner, later in itertools.pairwise(times)} == {timedelta(minutes=20)}
        hourly = due_times("0 * * * *", "Europe/Prague", day, 30)
        assert {later - sooner for sooner, later in itertools.pairwise(hourly)} == {timedelta(hours=1)}


def test_seconds_come_first() -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    times = due_times("*/20 5 4 * * *", None, start, 4)
    assert [f"{time:%d %H:%M:%S}" for time in times] == [
        "01 04:05:00",
        "01 04:05:20",
        "01 04:05:40",
        "02 04:05:00",
    ]
    assert [f"{time:%d %H:%M:%S}" for time in due_times("5,30 0 4 * * *", None, start, 3)] == [
        "01 04:00:05", "01 04:00:30", "02 04:00:05"
    ]  # fmt: skip


@pytest.mark.parametrize("macro", MACROS)
def test_a_macro_is_the_text_it_stands_for(macro: str) -> None:
    start = datetime(2030, 1, 1, tzinfo=UTC)
    assert due_times(macro.upper(), None, start, 5) == due_times(MACROS[macro], "UTC", start, 5)


@pytest.mark.parametrize(
    "cron", ["* * * * *", "*/5 * * * * *", "0 3 * * *", "0 0 L * *", "@yearly", "0 0 29 2 *"]
)
def test_a_thousand_times_come_one_after_the_other(cron: str) -> None:
    start = datetime(2030, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)
    times = due_times(cron, "Europe/Prague", start)
    assert len(times) == AHEAD == len(set(times))
    assert [start, *times] == sorted([start, *times])


@pytest.mark.parametrize(
    "cron",
    [
        *("", "bla", "61 * * * *", "* * * *", "0 0 30 2 *", "* * * * * * *", "@reboot", "@daily extra"),
        *("0 3 * * fred", "*" * 2000, "0 3 * * *; drop table x"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused_by_its_name_and_with_the_way_out(cron: str) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        due_times(cron, "Europe/Prague", datetime(2030, 1, 1, tzinfo=UTC))
    assert repr(cron[:40])[:-1] in refused.value.message
    assert "minute hour day month weekday" in (refused.value.hint or "")


@pytest.mark.parametrize("zone", ["Mars/Base", "", "../../etc/passwd", "Europe", "UTC\0", "x" * 5000])
def test_a_zone_that_does_not_exist_is_refused(zone: str) -> None:
    with pytest.raises(InvalidSchedule, match="there is no time zone"):
        due_times("@daily", zone, datetime(2030, 1, 1, tzinfo=UTC))


def test_an_interval_counts_from_its_start() -> None:
    start = datetime(2030, 1, 1, 0, 7, tzinfo=UTC)
    assert steps(3600, start, start - timedelta(days=1), 2) == [start, start + timedelta(hours=1)]
    assert steps(3600, start, start + timedelta(hours=1), 1) == [start + timedelta(hours=2)]
    with pytest.raises(InvalidSchedule, match="a second or more"):
        steps(0, start, start, 1)


def test_an_interval_by_the_calendar_is_refused_where_it_is_none() -> None:
    for every in (3600, "1 month 1 hour", timedelta(0)):
        with pytest.raises(InvalidSchedule, match="by the calendar"):
            steps(every, SPRING, SPRING, 1, "Europe/Prague")
    for at in ("9 o'clock", "09:00+01:00", time(9, tzinfo=UTC)):
        with pytest.raises(InvalidArgument, match="at is"):
            steps("1 day", SPRING, SPRING, 1, "Europe/Prague", at)
    with pytest.raises(InvalidArgument, match="no length of time"):
        steps("1 fortnight", SPRING, SPRING, 1)


@pytest.mark.parametrize(
    "zone", ["Europe/Prague", "America/New_York", "Australia/Lord_Howe", "Asia/Tokyo", "Asia/Tehran"]
)
def test_python_and_postgres_know_the_same_clocks(sql: psycopg.Connection[Any], zone: str) -> None:
    """Of the times that stand in the database, for years ahead, each is what a clock shows there."""
    times = due_times("30 2 * * *", zone, datetime(2026, 1, 1, tzinfo=UTC))
    shown = sql.execute(
        "select array(select t at time zone %s from unnest(%s::timestamptz[]) t)", (zone, times)
    )
    (clocks,) = shown.fetchone() or ()
    assert clocks == [time.astimezone(ZoneInfo(zone)).replace(tzinfo=None) for time in times]
    fixed = [clock for clock in clocks if (clock.hour, clock.minute) == (2, 30)]
    assert len(fixed) > 990
