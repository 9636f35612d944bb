"""What status counts: functions/operate/status.sql."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from calling import ask, call, new_names, refused
from conftest import Connect
from engine import Engine


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    work = Engine(session, next(new_names("status"))).create()
    work.ask("subscribe", subscription="mail")
    return work


def test_an_empty_queue_has_nothing_of_anything(work: Engine) -> None:
    for row in work.call("status"):
        assert (row.queue, row.mode) == (work.queue, "shared")
        assert (row.ready, row.leased, row.delayed, row.dead, row.workers, row.done_last_minute) == (0,) * 6
        assert (row.oldest_ready, row.estimated) == (None, [])
    assert [row.subscription for row in work.call("status")] == ["default", "mail"]


def test_every_message_is_counted_where_it_is(work: Engine) -> None:
    ids = work.publish(20)
    work.publish(2, delay="1 hour")
    held = work.lease(10, worker="ada")
    work.ack(held, ids[:3])
    work.answer("retry", held, ids[3:5], delays=["1 hour"] * 2)
    work.answer("reject", held, ids[5:6])
    work.answer("release", held, ids[6:8])
    work.lease(4, worker="bob")
    row = work.status()
    assert (row.ready, row.leased, row.delayed, row.dead) == (8, 6, 4, 1)
    assert (row.workers, row.done_last_minute) == (2, 3)
    row = work.status("mail")
    assert (row.ready, row.leased, row.delayed, row.dead) == (20, 0, 2, 0)
    assert (row.workers, row.done_last_minute) == (0, 0)


def test_a_lease_counts_until_it_is_reaped(work: Engine) -> None:
    work.publish(3)
    held = work.lease(3)
    work.ack(held, held.ids[:1])
    with work.clock("2 minutes"):
        assert work.status().leased == 2
        work.ask("reap")
        row = work.status()
        assert (row.delayed, row.leased) == (2, 0)


def test_a_lease_from_before_the_clock_went_forth_again_counts_too(work: Engine) -> None:
    """It ended behind the reaper's mark, and was not there when that was made."""
    ids = work.publish(2)
    work.lease()
    assert work.ask("reap") == 0
    assert work.fetch("select count(*) from trunq.mark where queue_id = {id} and duty = 'reap'") == 1
    with work.clock("-1 hour"):
        work.lease()
    assert work.status().leased == 2
    assert work.listed(state="leased") == ids[::-1]
    assert work.ask("reap") == 1
    assert (work.status().leased, work.listed(state="leased")) == (1, ids[:1])


def test_a_worker_counts_for_a_minute_and_while_it_holds_something(work: Engine) -> None:
    work.publish(3)
    work.ack(work.lease(worker="quick"))
    work.lease(worker="slow", lease_time="10 minutes")
    assert work.status().workers == 2
    with work.clock("2 minutes"):
        assert work.status().workers == 1
    with work.clock("20 minutes"):
        assert work.status().workers == 0


def test_what_was_done_counts_for_a_minute(work: Engine) -> None:
    work.publish(5)
    work.drain()
    assert work.status().done_last_minute == 5
    with work.clock("61 seconds"):
        assert work.status().done_last_minute == 0


def test_the_oldest_waiting_tells_for_how_long(work: Engine) -> None:
    work.publish()
    with work.clock("1 hour"):
        waiting = work.status().oldest_ready
    assert timedelta(hours=1) <= waiting < timedelta(hours=1, minutes=1)
    work.drain()
    assert work.status().oldest_ready is None


def test_what_is_not_committed_is_not_there(work: Engine, open_session: Connect) -> None:
    other = work.on(open_session(autocommit=False))
    other.publish(5)
    assert work.status().ready == 0
    other.connection.commit()
    assert work.status().ready == 5


def test_late_ones_are_counted_once(work: Engine, open_session: Connect) -> None:
    late = work.on(open_session(autocommit=False))
    late.publish(5)
    work.publish(10)
    work.ack(work.lease(4))
    late.connection.commit()
    assert work.status().ready == 11
    work.ack(work.lease(4))
    work.publish()
    assert work.status().ready == 8
    assert len(work.drain()) == 8


def test_what_is_ready_is_exact_to_a_thousand_then_an_estimate_that_says_so(work: Engine) -> None:
    work.run("insert into {log} (kind) select 'k' from generate_series(1, 1000)")
    assert (work.status().ready, work.status().estimated) == (1000, [])
    work.run("insert into {log} (kind) select 'k' from generate_series(1, 99000)")
    row = work.status()
    assert row.estimated == ["ready"]
    assert row.ready == pytest.approx(100_000, rel=0.1)
    for _ in range(9):
        work.ack(work.lease(10_000))
    row = work.status()
    assert row.estimated == ["ready"]
    assert row.ready == pytest.approx(10_000, rel=0.1)
    work.ack(work.lease(9_999))
    assert (work.status().ready, work.status().estimated) == (1, [])


def test_rights_on_a_queues_tables_are_enough_for_whoever_looks(work: Engine) -> None:
    """Nobody is granted segments: a worker that serves until its queue is empty looks too."""
    work.run("insert into {log} (kind) select 'k' from generate_series(1, 5000)")
    work.ack(work.lease(1))
    work.lease(1)
    whole = work.status()
    work.run("create role {queue}_clerk")
    try:
        work.run("grant usage on schema trunq, trunq_log, trunq_queue, trunq_data to {queue}_clerk")
        work.run("grant select on all tables in schema trunq to {queue}_clerk")
        work.run("grant select on trunq_log.{queue}, trunq_data.{queue}_lease to {queue}_clerk")
        work.run("grant select on trunq_data.{queue}_receipt to {queue}_clerk")
        work.run("set role {queue}_clerk")
        row = work.status()
        assert (row.ready, row.leased, row.done_last_minute) == (whole.ready, 1, 1)
        assert row.estimated == ["ready"]
    finally:
        work.run("reset role")
        work.run("drop owned by {queue}_clerk; drop role {queue}_clerk")


def test_an_estimate_counts_what_the_subscription_gets(work: Engine) -> None:
    """Retries of another lie in the log too, and what is put off has drawn its id."""
    work.run(
        "insert into {log} (subscription_id) select case when n % 2 = 0 then s.subscription_id end"
        " from generate_series(1, 40000) n, trunq.subscription s where s.queue_id = {id} and s.name = 'mail'"
    )
    work.run(
        "insert into trunq.delayed (queue_id, id, subscription_id, due_at, created_at, attempt)"
        " select {id}, nextval('trunq_data.{queue}_message_id'), s.subscription_id,"
        " now() + '1 hour', now(), 1"
        " from generate_series(1, 30000) n, trunq.subscription s where s.queue_id = {id} and s.name = 'mail'"
    )
    plain, mail = work.status(), work.status("mail")
    assert plain.ready == pytest.approx(20_000, rel=0.1)
    assert mail.ready == pytest.approx(40_000, rel=0.1)
    assert (plain.delayed, plain.estimated) == (0, ["ready"])
    assert mail.delayed == pytest.approx(30_000, rel=0.3)
    assert mail.estimated == ["ready", "delayed"]


def test_what_lies_behind_the_position_of_a_stream_is_counted(work: Engine) -> None:
    work.ask("subscribe", subscription="lake", mode="exclusive")
    row = work.status("lake")
    assert (row.mode, row.ready, row.oldest_ready) == ("exclusive", 0, None)
    work.publish(4)
    work.answer("retry", work.lease(2), delays=["0", "0"])
    row = work.status("lake")
    assert (row.ready, row.estimated) == (4, [])
    assert row.oldest_ready > timedelta(0)
    tick = work.ask("tick", force=True)
    work.publish()
    assert work.status("lake").ready == 5
    work.ask("advance", subscription="lake", tick_id=tick)
    assert work.status("lake").ready == 1
    (batch,) = work.call("next_batch", subscription="lake", worker="w", cut=False) or [None]
    assert batch is None, "no tick, no batch"
    work.run(f"insert into trunq_log.{work.queue} (kind) select 'k' from generate_series(1, 20000)")
    row = work.status("lake")
    assert (row.ready, row.estimated) == (pytest.approx(20_000, rel=0.1), ["ready"])


def test_who_reads_a_stream_is_a_worker(work: Engine) -> None:
    work.ask("subscribe", subscription="lake", mode="exclusive")
    assert work.status("lake").workers == 0
    work.publish()
    work.ask("tick", force=True)
    (batch,) = work.call("next_batch", subscription="lake", worker="w", lease_time="1 hour")
    with work.clock("10 minutes"):
        assert work.status("lake").workers == 1, "its batch is open"
        work.ask("finish_batch", subscription="lake", batch_id=batch.batch_id, token=batch.token)
        assert work.status("lake").workers == 0
    assert work.status("lake").workers == 1, "it had one within a minute"


def test_status_says_whether_somebody_leads(connection: psycopg.Connection[Any]) -> None:
    ask(connection, "create_queue", queue="orders")
    assert [row.led for row in call(connection, "status")] == [False]
    term = ask(connection, "elect", name="ada")
    assert [row.led for row in call(connection, "status")] == [True]
    ask(connection, "resign", name="ada", term=term)
    assert [row.led for row in call(connection, "status")] == [False]
    # As where pg_cron performs them.
    connection.execute("create schema cron; create table cron.job ()")
    assert [row.led for row in call(connection, "status")] == [False]
    call(connection, "perform_duties")
    assert [row.led for row in call(connection, "status")] == [True]


def test_all_queues_are_told_of_unless_one_is_named(work: Engine) -> None:
    other = Engine(work.connection, next(new_names("status"))).create()
    names = [row.queue for row in call(work.connection, "status")]
    assert {work.queue, other.queue} <= set(names)
    assert names == sorted(names)
    with refused("TQ001", "nowhere"):
        call(work.connection, "status", queue="nowhere")
