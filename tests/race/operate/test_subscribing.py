"""A subscription made while others publish sees every transaction that was not finished then."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import answer, ask, burn, call, drain, fetch, lease, move_clock, publish, refused
from conftest import Connect
from waiting import wait_until_blocked

Connection = psycopg.Connection[Any]

LOCK_LEASE = (
    "select pg_advisory_xact_lock(trunq._lock_class('lease'), trunq._lease_lock(queue_id, %s))"
    " from trunq.queue where name = %s"
)


def test_it_sees_open_transactions_whole_and_finished_ones_not_at_all(
    session: Connection, open_session: Connect, queue: str
) -> None:
    finished = publish(session, queue)
    publishers = [open_session(autocommit=False) for _ in range(3)]
    before = [publish(publisher, queue)[0] for publisher in publishers]
    ask(session, "subscribe", queue=queue, subscription="new")
    burn(session, 3)
    after = [publish(publisher, queue)[0] for publisher in publishers]
    publishers[0].commit()
    publishers[2].rollback()
    assert drain(session, queue, "new") == [before[0], after[0]]
    publishers[1].commit()
    assert drain(session, queue, "new") == [before[1], after[1]]
    assert sorted(drain(session, queue)) == sorted([*finished, *before[:2], *after[:2]])


def test_so_does_a_reader_of_batches(session: Connection, open_session: Connect, queue: str) -> None:
    publish(session, queue)
    open_one = open_session(autocommit=False)
    (before,) = publish(open_one, queue)
    ask(session, "subscribe", queue=queue, subscription="stream", mode="exclusive")
    (after,) = publish(open_one, queue)
    ask(session, "tick", queue=queue, force=True)
    open_one.commit()
    (late,) = publish(session, queue)
    ask(session, "tick", queue=queue, force=True)
    one = {"queue": queue, "subscription": "stream"}
    found = []
    for _ in range(2):
        (batch,) = call(session, "next_batch", **one, worker="w")
        found.append([row.id for row in call(session, "read_batch", **one, batch_id=batch.batch_id)])
        ask(session, "finish_batch", **one, batch_id=batch.batch_id, token=batch.token)
    assert found == [[], [before, after, late]]


def test_a_subscription_not_committed_yet_keeps_every_segment(open_session: Connect) -> None:
    name = "kept_for_who_subscribes"
    session, subscriber = open_session(), open_session(autocommit=False)
    ask(session, "create_queue", queue=name, retention="1000 days")
    ids = publish(session, name, 3)
    ask(subscriber, "subscribe", queue=name, subscription="new", start="earliest")
    assert drain(session, name) == ids
    move_clock(session, "1500 days")
    assert ask(session, "rotate", queue=name) is None
    subscriber.commit()
    assert ask(session, "rotate", queue=name) == 0
    move_clock(session, "0")
    assert drain(session, name, "new") == ids
    move_clock(session, "1500 days")
    assert ask(session, "rotate", queue=name) == 1
    ask(session, "drop_queue", queue=name, force=True)


def test_two_who_make_the_same_subscription_make_one(
    session: Connection, open_session: Connect, queue: str, meanwhile: Any
) -> None:
    first = open_session(autocommit=False)
    assert ask(first, "subscribe", queue=queue, subscription="s") is True
    (id,) = publish(open_session(), queue)
    second = meanwhile(ask, session, "subscribe", queue=queue, subscription="s", max_attempts=9)
    wait_until_blocked(open_session(), session)
    first.commit()
    assert second.result(120) is False
    (row,) = [row for row in call(session, "list_subscriptions", queue=queue) if row.subscription == "s"]
    assert row.max_attempts == 9
    assert drain(session, queue, "s") == [id]


def test_subscribing_to_a_queue_that_is_being_dropped_finds_none(
    session: Connection, open_session: Connect, queue: str, meanwhile: Any
) -> None:
    dropper = open_session(autocommit=False)
    ask(dropper, "drop_queue", queue=queue)
    late = meanwhile(ask, session, "subscribe", queue=queue, subscription="s")
    wait_until_blocked(open_session(), session)
    dropper.commit()
    with refused("TQ001", queue):
        late.result(120)


def test_unsubscribing_under_a_worker_refuses_its_answer(
    session: Connection, open_session: Connect, queue: str
) -> None:
    ask(session, "subscribe", queue=queue, subscription="s")
    publish(session, queue)
    held = lease(session, queue, subscription="s")
    ender = open_session(autocommit=False)
    ask(ender, "unsubscribe", queue=queue, subscription="s")
    ender.commit()
    for verb in ("ack", "retry"):
        with refused("TQ002"):
            answer(session, verb, held)
    delayed = "select count(*) from trunq.delayed join trunq.queue using (queue_id) where name = %s"
    assert fetch(session, delayed, queue) == 0


@pytest.mark.parametrize("verb", ["ack", "retry", "reject", "release"])
def test_an_answer_overtaken_by_the_end_of_its_subscription_is_refused_or_stands(
    session: Connection, open_session: Connect, queue: str, meanwhile: Any, verb: str
) -> None:
    ask(session, "subscribe", queue=queue, subscription="s")
    publish(session, queue)
    held = lease(session, queue, subscription="s")
    blocker, ender = open_session(autocommit=False), open_session()
    fetch(blocker, LOCK_LEASE, held.lease_id, queue)
    late = meanwhile(answer, session, verb, held)
    wait_until_blocked(ender, session)
    ask(ender, "unsubscribe", queue=queue, subscription="s")
    blocker.commit()
    if verb == "ack":
        assert late.result(120) == 1
    else:
        with refused("TQ002"):
            late.result(120)
