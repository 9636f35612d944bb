"""Throwing away what a queue holds: functions/keep/empty.sql."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import call, new_names, refused
from conftest import Connect
from engine import Engine

TABLES = ("log", "lease", "receipt")


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    return Engine(session, next(new_names("empty"))).create()


def test_everything_goes_but_the_dead(work: Engine) -> None:
    dead, done, held, waiting = work.publish(4)
    work.publish(delay="1 hour")
    work.answer("reject", work.lease())
    work.ack(work.lease())
    work.lease()
    assert work.ask("empty_queue") == 5
    assert all(work.is_empty(table) for table in TABLES)
    row = work.status()
    assert (row.ready, row.leased, row.delayed, row.dead) == (0, 0, 0, 1)
    assert work.ask("requeue") == 1
    assert work.drain() == [dead]
    assert work.ask("empty_queue") == 0, "a message for one reader counts where it was published"
    assert {done, held, waiting}.isdisjoint(work.listed())


def test_what_is_published_afterwards_comes_to_everyone(work: Engine) -> None:
    work.ask("subscribe", subscription="other")
    work.ask("subscribe", subscription="stream", mode="exclusive")
    work.publish(5)
    work.lease(2)
    assert work.ask("empty_queue") == 5
    ids = work.publish(3)
    assert work.drain() == work.drain("other") == ids
    work.ask("tick", force=True)
    (batch,) = work.call("next_batch", subscription="stream", worker="w")
    rows = work.call("read_batch", subscription="stream", batch_id=batch.batch_id)
    assert [row.id for row in rows] == ids


def test_a_transaction_that_began_before_and_publishes_afterwards_loses_nothing(
    work: Engine, open_session: Connect
) -> None:
    other = work.on(open_session(autocommit=False))
    other.connection.execute("select pg_current_xact_id()")
    work.publish()
    assert work.ask("empty_queue") == 1
    ids = other.publish(2)
    later = work.publish()
    other.connection.commit()
    assert sorted(work.drain()) == sorted(ids + later)


def test_who_holds_messages_or_a_batch_finds_that_the_lease_has_ended(work: Engine) -> None:
    work.ask("subscribe", subscription="stream", mode="exclusive")
    work.publish(2)
    held = work.lease(2)
    work.ask("tick", force=True)
    (batch,) = work.call("next_batch", subscription="stream", worker="w")
    work.ask("empty_queue")
    for verb in ("ack", "retry", "release"):
        with refused("TQ003"):
            work.answer(verb, held)
    with refused("TQ003"):
        work.call("finish_batch", subscription="stream", batch_id=batch.batch_id, token=batch.token)
    with work.clock("1 day"):
        assert work.ask("reap") == 0


def test_other_queues_keep_what_they_have(work: Engine) -> None:
    other = Engine(work.connection, next(new_names("empty"))).create()
    ids = other.publish(2)
    other.publish(delay="1 hour")
    work.publish()
    work.ask("empty_queue")
    assert other.status().delayed == 1
    assert other.drain() == ids


def test_an_open_transaction_of_a_publisher_is_waited_for_and_named(
    work: Engine, open_session: Connect
) -> None:
    other = work.on(open_session(autocommit=False))
    other.publish()
    with refused("TQ009", work.queue, "pg_stat_activity"):
        work.ask("empty_queue")
    other.connection.commit()
    assert work.ask("empty_queue") == 1


def test_it_is_refused_above_read_committed_and_for_no_queue(work: Engine) -> None:
    with refused("TQ001", "create_queue"):
        call(work.connection, "empty_queue", queue="nowhere")
    with refused("TQ007"), work.connection.transaction():
        work.connection.execute("set transaction isolation level repeatable read")
        work.ask("empty_queue")
