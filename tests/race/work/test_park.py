"""Whoever resumes a message against whoever parks it, and against all that may end it: nothing is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from calling import ask, call, fetch, lease, move_clock, publish, refused, state
from conftest import Connect
from waiting import wait_until_blocked

Connection = psycopg.Connection[Any]
T = "t"


@pytest.fixture
def other(open_session: Connect) -> Connection:
    """A second session, in transactions."""
    return open_session(autocommit=False)


def park(session: Connection, held: Any, token: str = T) -> int:
    delays = ["1 day"] * len(held.ids)
    return int(ask(session, "park", **held.named, ids=held.ids, tokens=[token], delays=delays))


def resume(session: Connection, queue: str, token: str = T) -> str:
    return str(ask(session, "resume", queue=queue, token=token, value={}))


@pytest.mark.parametrize("commits", [True, False])
def test_who_resumes_waits_for_a_message_that_is_being_parked(
    session: Connection, other: Connection, queue: str, commits: bool
) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue)
    assert park(other, held) == 1
    with ThreadPoolExecutor() as pool:
        resuming = pool.submit(resume, session, queue)
        wait_until_blocked(other, session)
        other.commit() if commits else other.rollback()
        assert resuming.result() == ("resumed" if commits else "noted")
    if not commits:
        assert park(session, held) == 1
    assert state(session, queue, id).state == "retrying"


def test_who_parks_waits_for_whoever_resumes_first(
    session: Connection, other: Connection, queue: str
) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue)
    assert resume(other, queue) == "noted"
    with ThreadPoolExecutor() as pool:
        parking = pool.submit(park, session, held)
        wait_until_blocked(other, session)
        other.commit()
        assert parking.result() == 1
    assert state(session, queue, id).state == "retrying"
    assert ask(session, "show_resumed", queue=queue, id=id) == {}


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_transaction_that_does_not_see_the_value_fails_and_may_run_again(
    session: Connection, other: Connection, queue: str, level: str
) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue)
    other.execute(f"set transaction isolation level {level}".encode())
    other.execute("select 1")
    assert resume(session, queue) == "noted"
    with refused("40001"):
        park(other, held)
    other.rollback()
    assert park(session, held) == 1
    assert state(session, queue, id).state == "retrying"


def test_of_two_messages_under_one_token_the_second_is_refused(
    session: Connection, other: Connection, queue: str
) -> None:
    publish(session, queue, 2)
    first, second = lease(session, queue), lease(session, queue)
    park(other, first)
    with ThreadPoolExecutor() as pool:
        parking = pool.submit(park, session, second)
        wait_until_blocked(other, session)
        other.commit()
        with refused("TQ015"):
            parking.result()
    assert park(session, second, "u") == 1


@pytest.mark.parametrize("commits", [True, False])
def test_of_two_who_resume_it_at_once_one_does(
    session: Connection, other: Connection, queue: str, commits: bool
) -> None:
    publish(session, queue)
    park(session, lease(session, queue))
    assert resume(other, queue) == "resumed"
    with ThreadPoolExecutor() as pool:
        resuming = pool.submit(resume, session, queue)
        wait_until_blocked(other, session)
        other.commit() if commits else other.rollback()
        assert resuming.result() == ("repeated" if commits else "resumed")
    ask(session, "promote", queue=queue)
    assert len(lease(session, queue, 9).ids) == 1


@pytest.mark.parametrize("first", ["resume", "cancel"])
def test_resumed_and_cancelled_at_once_it_is_one_of_them(
    session: Connection, other: Connection, queue: str, first: str
) -> None:
    (id,) = publish(session, queue)
    park(session, lease(session, queue))

    def cancel(connection: Connection) -> list[str]:
        return [row.state for row in call(connection, "cancel", queue=queue, ids=[id])]

    with ThreadPoolExecutor() as pool:
        if first == "resume":
            assert resume(other, queue) == "resumed"
            cancelling = pool.submit(cancel, session)
            wait_until_blocked(other, session)
            other.commit()
            assert cancelling.result() == ["retrying"] or state(session, queue, id).state in (
                "dead",
                "retrying",
            )
        else:
            assert cancel(other) == ["parked"]
            resuming = pool.submit(resume, session, queue)
            wait_until_blocked(other, session)
            other.commit()
            assert resuming.result() == "noted"
            assert state(session, queue, id).state == "dead"


def test_its_time_is_over_while_somebody_resumes_it(
    session: Connection, other: Connection, queue: str
) -> None:
    (id,) = publish(session, queue)
    park(session, lease(session, queue))
    assert resume(other, queue) == "resumed"
    move_clock(session, "2 days")
    assert ask(session, "promote", queue=queue) == 0, "left to whoever resumes it"
    other.commit()
    move_clock(session, "2 days 2 minutes")
    assert ask(session, "promote", queue=queue) == 1
    held = lease(session, queue)
    assert (held.ids, held.messages[0].attempt) == ([id], 1)


def test_two_leaders_fail_a_message_once(session: Connection, other: Connection, queue: str) -> None:
    publish(session, queue)
    park(session, lease(session, queue))
    for each in (session, other):
        move_clock(each, "2 days")
    assert ask(other, "promote", queue=queue) >= 1
    with ThreadPoolExecutor() as pool:
        # At its mark, which it sets last.
        promoting = pool.submit(ask, session, "promote", queue=queue)
        wait_until_blocked(other, session)
        other.commit()
        assert promoting.result() == 0
    assert fetch(
        session,
        "select max(attempt) from trunq.delayed d join trunq.queue q using (queue_id) where q.name = %s",
        queue,
    ) in (2, None)
