"""Reaping and reclaiming: functions/work/reap.sql."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from calling import (
    answer,
    ask,
    call,
    come_back,
    drain,
    fetch,
    lease,
    move_clock,
    publish,
    refused,
    set_policy,
    state,
)

Connection = psycopg.Connection[Any]


def test_a_lease_is_reaped_when_its_time_is_over_and_not_before(session: Connection, queue: str) -> None:
    (id,) = publish(session, queue)
    lease(session, queue)
    move_clock(session, "59 seconds")
    assert ask(session, "reap", queue=queue) == 0
    move_clock(session, "62 seconds")
    assert ask(session, "reap", queue=queue) == 1
    assert ask(session, "reap", queue=queue) == 0
    again = lease(session, queue)
    assert (again.ids, again.messages[0].attempt) == ([id], 2)


def test_only_what_has_no_answer_goes_back(session: Connection, queue: str) -> None:
    ids = publish(session, queue, 4)
    held = lease(session, queue, 4)
    answer(session, "ack", held, ids[:1])
    answer(session, "retry", held, ids[1:2], delays=[timedelta(days=3000)])
    move_clock(session, "1 hour")
    assert ask(session, "reap", queue=queue) == 1
    come_back(session, queue)
    assert sorted(lease(session, queue, 9).ids) == ids[2:]


def test_a_lease_that_is_answered_is_left_alone(session: Connection, queue: str) -> None:
    publish(session, queue, 3)
    drain(session, queue)
    move_clock(session, "1 hour")
    assert ask(session, "reap", queue=queue) == 0


def test_the_message_keeps_everything_but_its_attempt(session: Connection, queue: str) -> None:
    ask(session, "publish", queue=queue, payload={"x": 1}, kind="k", key="y", headers={"h": 1}, body=b"b")
    first = lease(session, queue).messages[0]
    move_clock(session, "1 hour")
    ask(session, "reap", queue=queue)
    again = lease(session, queue).messages[0]
    for name in ("id", "kind", "key", "payload", "body", "headers", "created_at", "priority"):
        assert getattr(again, name) == getattr(first, name)
    assert (first.attempt, again.attempt) == (1, 2)


def test_the_story_tells_which_worker_was_lost(session: Connection, queue: str) -> None:
    (id,) = publish(session, queue)
    lease(session, queue, worker="lost")
    move_clock(session, "1 hour")
    ask(session, "reap", queue=queue)
    (first,) = state(session, queue, id).attempts
    assert (first["worker"], first["outcome"]) == ("lost", "lease_expired")


def test_with_its_attempts_used_up_it_is_dead_as_lease_expired(session: Connection, queue: str) -> None:
    set_policy(session, queue, max_attempts=1)
    (id,) = publish(session, queue)
    lease(session, queue, worker="lost")
    move_clock(session, "1 hour")
    assert ask(session, "reap", queue=queue) == 1
    (dead,) = call(session, "list_dead", queue=queue)
    assert (dead.id, dead.reason, dead.attempts) == (id, "lease_expired", 1)
    assert "lost" in dead.errors[0]["error"]
    assert not lease(session, queue)


def test_each_subscription_is_reaped(session: Connection, queue: str) -> None:
    ask(session, "subscribe", queue=queue, subscription="other")
    publish(session, queue)
    lease(session, queue)
    lease(session, queue, subscription="other")
    move_clock(session, "1 hour")
    assert ask(session, "reap", queue=queue) == 2
    assert lease(session, queue).messages[0].attempt == 2
    assert lease(session, queue, subscription="other").messages[0].attempt == 2


def test_the_mark_moves_on_and_old_leases_are_not_looked_at_again(session: Connection, queue: str) -> None:
    marks = "trunq.mark m join trunq.queue q using (queue_id)"
    query = f"select m.at from {marks} where q.name = %s and m.duty = 'reap'"
    publish(session, queue, 2)
    drain(session, queue)
    ask(session, "reap", queue=queue)
    first = fetch(session, query, queue)
    move_clock(session, "30 seconds")
    ask(session, "reap", queue=queue)
    second = fetch(session, query, queue)
    assert second - first > timedelta(seconds=29)
    # Nobody leases: the mark passes the last lease's end, then stays.
    for minutes in (2, 3, 4):
        move_clock(session, f"{minutes} minutes")
        ask(session, "reap", queue=queue)
    assert timedelta(seconds=60) < fetch(session, query, queue) - first < timedelta(minutes=3)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_reaping_and_reclaiming_need_read_committed(session: Connection, queue: str, level: str) -> None:
    for attempt in (
        lambda: ask(session, "reap", queue=queue),
        lambda: ask(session, "reclaim", queue=queue, subscription="default", worker="w"),
    ):
        with refused("TQ007", level.upper()), session.transaction():
            session.execute(f"set transaction isolation level {level}".encode())
            attempt()


def test_unknown_queues_subscriptions_and_workers_are_refused(session: Connection, queue: str) -> None:
    publish(session, queue)
    held = lease(session, queue)
    for name in ("nowhere", "", None):
        with refused("TQ001", "create_queue"):
            ask(session, "reap", queue=name)
        with refused("TQ001", "create_queue"):
            ask(session, "reclaim", queue=name, subscription="default", worker="w")
        with refused("TQ002", "subscribe"):
            ask(session, "reclaim", queue=queue, subscription=name, worker="w")
    for name in ("", None):
        with refused("TQ005", "name"):
            ask(session, "reclaim", queue=queue, subscription="default", worker=name)
    ask(session, "subscribe", queue=queue, subscription="stream", mode="exclusive")
    with refused("TQ011", "exclusive"):
        ask(session, "reclaim", queue=queue, subscription="stream", worker="w")
    assert answer(session, "ack", held) == 1


class TestReclaim:
    """A worker that starts again under its own name."""

    def test_it_gets_its_messages_back_at_once(self, session: Connection, queue: str) -> None:
        ids = publish(session, queue, 4)
        mine = [lease(session, queue, worker="me"), lease(session, queue, worker="me")]
        theirs = lease(session, queue, worker="them")
        answer(session, "ack", mine[0])
        assert ask(session, "reclaim", queue=queue, subscription="default", worker="me") == 1
        assert ask(session, "reclaim", queue=queue, subscription="default", worker="me") == 0
        again = [lease(session, queue, worker="me") for _ in range(2)]
        assert sorted(each.ids[0] for each in again) == [ids[1], ids[3]]
        assert sorted(each.messages[0].attempt for each in again) == [1, 2]
        assert answer(session, "ack", theirs) == 1

    def test_answers_of_its_former_self_are_refused(self, session: Connection, queue: str) -> None:
        publish(session, queue)
        held = lease(session, queue, worker="me")
        ask(session, "reclaim", queue=queue, subscription="default", worker="me")
        for verb in ("ack", "retry", "reject", "release"):
            with refused("TQ003"):
                answer(session, verb, held)
        with refused("TQ003"):
            ask(session, "extend", **held.named)
        assert answer(session, "ack", lease(session, queue, worker="me")) == 1

    def test_a_message_that_kills_its_worker_does_not_do_so_for_ever(
        self, session: Connection, queue: str
    ) -> None:
        set_policy(session, queue, max_attempts=3)
        publish(session, queue)
        for _ in range(3):
            assert lease(session, queue, worker="me")
            assert ask(session, "reclaim", queue=queue, subscription="default", worker="me") == 1
            come_back(session, queue)
        assert not lease(session, queue, worker="me")
        (dead,) = call(session, "list_dead", queue=queue)
        assert (dead.reason, dead.attempts) == ("lease_expired", 3)

    def test_leases_that_ran_out_are_its_own_too(self, session: Connection, queue: str) -> None:
        publish(session, queue)
        lease(session, queue, worker="me")
        move_clock(session, "1 hour")
        assert ask(session, "reclaim", queue=queue, subscription="default", worker="me") == 1
        assert ask(session, "reap", queue=queue) == 0

    def test_other_subscriptions_keep_what_a_worker_of_that_name_holds(
        self, session: Connection, queue: str
    ) -> None:
        ask(session, "subscribe", queue=queue, subscription="other")
        publish(session, queue)
        held = lease(session, queue, subscription="other", worker="me")
        assert ask(session, "reclaim", queue=queue, subscription="default", worker="me") == 0
        assert answer(session, "ack", held) == 1
