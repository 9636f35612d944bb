"""Two answers, or an answer and the reaper, for one message: one of them stands."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from calling import answer, ask, call, drain, fetch, lease, move_clock, publish, refused, set_policy, state
from conftest import Connect
from waiting import wait_until_blocked

Connection = psycopg.Connection[Any]
LEVELS = ("repeatable read", "serializable")


def copies(session: Connection, queue: str, id: int) -> int:
    """How often the message is in the log, waits in trunq.delayed or is dead."""
    places = (
        f"select id, '{queue}' name from trunq_log.{queue}"
        " union all select d.id, q.name from trunq.delayed d join trunq.queue q using (queue_id)"
        " union all select d.id, q.name from trunq.dead d join trunq.queue q using (queue_id)"
    )
    return int(fetch(session, f"select count(*) from ({places}) p where id = %s and name = %s", id, queue))


@pytest.fixture
def other(open_session: Connect) -> Connection:
    """A second session, in transactions."""
    return open_session(autocommit=False)


@pytest.fixture(autouse=True)
def retried_at_once(session: Connection, queue: str) -> None:
    set_policy(session, queue, backoff="constant", backoff_base=timedelta(0), jitter=0.0)


@pytest.mark.parametrize(
    ("first", "second"), [("retry", "retry"), ("ack", "retry"), ("retry", "ack"), ("reject", "release")]
)
def test_of_two_answers_at_once_the_second_waits_and_finds_it_answered(
    session: Connection,
    other: Connection,
    queue: str,
    meanwhile: Any,
    open_session: Connect,
    first: str,
    second: str,
) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue)
    assert answer(other, first, held) == 1
    late = meanwhile(answer, session, second, held)
    wait_until_blocked(open_session(), session)
    other.commit()
    assert late.result(120) == 0
    again = lease(session, queue, 9)
    assert again.ids == ([id] if first == "retry" else [])
    assert copies(session, queue, id) == (1 if first == "ack" else 2)


def test_the_second_answer_counts_when_the_first_rolls_back(
    session: Connection, other: Connection, queue: str, meanwhile: Any, open_session: Connect
) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue)
    assert answer(other, "ack", held) == 1
    late = meanwhile(answer, session, "retry", held)
    wait_until_blocked(open_session(), session)
    other.rollback()
    assert late.result(120) == 1
    assert lease(session, queue).ids == [id]


def test_answers_of_different_messages_of_one_lease_take_turns(
    session: Connection, other: Connection, queue: str, meanwhile: Any, open_session: Connect
) -> None:
    ids = publish(session, queue, 3)
    held = lease(session, queue, 3)
    assert answer(other, "ack", held, ids[:2]) == 2
    late = meanwhile(answer, session, "ack", held, ids[1:])
    wait_until_blocked(open_session(), session)
    other.commit()
    assert late.result(120) == 1
    move_clock(session, "1 hour")
    assert ask(session, "reap", queue=queue) == 0


def test_an_answer_that_waited_for_the_reaper_is_refused(
    session: Connection, other: Connection, queue: str, meanwhile: Any, open_session: Connect
) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue)
    move_clock(other, "1 hour")
    assert ask(other, "reap", queue=queue) == 1
    late = meanwhile(answer, session, "ack", held)
    wait_until_blocked(open_session(), session)
    other.commit()
    with refused("TQ003"):
        late.result(120)
    again = lease(session, queue)
    assert (again.ids, again.messages[0].attempt) == ([id], 2)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("verb", ["ack", "retry", "reject", "release"])
def test_an_answer_with_a_snapshot_older_than_the_reaper_fails(
    session: Connection, other: Connection, queue: str, level: str, verb: str
) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue)
    other.execute(f"set transaction isolation level {level}")
    fetch(other, "select count(*) from trunq.queue")
    move_clock(session, "1 hour")
    assert ask(session, "reap", queue=queue) == 1
    with refused("40001"):
        answer(other, verb, held)
    other.rollback()
    assert copies(session, queue, id) == 2
    assert drain(session, queue) == [id]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("first_level", ["read committed", *LEVELS])
@pytest.mark.parametrize(
    ("first", "second"), [("ack", "retry"), ("retry", "ack"), ("retry", "retry"), ("ack", "ack")]
)
def test_an_answer_with_a_snapshot_older_than_another_answer_fails(
    session: Connection,
    other: Connection,
    open_session: Connect,
    queue: str,
    first_level: str,
    level: str,
    first: str,
    second: str,
) -> None:
    (id, left) = publish(session, queue, 2)
    held = lease(session, queue, 2)
    other.execute(f"set transaction isolation level {level}")
    fetch(other, "select count(*) from trunq.queue")
    third = open_session(autocommit=False)
    third.execute(f"set transaction isolation level {first_level}")
    assert answer(third, first, held, [id]) == 1
    third.commit()
    with refused("40001"):
        answer(other, second, held, [id])
        other.commit()
    other.rollback()
    assert copies(session, queue, id) == (2 if first == "retry" else 1)
    move_clock(session, "1 hour")
    assert ask(session, "reap", queue=queue) == 1
    assert left in drain(session, queue)


@pytest.mark.parametrize("level", LEVELS)
def test_an_answer_with_a_snapshot_older_than_its_lease_is_refused(
    session: Connection, other: Connection, queue: str, level: str
) -> None:
    publish(session, queue)
    other.execute(f"set transaction isolation level {level}".encode())
    fetch(other, "select count(*) from trunq.queue")
    held = lease(session, queue)
    with refused("TQ003"):
        answer(other, "ack", held)
    other.rollback()
    assert answer(session, "ack", held) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_a_handler_s_transaction_at_a_higher_level_commits_with_its_answer(
    session: Connection, other: Connection, queue: str, level: str
) -> None:
    ids = publish(session, queue, 3)
    held = lease(session, queue, 3)
    other.execute(f"set transaction isolation level {level}".encode())
    (more,) = publish(other, queue)
    assert answer(other, "ack", held, ids[:1]) == 1
    assert answer(other, "ack", held, ids[:2]) == 1
    other.commit()
    assert answer(session, "ack", held) == 1
    assert drain(session, queue) == [more]


def test_leases_answered_in_one_transaction_each_have_their_answer(
    session: Connection, other: Connection, queue: str
) -> None:
    ids = publish(session, queue, 3)
    held = [lease(session, queue) for _ in ids]
    for each in held:
        assert answer(other, "ack", each) == 1
    other.commit()
    assert [state(session, queue, id).state for id in ids] == ["done"] * 3


def test_a_lease_answered_piece_by_piece_is_complete_in_the_end(session: Connection, queue: str) -> None:
    ids = publish(session, queue, 20)
    held = lease(session, queue, 20)
    for verb, id in zip(["ack", "retry", "reject", "release"] * 5, ids, strict=True):
        assert answer(session, verb, held, [id]) == 1
    move_clock(session, "1 hour")
    assert ask(session, "reap", queue=queue) == 0
    assert len(drain(session, queue)) == 10
    assert len(call(session, "list_dead", queue=queue)) == 5
