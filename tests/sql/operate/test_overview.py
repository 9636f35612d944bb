"""What is read of samples: functions/operate/overview.sql."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from calling import call, move_clock, new_names, refused
from conftest import Connect
from engine import Engine
from granting import granting


@pytest.fixture
def work(connect: Connect) -> Iterator[Engine]:
    session = connect()
    work = Engine(session, next(new_names("overview"))).create()
    yield work
    move_clock(session, "0")
    session.execute("truncate trunq.sample")
    work.ask("drop_queue", force=True)


def sample_at(work: Engine, seconds: float) -> None:
    move_clock(work.connection, timedelta(seconds=seconds))
    work.fetch("select trunq.sample()")


def overview(work: Engine, limit: int = 100) -> list[Any]:
    return call(work.connection, "overview", limit=limit)


def test_the_worst_come_first_and_it_says_how_many_there_are(work: Engine) -> None:
    for name in ("calm", "old", "young"):
        work.ask("subscribe", subscription=name)
    work.publish(2)
    for name in ("calm", "default"):
        work.ack(work.lease(10, subscription=name))
    held = work.lease(10, subscription="young")
    work.answer("reject", held, held.ids[:1])
    sample_at(work, 5)
    rows = overview(work)
    assert [row.subscription for row in rows] == ["old", "young", "calm", "default"]
    assert [row.ready for row in rows] == [2, 0, 0, 0]
    (worst,) = overview(work, 1)
    assert (worst.subscription, worst.subscriptions) == ("old", 4)
    work.ask("pause_subscription", subscription="old")
    sample_at(work, 10)
    assert [row.subscription for row in overview(work)] == ["young", "old", "calm", "default"]


def test_rates_are_those_of_the_last_minute(work: Engine) -> None:
    sample_at(work, 0)
    work.publish(120)
    held = work.lease(60)
    work.ack(held, held.ids[:45])
    work.answer("retry", held, held.ids[45:])
    sample_at(work, 60)
    (row,) = overview(work)
    assert row.published_per_second == pytest.approx(2, rel=0.05)
    assert row.answered_per_second == pytest.approx(1, rel=0.05)
    assert row.failed_share == pytest.approx(0.25)


def test_a_subscription_without_a_sample_is_there_without_figures(work: Engine) -> None:
    sample_at(work, 0)
    work.ask("subscribe", subscription="new")
    assert {row.subscription: row.sampled_at is None for row in overview(work)} == {
        "default": False,
        "new": True,
    }


def test_when_nobody_samples_it_looks_by_itself_and_counts_nothing_twice(work: Engine) -> None:
    work.publish(3)
    (row,) = overview(work)
    assert (row.ready, row.published_per_second) == (3, None)
    sample_at(work, 5)
    work.publish(4)
    move_clock(work.connection, "10 minutes")
    (row,) = overview(work)
    assert row.ready == 7
    assert row.sampled_at > work.fetch("select trunq.sampled_at()") + timedelta(minutes=9)
    # A look writes nothing.
    assert work.fetch("select count(*) from trunq.sample where subscription = ''") == 2


def test_recent_is_what_waited_in_each_ten_seconds_of_five_minutes(work: Engine) -> None:
    for n in range(7):
        sample_at(work, 10 * n)
        work.publish(1)
    (row,) = overview(work)
    assert len(row.recent) == 30
    assert row.recent[:-8] == [None] * 22
    assert [each for each in row.recent if each is not None][-6:] == [1, 2, 3, 4, 5, 6]


def test_a_role_sees_the_figures_of_its_queues_whoever_sampled(work: Engine, connect: Connect) -> None:
    other = Engine(work.connection, f"other_{work.queue}").create()
    work.publish(3)
    other.publish(5)
    sample_at(work, 5)
    with granting(work.connection, connect, work.queue) as give:
        sees = {role: give(role) for role in ("reader", "worker", "admin")}
        publisher = give("publisher")
        for session in (*sees.values(), publisher):
            move_clock(session, "5 seconds")

        def seen() -> set[tuple[Any, ...]]:
            return {
                tuple((row.queue, row.ready, row.subscriptions) for row in call(session, "overview"))
                for session in sees.values()
            }

        assert seen() == {((work.queue, 3, 1),)}
        assert call(publisher, "overview") == []
        assert all(call(session, "sampled_at") for session in (*sees.values(), publisher))
        for session in sees.values():
            mine = session.execute("select count(distinct queue_id) from trunq.sample where queue_id > 0")
            assert mine.fetchone() == (1,)
        work.publish(1)
        for session in (*sees.values(), publisher):
            move_clock(session, "10 minutes")
        # Nobody samples: it looks by itself, and at these queues alone.
        assert seen() == {((work.queue, 4, 1),)}
        assert call(publisher, "overview") == []
    other.ask("drop_queue", force=True)


def test_a_queue_that_is_broken_keeps_the_overview_from_nothing(work: Engine) -> None:
    broken = Engine(work.connection, f"a_{work.queue}").create()
    work.publish(3)
    broken.publish(1)
    broken.ack(broken.lease(1))
    work.run(f"alter table trunq_data.{broken.queue}_receipt rename to gone")
    try:
        assert {row.queue: row.ready for row in overview(work)} == {
            work.queue: 3,
            broken.queue: None,
        }
    finally:
        work.run(f"alter table trunq_data.gone rename to {broken.queue}_receipt")
        broken.ask("drop_queue", force=True)


def test_samples_of_a_time_are_as_many_as_asked_for(work: Engine) -> None:
    for n in range(30):
        work.publish(1)
        sample_at(work, 5 * n)
    every = work.call("list_samples", subscription="default", since="5 minutes", points=300)
    assert [row.ready for row in every] == list(range(1, 31))
    assert [row.at for row in every] == sorted(row.at for row in every)
    some = work.call("list_samples", subscription="default", since="150 seconds", points=5)
    assert len(some) == 5
    assert some[-1].ready == 30
    published = [row.published for row in work.call("list_samples", since="5 minutes")]
    assert published == list(range(30)), "the first sample counts from then on"


def test_samples_are_there_across_two_segments(work: Engine) -> None:
    for n in range(12):
        sample_at(work, 3600 * n)
    rows = work.call("list_samples", subscription="default", since="1 day", points=1000)
    assert len(rows) == 12


def test_what_is_asked_for_must_be_there(work: Engine) -> None:
    with refused("TQ002", "no subscription"):
        work.call("list_samples", subscription="nobody")
    with refused("TQ005", "from 1 to 1000"):
        work.call("list_samples", points=1001)
    with refused("TQ005"):
        overview(work, 0)
    with refused("TQ002", "no subscription"):
        work.ask("backlog", subscription="nobody")


def test_a_backlog_is_what_waits_and_what_runs_up_to_ten_thousand(work: Engine) -> None:
    assert work.ask("backlog") == 0
    work.publish(5)
    work.publish(1, delay="1 hour")
    work.lease(2)
    assert work.ask("backlog") == 5
    work.run(f"insert into trunq_log.{work.queue} (payload) select '1'::jsonb from generate_series(1, 30000)")
    assert work.ask("backlog") == 10000


def test_the_backlog_of_a_group_is_that_of_its_slots(work: Engine) -> None:
    work.ask("create_group", group="crew", slots=4)
    work.publish(9)
    assert work.ask("backlog", subscription="crew") == sum(
        row.ready for row in work.call("status") if row.subscription == "crew"
    )
