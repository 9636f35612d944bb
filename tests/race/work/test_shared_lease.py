"""Handlers of one lease answer side by side, each in its transaction: nobody waits, nothing counts twice."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from calling import (
    Lease,
    answer,
    ask,
    call,
    come_back,
    drain,
    fetch,
    lease,
    move_clock,
    new_names,
    publish,
    refused,
    set_policy,
    state,
)
from conftest import Connect
from waiting import wait_until_blocked

Connection = psycopg.Connection[Any]
LEVELS = ("repeatable read", "serializable")
ROUNDS, PUBLISHED = 40, 400


@pytest.fixture
def first(open_session: Connect) -> Connection:
    """A handler's session, in transactions."""
    return open_session(autocommit=False)


@pytest.fixture
def second(open_session: Connect) -> Connection:
    """Another; it gives up where it would wait for a lock for long."""
    session = open_session(autocommit=False)
    session.execute("set lock_timeout = '20s'")
    session.commit()
    return session


def hold(session: Connection, queue: str, count: int = 3) -> Lease:
    """A lease of so many messages."""
    publish(session, queue, count)
    return lease(session, queue, count)


def receipts(session: Connection, queue: str) -> Counter[int]:
    """How often each message of the queue was answered, by a worker or by the reaper."""
    rows = session.execute(f"select unnest(ids) from trunq_data.{queue}_receipt".encode())
    return Counter(id for (id,) in rows)


def end(session: Connection, queue: str) -> int:
    """Let the time of every lease run out; how many held messages without an answer."""
    move_clock(session, "1 hour")
    reaped = int(ask(session, "reap", queue=queue))
    move_clock(session, "0")
    return reaped


@pytest.mark.parametrize("verb", ["ack", "retry", "reject", "release", "time_out"])
@pytest.mark.parametrize("kind", [{}, {"lanes": "key"}, {"unique": "replace"}], ids=str)
def test_answers_to_one_message_each_do_not_wait_for_each_other(
    session: Connection, first: Connection, second: Connection, verb: str, kind: dict[str, str]
) -> None:
    queue = next(new_names("side"))
    ask(session, "create_queue", queue=queue, **kind)
    held = hold(session, queue)
    assert answer(first, verb, held, held.ids[:1]) == 1
    assert answer(second, verb, held, held.ids[1:2]) == 1
    assert answer(session, "ack", held, held.ids[2:]) == 1
    first.commit()
    second.commit()
    assert receipts(session, queue) == dict.fromkeys(held.ids, 1)
    assert end(session, queue) == 0


@pytest.mark.parametrize("ending", ["commit", "rollback"])
@pytest.mark.parametrize("is_one_first", [True, False])
def test_an_answer_to_one_and_one_to_several_wait_for_each_other(
    session: Connection,
    first: Connection,
    second: Connection,
    queue: str,
    meanwhile: Any,
    is_one_first: bool,
    ending: str,
) -> None:
    held = hold(session, queue)
    one, several = held.ids[:1], held.ids[:2]
    assert answer(first, "retry", held, one if is_one_first else several)
    late = meanwhile(answer, second, "ack", held, several if is_one_first else one)
    wait_until_blocked(session, second)
    getattr(first, ending)()
    left = (2 if is_one_first else 1) - (ending == "commit")
    assert late.result(120) == left
    second.commit()
    assert set(receipts(session, queue).values()) == {1}
    assert end(session, queue) == 1


@pytest.mark.parametrize(
    ("earlier", "later"),
    [([0], [0]), ([0, 1], [0]), ([0], [0, 1]), ([0], [0, 0]), ([0, 0], [0])],
    ids=str,
)
def test_a_message_answered_twice_does_not_stand_for_another(
    session: Connection, queue: str, earlier: list[int], later: list[int]
) -> None:
    held = hold(session, queue, 2)
    of = [[held.ids[n] for n in places] for places in (earlier, later)]
    news = [len(set(earlier)), len(set(later) - set(earlier))]
    assert [answer(session, "ack", held, ids) for ids in of] == news
    done = {held.ids[n] for n in (*earlier, *later)}
    assert receipts(session, queue) == dict.fromkeys(done, 1)
    assert end(session, queue) == (len(done) < 2)
    # Answered in time, it stays so when the rest of its lease has ended.
    assert answer(session, "ack", held, of[0]) == 0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("unseen", "places"), [([0], [0, 1]), ([0, 1], [0]), ([0, 1], [1, 2]), ([0], [0])], ids=str
)
def test_an_answer_with_a_snapshot_older_than_one_of_the_other_kind_fails(
    session: Connection, first: Connection, queue: str, level: str, unseen: list[int], places: list[int]
) -> None:
    held = hold(session, queue)
    first.execute(f"set transaction isolation level {level}".encode())
    fetch(first, "select count(*) from trunq.queue")
    assert answer(session, "retry", held, [held.ids[n] for n in unseen]) == len(unseen)
    with refused("40001"):
        answer(first, "ack", held, [held.ids[n] for n in places])
    first.rollback()
    assert answer(session, "ack", held) == 3 - len(unseen)
    assert receipts(session, queue) == dict.fromkeys(held.ids, 1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("before", ["read committed", "repeatable read"])
def test_an_answer_with_an_older_snapshot_does_not_fail_for_that_to_another_message(
    session: Connection, first: Connection, queue: str, level: str, before: str
) -> None:
    held = hold(session, queue)
    session.execute(f"set default_transaction_isolation to '{before}'".encode())
    first.execute(f"set transaction isolation level {level}".encode())
    fetch(first, "select count(*) from trunq.queue")
    assert answer(session, "ack", held, held.ids[:1]) == 1
    assert answer(first, "ack", held, held.ids[1:2]) == 1
    first.commit()
    session.execute("reset default_transaction_isolation")
    assert answer(session, "ack", held, held.ids[:2]) == 0
    assert answer(session, "ack", held) == 1
    assert receipts(session, queue) == dict.fromkeys(held.ids, 1)


def test_one_that_is_rolled_back_to_a_savepoint_has_not_been(
    session: Connection, first: Connection, second: Connection, queue: str
) -> None:
    held = hold(session, queue, 2)
    first.execute("savepoint before")
    assert answer(first, "ack", held, held.ids[:1]) == 1
    first.execute("rollback to before")
    assert answer(second, "ack", held) == 2
    second.commit()
    assert answer(first, "ack", held, held.ids[:1]) == 0
    first.commit()
    assert receipts(session, queue) == dict.fromkeys(held.ids, 1)


def test_two_that_answer_one_and_then_several_end_in_a_deadlock_of_which_one_gives_way(
    session: Connection, first: Connection, second: Connection, queue: str, meanwhile: Any
) -> None:
    held = hold(session, queue, 6)
    assert answer(first, "ack", held, held.ids[:1]) == 1
    assert answer(second, "ack", held, held.ids[1:2]) == 1
    late = meanwhile(answer, first, "ack", held, held.ids[2:4])
    wait_until_blocked(session, first)
    calls = {second: lambda: answer(second, "ack", held, held.ids[4:]), first: late.result}
    outcomes = []
    for connection, done in calls.items():
        try:
            outcomes.append(done())
            connection.commit()
        except psycopg.errors.DeadlockDetected:
            connection.rollback()
    assert outcomes == [2]
    assert answer(session, "ack", held) == 3
    assert receipts(session, queue) == dict.fromkeys(held.ids, 1)


@pytest.mark.parametrize("verb", ["reap", "reclaim"])
def test_a_lease_whose_last_messages_are_answered_side_by_side_is_over(
    session: Connection, first: Connection, second: Connection, queue: str, verb: str
) -> None:
    more = {"subscription": "default", "worker": "w"} if verb == "reclaim" else {}
    held = hold(session, queue, 2)
    assert answer(first, "ack", held, held.ids[:1]) == 1
    assert answer(second, "ack", held, held.ids[1:]) == 1
    move_clock(session, "1 hour")
    for handler in (first, second):
        assert ask(session, verb, queue=queue, **more) == 0
        handler.commit()
    assert ask(session, verb, queue=queue, **more) == 0
    assert receipts(session, queue) == dict.fromkeys(held.ids, 1)
    assert [state(session, queue, id).state for id in held.ids] == ["done", "done"]


def test_the_reaper_gives_back_what_a_rolled_back_handler_held(
    session: Connection, first: Connection, second: Connection, queue: str
) -> None:
    held = hold(session, queue, 2)
    assert answer(first, "ack", held, held.ids[:1]) == 1
    assert answer(second, "ack", held, held.ids[1:]) == 1
    first.commit()
    second.rollback()
    assert end(session, queue) == 1
    come_back(session, queue)
    assert drain(session, queue) == held.ids[1:]


def test_answers_to_several_of_a_lease_that_ended_are_refused(session: Connection, queue: str) -> None:
    held = hold(session, queue)
    assert answer(session, "ack", held, held.ids[:1]) == 1
    assert end(session, queue) == 1
    for ids in (held.ids, held.ids[1:]):
        with refused("TQ003"):
            answer(session, "ack", held, ids)
    assert set(receipts(session, queue).values()) == {1}


@pytest.mark.parametrize("is_answer_first", [True, False])
def test_an_answer_to_one_and_an_extension_wait_for_each_other(
    session: Connection,
    first: Connection,
    second: Connection,
    queue: str,
    meanwhile: Any,
    is_answer_first: bool,
) -> None:
    held = hold(session, queue, 2)

    def acked(handler: Connection) -> Any:
        return answer(handler, "ack", held, held.ids[:1])

    def extended(worker: Connection) -> Any:
        return ask(worker, "extend", **held.named, lease_time="1 hour")

    early, late = (acked, extended) if is_answer_first else (extended, acked)
    assert early(first)
    waiting = meanwhile(late, second)
    wait_until_blocked(session, second)
    first.commit()
    assert waiting.result(120)
    second.commit()
    move_clock(session, "30 minutes")
    assert ask(session, "reap", queue=queue) == 0


def test_a_handler_that_acks_while_an_extension_waits_for_another_comes_through(
    session: Connection,
    first: Connection,
    second: Connection,
    open_session: Connect,
    queue: str,
    meanwhile: Any,
) -> None:
    held, worker = hold(session, queue, 2), open_session()
    assert answer(first, "ack", held, held.ids[:1]) == 1
    extended = meanwhile(ask, worker, "extend", **held.named)
    wait_until_blocked(session, worker)
    late = meanwhile(answer, second, "ack", held, held.ids[1:])
    wait_until_blocked(session, second)
    first.commit()
    assert extended.result(120)
    assert late.result(120) == 1
    second.commit()
    assert receipts(session, queue) == dict.fromkeys(held.ids, 1)


def test_of_messages_that_may_run_at_once_each_answer_makes_room_for_one(
    session: Connection, first: Connection, second: Connection, queue: str
) -> None:
    set_policy(session, queue, max_running=2)
    publish(session, queue, 6)
    held = lease(session, queue, 9)
    assert answer(first, "ack", held, held.ids[:1]) == 1
    assert answer(second, "ack", held, held.ids[1:]) == 1
    for handler in (first, second):
        assert not lease(session, queue, 9)
        handler.commit()
        assert len(lease(session, queue, 9).ids) == 1


def test_keys_of_an_ordered_queue_go_on_one_by_one(
    session: Connection, first: Connection, second: Connection
) -> None:
    queue = next(new_names("ordered"))
    ask(session, "create_queue", queue=queue, lanes="key")
    set_policy(session, queue, in_order=True)
    ids = [ask(session, "publish", queue=queue, payload={}, key=key) for key in "abab"]
    held = lease(session, queue, 9)
    assert sorted(held.ids) == ids[:2]
    assert answer(first, "ack", held, ids[:1]) == 1
    assert answer(second, "ack", held, ids[1:2]) == 1
    for handler, next_one in ((first, ids[2]), (second, ids[3])):
        assert not lease(session, queue, 9)
        handler.commit()
        assert lease(session, queue, 9).ids == [next_one]


def test_an_archive_takes_a_lease_when_the_last_of_its_handlers_has_committed(
    session: Connection, first: Connection, second: Connection, queue: str
) -> None:
    ask(session, "create_archive", queue=queue)
    held = hold(session, queue, 2)
    assert answer(first, "ack", held, held.ids[:1]) == 1
    assert answer(second, "ack", held, held.ids[1:]) == 1
    for handler in (first, second):
        ask(session, "archive", queue=queue)
        assert fetch(session, f"select count(*) from trunq_archive.{queue}") == 0
        handler.commit()
    ask(session, "archive", queue=queue)
    assert fetch(session, f"select array_agg(id order by id) from trunq_archive.{queue}") == held.ids


def test_a_reply_is_of_the_answer_that_counts(
    session: Connection, first: Connection, second: Connection, queue: str, meanwhile: Any
) -> None:
    set_policy(session, queue, keep_results=True)
    id = ask(session, "publish", queue=queue, payload={}, options={"awaited": True})
    held = lease(session, queue, 2)
    assert answer(first, "ack", held, results=["1"]) == 1
    late = meanwhile(answer, second, "ack", held, results=["2"])
    wait_until_blocked(session, second)
    first.commit()
    assert late.result(120) == 0
    second.commit()
    (reply,) = call(session, "list_replies", queue=queue, ids=[id])
    assert reply.result == 1


def test_answers_to_a_lease_of_an_older_segment_count(session: Connection, queue: str) -> None:
    held = hold(session, queue, 4)
    session.execute(f"update trunq_data.{queue}_lease set segment = (segment + 1) % 4".encode())
    assert answer(session, "ack", held, held.ids[:1]) == 1
    assert answer(session, "retry", held, held.ids[:2]) == 1
    assert answer(session, "ack", held) == 2
    assert answer(session, "ack", held, held.ids[3:]) == 0
    assert end(session, queue) == 0
    (places,) = session.execute(
        f"select count(distinct r.segment), bool_and(r.segment = l.segment)"
        f" from trunq_data.{queue}_receipt r join trunq_data.{queue}_lease l using (lease_id)".encode()
    )
    assert places == (1, True)


def test_whatever_answers_meet_each_message_of_a_lease_is_answered_once(
    session: Connection, open_session: Connect, queue: str
) -> None:
    set_policy(session, queue, max_attempts=0, backoff_base="0")
    publish(session, queue, PUBLISHED)
    leases: list[Lease] = []

    def work(seed: int) -> None:
        chance, own = random.Random(seed), open_session(autocommit=False)
        for _ in range(ROUNDS):
            try:
                time = chance.choice(["5 ms", "1 hour"])
                if found := lease(own, queue, chance.choice([1, 5, 20]), lease_time=time):
                    own.commit()
                    leases.append(found)
                held = chance.choice(leases)
                for _ in range(chance.choice([1, 1, 3])):
                    ids = chance.sample(held.ids, min(len(held.ids), chance.choice([1, 1, 1, 4, 20])))
                    answer(own, chance.choice(["ack", "ack", "retry", "release"]), held, ids)
                if chance.random() < 0.2:
                    ask(own, "extend", **held.named)
                chance.choice([own.commit, own.commit, own.rollback])()
                if chance.random() < 0.3:
                    ask(own, "reap", queue=queue)
                    own.commit()
            except psycopg.Error as error:
                own.rollback()
                if error.sqlstate not in {"TQ003", "40P01"}:
                    raise

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    twice = session.execute(
        f"select r.lease_id, u.id from trunq_data.{queue}_receipt r cross join unnest(r.ids) u(id)"
        " group by 1, 2 having count(*) > 1".encode()
    ).fetchall()
    assert not twice
    end(session, queue)
    delayed = "select count(*) from trunq.delayed d join trunq.queue q using (queue_id) where q.name = %s"
    while fetch(session, delayed, queue):
        come_back(session, queue)
    drain(session, queue)
    acked = (
        f"select u.id from trunq_data.{queue}_receipt r cross join unnest(r.ids) u(id) where outcome = 'a'"
    )
    ids = [id for (id,) in session.execute(acked.encode())]
    assert len(ids) == len(set(ids)) == PUBLISHED
