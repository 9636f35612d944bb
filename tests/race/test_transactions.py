"""Every way in which Postgres lets a transaction end is one in which publishing and leasing are right."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import answer, ask, burn, drain, fetch, lease, publish, refused
from conftest import Connect
from laning import make

Connection = psycopg.Connection[Any]


@pytest.fixture
def user(open_session: Connect) -> Connection:
    """A session whose transactions the test begins and ends."""
    return open_session()


def test_savepoints_publish_what_is_not_rolled_back(
    session: Connection, user: Connection, queue: str
) -> None:
    kept: list[int] = []
    with user.transaction():
        kept += publish(user, queue)
        with user.transaction():
            kept += publish(user, queue)
            with user.transaction(force_rollback=True):
                publish(user, queue, 3)
            kept += publish(user, queue)
        with user.transaction(force_rollback=True), user.transaction():
            publish(user, queue, 2)
        burn(session, 2)
        assert drain(session, queue) == []
        kept += publish(user, queue)
    assert drain(session, queue) == kept


def test_a_hundred_nested_subtransactions_overflow_no_snapshot(
    session: Connection, user: Connection, queue: str
) -> None:
    ask(session, "subscribe", queue=queue, subscription="stream", mode="exclusive")
    user.execute("begin")
    kept: list[int] = []
    for depth in range(100):
        user.execute(f"savepoint s{depth}".encode())
        kept += publish(user, queue)
    (between,) = publish(session, queue)
    assert drain(session, queue) == [between]
    ask(session, "tick", queue=queue, force=True)
    user.execute("rollback to s90")
    user.execute("commit")
    del kept[90:]
    assert drain(session, queue) == kept


def test_a_prepared_transaction_publishes_when_it_is_committed(
    session: Connection, user: Connection, queue: str
) -> None:
    user.execute("set trunq.notify = off")
    prepared: list[list[int]] = []
    for number in range(2):
        user.execute("begin")
        prepared.append(publish(user, queue, 2))
        user.execute(f"prepare transaction '{queue}_{number}'".encode())
    (between,) = publish(session, queue)
    assert drain(session, queue) == [between]
    session.execute(f"rollback prepared '{queue}_1'".encode())
    assert drain(session, queue) == []
    session.execute(f"commit prepared '{queue}_0'".encode())
    assert drain(session, queue) == prepared[0]


def test_notify_stands_in_the_way_of_preparing_only_while_somebody_sleeps(
    session: Connection, user: Connection, open_session: Connect, queue: str
) -> None:
    def prepare(name: str) -> None:
        user.execute("begin")
        publish(user, queue)
        try:
            user.execute(f"prepare transaction '{queue}_{name}'".encode())
        finally:
            user.execute("rollback")

    sleeper = open_session()
    assert ask(sleeper, "take_bell", queue=queue) == "held"
    with refused("0A000", "NOTIFY"):
        prepare("woken")
    user.execute("set trunq.notify = off")
    prepare("quiet")
    user.execute("reset trunq.notify")
    assert ask(sleeper, "give_bell", queue=queue) is True
    prepare("nobody_sleeps")
    # It kept the lock: who would sleep now finds a publisher in the way, until the transaction is ended.
    assert ask(sleeper, "take_bell", queue=queue) == "publisher"
    session.execute(f"commit prepared '{queue}_nobody_sleeps'".encode())
    assert ask(sleeper, "take_bell", queue=queue) == "held"
    session.execute(f"commit prepared '{queue}_quiet'".encode())
    assert len(drain(session, queue)) == 2


def test_without_notify_a_prepared_publisher_keeps_nobody_from_sleeping(
    session: Connection, user: Connection, open_session: Connect, queue: str
) -> None:
    user.execute("set trunq.notify = off")
    user.execute("begin")
    publish(user, queue)
    user.execute(f"prepare transaction '{queue}'".encode())
    assert ask(open_session(), "take_bell", queue=queue) == "held"
    session.execute(f"rollback prepared '{queue}'".encode())


def test_told_not_to_notify_a_transaction_that_sets_a_lane_can_be_prepared(
    session: Connection, user: Connection, open_session: Connect
) -> None:
    laned = make(session)
    assert ask(open_session(), "take_bell", queue=laned.queue) == "held"
    user.execute("set trunq.notify = off")
    user.execute("begin")
    laned.on(user).ask("pause_lane", lane="a")
    user.execute(f"prepare transaction '{laned.queue}'".encode())
    session.execute(f"commit prepared '{laned.queue}'".encode())
    laned.publish(keys=["a"])
    assert not laned.lease()


def test_a_handler_s_prepared_answer_holds_until_it_is_committed(
    session: Connection, user: Connection, queue: str
) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue)
    user.execute("set trunq.notify = off")
    user.execute("begin")
    answer(user, "ack", held)
    user.execute(f"prepare transaction '{queue}'".encode())
    session.execute("set lock_timeout = '50 ms'")
    with refused("55P03"):
        answer(session, "retry", held)
    session.execute(f"commit prepared '{queue}'".encode())
    assert answer(session, "retry", held) == 0
    assert drain(session, queue) == []
    assert id in held.ids


def test_a_lease_rolled_back_hands_out_the_same_messages_again(
    session: Connection, user: Connection, queue: str
) -> None:
    ids = publish(session, queue, 5)
    assert lease(session, queue, 2).ids == ids[:2]
    with user.transaction(force_rollback=True):
        lost = lease(user, queue, 2)
        assert lost.ids == ids[2:4]
    again = lease(session, queue, 2)
    assert again.ids == ids[2:4]
    for verb in ("ack", "retry"):
        with refused("TQ003"):
            answer(session, verb, lost)
    assert drain(session, queue) == ids[4:]


def test_a_lease_rolled_back_to_a_savepoint_does_so_too(
    session: Connection, user: Connection, queue: str
) -> None:
    ids = publish(session, queue, 4)
    with user.transaction():
        first = lease(user, queue)
        with user.transaction(force_rollback=True):
            assert lease(user, queue).ids == ids[1:2]
        second = lease(user, queue)
    assert first.ids + second.ids == ids[:2]
    assert drain(session, queue) == ids[2:]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_publishers_at_higher_levels_are_like_others(
    session: Connection, user: Connection, queue: str, level: str
) -> None:
    user.execute(f"begin isolation level {level}".encode())
    fetch(user, "select count(*) from trunq.queue")
    between = publish(session, queue)
    kept = publish(user, queue, 2)
    between += publish(session, queue)
    assert drain(session, queue) == between
    user.execute("commit")
    assert drain(session, queue) == kept


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_leasing_with_an_old_snapshot_would_hand_out_the_same_twice_and_is_refused(
    session: Connection, user: Connection, queue: str, level: str
) -> None:
    ids = publish(session, queue, 2)
    user.execute(f"begin isolation level {level}".encode())
    fetch(user, "select 1")
    assert lease(session, queue).ids == ids[:1]
    with refused("TQ007", level.upper()):
        lease(user, queue)
    user.execute("rollback")
    assert drain(session, queue) == ids[1:]


def test_ids_out_of_order_are_no_matter(session: Connection, open_session: Connect, queue: str) -> None:
    """Each session takes ids by the dozen, so that later ones may be smaller."""
    sessions = [open_session() for _ in range(4)]
    ids = [publish(each, queue)[0] for each in sessions * 5]
    assert ids != sorted(ids)
    assert drain(session, queue) == ids


def test_a_transaction_that_commits_late_is_in_a_later_batch_and_no_batch_changes(
    session: Connection, open_session: Connect, queue: str
) -> None:
    one = {"queue": queue, "subscription": "stream"}
    ask(session, "subscribe", **one, mode="exclusive")
    late = open_session(autocommit=False)
    (slow,) = publish(late, queue)
    (quick,) = publish(session, queue)
    ask(session, "tick", queue=queue, force=True)
    first = session.execute(
        "select batch_id, token from trunq.next_batch(%s, 'stream', 'w')", (queue,)
    ).fetchone()
    assert first is not None
    read = "select id from trunq.read_batch(%s, 'stream', %s)"
    assert session.execute(read, (queue, first[0])).fetchall() == [(quick,)]
    late.commit()
    # A retry of another subscription is nothing to this one.
    answer(session, "release", lease(session, queue))
    ask(session, "tick", queue=queue, force=True)
    assert session.execute(read, (queue, first[0])).fetchall() == [(quick,)]
    ask(session, "finish_batch", **one, batch_id=first[0], token=first[1])
    second = session.execute(
        "select batch_id, token from trunq.next_batch(%s, 'stream', 'w')", (queue,)
    ).fetchone()
    assert second is not None
    assert session.execute(read, (queue, second[0])).fetchall() == [(slow,)]
