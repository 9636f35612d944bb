"""Why is it stuck? list_warnings names who stands in the way, within a minute, and the way out."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import call, fetch, new_names, refused
from conftest import Connect
from engine import Engine
from streaming import LAKE, take
from trunq import embedded, install
from waiting import wait_until

MINUTE = "1 minute"


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    return Engine(session, next(new_names("stuck"))).create()


@pytest.fixture
def other(work: Engine, open_session: Connect) -> Engine:
    """The same queue in a session whose transactions stay open, and which has a name."""
    other = work.on(open_session(autocommit=False))
    other.run("set application_name = 'webshop'")
    other.connection.commit()
    return other


def warned(work: Engine, offset: str = MINUTE) -> list[Any]:
    """The warnings about this queue, when so much time has passed."""
    with work.clock(offset):
        return work.call("list_warnings")


def test_an_open_transaction_that_published_and_does_nothing_is_named_within_a_quarter_of_a_minute(
    work: Engine, other: Engine
) -> None:
    other.publish()
    pid = other.connection.info.backend_pid
    assert warned(work, "5 seconds") == []
    (row,) = warned(work, "15 seconds")
    assert row.warning.startswith(
        f'process {pid} of role postgres, application "webshop", idle, in a transac'
    )
    assert row.warning.endswith(f'has published to queue "{work.queue}"')
    assert "until it commits" in row.hint
    command = row.hint.rpartition("; ")[2].removesuffix(" ends it")
    with work.clock("15 seconds"):
        work.run(command)
    with pytest.raises(psycopg.OperationalError):
        other.connection.commit()
    assert warned(work) == []


def test_an_open_transaction_that_only_looked_is_named_too(work: Engine, other: Engine) -> None:
    other.fetch("select count(*) from {log}")
    (row,) = warned(work)
    assert f'has locks on tables of queue "{work.queue}"' in row.warning
    other.connection.rollback()
    other.run("select 1")
    assert warned(work) == [], "it holds nothing of a queue"


def test_a_queue_that_is_called_as_a_segment_of_another_is_not_taken_for_that(
    work: Engine, open_session: Connect
) -> None:
    """Its tables have the names of work's, and one number more."""
    like = Engine(work.connection, f"{work.queue}_log_1").create()
    other = like.on(open_session(autocommit=False))
    other.publish()
    assert [row.queue for row in warned(work) + warned(like)] == [like.queue]


def test_a_transaction_that_leased_and_sleeps_is_named_with_its_subscription(
    work: Engine, other: Engine
) -> None:
    work.publish()
    other.lease()
    warnings = [row.warning for row in warned(work)]
    pid = other.connection.info.backend_pid
    lock = f'holds the lock of subscription "default" of queue "{work.queue}"'
    assert any(lock in each for each in warnings)
    assert all(f"process {pid} of role postgres" in each for each in warnings)


def test_who_waits_for_a_subscription_is_told_who_has_it(work: Engine, other: Engine) -> None:
    other.lease()
    pid = other.connection.info.backend_pid
    words = (f"process {pid} of role postgres", 'application "webshop", idle, in a transaction since')
    with refused("TQ008", *words, "pg_terminate_backend"):
        work.lease()


def test_a_session_that_takes_the_lock_of_a_subscription_outside_of_a_transaction_is_named_at_once(
    work: Engine, other: Engine
) -> None:
    id = work.fetch("select subscription_id from trunq.subscription where queue_id = {id}")
    other.run("select pg_advisory_lock(trunq._lock_class('subscription'), %s)", id)
    other.connection.commit()
    (row,) = warned(work, "0")
    assert 'role postgres, application "webshop" holds the lock of subscription "default"' in row.warning
    assert "TQ008" in row.hint
    other.run("select pg_advisory_unlock_all()")
    other.connection.commit()
    assert warned(work, "0") == []


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
def test_a_subscription_that_nobody_has_read_for_five_minutes_is_named_while_messages_wait(
    work: Engine, mode: str
) -> None:
    work.ask("unsubscribe", subscription="default")
    work.ask("subscribe", **LAKE, mode=mode)
    assert warned(work, "6 minutes") == [], "nothing waits"
    work.publish()
    assert warned(work, "4 minutes") == []
    (row,) = warned(work, "6 minutes")
    assert row.subscription == "lake"
    assert "nobody has read" in row.warning
    assert "for five minutes, and messages have waited since" in row.warning
    with work.clock("6 minutes"):
        assert (work.lease(subscription="lake") if mode == "shared" else take(work)) is not None
    assert warned(work, "6 minutes") == [], "somebody reads"
    assert warned(work, "12 minutes") == [] or mode == "exclusive"


def test_a_paused_subscription_is_not_taken_for_one_that_nobody_reads(work: Engine) -> None:
    work.publish()
    work.ask("pause_queue")
    assert warned(work, "6 minutes") == []
    work.ask("resume_queue")
    assert len(warned(work, "6 minutes")) == 1


def test_a_subscription_whose_messages_are_in_hand_is_not_taken_for_one_that_nobody_reads(
    work: Engine,
) -> None:
    work.publish(3)
    held = work.lease(1, lease_time="10 minutes")
    assert warned(work, "6 minutes") == [], "its worker is at work"
    work.ack(held)


def test_a_worker_that_died_with_messages_in_hand_is_named_for_ten_minutes(work: Engine) -> None:
    work.publish(3)
    work.lease(3, worker="lost at sea")
    with work.clock("2 minutes"):
        assert work.ask("reap") == 1
    (row,) = warned(work, "3 minutes")
    assert (row.subscription, 'worker "lost at sea"' in row.warning) == ("default", True)
    assert "messages in hand: 3" in row.warning
    assert [each for each in warned(work, "13 minutes") if "lost at sea" in each.warning] == []


def test_a_worker_that_took_its_own_leases_back_did_not_die(work: Engine) -> None:
    work.publish(3)
    work.lease(3, worker="restarted")
    assert work.ask("reclaim", subscription="default", worker="restarted") == 1
    assert warned(work) == []


def test_the_expiries_of_an_hour_ago_are_forgotten(work: Engine) -> None:
    work.publish(2)
    work.lease(1, worker="first")
    work.lease(1, worker="second", lease_time="3 hours")
    for hours in (1, 4):
        with work.clock(f"{hours} hours"):
            assert work.ask("reap") == 1
    assert work.fetch("select array_agg(worker) from trunq.expiry where queue_id = {id}") == ["second"]


def test_a_role_without_rights_sees_the_process_role_and_application(
    work: Engine, other: Engine, session: psycopg.Connection[Any]
) -> None:
    other.publish()
    pid = other.connection.info.backend_pid
    role = next(new_names("nobody"))
    session.execute(f"create role {role}".encode())
    session.execute(f"grant usage on schema trunq to {role}".encode())
    try:
        session.execute(f"set role {role}".encode())
        assert fetch(session, "select trunq._describe_session(%s)", pid) == (
            f'process {pid} of role postgres, application "webshop"'
        )
    finally:
        session.execute("reset role")
        session.execute(f"drop owned by {role}; drop role {role}".encode())


def test_a_look_at_many_queues_holds_the_locks_of_none(session: psycopg.Connection[Any]) -> None:
    queues = [Engine(session, next(new_names("many"))).create() for _ in range(12)]
    queues.append(Engine(session, next(new_names("many"))).create(lanes="key", hold_at_most="1 day"))
    for each in queues:
        each.publish()
    with session.transaction(), queues[0].clock("6 minutes"):
        rows = session.execute("select queue from trunq.list_warnings()").fetchall()
        held = session.execute(
            "select count(*) from pg_locks l join pg_class c on c.oid = l.relation join pg_namespace n"
            " on n.oid = c.relnamespace where l.pid = pg_backend_pid()"
            " and n.nspname in ('trunq_log', 'trunq_data')"
        ).fetchone()
    assert {each.queue for each in queues} <= {queue for (queue,) in rows}
    assert held == (0,)


def test_a_server_that_may_not_come_back_after_a_crash_is_named() -> None:
    with embedded.start(settings={"full_page_writes": "off"}) as server:
        install.install(server.dsn)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("select trunq.create_queue('orders')")
            (row,) = call(connection, "list_warnings")
            assert (row.queue, row.subscription) == ("", None)
            assert "full_page_writes is off" in row.warning
            assert call(connection, "list_warnings", queue="orders") == []
            for statement in row.hint.removeprefix("turn it on: ").split(", then "):
                connection.execute(statement)
            wait_until(lambda: call(connection, "list_warnings") == [])
