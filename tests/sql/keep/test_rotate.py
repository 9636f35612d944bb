"""A segment is emptied when nothing in it is needed, and what is needed stays: functions/keep/rotate.sql.

The clock is moved instead of waiting: three spans on, the segment all is written to has just become old.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import new_names, refused
from engine import Engine

RETENTION = "2000 days"
BEFORE = "1999 days"
OLD = "3000 days"
TABLES = ("log", "lease", "receipt")


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    return Engine(session, next(new_names("ring"))).create(retention=RETENTION)


def assert_everything_is_kept(work: Engine) -> None:
    """An idle cursor may have been moved meanwhile."""
    before = [work.fetch(f"select count(*) from {{{table}}}") for table in TABLES]
    work.rotate(OLD)
    after = [work.fetch(f"select count(*) from {{{table}}}") for table in TABLES]
    assert [max(*counts) for counts in zip(before, after, strict=True)] == after


def assert_everything_goes(work: Engine) -> None:
    assert work.rotate(OLD) >= 3
    assert work.is_empty("log")
    assert work.fetch("select count(*) from {receipt} where outcome <> 'b'") == 0
    assert work.fetch("select count(*) from {lease} where worker <> 'rotate'") == 0


def test_messages_then_leases_then_receipts_are_emptied(work: Engine) -> None:
    work.publish(20)
    work.drain()
    with work.clock(OLD):
        assert work.ask("rotate") == 1
        assert [work.is_empty(table) for table in TABLES] == [True, False, False]
        assert work.ask("rotate") == 1
        assert [work.is_empty(table) for table in TABLES] == [True, False, False], "the cursor was carried"
        assert work.ask("rotate") == 1
        assert work.fetch("select array_agg(worker) from {lease}") == ["rotate"], "the cursor alone is left"
        assert not work.is_empty("receipt")
        assert work.ask("rotate") == 1
        assert [work.pages(table) for table in TABLES] == [0, 1, 0]
        assert work.ask("rotate") == 0


def test_what_is_younger_than_the_retention_stays(work: Engine) -> None:
    work.publish(20)
    work.drain()
    for offset in ("0", "1000 days", BEFORE):
        assert work.rotate(offset) == 0
    assert not work.is_empty("log")


def test_a_message_one_subscription_has_not_read_keeps_its_segment(work: Engine) -> None:
    work.ask("subscribe", subscription="mail")
    work.publish()
    work.drain()
    assert_everything_is_kept(work)
    work.drain("mail")
    assert_everything_goes(work)


def test_half_a_window_read_keeps_its_segment(work: Engine) -> None:
    work.publish(4)
    work.ack(work.lease(2))
    assert_everything_is_kept(work)
    work.drain()
    assert_everything_goes(work)


def test_an_open_lease_keeps_its_messages_and_its_receipts(work: Engine) -> None:
    work.publish(4)
    lease = work.lease(4)
    work.ack(lease, lease.ids[:3])
    work.drain()
    assert_everything_is_kept(work)
    with work.clock("1 hour"):
        assert_everything_is_kept(work)
    work.ack(lease, lease.ids[3:])
    assert_everything_goes(work)


def test_a_lease_that_ran_out_keeps_its_messages_until_they_are_answered(work: Engine) -> None:
    (id,) = work.publish()
    work.lease()
    with work.clock("2 minutes"):
        assert work.ask("reap") == 1
        assert_everything_is_kept(work)
        assert work.drain() == [id]
    assert_everything_goes(work)


def test_a_retry_that_is_put_off_keeps_nothing(work: Engine) -> None:
    (id,) = work.publish()
    work.answer("retry", work.lease(), errors=["no"], delays=["1 hour"])
    work.drain()
    assert_everything_goes(work)
    with work.clock("2 hours"):
        assert work.ask("promote") == 1
        lease = work.lease()
    assert [(row.id, row.attempt, row.payload) for row in lease.messages] == [(id, 2, {"n": 0})]


def test_a_dead_message_keeps_nothing_and_can_be_requeued(work: Engine) -> None:
    (id,) = work.publish()
    work.answer("reject", work.lease(), errors=["no"])
    assert_everything_goes(work)
    assert work.state(id) == "dead"
    assert work.ask("requeue") == 1
    assert work.drain() == [id]


def test_what_nobody_committed_is_cleared_away(work: Engine) -> None:
    with work.connection.transaction(force_rollback=True):
        work.publish(500)
    assert not work.is_empty("log")
    assert work.rotate(OLD) == 1
    assert work.is_empty("log")


def test_a_shared_position_survives(work: Engine) -> None:
    work.ask("subscribe", subscription="mail")
    work.publish(10)
    work.drain()
    work.drain("mail")
    assert_everything_goes(work)
    assert work.drain() == work.drain("mail") == []
    ids = work.publish(10)
    assert work.drain() == work.drain("mail") == ids


def test_a_position_carried_on_survives_the_next_turn_too(work: Engine) -> None:
    work.publish(10)
    work.drain()
    assert_everything_goes(work)
    for turn in range(1, 5):
        # All that is left is the cursor, carried three spans further each time.
        assert work.rotate(f"{3000 + turn * 3000} days") == 2
    assert work.drain() == []
    ids = work.publish(3)
    assert work.drain() == ids


def test_a_cursor_in_the_middle_of_a_window_is_carried_as_it_is(work: Engine) -> None:
    ids = work.publish(10)
    work.ack(work.lease(4))
    with work.clock(OLD), work.connection.transaction():
        carried = work.fetch(
            "select trunq._carry_cursors(q, trunq._segment_at(q, clock_timestamp()),"
            " array(select s.subscription_id from trunq.subscription s where s.queue_id = {id}))"
            " from trunq.queue q where q.queue_id = {id}"
        )
        work.run("delete from {lease} where size > 0")
    assert carried == 1
    assert work.drain() == ids[4:]


def test_the_position_of_an_exclusive_reader_survives(work: Engine) -> None:
    work.ask("subscribe", subscription="lake", mode="exclusive")
    ids = work.publish(5)
    work.drain()
    tick = work.ask("tick", force=True)
    assert_everything_is_kept(work)
    (batch,) = work.call("next_batch", subscription="lake", worker="a")
    assert_everything_is_kept(work)
    assert [row.id for row in work.call("read_batch", subscription="lake", batch_id=batch.batch_id)] == ids
    work.ask("finish_batch", subscription="lake", batch_id=batch.batch_id, token=batch.token)
    assert work.ask("position", subscription="lake") == tick
    assert_everything_is_kept(work)
    tick = work.ask("tick", force=True)
    work.ask("advance", subscription="lake", tick_id=tick)
    assert_everything_goes(work)
    assert work.ask("position", subscription="lake") == tick
    assert work.call("next_batch", subscription="lake", worker="a") == []
    more = work.publish(5)
    work.ask("tick", force=True)
    (batch,) = work.call("next_batch", subscription="lake", worker="a")
    assert [row.id for row in work.call("read_batch", subscription="lake", batch_id=batch.batch_id)] == more


def test_an_open_batch_of_nothing_keeps_its_lease(work: Engine) -> None:
    work.ask("subscribe", subscription="lake", mode="exclusive")
    work.ask("tick", force=True)
    (batch,) = work.call("next_batch", subscription="lake", worker="a")
    assert_everything_is_kept(work)
    assert work.ask("finish_batch", subscription="lake", batch_id=batch.batch_id, token=batch.token)
    assert work.rotate(OLD) == 3
    assert work.ask("position", subscription="lake") == batch.to_tick_id


def test_a_reader_with_nothing_to_do_is_moved_on(work: Engine) -> None:
    work.ask("subscribe", subscription="mail")
    work.publish()
    work.drain("mail")
    # Nothing more for mail: what follows are retries of the other's.
    for _ in range(3):
        work.answer("retry", work.lease(), delays=["0"])
    work.drain()
    assert work.rotate(OLD) == 5
    assert work.is_empty("log")
    (id,) = work.publish()
    assert work.drain("mail") == [id]


def test_a_receipt_outlives_its_lease(work: Engine) -> None:
    work.publish()
    held = work.lease()
    work.ack(held)
    with work.clock(OLD):
        emptied = []
        while work.ask("rotate") == 1:
            emptied.append([work.fetch(f"select count(*) from {{{table}}}") for table in TABLES])
    assert emptied == [[0, 1, 1], [0, 2, 1], [0, 1, 1], [0, 1, 0]]


def test_a_receipt_stays_while_a_lease_lies_in_its_segment(work: Engine) -> None:
    work.publish()
    work.drain()
    with work.clock(OLD):
        assert [work.ask("rotate") for _ in range(3)] == [1, 1, 1]
    assert not work.is_empty("receipt")
    # As one would that began long ago.
    work.run("update {lease} set segment = (select segment from {receipt})")
    assert work.rotate(OLD) == 3, "carried, emptied, and then the receipts"
    assert work.is_empty("receipt")


def test_a_clock_that_went_back_hides_no_lease(work: Engine) -> None:
    work.publish()
    with work.clock("1 day"):
        work.drain()
    with work.clock("2 days"):
        work.ask("reap")
    (id,) = work.publish()
    held = work.lease()
    # Old already, without moving the clock again.
    for table in TABLES:
        work.rewrite(f"update {{{table}}} set segment = mod(segment + 1, 4)")
    assert work.status().leased == 1
    assert work.listed(state="leased") == [id]
    assert work.rotate() == 0
    work.ack(held)
    assert work.rotate() >= 3
    assert work.fetch("select count(*) from {log}") == 0


def test_ticks_older_than_the_retention_are_forgotten_except_those_a_reader_needs(work: Engine) -> None:
    work.ask("subscribe", subscription="lake", mode="exclusive")
    ticks = [work.ask("tick", force=True) for _ in range(5)]
    work.ask("advance", subscription="lake", tick_id=ticks[2])
    assert work.rotate(BEFORE) == 0
    assert len(work.call("list_ticks")) == 7
    assert work.rotate(OLD) == 3, "its position is carried, and what advance wrote goes"
    assert [row.tick_id for row in work.call("list_ticks")] == ticks[1:]
    work.ask("unsubscribe", subscription="lake")
    assert work.rotate(OLD) == 0
    assert [row.tick_id for row in work.call("list_ticks")] == ticks[4:], "the newest always stays"


def test_history_is_right_at_every_step_of_the_way(work: Engine) -> None:
    work.ask("subscribe", subscription="mail")
    done, retried, dead = work.publish(3)
    lease = work.lease(3)
    work.ack(lease, [done])
    work.answer("retry", lease, [retried], delays=["1 hour"])
    work.answer("reject", lease, [dead])
    work.drain("mail")
    (later,) = work.publish()
    work.drain("mail")
    # Everything but `later` is a span older.
    for table in ("{log}", "{lease}", "{receipt}"):
        work.rewrite(f"update {table} set segment = mod(segment + 3, 4)")
    work.rewrite("update {log} set segment = mod(segment + 1, 4) where id = %s", later)
    known = {done: "done", retried: "retrying", dead: "dead", later: "ready"}
    with work.clock("2000 days"):
        for step in range(5):
            shown = {row.id: row.state for row in work.call("list_messages", subscription="default")}
            assert shown.items() <= known.items()
            assert {retried, dead, later} <= shown.keys() | {dead}
            assert work.state(dead) == "dead"
            assert all(row.state == "done" for row in work.call("list_messages", subscription="mail"))
            assert work.ask("rotate") == (step < 4)
    assert work.drain("mail") == [], "its lease is gone, its position is not"
    assert work.drain() == [later]


def test_rotating_needs_read_committed(work: Engine) -> None:
    work.connection.execute("begin isolation level repeatable read")
    with refused("TQ007", "REPEATABLE READ"):
        work.ask("rotate")
    work.connection.execute("rollback")


def test_alone_in_its_transaction_it_waits_for_no_standby(work: Engine) -> None:
    shown = "select current_setting('synchronous_commit')"
    for before, during in (("remote_apply", "local"), ("on", "local"), ("off", "off")):
        work.run(f"set synchronous_commit = {before}")
        with work.connection.transaction():
            work.ask("rotate")
            assert work.fetch(shown) == during
        assert work.fetch(shown) == before
    work.run("set synchronous_commit = remote_apply")
    with work.connection.transaction():
        work.publish()
        work.ask("rotate")
        assert work.fetch(shown) == "remote_apply", "what was published waits"
    work.run("reset synchronous_commit")


def test_a_queue_without_the_default_subscription_keeps_nothing_for_it(
    session: psycopg.Connection[Any],
) -> None:
    work = Engine(session, next(new_names("ring"))).create(retention=RETENTION, default_subscription=False)
    assert work.call("list_subscriptions") == []
    work.publish(3)
    assert work.rotate(OLD) == 1
    assert work.is_empty("log")
