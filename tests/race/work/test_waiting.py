"""Who waits for whom: leases of one subscription for each other, and nobody else for anybody."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest

from calling import answer, ask, call, drain, fetch, lease, move_clock, new_names, publish, refused
from conftest import Connect
from trunq import Client, QueueNotFound
from waiting import wait_until_blocked

Connection = psycopg.Connection[Any]


@pytest.fixture
def holder(open_session: Connect) -> Connection:
    """A session that leases in a transaction of its own, and forgets to end it."""
    return open_session(autocommit=False)


def test_a_lease_in_an_open_transaction_makes_others_wait_and_they_go_on_after_it(
    session: Connection, holder: Connection, open_session: Connect, queue: str, meanwhile: Any
) -> None:
    ids = publish(session, queue, 4)
    assert lease(holder, queue, 2).ids == ids[:2]
    waiting = meanwhile(lease, session, queue, 2)
    wait_until_blocked(open_session(), session)
    holder.commit()
    assert waiting.result(120).ids == ids[2:]


def test_when_it_is_rolled_back_they_get_its_messages(
    session: Connection, holder: Connection, open_session: Connect, queue: str, meanwhile: Any
) -> None:
    ids = publish(session, queue, 2)
    assert lease(holder, queue, 2).ids == ids
    waiting = meanwhile(lease, session, queue, 2)
    wait_until_blocked(open_session(), session)
    holder.rollback()
    assert waiting.result(120).ids == ids


def test_a_wait_can_be_cancelled_and_leaves_nothing_behind(
    session: Connection, holder: Connection, open_session: Connect, queue: str, meanwhile: Any
) -> None:
    ids = publish(session, queue, 2)
    lease(holder, queue)
    waiting = meanwhile(lease, session, queue)
    watcher = open_session()
    wait_until_blocked(watcher, session)
    watcher.execute("select pg_cancel_backend(%s)", (session.info.backend_pid,))
    with refused("57014"):
        waiting.result(120)
    holder.rollback()
    locks = "select count(*) from pg_locks where locktype = 'advisory' and pid = %s"
    assert fetch(watcher, locks, session.info.backend_pid) == 0
    assert drain(session, queue) == ids


class TestBusy:
    """After five seconds, here fewer, the wait ends with an error that names who is in the way."""

    @pytest.fixture
    def session(self, connect: Connect) -> Connection:
        """A session in a database of its own, where patience is short."""
        session = connect()
        ask(session, "create_queue", queue="q")
        settings = fetch(
            session,
            "select array_to_string(proconfig, ' ') from pg_proc where proname = '_wait_for_subscription'",
        )
        assert "lock_timeout=5s" in settings
        session.execute("alter function trunq._wait_for_subscription set lock_timeout = '50 ms'")
        return session

    @pytest.fixture
    def holder(self, connect: Connect) -> Connection:
        return connect(autocommit=False)

    def test_a_session_is_named_by_its_process(self, session: Connection, holder: Connection) -> None:
        ids = publish(session, "q", 2)
        lease(holder, "q")
        with refused("TQ008", '"default"', '"q"', f"process {holder.info.backend_pid}", "pg_stat_activity"):
            lease(session, "q")
        holder.rollback()
        assert drain(session, "q") == ids

    def test_a_prepared_transaction_is_called_one(self, session: Connection, connect: Connect) -> None:
        publish(session, "q", 2)
        user = connect()
        user.execute("begin")
        held = lease(user, "q")
        user.execute("prepare transaction 'a_lease'")
        with refused("TQ008", "a prepared transaction", "pg_prepared_xacts"):
            lease(session, "q")
        session.execute("commit prepared 'a_lease'")
        assert answer(session, "ack", held) == 1
        assert len(drain(session, "q")) == 1

    def test_so_it_is_for_batches_and_for_a_lease_made_shorter(
        self, session: Connection, holder: Connection
    ) -> None:
        stream = {"queue": "q", "subscription": "stream"}
        ask(session, "subscribe", **stream, mode="exclusive")
        tick = ask(session, "tick", queue="q", force=True)
        publish(session, "q", 2)
        held = lease(session, "q", lease_time="1 hour")
        lease(holder, "q")
        (batch,) = call(holder, "next_batch", **stream, worker="w")
        for busy in (
            lambda: call(session, "next_batch", **stream, worker="v"),
            lambda: ask(session, "advance", **stream, tick_id=tick),
            lambda: ask(session, "finish_batch", **stream, batch_id=batch.batch_id, token=batch.token),
            lambda: ask(session, "extend", **held.named, lease_time="1 second"),
        ):
            with refused("TQ008", f"process {holder.info.backend_pid}"):
                busy()
        assert ask(session, "extend", **held.named, lease_time="2 hours"), "longer is not in the way"


def test_other_subscriptions_lease_on(session: Connection, holder: Connection, queue: str) -> None:
    ask(session, "subscribe", queue=queue, subscription="other")
    ids = publish(session, queue, 2)
    lease(holder, queue)
    assert drain(session, queue, "other") == ids


@pytest.mark.parametrize("how", ["tick", "subscribe"])
def test_the_leader_does_not_wait_for_a_tick_that_is_not_committed(
    session: Connection, holder: Connection, queue: str, how: str
) -> None:
    if how == "tick":
        ask(holder, "tick", queue=queue, force=True)
    else:
        ask(holder, "subscribe", queue=queue, subscription="stream", mode="exclusive")
    session.execute("set lock_timeout = '50 ms'")
    publish(session, queue)
    move_clock(session, "1 minute")
    assert ask(session, "tick", queue=queue) is None
    holder.commit()
    assert ask(session, "tick", queue=queue)


def test_publishers_answers_and_duties_do_not_wait_for_a_lease(
    session: Connection, holder: Connection, queue: str
) -> None:
    publish(session, queue, 3)
    held = lease(session, queue)
    session.execute("set lock_timeout = '50 ms'")
    lease(holder, queue)
    publish(session, queue)
    assert answer(session, "ack", held) == 1
    assert ask(session, "tick", queue=queue, force=True)
    for duty in ("promote", "reap", "rotate"):
        assert ask(session, duty, queue=queue) == 0
    ask(session, "summarize", queue=queue)
    call(session, "status", queue=queue)
    assert len(call(session, "list_messages", queue=queue)) == 4


def test_readers_do_not_wait_for_publishers_nor_publishers_for_each_other(
    session: Connection, open_session: Connect, queue: str
) -> None:
    publishers = [open_session(autocommit=False) for _ in range(5)]
    session.execute("set lock_timeout = '50 ms'")
    open_ids = [publish(each, queue)[0] for each in publishers]
    ids = publish(session, queue, 2)
    assert drain(session, queue) == ids
    for each in publishers:
        each.commit()
    assert sorted(drain(session, queue)) == sorted(open_ids)


def test_an_application_s_own_advisory_locks_are_in_nobody_s_way(
    session: Connection, open_session: Connect, queue: str
) -> None:
    """Ours have the form of two numbers, its own that of one: the same bits are another lock."""
    user = open_session()
    ids = publish(session, queue, 2)
    for purpose in range(1953656416, 1953656425):
        for number in range(1, 50):
            user.execute("select pg_advisory_lock((%s::bigint << 32) | %s)", (purpose, number))
    session.execute("set lock_timeout = '50 ms'")
    held = lease(session, queue)
    assert answer(session, "ack", held) == 1
    assert ask(session, "take_bell", queue=queue) == "held"
    publish(open_session(), queue)
    assert ask(session, "subscribe", queue=queue, subscription="s") is True
    assert drain(session, queue)[0] == ids[1]


def test_two_who_make_the_same_queue_make_one(
    session: Connection, open_session: Connect, meanwhile: Any
) -> None:
    name = next(new_names("twice"))
    first = open_session(autocommit=False)
    assert ask(first, "create_queue", queue=name) is True
    (id,) = publish(first, name)
    second = meanwhile(ask, session, "create_queue", queue=name)
    wait_until_blocked(open_session(), session)
    first.commit()
    assert second.result(120) is False
    assert drain(session, name) == [id]


def test_a_queue_whose_maker_rolls_back_is_made_by_the_next(
    session: Connection, open_session: Connect, meanwhile: Any
) -> None:
    name = next(new_names("twice"))
    first = open_session(autocommit=False)
    ask(first, "create_queue", queue=name)
    second = meanwhile(ask, session, "create_queue", queue=name)
    wait_until_blocked(open_session(), session)
    first.rollback()
    assert second.result(120) is True
    assert publish(session, name) == [1]


class TestDrop:
    """A queue dropped while others use it."""

    def test_it_gives_way_to_an_open_publisher_again_and_again(
        self, session: Connection, open_session: Connect, queue: str, meanwhile: Any
    ) -> None:
        stuck, other, watcher = open_session(autocommit=False), open_session(), open_session()
        publish(stuck, queue)
        drop = meanwhile(ask, session, "drop_queue", queue=queue, force=True)
        wait_until_blocked(watcher, session)
        # Everybody else gets through, between two of its tries at the latest.
        before = time.monotonic()
        for _ in range(3):
            publish(other, queue)
        assert time.monotonic() - before < 5
        with refused("TQ009", "in use by an open transaction", "pg_stat_activity"):
            drop.result(120)
        stuck.commit()
        assert len(drain(session, queue)) == 4

    def test_what_is_committed_while_it_waits_keeps_the_queue(
        self, session: Connection, open_session: Connect, queue: str, meanwhile: Any
    ) -> None:
        publisher = open_session(autocommit=False)
        (id,) = publish(publisher, queue)
        drop = meanwhile(ask, session, "drop_queue", queue=queue)
        wait_until_blocked(open_session(), session)
        publisher.commit()
        with refused("TQ009", "unfinished messages"):
            drop.result(120)
        assert drain(session, queue) == [id]

    def test_what_is_rolled_back_does_not(
        self, session: Connection, open_session: Connect, queue: str, meanwhile: Any
    ) -> None:
        publisher = open_session(autocommit=False)
        publish(publisher, queue)
        drop = meanwhile(ask, session, "drop_queue", queue=queue)
        wait_until_blocked(open_session(), session)
        publisher.rollback()
        drop.result(120)
        with refused("TQ001"):
            publish(session, queue)

    def test_a_subscription_made_while_it_waits_keeps_the_queue(
        self, session: Connection, open_session: Connect, queue: str, meanwhile: Any
    ) -> None:
        subscriber = open_session(autocommit=False)
        ask(subscriber, "subscribe", queue=queue, subscription="audit")
        drop = meanwhile(ask, session, "drop_queue", queue=queue)
        wait_until_blocked(open_session(), session)
        subscriber.commit()
        with refused("TQ009", "audit"):
            drop.result(120)

    @pytest.mark.parametrize("count", [1, 2, 600])
    def test_a_publisher_that_waited_for_it_finds_none(
        self,
        session: Connection,
        open_session: Connect,
        shared_database: str,
        queue: str,
        meanwhile: Any,
        count: int,
    ) -> None:
        dropper = open_session(autocommit=False)
        with Client(shared_database) as client:

            def publish_some(session: Connection) -> None:
                if count == 1:
                    client.publish(queue, 1, connection=session)
                else:
                    client.publish_many(queue, [1] * count, connection=session)

            publish_some(session)
            ask(dropper, "drop_queue", queue=queue, force=True)
            late = meanwhile(publish_some, session)
            wait_until_blocked(open_session(), session)
            dropper.commit()
            with pytest.raises(QueueNotFound, match=queue):
                late.result(120)
            with pytest.raises(QueueNotFound, match=queue):
                publish_some(session)

    def test_of_two_who_drop_it_the_second_finds_none(
        self, session: Connection, open_session: Connect, queue: str, meanwhile: Any
    ) -> None:
        first = open_session(autocommit=False)
        ask(first, "drop_queue", queue=queue)
        second = meanwhile(ask, session, "drop_queue", queue=queue)
        wait_until_blocked(open_session(), session)
        first.commit()
        with refused("TQ001", queue):
            second.result(120)

    def test_made_again_under_its_name_it_is_a_new_queue_for_the_same_sessions(
        self, session: Connection, open_session: Connect, queue: str
    ) -> None:
        worker, publisher = open_session(), open_session()
        for _ in range(3):
            # Often enough for plans to be kept.
            for _ in range(7):
                publish(publisher, queue)
                held = lease(worker, queue)
                assert held
                assert answer(worker, "retry", held, delays=["0"]) == 1
            old = lease(worker, queue)
            ask(session, "drop_queue", queue=queue, force=True)
            assert ask(session, "create_queue", queue=queue) is True
            ids = publish(publisher, queue, 2)
            new = lease(worker, queue)
            assert new.ids == ids[:1]
            for verb in ("ack", "retry", "reject", "release"):
                with refused("TQ003"):
                    answer(worker, verb, old)
            with refused("TQ003"):
                ask(worker, "extend", **old.named)
            assert answer(worker, "ack", new) == 1
            assert drain(worker, queue) == ids[1:]

    def test_a_lease_of_the_same_number_in_the_new_queue_is_not_the_old_one(
        self, session: Connection, queue: str
    ) -> None:
        publish(session, queue)
        old = lease(session, queue)
        ask(session, "drop_queue", queue=queue, force=True)
        ask(session, "create_queue", queue=queue)
        ids = publish(session, queue)
        new = lease(session, queue)
        assert (new.lease_id, new.ids) == (old.lease_id, old.ids)
        with refused("TQ003"):
            answer(session, "ack", old)
        assert answer(session, "ack", new) == 1
        assert ids == old.ids


class TestTwin:
    """Two processes that believe to be the same worker."""

    def test_the_first_loses_what_it_held_and_nothing_it_leases_later(
        self, session: Connection, open_session: Connect, queue: str
    ) -> None:
        ids = publish(session, queue, 3)
        first, second = open_session(), open_session()
        held = lease(first, queue, worker="me")
        assert ask(second, "reclaim", queue=queue, subscription="default", worker="me") == 1
        later = lease(first, queue, worker="me")
        with refused("TQ003"):
            answer(first, "ack", held)
        assert answer(first, "ack", later) == 1
        assert later.ids == ids[1:2]
        assert sorted(drain(second, queue)) == [ids[0], ids[2]]

    def test_an_answer_on_its_way_is_not_overtaken(
        self, session: Connection, open_session: Connect, queue: str
    ) -> None:
        (id,) = publish(session, queue)
        first, second = open_session(autocommit=False), open_session()
        held = lease(session, queue, worker="me")
        answer(first, "ack", held)
        assert ask(second, "reclaim", queue=queue, subscription="default", worker="me") == 0
        first.commit()
        assert not lease(second, queue)
        assert id in held.ids

    def test_an_answer_that_comes_while_it_is_reclaimed_is_refused(
        self, session: Connection, open_session: Connect, queue: str, meanwhile: Any
    ) -> None:
        publish(session, queue)
        held = lease(session, queue, worker="me")
        second = open_session(autocommit=False)
        assert ask(second, "reclaim", queue=queue, subscription="default", worker="me") == 1
        late = meanwhile(answer, session, "ack", held)
        wait_until_blocked(open_session(), session)
        second.commit()
        with refused("TQ003"):
            late.result(120)
        assert lease(session, queue).messages[0].attempt == 2

    def test_its_lease_not_committed_yet_is_its_own(
        self, session: Connection, open_session: Connect, queue: str
    ) -> None:
        publish(session, queue)
        first = open_session(autocommit=False)
        held = lease(first, queue, worker="me")
        assert ask(session, "reclaim", queue=queue, subscription="default", worker="me") == 0
        first.commit()
        assert answer(session, "ack", held) == 1
