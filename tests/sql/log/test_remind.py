"""A queue announces again what waits unread: functions/log/remind.sql."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from calling import ask, call, fetch, move_clock, new_names, refused
from conftest import Connect
from engine import Engine

Connection = psycopg.Connection[Any]
Heard = Callable[[], list[str]]


@pytest.fixture
def work(connection: Connection) -> Iterator[Engine]:
    engine = Engine(connection, next(new_names("remind"))).create()
    engine.ask("set_publishing", announce=True)
    engine.ask("set_reminders", after="1 minute")
    return engine


@pytest.fixture
def heard(work: Engine, connect: Connect) -> Heard:
    """What a listener hears that is none of our workers."""
    ear = connect()
    channel = work.ask("announcement_channel")
    ear.execute(f"listen {channel}".encode())

    def hear() -> list[str]:
        return [each.payload for each in ear.notifies(timeout=0.05)]

    return hear


def at(work: Engine, seconds: float) -> int:
    """The duty, so many seconds after the start."""
    move_clock(work.connection, f"{seconds} seconds")
    return int(ask(work.connection, "remind"))


@contextmanager
def silent(heard: Heard) -> Iterator[None]:
    heard()
    yield
    assert heard() == []


def test_what_nobody_reads_is_announced_again_ever_less_often(work: Engine, heard: Heard) -> None:
    first, last = work.publish(2)
    assert heard() == [f"{first}-{last}"]
    told = []
    for seconds in range(0, 8000, 10):
        at(work, seconds)
        told += [seconds] * len(heard() if seconds % 60 == 0 or seconds % 60 == 10 else [])
    # After a minute, then two, four, eight ... and an hour at most.
    apart = [later - sooner for sooner, later in itertools.pairwise(told)]
    assert apart == [120, 240, 480, 960, 1920, 3600]
    assert told[0] == 60


def test_it_begins_anew_as_soon_as_something_is_read(work: Engine, heard: Heard) -> None:
    ids = work.publish(3)
    heard()
    at(work, 0)
    at(work, 60)
    assert heard() == [f"{ids[0]}-{ids[2]}"]
    assert work.lease().ids == ids[:1]
    with silent(heard):
        at(work, 70)
        at(work, 120)
    at(work, 131)
    assert heard() == [f"{ids[1]}-{ids[2]}"]
    with silent(heard):
        work.lease(2)
        at(work, 150)
        at(work, 1000)


def test_unread_means_by_any_shared_subscription_or_those_that_are_named(work: Engine, heard: Heard) -> None:
    call(work.connection, "subscribe", queue=work.queue, subscription="second")
    (id,) = work.publish()
    work.lease()
    heard()
    at(work, 0)
    at(work, 60)
    assert heard() == [f"{id}-{id}"]
    work.ask("set_reminders", after="1 minute", subscriptions=["default"])
    with silent(heard):
        at(work, 70)
        at(work, 140)
    work.ask("set_reminders", after="1 minute", subscriptions=["second"])
    at(work, 150)
    at(work, 220)
    assert heard() == [f"{id}-{id}"]


@pytest.mark.parametrize("lanes", ["key", "priority"])
def test_a_queue_with_lanes_too(connection: Connection, connect: Connect, lanes: str) -> None:
    work = Engine(connection, next(new_names("remind"))).create(lanes=lanes)
    work.ask("set_publishing", announce=True)
    work.ask("set_reminders", after="1 second")
    ear = connect()
    ear.execute(f"listen {work.ask('announcement_channel')}".encode())
    ids = work.publish(2, keys=["a", "b"])
    at(work, 0)
    at(work, 2)
    assert [each.payload for each in ear.notifies(timeout=0.2)] == [f"{ids[0]}-{ids[1]}"] * 2


def test_a_pause_is_no_reason_and_neither_is_a_delay_or_a_stream(work: Engine, heard: Heard) -> None:
    call(work.connection, "subscribe", queue=work.queue, subscription="stream", mode="exclusive")
    work.publish(1, delay="1 hour")
    with silent(heard):
        at(work, 0)
        at(work, 60)
    work.publish()
    work.ask("pause_subscription", subscription="default")
    with silent(heard):
        at(work, 70)
        at(work, 300)
    work.ask("resume_subscription", subscription="default")
    at(work, 310)
    at(work, 370)
    assert len(heard()) == 1


def test_a_clock_that_goes_back_puts_nothing_off_for_long(work: Engine, heard: Heard) -> None:
    work.publish()
    at(work, 10**6)
    heard()
    at(work, 0)
    at(work, 60)
    assert len(heard()) == 1


def test_the_duties_do_it_and_a_queue_that_does_not_ask_has_none(work: Engine, heard: Heard) -> None:
    work.publish()
    call(work.connection, "perform_duties")
    heard()
    move_clock(work.connection, "2 minutes")
    call(work.connection, "perform_duties")
    assert len(heard()) == 1
    work.ask("set_reminders")
    assert ask(work.connection, "remind") == 0
    assert fetch(work.connection, "select count(*) from trunq.reminder") == 0


def test_two_leaders_announce_once(work: Engine, heard: Heard, connect: Connect) -> None:
    work.publish()
    at(work, 0)
    heard()
    other = connect(autocommit=False)
    move_clock(other, "61 seconds")
    assert ask(other, "remind") == 1
    assert at(work, 61) == 0
    other.commit()
    assert at(work, 61.5) == 0
    assert len(heard()) == 1


def test_what_cannot_be_is_refused(work: Engine) -> None:
    for after in ("0 seconds", "2 days", "-1 second"):
        with refused("TQ005", work.queue):
            work.ask("set_reminders", after=after)
    with refused("TQ002"):
        work.ask("set_reminders", after="1 minute", subscriptions=["nobody"])
    call(work.connection, "subscribe", queue=work.queue, subscription="stream", mode="exclusive")
    with refused("TQ011"):
        work.ask("set_reminders", after="1 minute", subscriptions=["stream"])
    work.ask("set_publishing", announce=False)
    with refused("TQ005", "p_announce"):
        work.ask("set_reminders", after="1 minute")
    # Nor does the duty fail of it.
    work.publish()
    at(work, 0)
    at(work, 100)
