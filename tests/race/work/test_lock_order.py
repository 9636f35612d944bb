"""Transactions that lease, answer and extend take their locks in one order, and none ends in a deadlock."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from calling import answer, ask, call, fetch, lease, move_clock, publish, refused
from conftest import Connect
from waiting import wait_until_blocked

Connection = psycopg.Connection[Any]

SHORT, LONG = timedelta(seconds=1), timedelta(hours=1)


@pytest.fixture
def first(open_session: Connect) -> Connection:
    """A session in transactions."""
    return open_session(autocommit=False)


@pytest.fixture
def second(open_session: Connect) -> Connection:
    """Another."""
    return open_session(autocommit=False)


def test_two_that_lease_and_make_a_lease_shorter_go_one_after_the_other(
    session: Connection, first: Connection, second: Connection, queue: str, meanwhile: Any
) -> None:
    publish(session, queue, 3)
    held = lease(session, queue)
    assert lease(first, queue)
    late = meanwhile(ask, second, "extend", **held.named, lease_time=SHORT)
    wait_until_blocked(session, second)
    end = ask(first, "extend", **held.named, lease_time=SHORT)
    first.commit()
    assert late.result(120) >= end
    assert lease(second, queue)
    second.commit()


def test_two_that_lease_and_extend_a_batch_go_one_after_the_other(
    session: Connection, first: Connection, second: Connection, queue: str, meanwhile: Any
) -> None:
    one = {"queue": queue, "subscription": "stream"}
    ask(session, "subscribe", **one, mode="exclusive")
    ask(session, "tick", queue=queue, force=True)
    call(session, "next_batch", **one, worker="w")
    (batch,) = call(first, "next_batch", **one, worker="w")
    named = {**one, "lease_id": batch.batch_id, "token": batch.token}
    late = meanwhile(call, second, "extend", **named)
    wait_until_blocked(session, second)
    assert ask(first, "extend", **named)
    first.commit()
    assert late.result(120)


def test_a_lease_that_another_call_extends_meanwhile_keeps_the_later_end(
    session: Connection, first: Connection, queue: str, meanwhile: Any, open_session: Connect
) -> None:
    publish(session, queue)
    held = lease(session, queue, lease_time=SHORT)
    end = ask(first, "extend", **held.named, lease_time=LONG)
    late = meanwhile(ask, session, "extend", **held.named, lease_time=timedelta(minutes=1))
    wait_until_blocked(open_session(), session)
    first.commit()
    assert late.result(120) == end
    assert fetch(session, f"select expires_at from trunq_data.{queue}_lease") == end


WAITING = """
    create function public.wait_for_test() returns trigger language plpgsql as
      $$ begin perform pg_advisory_xact_lock(8, 8); return new; end $$;
    create trigger wait before insert on trunq_log.{} for each row execute function public.wait_for_test()
"""


def test_the_reaper_waits_for_no_transaction_that_made_a_lease_shorter(
    connect: Connect, meanwhile: Any
) -> None:
    """It holds the locks of leases that it ends, and that transaction may want to answer one of them."""
    session, reaper, first, watcher = connect(), connect(), connect(autocommit=False), connect()
    ask(session, "create_queue", queue="orders")
    (id, _) = publish(session, "orders", 2)
    lost = lease(session, "orders", worker="lost", lease_time=SHORT)
    held = lease(session, "orders", lease_time=LONG)
    session.execute(WAITING.format("orders").encode())
    session.execute("select pg_advisory_lock(8, 8)")
    move_clock(reaper, "1 minute")
    reaped = meanwhile(ask, reaper, "reap", queue="orders")
    wait_until_blocked(watcher, reaper)
    # The reaper has looked, and has not noted yet how far.
    ask(first, "extend", **held.named, lease_time=timedelta(minutes=30))
    late = meanwhile(answer, first, "ack", lost)
    wait_until_blocked(watcher, first)
    session.execute("select pg_advisory_unlock(8, 8)")
    assert reaped.result(120) == 1
    with refused("TQ003"):
        late.result(120)
    first.rollback()
    assert lease(session, "orders").ids == [id]
    # The mark was left where it was: the other lease is found when it runs out.
    move_clock(reaper, "2 hours")
    assert ask(reaper, "reap", queue="orders") == 2


def test_one_that_reads_a_log_and_then_publishes_is_no_victim_of_a_new_rule(
    connect: Connect, meanwhile: Any
) -> None:
    session, reader, ruler, queue = connect(), connect(autocommit=False), connect(), "q"
    ask(session, "create_queue", queue=queue, kinds=["mail"])
    session.execute("alter function trunq._try_for_locks set lock_timeout = '20 s'")
    assert fetch(reader, f"select count(*) from trunq_log.{queue}") == 0
    # One trigger comes, another goes.
    late = meanwhile(ask, ruler, "set_publishing", queue=queue, kinds=[], max_waiting=5)
    wait_until_blocked(session, ruler)
    publish(reader, queue, kinds=["mail"])
    reader.commit()
    late.result(120)


def test_a_rule_that_changes_waits_for_no_reader(session: Connection, first: Connection, queue: str) -> None:
    ask(session, "set_publishing", queue=queue, kinds=["mail"], max_waiting=5)
    assert fetch(first, f"select count(*) from trunq_log.{queue}") == 0
    ask(session, "set_publishing", queue=queue, kinds=["post"], max_per_transaction=5)
    ask(session, "close_queue", queue=queue)
