"""What fell due, where leases and promotions meet: functions/work/due.sql."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from calling import move_clock
from conftest import Connect
from engine import Engine
from waiting import wait_until_blocked

Connection = psycopg.Connection[Any]


@pytest.fixture
def engine(session: Connection, queue: str) -> Engine:
    work = Engine(session, queue)
    work.ask("subscribe", subscription="default", due_first=True)
    return work


@pytest.fixture
def other(open_session: Connect, engine: Engine) -> Engine:
    """The same queue in a second session, in transactions."""
    return engine.on(open_session(autocommit=False))


def delay(work: Engine, count: int = 1) -> list[int]:
    return work.publish(count, delay="1 microsecond")


@pytest.mark.parametrize("commits", [True, False])
def test_of_two_leases_at_once_the_second_takes_what_the_first_left(
    engine: Engine, other: Engine, commits: bool
) -> None:
    waiting, due = engine.publish(1), delay(engine, 3)
    engine.ask("promote")
    assert other.lease(2).ids == due[:2]
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(lambda: engine.lease(2).ids)
        wait_until_blocked(other.connection, engine.connection)
        if commits:
            other.connection.commit()
        else:
            other.connection.rollback()
        assert second.result() == (due[2:] if commits else due[:2])
    assert engine.drain() == (waiting if commits else due[2:] + waiting)


@pytest.mark.parametrize("commits", [True, False])
def test_a_promotion_waits_for_another_one_and_their_messages_come_in_order(
    engine: Engine, other: Engine, commits: bool
) -> None:
    """It waits before it takes any: what the other one gives up, it promotes with its own."""
    waiting, first = engine.publish(1), delay(engine, 2)
    assert other.ask("promote") == 2
    second = delay(engine, 2)
    with ThreadPoolExecutor(1) as pool:
        promoted = pool.submit(lambda: engine.ask("promote"))
        wait_until_blocked(other.connection, engine.connection)
        if commits:
            other.connection.commit()
        else:
            other.connection.rollback()
        assert promoted.result() == (2 if commits else 4)
    assert engine.lease(3).ids == [*first, second[0]]
    assert engine.drain() == [second[1], *waiting]


def test_a_promotion_that_commits_after_later_leases_comes_first_then(engine: Engine, other: Engine) -> None:
    """Its rows are of a transaction that was open when the window was opened: they come late, and once."""
    waiting, due = engine.publish(4), delay(engine, 3)
    assert other.ask("promote") == 3
    assert engine.lease(2).ids == waiting[:2]
    other.connection.commit()
    assert engine.lease(2).ids == due[:2]
    assert engine.drain() == due[2:] + waiting[2:]
    more = engine.publish(2)
    assert engine.drain() == more


def test_a_promotion_that_commits_when_the_position_is_far_behind_it_comes_once(
    engine: Engine, other: Engine
) -> None:
    due = delay(engine, 2)
    assert other.ask("promote") == 2
    found = []
    for _ in range(3):
        engine.publish(2)
        found += engine.drain()
    other.connection.commit()
    assert engine.lease(1).ids == due[:1]
    assert engine.drain() == due[1:]
    assert len(found) == 6


def test_a_lease_that_is_rolled_back_leaves_them_first(engine: Engine, other: Engine) -> None:
    waiting, due = engine.publish(2), delay(engine, 2)
    engine.ask("promote")
    assert other.lease(5).ids == due
    other.connection.rollback()
    assert engine.drain() == due + waiting


def test_who_ends_a_subscription_beside_a_promotion_leaves_a_list_that_is_forgotten(
    engine: Engine, other: Engine
) -> None:
    engine.ask("subscribe", subscription="brief", due_first=True)
    delay(engine, 2)
    assert other.ask("promote") == 2
    engine.ask("unsubscribe", subscription="brief")
    other.connection.commit()
    count = "select count(*) from trunq.due where queue_id = {id}"
    assert engine.fetch(count) == 4
    assert engine.ask("forget") == 2
    assert len(engine.drain()) == 2


def test_a_queue_is_emptied_beside_a_promotion(engine: Engine, other: Engine) -> None:
    delay(engine, 2)
    assert other.ask("promote") == 2
    with ThreadPoolExecutor(1) as pool:
        emptied = pool.submit(lambda: engine.ask("empty_queue"))
        wait_until_blocked(other.connection, engine.connection)
        other.connection.commit()
        emptied.result()
    assert not engine.lease(10)
    waiting, due = engine.publish(1), delay(engine)
    engine.ask("promote")
    assert engine.drain() == due + waiting


def publish_some(work: Engine, seed: int) -> list[int]:
    """In transactions that overlap, some rolled back; some for later."""
    luck = random.Random(seed)
    published: list[int] = []
    for _ in range(12):
        ids = work.publish(luck.randint(1, 4))
        ids += work.publish(luck.randint(1, 3), delay=f"{luck.choice([1, 1000])} microseconds")
        if luck.random() < 0.2:
            work.connection.rollback()
        else:
            work.connection.commit()
            published += ids
    return published


def promote_some(work: Engine, seed: int) -> None:
    luck = random.Random(seed)
    for _ in range(25):
        work.ask("promote", max=luck.randint(1, 5))
        if luck.random() < 0.2:
            work.connection.rollback()
        else:
            work.connection.commit()


def take_some(work: Engine, seed: int) -> list[int]:
    """Acked, retried, given back, cut off or forgotten; some by id. Returns what was done."""
    luck = random.Random(seed)
    done: list[int] = []
    for _ in range(25):
        held = work.lease(luck.randint(1, 5), lease_time="1 hour")
        if held and luck.random() < 0.1:
            work.connection.rollback()
            continue
        for id in held.ids:
            verb = luck.choice(["ack", "ack", "retry", "retry", "release", ""])
            if verb == "ack":
                done += [id] * work.ack(held, [id])
            elif verb:
                delays = [luck.choice(["0", "1 microsecond", "1 millisecond"])]
                work.answer(verb, held, [id], delays=delays)
        if luck.random() < 0.2:
            held, _ = work.lease_ids(*(luck.randint(1, 100) for _ in range(3)), lease_time="1 hour")
            done += held.ids if held and work.ack(held) else []
        work.connection.commit()
    return done


@pytest.mark.parametrize("filtered", [False, True])
def test_nothing_is_lost_or_doubled_however_they_meet(
    engine: Engine, open_session: Connect, filtered: bool
) -> None:
    if filtered:
        engine.ask("subscribe", subscription="default", filter={"not_kinds": ["none"]})
    engine.ask("subscribe", subscription="default", max_attempts=0)
    with ThreadPoolExecutor(7) as pool:

        def start(does: Any, *seeds: int) -> list[Any]:
            return [pool.submit(does, engine.on(open_session(autocommit=False)), seed) for seed in seeds]

        writers = start(publish_some, 1, 2)
        promoters = start(promote_some, 3, 4)
        takers = start(take_some, 5, 6, 7)
        published = [id for each in writers for id in each.result()]
        done = [id for each in takers for id in each.result()]
        assert [each.result() for each in promoters] == [None, None]
    # What was left in somebody's hands comes back.
    for hours in range(2, 40, 2):
        move_clock(engine.connection, f"{hours} hours")
        engine.ask("reap")
        engine.ask("promote")
        done += engine.drain()
    assert Counter(done) == Counter(published)
    assert engine.listed(state="ready") == engine.listed(state="leased") == []
    assert sorted(engine.listed(state="done")) == sorted(published)
    engine.ask("forget")
    assert engine.fetch("select count(*) from trunq.due where queue_id = {id}") < 20
