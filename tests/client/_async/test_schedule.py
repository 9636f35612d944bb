"""Schedules through the client: it computes the times of cron texts."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest

from trunq import (
    AsyncClient,
    InvalidArgument,
    InvalidSchedule,
    QueueInUse,
    Schedule,
    ScheduleNotFound,
)
from trunq.schedule import AHEAD, due_times


class Kind(StrEnum):
    REPORT = "report"


PRAGUE = ZoneInfo("Europe/Prague")


async def test_a_cron_text_stands_in_the_database_as_the_times_to_come(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("work")
        assert await client.create_schedule(
            "nightly", "work", {"n": 1}, cron="30 3 * * *", zone="Europe/Prague", kind=Kind.REPORT, key=7,
            headers={"of": "me"}, options={"max_attempts": 2}, max_age=60, missed="all", overlap="skip",
        )  # fmt: skip
        (row,) = await client.list_schedules("work")
        assert (row.schedule, row.queue, row.cron, row.zone) == (
            "nightly",
            "work",
            "30 3 * * *",
            "Europe/Prague",
        )
        assert (row.missed, row.overlap, row.kind, row.key) == ("all", "skip", "report", "7")
        assert (row.payload, row.headers, row.options) == ({"n": 1}, {"of": "me"}, {"max_attempts": 2})
        assert (row.max_age, row.due_times, row.paused, row.error) == (
            timedelta(minutes=1),
            AHEAD,
            False,
            None,
        )
        times = await client.preview_schedule("nightly", 1000)
        assert times == due_times("30 3 * * *", "Europe/Prague", await client.clock())
        assert {f"{time.astimezone(PRAGUE):%H:%M}" for time in times} == {"03:30"}
        assert row.next_due == times[0]


async def test_times_are_computed_from_the_time_of_the_database(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("work")
        async with client.transaction() as connection:
            await connection.execute("set local trunq.clock_offset = '100 years'")
            await client.create_schedule("far", "work", 1, cron="@daily", connection=connection)
        (first,) = await client.preview_schedule("far", 1)
        ahead = first - await client.clock()
        assert timedelta(days=36_000) < ahead < timedelta(days=37_000)


async def test_a_schedule_is_fired_paused_and_deleted(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("work")
        start = await client.clock() - timedelta(seconds=1)
        assert await client.create_schedule("often", "work", 1, every=3600, start_at=start)
        assert not await client.create_schedule("often", "work", 2, every=timedelta(hours=1), start_at=start)
        async with client.transaction() as connection:
            await connection.execute("set local trunq.clock_offset = '2.5 hours'")
            assert await client.fire(connection=connection) == 2
        (message,) = await client.lease("work", "default", "w", 5)
        assert message.payload == 2
        assert message.headers["schedule"] == "often"
        fired, missed = await client.list_schedule_runs("often")
        assert (fired.id, fired.due_at) == (message.id, start + timedelta(hours=2))
        assert (missed.runs, missed.skipped) == (1, "missed")
        assert await client.list_schedule_runs("often", 5, fired.due_at) == [missed]
        await client.pause_schedule("often", datetime(2100, 1, 1, tzinfo=UTC))
        assert [row.paused_until for row in await client.list_schedules()] == [
            datetime(2100, 1, 1, tzinfo=UTC)
        ]
        assert await client.resume_schedule("often")
        await client.delete_schedule("often")
        with pytest.raises(ScheduleNotFound, match='no schedule "often"'):
            await client.delete_schedule("often")


async def test_it_joins_the_callers_transaction(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("work")
        with pytest.raises(ZeroDivisionError):
            async with client.transaction() as connection:
                await client.create_schedule("gone", "work", 1, cron="@hourly", connection=connection)
                raise ZeroDivisionError
        assert await client.list_schedules() == []


async def test_an_interval_goes_by_the_calendar_of_a_zone(database: str) -> None:
    start = datetime(2030, 1, 31, 9, tzinfo=PRAGUE)
    async with AsyncClient(database) as client:
        await client.create_queue("work")
        for every in ("1 month", "1mon", "P1M"):
            await client.create_schedule("s", "work", every=every, zone="Europe/Prague", start_at=start)
            (row,) = await client.list_schedules()
            assert (row.every, row.calendar, row.at, row.start_at) == (None, "1 mon", None, start)
        previewed = [each.astimezone(PRAGUE) for each in await client.preview_schedule("s", limit=3)]
        assert [(each.month, each.day, each.hour) for each in previewed] == [
            (1, 31, 9),
            (2, 28, 9),
            (3, 31, 9),
        ]
        wanted = [
            Schedule(schedule="a", queue="work", every=timedelta(days=2), at=time(9), zone="Europe/Prague"),
            Schedule(schedule="b", queue="work", every="1 year, 2 days", at="09:30"),
        ]
        assert len(await client.sync_schedules(wanted)) == 2
        assert await client.sync_schedules(wanted) == []
        rows = {row.schedule: (row.calendar, row.at, row.zone) for row in await client.list_schedules()}
        assert rows["a"] == ("2 days", time(9), "Europe/Prague")
        assert rows["b"] == ("1 year 2 days", time(9, 30), "UTC")


async def test_the_database_becomes_equal_to_a_list_in_the_code(database: str) -> None:
    wanted = [
        Schedule(
            schedule="nightly", queue="work", cron="0 3 * * *", zone="Asia/Tokyo", payload={"a": "\u00e9\"'"}
        ),
        Schedule(schedule="often", queue="work", every=1.5, kind="tick", max_age=timedelta(days=40)),
    ]
    async with AsyncClient(database) as client:
        await client.create_queue("work")
        await client.create_schedule("by_hand", "work", 1, every=60)
        changes = await client.sync_schedules(wanted)
        assert [tuple(each) for each in changes] == [("nightly", "created"), ("often", "created")]
        assert await client.sync_schedules(iter(wanted)) == []
        rows = {row.schedule: row for row in await client.list_schedules()}
        assert (rows["nightly"].payload, rows["nightly"].due_times) == ({"a": "\u00e9\"'"}, AHEAD)
        assert (rows["often"].every, rows["often"].max_age) == (timedelta(seconds=1.5), timedelta(days=40))
        assert [row.source for row in rows.values()] == [None, "code", "code"]
        later = [wanted[0], Schedule(schedule="often", queue="work", every=2, kind="tick")]
        assert [tuple(each) for each in await client.sync_schedules(later)] == [("often", "changed")]
        with pytest.raises(InvalidSchedule, match='"by_hand" was not made by the list "code"'):
            await client.sync_schedules([Schedule(schedule="by_hand", queue="work", every=60)])
        assert [each.change for each in await client.sync_schedules([])] == ["deleted", "deleted"]
        assert [row.schedule for row in await client.list_schedules()] == ["by_hand"]


async def test_a_style_of_intervals_or_dates_changes_nothing(database: str) -> None:
    start = datetime(2030, 2, 1, 12, tzinfo=UTC)
    async with AsyncClient(database) as client, client.transaction() as connection:
        await client.create_queue("work", connection=connection)
        await connection.execute("set local intervalstyle = 'iso_8601'")
        await connection.execute("set local datestyle = 'sql, dmy'")
        wanted = Schedule(schedule="s", queue="work", every=timedelta(days=2, seconds=0.5), start_at=start)
        await client.sync_schedules([wanted], connection=connection)
        await connection.execute("set local datestyle = 'iso'")
        await connection.execute("set local intervalstyle = 'postgres'")
        (row,) = await client.list_schedules(connection=connection)
        assert (row.every, row.start_at) == (timedelta(days=2, seconds=0.5), start)


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"cron": "61 * * * *"}, r"the cron text '61 \* \* \* \*' cannot be read: bad minute"),
    ({"cron": "@reboot"}, "the cron text '@reboot' cannot be read"),
    ({"cron": "@daily", "zone": "Mars/Base"}, "there is no time zone 'Mars/Base'"),
    ({"cron": "@daily", "every": 60}, "one of them"),
    ({"every": 0.5}, "a second to 1000 years"),
    ({"every": "6 hours", "zone": "Europe/Prague"}, "a calendar counts days, months and years"),
    ({"cron": "0 3 * * *", "at": "09:30"}, "has a cron text, which says itself at which time of the day"),
    ({"every": 60, "options": {"expires_at": "2040-01-01T00:00:00Z"}}, "cannot all expire at one time"),
]


@pytest.mark.parametrize(("given", "words"), MISTAKES)
async def test_a_schedule_that_cannot_be_is_refused_when_it_is_made(
    database: str, given: dict[str, Any], words: str
) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("work")
        with pytest.raises(InvalidSchedule, match=words) as refused:
            await client.create_schedule("s", "work", 1, **given)
        assert refused.value.hint
        with pytest.raises(InvalidSchedule, match=words):
            await client.sync_schedules([Schedule(schedule="s", queue="work", **given)])
        assert await client.list_schedules() == []


async def test_a_cron_text_says_the_time_of_the_day_itself(database: str) -> None:
    """As the hint for `at` beside a cron text says."""
    async with AsyncClient(database) as client:
        await client.create_queue("work")
        assert await client.create_schedule("s", "work", 1, cron="30 9 * * *", zone="Europe/Prague")
        (due, *_) = await client.preview_schedule("s", 1)
        assert due.astimezone(PRAGUE).strftime("%H:%M") == "09:30"


async def test_a_list_is_made_of_schedules_and_a_start_has_a_zone(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("work")
        with pytest.raises(InvalidSchedule, match=r"'s'.* is no schedule\nHINT: .*trunq\.Schedule"):
            await client.sync_schedules([{"schedule": "s"}])  # type: ignore[list-item]
        with pytest.raises(InvalidArgument, match="start_at has no time zone"):
            await client.create_schedule("s", "work", 1, every=60, start_at=datetime(2030, 1, 1))


async def test_times_that_come_to_an_end_are_computed_anew(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("work")
        await client.create_schedule("minutely", "work", 1, cron="* * * * *")
        connection.execute(
            "delete from trunq.schedule_due where due_at > clock_timestamp() + interval '10 minutes'"
        )
        (warned,) = await client.list_warnings()
        assert "due times left" in warned.warning
        assert await client.fill_schedules() == 1
        assert await client.list_warnings() == []
        assert len(await client.preview_schedule("minutely", 1000)) >= AHEAD


async def test_a_queue_with_schedules_is_in_use(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("work")
        await client.create_schedule("s", "work", 1, every=60)
        with pytest.raises(QueueInUse, match='has schedules: "s"'):
            await client.drop_queue("work")
        await client.drop_queue("work", force=True)
        assert await client.list_schedules() == []
