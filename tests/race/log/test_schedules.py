"""Schedules when several fire at once, and are rolled back or killed meanwhile."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest

from calling import ask, call, fetch, move_clock, refused
from conftest import Connect
from race.conftest import Meanwhile
from trunq import Client
from waiting import wait_until

START = datetime(2029, 12, 31, 23, 30, tzinfo=UTC)
END = START + timedelta(days=365)
PRAGUE = ZoneInfo("Europe/Prague")
LEADERS = 3


def set_clock(connection: psycopg.Connection[Any], time: datetime) -> None:
    now = fetch(connection, "select clock_timestamp()")
    move_clock(connection, f"{(time - now) / timedelta(microseconds=1):.0f} microseconds")


@pytest.fixture
def work(connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """A queue with a schedule that has been due for an hour."""
    ask(connection, "create_queue", queue="work")
    start = fetch(connection, "select now() - interval '1 hour'")
    ask(connection, "create_schedule", schedule="daily", queue="work", every="1 day", start_at=start)
    connection.execute("update trunq.schedule set next_due = start_at")
    return connection


def published(connection: psycopg.Connection[Any]) -> int:
    return int(fetch(connection, "select count(*) from trunq_log.work"))


def test_of_two_who_fire_the_second_waits_for_nobody_and_fires_nothing(
    work: psycopg.Connection[Any], connect: Connect
) -> None:
    first = connect(autocommit=False)
    assert ask(first, "fire") == 1
    assert ask(work, "fire") == 0
    first.commit()
    assert (ask(work, "fire"), published(work)) == (0, 1)


@pytest.mark.parametrize("is_made_anew", [True, False])
def test_a_schedule_that_is_deleted_is_not_run_while_it_goes(
    work: psycopg.Connection[Any], connect: Connect, meanwhile: Meanwhile, is_made_anew: bool
) -> None:
    first, second = connect(autocommit=False), connect()
    ask(first, "delete_schedule", schedule="daily")
    if is_made_anew:
        ask(first, "create_schedule", schedule="daily", queue="work", every="2 days", kind="new")
    waiting = meanwhile(lambda session: ask(session, "run_schedule", schedule="daily"), second)
    wait_until(lambda: fetch(work, "select count(*) from pg_locks where not granted") > 0)
    first.commit()
    if is_made_anew:
        id = waiting.result(timeout=60)
        assert fetch(work, "select kind from trunq_log.work where id = %s", id) == "new"
    else:
        with refused("TQ016", '"daily"'):
            waiting.result(timeout=60)


def test_what_the_first_rolled_back_the_second_fires(work: psycopg.Connection[Any], connect: Connect) -> None:
    first = connect(autocommit=False)
    assert ask(first, "fire") == 1
    first.rollback()
    assert (ask(work, "fire"), published(work)) == (1, 1)


def test_who_fires_with_an_older_snapshot_fails_and_publishes_nothing(
    work: psycopg.Connection[Any], connect: Connect
) -> None:
    old = connect(autocommit=False)
    old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    old.execute("select 1")
    assert ask(work, "fire") == 1
    with refused("40001"):
        ask(old, "fire")
    old.rollback()
    assert published(work) == 1


def test_a_change_waits_for_who_fires_and_does_not_bring_the_time_back(
    work: psycopg.Connection[Any], connect: Connect
) -> None:
    first, second = connect(autocommit=False), connect()
    given = {"schedule": "daily", "queue": "work", "every": "1 hour"}
    assert ask(first, "fire") == 1
    with ThreadPoolExecutor() as threads:
        changing = threads.submit(ask, second, "create_schedule", **given)
        waits = "select count(*) from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
        wait_until(lambda: fetch(work, waits, second.info.backend_pid))
        first.commit()
        assert changing.result() is False
    assert (ask(work, "fire"), published(work)) == (0, 1)
    (row,) = call(work, "list_schedules")
    assert row.last_due < fetch(work, "select now()") < row.next_due


def test_a_queue_is_not_dropped_under_who_fires_and_nobody_deadlocks(
    work: psycopg.Connection[Any], connect: Connect
) -> None:
    first = connect(autocommit=False)
    assert ask(first, "fire") == 1
    with refused("TQ009", "in use"):
        ask(work, "drop_queue", queue="work", force=True)
    first.commit()
    ask(work, "drop_queue", queue="work", force=True)
    assert call(work, "list_schedules") == []


def test_a_queue_that_is_locked_keeps_no_other_schedule_waiting(
    work: psycopg.Connection[Any], connect: Connect
) -> None:
    ask(work, "create_queue", queue="free")
    ask(work, "create_schedule", schedule="other", queue="free", every="1 day")
    work.execute("update trunq.schedule set next_due = start_at where name = 'other'")
    locking = connect(autocommit=False)
    locking.execute("lock table trunq_log.work")
    assert ask(work, "fire") == 1
    assert fetch(work, "select count(*) from trunq_log.free") == 1
    locking.rollback()
    assert "lock timeout" in fetch(work, "select error from trunq.schedule where name = 'daily'")
    assert (ask(work, "fire"), published(work)) == (1, 1)


def expected_nights() -> list[datetime]:
    """Half past two in Prague, each day of the year; at three where there is no half past two."""
    nights = []
    for number in range(365):
        day = date(2030, 1, 1) + timedelta(days=number)
        hour, minute = (3, 0) if day == date(2030, 3, 31) else (2, 30)
        nights.append(datetime(day.year, day.month, day.day, hour, minute, tzinfo=PRAGUE).astimezone(UTC))
    return nights


class Year:
    """A year that several go through together, in steps of some hours."""

    def __init__(self) -> None:
        self._now = START
        self._one = threading.Lock()

    def step(self, chance: random.Random) -> datetime | None:
        with self._one:
            if self._now >= END:
                return None
            self._now = min(END, self._now + timedelta(hours=chance.uniform(1, 40)))
            return self._now


def lead(year: Year, seed: int, database: str, connect: Connect) -> Counter[str]:
    """Fire at each step; roll some of it back, be killed now and then, and compute times as a client does."""
    chance, ends = random.Random(seed), Counter[str]()
    own, killer = connect(), connect()
    with Client(database) as client:
        while (now := year.step(chance)) is not None:
            if own.closed:
                own = connect()
            set_clock(own, now)
            if chance.random() < 0.08:
                client.fill_schedules(connection=own)
            end = chance.choices(["commit", "rollback", "kill"], [7, 2, 1])[0]
            with suppress(psycopg.OperationalError), own.transaction(force_rollback=end == "rollback"):
                done = ask(own, "fire")
                if end == "kill":
                    killer.execute("select pg_terminate_backend(%s, 10000)", (own.info.backend_pid,))
                    own.execute("select 1")
            ends[end] += done > 0
    return ends


@pytest.mark.slow
def test_over_a_year_nothing_is_fired_twice_and_nothing_left_out(
    database: str, connection: psycopg.Connection[Any], connect: Connect
) -> None:
    """With both changes of the clock, several leaders, a fifth of it rolled back and some of them killed."""
    set_clock(connection, START)
    with Client(database) as client:
        client.create_queue("work")
        of = {"connection": connection, "missed": "all"}
        client.create_schedule("night", "work", cron="30 2 * * *", zone="Europe/Prague", **of)
        client.create_schedule("often", "work", cron="0 */3 * * *", **of)
        client.create_schedule("every", "work", every=timedelta(hours=5), start_at=START, **of)
        client.create_schedule("latest", "work", cron="0 * * * *", connection=connection)
    year = Year()
    with ThreadPoolExecutor(LEADERS) as threads:
        leaders = [threads.submit(lead, year, seed, database, connect) for seed in range(LEADERS)]
        ends = sum((leader.result() for leader in leaders), Counter[str]())
    assert min(ends[end] for end in ("commit", "rollback", "kill")) >= 5, ends
    set_clock(connection, END)
    with Client(database) as client:
        while client.fill_schedules(connection=connection) and ask(connection, "fire"):
            pass
    fired = {
        name: [datetime.fromisoformat(due) for due in dues]
        for name, dues in connection.execute(
            "select headers->>'schedule', array_agg(headers->>'due_at' order by headers->>'due_at')"
            " from trunq_log.work group by 1"
        )
    }
    hours = [START + timedelta(minutes=30, hours=number) for number in range(365 * 24)]
    assert fired["often"] == [hour for hour in hours if hour.hour % 3 == 0]
    assert fired["night"] == expected_nights()
    assert fired["every"] == [START + timedelta(hours=number) for number in range(5, 365 * 24 + 1, 5)]
    assert len(fired["latest"]) == len(set(fired["latest"])) > 100
    assert set(fired["latest"]) < set(hours)
