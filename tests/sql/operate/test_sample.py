"""What the duty sample writes: functions/operate/sample.sql."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from calling import call, fetch, move_clock, new_names
from conftest import Connect
from engine import Engine


@pytest.fixture
def work(connect: Connect) -> Iterator[Engine]:
    session = connect()
    work = Engine(session, next(new_names("sample"))).create()
    yield work
    move_clock(session, "0")
    session.execute("truncate trunq.sample")
    work.ask("drop_queue", force=True)


class Clock:
    """The database's time, which goes forward."""

    def __init__(self, work: Engine) -> None:
        self.work = work
        self.passed = timedelta(0)

    def sample(self, after: timedelta = timedelta(seconds=5)) -> int | None:
        self.passed += after
        move_clock(self.work.connection, self.passed)
        value = self.work.fetch("select trunq.sample()")
        return None if value is None else int(value)


@pytest.fixture
def clock(work: Engine) -> Clock:
    return Clock(work)


def latest(work: Engine, subscription: str | None = "default") -> Any:
    (row,) = [row for row in work.call("latest_samples") if row.subscription == subscription]
    return row


def written(work: Engine) -> int:
    """Rows of the queue itself."""
    return int(
        work.fetch(
            "select count(*) from trunq.sample where subscription = '' and queue_id = %s", work.queue_id
        )
    )


def test_a_sample_has_the_figures_of_status(work: Engine, clock: Clock) -> None:
    ids = work.publish(20)
    work.publish(2, delay="1 hour")
    held = work.lease(10, worker="ada")
    work.ack(held, ids[:3])
    work.answer("reject", held, ids[3:4])
    clock.sample()
    row, status = latest(work), work.status()
    for name in ("mode", "ready", "leased", "delayed", "dead", "parked", "workers", "done_last_minute"):
        assert getattr(row, name) == getattr(status, name), name
    assert (row.ready, row.leased, row.delayed, row.dead) == (10, 6, 2, 1)
    assert (row.answered, row.answers) == (4, {"success": 3, "rejected": 1})
    assert row.oldest_ready > timedelta(0)
    assert row.lag is None


def test_of_an_exclusive_subscription_it_has_the_lag(work: Engine, clock: Clock) -> None:
    work.ask("subscribe", subscription="stream", mode="exclusive")
    work.publish(7)
    clock.sample()
    row = latest(work, "stream")
    assert row.lag_messages == 7
    assert row.lag > timedelta(0)


def test_published_counts_each_message_once_however_late_it_commits(
    work: Engine, clock: Clock, connect: Connect
) -> None:
    clock.sample()
    other = work.on(connect())
    with other.connection.transaction():
        other.publish(2)
        work.publish(3)
        clock.sample()
        assert latest(work, None).published == 3
        work.publish(1)
    clock.sample()
    assert latest(work, None).published == 6
    held = work.lease(1)
    work.answer("retry", held, held.ids)
    clock.sample()
    assert latest(work, None).published == 6, "a retry is no new message"


def test_answers_are_counted_once_while_statistics_take_them_over(work: Engine, clock: Clock) -> None:
    work.publish(40)
    counted = 0
    for after in (5, 61, 61, 5, 200, 400, 61):
        held = work.lease(3)
        work.ack(held)
        counted += 3
        clock.sample(timedelta(seconds=after))
        assert latest(work).answers == {"success": counted}
        work.ask("roll_up")
        clock.sample()
        assert latest(work).answered == counted


def test_counters_do_not_fall_when_everything_is_emptied(work: Engine, clock: Clock) -> None:
    clock.sample()
    work.publish(10)
    work.ack(work.lease(10))
    clock.sample()
    work.ask("empty_queue")
    work.run("delete from trunq.statistic where queue_id = %s", work.queue_id)
    clock.sample()
    assert (latest(work, None).published, latest(work).answered) == (10, 10)
    work.publish(2)
    clock.sample()
    assert latest(work, None).published == 12


def test_after_days_without_a_leader_it_goes_on_from_the_last_sample(work: Engine, clock: Clock) -> None:
    clock.sample()
    work.publish(4)
    work.ack(work.lease(4))
    clock.sample()
    # The segment that comes next may be the one that has the last sample.
    for away in (timedelta(days=3), timedelta(hours=32), timedelta(hours=68)):
        clock.sample(away)
        clock.sample()
        assert (latest(work, None).published, latest(work).answered) == (4, 4), away


def test_what_was_sampled_before_the_clock_went_back_is_no_newer(work: Engine, clock: Clock) -> None:
    for _ in range(3):
        clock.sample()
        work.publish(1)
    clock.sample(-timedelta(seconds=12))
    seen = [latest(work, None).published]
    for _ in range(5):
        clock.sample()
        seen.append(latest(work, None).published)
    assert seen == sorted(seen)
    assert seen[-1] == 3


def test_it_is_done_once_in_four_seconds_and_by_one_at_a_time(
    work: Engine, clock: Clock, connect: Connect
) -> None:
    assert clock.sample() == 1
    assert clock.sample(timedelta(seconds=3)) == 0
    other = connect()
    with other.transaction():
        move_clock(other, clock.passed + timedelta(seconds=5))
        assert fetch(other, "select trunq.sample()") == 1
        assert clock.sample() is None
    assert clock.sample(timedelta(seconds=1)) == 0


def test_a_queue_where_nothing_happens_has_a_row_a_minute(work: Engine, clock: Clock) -> None:
    for _ in range(36):
        clock.sample()
    assert 3 <= written(work) <= 5
    before = written(work)
    work.publish(1)
    clock.sample()
    assert written(work) == before + 1
    assert latest(work).ready == 1


def test_of_many_idle_queues_it_looks_at_twelve_and_repeats_the_others(work: Engine, clock: Clock) -> None:
    queues = [Engine(work.connection, f"{work.queue}_{n}").create() for n in range(15)]
    try:
        assert clock.sample() == 16
        # What this session has done is told to the server now.
        work.fetch("select pg_stat_force_next_flush()")
        clock.sample()
        clock.sample()
        assert clock.sample() == 12
        queues[3].publish(2)
        work.fetch("select pg_stat_force_next_flush()")
        assert clock.sample() == 13
        assert latest(queues[3]).ready == 2
        clock.sample(timedelta(seconds=56))
        ages = [row.sampled_at for row in call(work.connection, "latest_samples") if row.subscription is None]
        assert len(ages) == 16
        newest = work.fetch("select trunq.sampled_at()")
        assert 12 <= sum(at == newest for at in ages) < 16
    finally:
        for queue in queues:
            queue.ask("drop_queue", force=True)


def test_many_idle_queues_take_turns_and_what_is_purged_in_one_is_soon_seen(
    work: Engine, clock: Clock
) -> None:
    queues = [Engine(work.connection, f"{work.queue}_{n:02}").create() for n in range(24)]
    last = queues[-1]
    try:
        last.publish(3)
        last.answer("reject", last.lease(3))
        for _ in range(3):
            work.fetch("select pg_stat_force_next_flush()")
            clock.sample()
        assert latest(last).dead == 3
        last.ask("purge")
        for _ in range(3):
            assert clock.sample() == 12
        assert latest(last).dead == 0
    finally:
        for queue in queues:
            queue.ask("drop_queue", force=True)


def test_a_queue_that_cannot_be_looked_at_is_noted_and_the_others_have_theirs(
    work: Engine, clock: Clock
) -> None:
    broken = Engine(work.connection, f"a_{work.queue}").create()
    broken.publish(1)
    broken.ack(broken.lease(1))
    work.run(f"alter table trunq_data.{broken.queue}_receipt rename to gone")
    try:
        assert clock.sample() == 2
        assert latest(work).ready == 0
        assert work.run("select duty, queue from trunq.duty_failure").fetchall() == [("sample", broken.queue)]
    finally:
        work.run(f"alter table trunq_data.gone rename to {broken.queue}_receipt")
    clock.sample()
    assert latest(broken).ready == 0
    assert work.fetch("select count(*) from trunq.duty_failure") == 0
    broken.ask("drop_queue", force=True)


def test_a_queue_whose_tables_somebody_holds_is_left_out(
    work: Engine, clock: Clock, connect: Connect
) -> None:
    other = connect()
    with other.transaction():
        other.execute(f"lock table trunq_log.{work.queue}".encode())
        clock.sample()
        assert work.call("latest_samples") == []
    clock.sample()
    assert latest(work).ready == 0


def test_samples_of_a_day_are_kept_and_older_ones_go_by_segments(
    work: Engine, clock: Clock, connect: Connect
) -> None:
    for _ in range(40):
        clock.sample(timedelta(hours=3))
    oldest, now = work.run("select min(at), trunq.clock() from trunq.sample").fetchone() or (None, None)
    assert timedelta(hours=24) <= now - oldest <= timedelta(hours=33)
    reader = connect()
    with reader.transaction():
        reader.execute("select from trunq.sample limit 1")
        for _ in range(2):
            assert clock.sample(timedelta(hours=3)) is not None
    clock.sample()


def test_a_queue_that_was_dropped_is_in_no_list(work: Engine, clock: Clock) -> None:
    clock.sample()
    work.ask("unsubscribe", subscription="default")
    assert [row.subscription for row in work.call("latest_samples")] == [None]


def test_a_clock_that_went_back_stops_no_sample(work: Engine, clock: Clock) -> None:
    clock.sample(timedelta(hours=1))
    clock.sample(timedelta(minutes=-30))
    work.publish(2)
    assert clock.sample() == 1
    assert latest(work).ready == 2


def test_the_warnings_say_that_samples_stopped(work: Engine, clock: Clock) -> None:
    clock.sample()
    work.run("select trunq.elect('me', '10 minutes')")
    work.run("insert into trunq.duty_done values ('sample', '', trunq.clock() - interval '2 minutes')")
    try:
        (told,) = [row for row in call(work.connection, "list_warnings") if "duty sample" in row.warning]
        assert "was last done at" in told.warning
        assert "pg_stat_activity" in told.hint
    finally:
        work.run("delete from trunq.duty_done")
        work.run("update trunq.leader set name = null, expires_at = null, lease_time = null")
