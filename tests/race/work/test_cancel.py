"""Cancel against everything else that may become of a message: whichever commits first decides, and none is
both done and cancelled."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

import calling
from calling import answer, ask, call, come_back, fetch, lease, move_clock, publish, refused, state
from conftest import Connect
from engine import Engine
from keying import is_free, take
from waiting import wait_until_blocked

Connection = psycopg.Connection[Any]


@pytest.fixture
def other(open_session: Connect) -> Connection:
    """A second session, in transactions."""
    return open_session(autocommit=False)


def cancel(session: Connection, queue: str, *ids: int) -> list[str]:
    return [row.state for row in call(session, "cancel", queue=queue, ids=list(ids))]


def dead(session: Connection, queue: str) -> dict[int, str]:
    return {row.id: row.reason for row in call(session, "list_dead", queue=queue, limit=10000)}


def noted(session: Connection, queue: str) -> int:
    query = "select count(*) from trunq.cancelled join trunq.queue q using (queue_id) where q.name = %s"
    return int(fetch(session, query, queue))


def test_an_ack_that_commits_first_has_won(session: Connection, other: Connection, queue: str) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue)
    assert cancel(other, queue, id) == ["leased"]
    assert answer(session, "ack", held) == 1
    other.commit()
    assert state(session, queue, id).state == "done"
    assert not lease(session, queue)
    ask(session, "forget", queue=queue)
    assert (dead(session, queue), noted(session, queue)) == ({}, 0)


def test_an_ack_that_commits_later_has_won_too(session: Connection, other: Connection, queue: str) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue)
    assert answer(other, "ack", held) == 1
    assert cancel(session, queue, id) == ["leased"]
    other.commit()
    assert state(session, queue, id).state == "done"
    assert dead(session, queue) == {}


@pytest.mark.parametrize("size", [1, 10])
@pytest.mark.parametrize("first", ["cancel", "retry"])
def test_a_retry_that_does_not_see_it_is_not_handed_out(
    session: Connection, other: Connection, queue: str, first: str, size: int
) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue)
    if first == "cancel":
        # The retry commits while the cancel is open.
        cancel(other, queue, id)
        answer(session, "retry", held, delays=["0"])
    else:
        # The retry has looked, and commits after the cancel.
        answer(other, "retry", held, delays=["0"])
        assert cancel(session, queue, id) == ["leased"]
    other.commit()
    assert state(session, queue, id).state == "ready"
    assert not lease(session, queue, size)
    assert dead(session, queue) == {id: "cancelled"}


def test_a_retry_that_does_not_see_it_and_waits_is_found_by_the_duty(
    session: Connection, other: Connection, queue: str
) -> None:
    (id,) = publish(session, queue)
    held = lease(session, queue)
    cancel(other, queue, id)
    answer(session, "retry", held, delays=["1 hour"])
    other.commit()
    assert state(session, queue, id).state == "retrying"
    ask(session, "forget", queue=queue)
    assert dead(session, queue) == {id: "cancelled"}
    assert noted(session, queue) == 0


def test_what_the_duty_finds_holds_neither_its_lane_nor_its_unique_key(
    session: Connection, other: Connection, queue: str
) -> None:
    engine = Engine(session, f"{queue}_keyed").create(lanes="key", unique="refuse")
    engine.ask("subscribe", subscription="default", in_order=True)
    ids = [take(engine, unique, key="a")[0] for unique in ("first", "second")]
    engine.on(other).answer("retry", engine.lease(), delays=["1 hour"])
    cancel(session, engine.queue, ids[0])
    other.commit()
    assert not is_free(engine, "first")
    assert not engine.lease()
    engine.ask("forget")
    assert is_free(engine, "first")
    assert engine.lease().ids == ids[1:]


def test_a_lease_that_commits_later_runs_it_and_hears_of_it(
    session: Connection, other: Connection, queue: str
) -> None:
    (id,) = publish(session, queue)
    held = lease(other, queue)
    assert cancel(session, queue, id) == ["ready"]
    other.commit()
    assert held.ids == [id]
    assert call(session, "extend", **held.named)[0].cancelled == [id]
    assert answer(session, "release", held) == 1
    assert dead(session, queue) == {id: "cancelled"}


def test_a_lease_that_comes_while_a_cancel_is_open_runs_it(
    session: Connection, other: Connection, queue: str
) -> None:
    (id,) = publish(session, queue)
    assert cancel(other, queue, id) == ["ready"]
    held = lease(session, queue)
    assert held.ids == [id]
    assert call(session, "extend", **held.named)[0].cancelled == []
    other.commit()
    assert call(session, "extend", **held.named)[0].cancelled == [id]
    assert answer(session, "ack", held) == 1
    assert dead(session, queue) == {}


def test_the_end_of_a_lease_that_does_not_see_it(session: Connection, other: Connection, queue: str) -> None:
    (id,) = publish(session, queue)
    lease(session, queue)
    cancel(other, queue, id)
    move_clock(session, "1 hour")
    assert ask(session, "reap", queue=queue) == 1
    other.commit()
    move_clock(session, "0")
    come_back(session, queue)
    assert not lease(session, queue)
    assert dead(session, queue) == {id: "cancelled"}


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_promotion_that_came_first_is_waited_for(
    session: Connection,
    other: Connection,
    open_session: Connect,
    meanwhile: Any,
    queue: str,
    outcome: str,
) -> None:
    id = ask(session, "publish", queue=queue, delay="1 minute")
    move_clock(other, "1 hour")
    assert ask(other, "promote", queue=queue) == 1
    cancelling = open_session()
    found = meanwhile(cancel, cancelling, queue, id)
    wait_until_blocked(session, cancelling)
    getattr(other, outcome)()
    assert found.result(120) == ["ready" if outcome == "commit" else "scheduled"]
    assert not lease(session, queue)
    assert dead(session, queue) == {id: "cancelled"}


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_a_promotion_passes_over_what_is_being_cancelled(
    session: Connection, other: Connection, queue: str, outcome: str
) -> None:
    id, next_one = (ask(session, "publish", queue=queue, delay="1 minute") for _ in range(2))
    assert cancel(other, queue, id) == ["scheduled"]
    move_clock(session, "1 hour")
    assert ask(session, "promote", queue=queue) == 1
    getattr(other, outcome)()
    # Once a minute it looks at all, those that it passed over too.
    move_clock(session, "2 hours")
    assert ask(session, "promote", queue=queue) == (0 if outcome == "commit" else 1)
    assert sorted(calling.drain(session, queue)) == ([next_one] if outcome == "commit" else [id, next_one])
    assert dead(session, queue) == ({id: "cancelled"} if outcome == "commit" else {})


def test_requeued_while_a_cancel_is_open(session: Connection, other: Connection, queue: str) -> None:
    (id,) = publish(session, queue)
    answer(session, "reject", lease(session, queue))
    assert cancel(other, queue, id) == ["dead"]
    assert ask(session, "requeue", queue=queue) == 1
    other.commit()
    # It was dead, and whoever gave it another life came later.
    assert calling.drain(session, queue) == [id]


def test_cancelled_while_a_requeue_is_open(session: Connection, other: Connection, queue: str) -> None:
    (id,) = publish(session, queue)
    answer(session, "reject", lease(session, queue))
    assert ask(other, "requeue", queue=queue) == 1
    assert cancel(session, queue, id) == ["dead"]
    other.commit()
    assert cancel(session, queue, id) == ["ready"]
    assert not lease(session, queue)
    assert dead(session, queue) == {id: "cancelled"}


def test_the_duty_leaves_alone_where_somebody_cancels(
    session: Connection, other: Connection, queue: str
) -> None:
    done, waiting = publish(session, queue, 2)
    held = lease(session, queue)
    cancel(session, queue, done)
    answer(session, "ack", held)
    cancel(other, queue, waiting)
    assert ask(session, "forget", queue=queue) == 0
    other.commit()
    assert not lease(session, queue)
    assert dead(session, queue) == {waiting: "cancelled"}
    assert ask(session, "forget", queue=queue) == 2
    assert ask(session, "forget", queue=queue) == 0


def test_who_cancels_waits_for_the_duty_and_is_not_forgotten(
    session: Connection, other: Connection, open_session: Connect, meanwhile: Any, queue: str
) -> None:
    done, waiting = publish(session, queue, 2)
    held = lease(session, queue)
    cancel(session, queue, done)
    answer(session, "ack", held)
    # It has found that nothing is left, and takes the flag away.
    assert ask(other, "forget", queue=queue) == 1
    cancelling = open_session()
    found = meanwhile(cancel, cancelling, queue, waiting)
    wait_until_blocked(session, cancelling)
    other.commit()
    assert found.result(120) == ["ready"]
    assert not lease(session, queue)
    assert dead(session, queue) == {waiting: "cancelled"}


def test_two_who_cancel_the_same_in_another_order_both_come_through(
    session: Connection, other: Connection, open_session: Connect, meanwhile: Any, queue: str
) -> None:
    ids = publish(session, queue, 10)
    cancel(other, queue, *ids)
    cancelling = open_session()
    found = meanwhile(cancel, cancelling, queue, *reversed(ids))
    wait_until_blocked(session, cancelling)
    other.commit()
    assert found.result(120) == ["ready"] * 10
    assert not lease(session, queue)
    assert noted(session, queue) == 10


def test_an_open_cancel_holds_up_nobody_who_works(session: Connection, other: Connection, queue: str) -> None:
    ids = publish(session, queue, 4)
    held = lease(session, queue, 3)
    cancel(other, queue, *ids)
    session.execute("set lock_timeout = '3s'")
    assert answer(session, "ack", held, held.ids[:1]) == 1
    assert answer(session, "retry", held, held.ids[1:2]) == 1
    assert len(call(session, "extend", **held.named)) == 1
    publish(session, queue)
    assert lease(session, queue, 10)
    ask(session, "reap", queue=queue)
    ask(session, "promote", queue=queue)
    ask(session, "forget", queue=queue)
    other.rollback()
    assert dead(session, queue) == {}


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_above_read_committed_it_is_refused(other: Connection, queue: str, level: str) -> None:
    other.execute(f"set transaction isolation level {level}".encode())
    with refused("TQ007", "cancel"):
        cancel(other, queue, 1)


def read(worker: Connection, queue: str, seed: int) -> list[int]:
    chance, done = random.Random(seed), []
    for _ in range(150):
        if not (held := lease(worker, queue, chance.randint(1, 5))):
            continue
        for id in held.ids:
            if chance.random() < 0.5:
                answer(worker, "retry", held, [id], delays=[chance.choice(["0", "5 milliseconds"])])
            elif answer(worker, "ack", held, [id]):
                done.append(id)
    return done


def test_a_ledger_of_all_at_once(session: Connection, open_session: Connect, queue: str) -> None:
    """Readers, cancellers and duties together: each message is done once, or dead and never done."""
    calling.set_policy(session, queue, backoff_base="0", jitter=0, max_attempts=0)
    ids = publish(session, queue, 400)
    ids += [ask(session, "publish", queue=queue, delay="1 millisecond") for _ in range(50)]
    told: list[str] = []

    def call_off(canceller: Connection, queue: str, seed: int) -> list[int]:
        chance = random.Random(seed)
        for _ in range(60):
            told.extend(cancel(canceller, queue, *chance.sample(ids, 3)))
        return []

    def keep(leader: Connection, queue: str, _seed: int) -> list[int]:
        for _ in range(60):
            ask(leader, "promote", queue=queue)
            ask(leader, "forget", queue=queue)
        return []

    parts = [read, read, read, call_off, call_off, keep]
    with ThreadPoolExecutor(len(parts)) as pool:
        futures = [pool.submit(part, open_session(), queue, seed) for seed, part in enumerate(parts)]
        done = [id for future in futures for id in future.result(120)]
    move_clock(session, "1 hour")
    ask(session, "promote", queue=queue)
    done += calling.drain(session, queue)
    gone = dead(session, queue)
    assert set(gone.values()) == {"cancelled"}
    assert [id for id, times in Counter(done).items() if times > 1] == []
    assert set(done) & set(gone) == set()
    assert set(done) | set(gone) == set(ids)
    assert {"ready", "dead"} <= set(told)
    ask(session, "forget", queue=queue)
    assert noted(session, queue) == 0
