"""The reaper finds every lease that ran out, whoever is slow and whatever the clock does."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import calling
from calling import answer, ask, come_back, fetch, lease, move_clock, publish, refused, set_policy, state
from conftest import Connect
from waiting import wait_until_blocked

Connection = psycopg.Connection[Any]

SHORT = timedelta(milliseconds=200)


@pytest.fixture
def other(open_session: Connect) -> Connection:
    """A second session, in transactions."""
    return open_session(autocommit=False)


@pytest.fixture
def reaper(open_session: Connect) -> Connection:
    """The leader's session: its clock is moved."""
    return open_session()


def reap(reaper: Connection, queue: str, clock: str) -> int:
    """Reap at a moved time."""
    move_clock(reaper, clock)
    return int(ask(reaper, "reap", queue=queue))


def drain(session: Connection, queue: str) -> list[int]:
    """Everything, what comes back scattered too."""
    come_back(session, queue)
    return calling.drain(session, queue)


def mark(session: Connection, queue: str) -> Any:
    """Up to when the reaper has looked."""
    marks = "trunq.mark m join trunq.queue q using (queue_id)"
    return fetch(session, f"select m.at from {marks} where q.name = %s and m.duty = 'reap'", queue)


def test_a_lease_that_commits_after_the_look_is_reaped(
    session: Connection, other: Connection, reaper: Connection, queue: str
) -> None:
    ids = publish(session, queue, 2)
    lease(session, queue, lease_time=SHORT)
    lease(other, queue, lease_time=SHORT)
    for minutes in (1, 2, 3):
        reap(reaper, queue, f"{minutes} minutes")
    other.commit()
    for minutes in (4, 5):
        reap(reaper, queue, f"{minutes} minutes")
    assert sorted(drain(session, queue)) == ids


def test_a_clock_that_went_back_between_two_looks(
    session: Connection, reaper: Connection, queue: str
) -> None:
    ids = publish(session, queue, 2)
    lease(session, queue)
    assert reap(reaper, queue, "1 hour") == 1
    assert mark(session, queue) is not None
    # An hour back: the next lease ends long before the mark, and even before the next look.
    assert {lease(session, queue, lease_time=SHORT).ids[0] for _ in ids} == set(ids)
    assert reap(reaper, queue, "1 minute") == 2
    assert sorted(drain(session, queue)) == ids


def test_a_clock_that_went_back_and_passed_the_mark_again_before_the_next_look(
    session: Connection, reaper: Connection, queue: str
) -> None:
    ids = publish(session, queue, 2)
    lease(session, queue)
    assert reap(reaper, queue, "1 hour") == 1
    assert {lease(session, queue, lease_time=SHORT).ids[0] for _ in ids} == set(ids)
    assert reap(reaper, queue, "61 minutes") == 2
    assert sorted(drain(session, queue)) == ids


def test_a_clock_that_went_back_before_a_lease_was_extended(
    session: Connection, reaper: Connection, queue: str
) -> None:
    ids = publish(session, queue, 2)
    lease(session, queue)
    held = lease(session, queue, lease_time=timedelta(hours=5))
    assert reap(reaper, queue, "1 hour") == 1
    # A heartbeat, by the clock that went back: to a minute from now.
    ask(session, "extend", **held.named)
    assert reap(reaper, queue, "61 minutes") == 1
    assert sorted(drain(session, queue)) == ids


@pytest.fixture
def patient(session: Connection) -> Iterator[None]:
    """The reaper waits for its mark, so that it can be watched: as installed, it does so for 5 ms."""
    change = "alter function trunq._note_reaped set lock_timeout = '{}'"
    session.execute(change.format("20s").encode())
    yield
    session.execute(change.format("5ms").encode())


@pytest.mark.usefixtures("patient")
def test_an_extension_back_in_time_holds_against_a_reaper_that_has_looked(
    session: Connection,
    other: Connection,
    reaper: Connection,
    queue: str,
    meanwhile: Any,
    open_session: Connect,
) -> None:
    ids = publish(session, queue, 3)
    lease(session, queue)
    held = lease(session, queue, lease_time=timedelta(hours=5))
    assert reap(reaper, queue, "1 hour") == 1
    lease(session, queue, lease_time=timedelta(hours=6))
    # It writes its mark only after the extension: the row is taken.
    fetch(
        other,
        "select 1 from trunq.mark join trunq.queue q using (queue_id) where q.name = %s for update",
        queue,
    )
    slow = meanwhile(reap, reaper, queue, "2 hours")
    wait_until_blocked(open_session(), reaper)
    other.execute("select trunq.extend(%s, 'default', %s, %s)", (queue, held.lease_id, held.token))
    other.commit()
    assert slow.result(120) == 0
    assert reap(reaper, queue, "3 hours") == 1
    assert set(drain(session, queue)) >= set(ids[:2])


def test_what_ran_out_long_ago_is_reaped_after_a_pause(
    session: Connection, reaper: Connection, queue: str
) -> None:
    ids = publish(session, queue, 3)
    for _ in ids:
        lease(session, queue, lease_time=SHORT)
    assert reap(reaper, queue, "9 days") == 3
    assert reap(reaper, queue, "9 days") == 0
    assert sorted(drain(session, queue)) == ids


def test_a_lease_being_answered_is_passed_over_and_comes_back(
    session: Connection, other: Connection, reaper: Connection, queue: str
) -> None:
    ids = publish(session, queue, 3)
    held = [lease(session, queue) for _ in ids]
    answer(other, "ack", held[0])
    assert reap(reaper, queue, "1 hour") == 2
    before = mark(session, queue)
    assert before is not None
    assert before < held[0].messages[0].expires_at
    come_back(session, queue)
    assert lease(session, queue)
    assert reap(reaper, queue, "2 hours") == 1
    other.rollback()
    assert reap(reaper, queue, "3 hours") == 1
    assert sorted(drain(session, queue)) == ids


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_lease_locked_by_a_prepared_transaction_waits_for_its_end(
    session: Connection, open_session: Connect, reaper: Connection, queue: str, end: str
) -> None:
    ids = publish(session, queue, 2)
    held, free = lease(session, queue), lease(session, queue)
    user = open_session()
    user.execute("set trunq.notify = off")
    user.execute("begin")
    answer(user, "ack", held)
    user.execute(f"prepare transaction 'handler_{queue}'".encode())
    user.close()
    for hours in (1, 2, 3):
        assert reap(reaper, queue, f"{hours} hours") == (1 if hours == 1 else 0)
    assert state(session, queue, ids[0]).state == "leased"
    session.execute(f"{end} prepared 'handler_{queue}'".encode())
    assert reap(reaper, queue, "4 hours") == (1 if end == "rollback" else 0)
    assert sorted(drain(session, queue)) == (ids if end == "rollback" else free.ids)


def test_a_prepared_lease_is_neither_reaped_nor_lost(
    session: Connection, open_session: Connect, reaper: Connection, queue: str
) -> None:
    ids = publish(session, queue, 2)
    user = open_session()
    user.execute("begin")
    lease(user, queue, lease_time=SHORT)
    user.execute(f"prepare transaction 'lease_{queue}'".encode())
    assert reap(reaper, queue, "1 hour") == 0
    session.execute(f"commit prepared 'lease_{queue}'".encode())
    assert reap(reaper, queue, "2 hours") == 1
    assert sorted(drain(session, queue)) == ids


def test_an_extension_that_has_not_committed_yet_keeps_its_lease(
    session: Connection, other: Connection, reaper: Connection, queue: str
) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue, lease_time=SHORT)
    ask(other, "extend", **held.named, lease_time=timedelta(hours=3))
    assert reap(reaper, queue, "1 hour") == 0
    other.commit()
    assert reap(reaper, queue, "2 hours") == 0
    assert answer(session, "ack", held) == 1
    assert state(session, queue, id).state == "done"


def test_a_lease_extended_while_the_reaper_ends_another_is_kept(
    session: Connection,
    other: Connection,
    reaper: Connection,
    queue: str,
    meanwhile: Any,
    open_session: Connect,
) -> None:
    """The reaper had found it due: it asks again under the lock of the lease."""
    ids = publish(session, queue, 2)
    due, held = lease(session, queue, lease_time=SHORT), lease(session, queue, lease_time=2 * SHORT)
    fetch(other, f"select 1 from trunq_data.{queue}_lease where lease_id = %s for update", due.lease_id)
    slow = meanwhile(reap, reaper, queue, "1 hour")
    wait_until_blocked(open_session(), reaper)
    ask(session, "extend", **held.named, lease_time=timedelta(hours=2))
    other.commit()
    assert slow.result(120) == 1
    assert answer(session, "ack", held) == 1
    assert drain(session, queue) == ids[:1]


def test_an_extension_that_was_rolled_back_does_not(
    session: Connection, other: Connection, reaper: Connection, queue: str
) -> None:
    publish(session, queue)
    held = lease(session, queue, lease_time=SHORT)
    ask(other, "extend", **held.named, lease_time=timedelta(hours=3))
    assert reap(reaper, queue, "1 hour") == 0
    other.rollback()
    assert reap(reaper, queue, "2 hours") == 1
    with refused("TQ003"):
        answer(session, "ack", held)


def test_an_extension_that_waited_for_the_reaper_is_refused(
    session: Connection, other: Connection, queue: str, meanwhile: Any, open_session: Connect
) -> None:
    publish(session, queue)
    held = lease(session, queue)
    assert reap(other, queue, "1 hour") == 1
    late = meanwhile(ask, session, "extend", **held.named, lease_time=timedelta(hours=3))
    wait_until_blocked(open_session(), session)
    other.commit()
    with refused("TQ003"):
        late.result(120)
    assert lease(session, queue).ids == held.ids


def test_a_shortened_lease_that_commits_after_the_look_is_reaped(
    session: Connection, other: Connection, reaper: Connection, queue: str
) -> None:
    ids = publish(session, queue, 2)
    held = lease(session, queue, lease_time=timedelta(hours=9))
    lease(session, queue)
    ask(other, "extend", **held.named, lease_time=timedelta(minutes=1))
    for minutes in (2, 3, 4):
        reap(reaper, queue, f"{minutes} minutes")
    other.commit()
    for minutes in (5, 6):
        reap(reaper, queue, f"{minutes} minutes")
    assert sorted(drain(session, queue)) == ids


def test_at_most_a_hundred_leases_go_in_one_transaction(
    session: Connection, reaper: Connection, queue: str
) -> None:
    ids = publish(session, queue, 230)
    for _ in ids:
        lease(session, queue)
    locks = "select count(*) from pg_locks where classid = 1953656419 and pid = pg_backend_pid()"
    move_clock(reaper, "1 hour")
    with reaper.transaction():
        assert ask(reaper, "reap", queue=queue) == 100
        assert fetch(reaper, locks) <= 100
    assert [ask(reaper, "reap", queue=queue) for _ in range(3)] == [100, 30, 0]
    assert sorted(drain(session, queue)) == ids


def test_two_reapers_at_once_reap_everything_once(
    session: Connection, other: Connection, reaper: Connection, queue: str
) -> None:
    ids = publish(session, queue, 5)
    for _ in ids:
        lease(session, queue)
    assert reap(other, queue, "1 hour") == 5
    assert reap(reaper, queue, "1 hour") == 0
    other.rollback()
    assert reap(reaper, queue, "2 hours") == 5
    come_back(session, queue)
    again = lease(session, queue, 9)
    assert sorted(again.ids) == ids
    assert {message.attempt for message in again.messages} == {2}


def test_a_look_leaves_no_lock_behind(session: Connection, reaper: Connection, queue: str) -> None:
    publish(session, queue)
    lease(session, queue)
    locks = "select count(*) from pg_locks where classid = 1953656418 and pid = pg_backend_pid()"
    with reaper.transaction():
        ask(reaper, "reap", queue=queue)
        assert fetch(reaper, locks) == 0
        assert not lease(session, queue), "nobody waits for the reaper"


def test_the_last_attempt_dies_with_its_lease(session: Connection, reaper: Connection, queue: str) -> None:
    set_policy(session, queue, max_attempts=2)
    (id,) = publish(session, queue)
    for hours in (1, 2):
        assert lease(session, queue).messages[0].attempt == hours
        assert reap(reaper, queue, f"{hours} hours") == 1
    row = state(session, queue, id)
    assert row.state == "dead"
    assert [each["outcome"] for each in row.attempts] == ["lease_expired", "lease_expired"]
    assert not lease(session, queue)
