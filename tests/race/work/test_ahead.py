"""Leases of given ids beside others: who is first under the lock has the message, once."""

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
    return Engine(session, queue)


@pytest.fixture
def other(open_session: Connect, engine: Engine) -> Engine:
    """The same queue in a second session, in transactions."""
    return engine.on(open_session(autocommit=False))


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("first", ["ids", "plain"])
def test_who_waits_for_the_lock_sees_what_was_taken_meanwhile(
    engine: Engine, other: Engine, first: str, commits: bool
) -> None:
    """The one that waits had read the subscription, and found its messages, before the other committed."""
    ids = engine.publish(3)
    with ThreadPoolExecutor(1) as pool:
        if first == "ids":
            other.take(ids[0])
            waiting = pool.submit(lambda: engine.lease(3).ids)
        else:
            other.lease(1)
            waiting = pool.submit(lambda: engine.lease_ids(*ids, worker="second")[0].ids)
        wait_until_blocked(other.connection, engine.connection)
        if commits:
            other.connection.commit()
        else:
            other.connection.rollback()
        found = waiting.result()
    assert found == (ids[1:] if commits else ids)


def test_of_two_that_name_one_id_the_second_learns_who_has_it(engine: Engine, other: Engine) -> None:
    (id,) = engine.publish()
    other.take(id, worker="first")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: engine.lease_ids(id, worker="second"))
        wait_until_blocked(other.connection, engine.connection)
        other.connection.commit()
        held, rest = waiting.result()
    assert not held
    assert (rest[id].state, rest[id].worker) == ("leased", "first")


def test_one_that_is_cancelled_while_it_is_taken_is_told_to_its_worker(engine: Engine, other: Engine) -> None:
    (id,) = engine.publish()
    held = other.take(id)
    engine.call("cancel", ids=[id])
    other.connection.commit()
    extended = engine.call("extend", **{n: v for n, v in held.named.items() if n != "queue"})
    assert extended[0].cancelled == [id]
    engine.answer("retry", held, delays=["0"])
    assert engine.state(id) == "dead"
    assert not engine.lease()


def test_a_late_commit_behind_the_position_comes_once(engine: Engine, other: Engine) -> None:
    """Taken by id as soon as it is visible, though the window that it belongs to is open."""
    late = other.publish(2)
    early = engine.publish(4)
    first = engine.lease(2)
    other.connection.commit()
    held = engine.take(late[1], early[3])
    found = engine.drain()
    assert sorted(first.ids + held.ids + found) == sorted(late + early)


def publish_some(work: Engine, seed: int, published: list[int]) -> None:
    luck = random.Random(seed)
    for _ in range(12):
        ids = work.publish(luck.randint(1, 4))
        if luck.random() < 0.2:
            work.connection.rollback()
        else:
            work.connection.commit()
            published.extend(ids)


def take_some(work: Engine, seed: int, plain: float, published: list[int]) -> list[int]:
    """By id or not; acked, given back, or forgotten. Returns what was done."""
    luck = random.Random(seed)
    done: list[int] = []
    for _ in range(25):
        if luck.random() < plain:
            held = work.lease(luck.randint(1, 5), lease_time="1 hour")
        else:
            known = published[-30:] or [1]
            wanted = luck.sample(known, min(len(known), luck.randint(1, 6)))
            # And one that may come.
            held, _ = work.lease_ids(*wanted, max(known) + 1, lease_time="1 hour")
        for id in held.ids:
            verb = luck.choice(["ack", "ack", "ack", "retry", "release", ""])
            if verb == "ack":
                done += [id] * work.ack(held, [id])
            elif verb:
                work.answer(verb, held, [id], delays=["0"])
    return done


@pytest.mark.parametrize("plain", [0, 0.5], ids=["ids", "mixed"])
def test_nothing_is_lost_or_doubled_however_leases_meet(
    engine: Engine, open_session: Connect, plain: float
) -> None:
    """Publishers in transactions that overlap, takers by id and plain ones, retries, leases that run out."""
    published: list[int] = []
    with ThreadPoolExecutor(5) as pool:
        writers = [
            pool.submit(publish_some, engine.on(open_session(autocommit=False)), seed, published)
            for seed in (1, 2)
        ]
        takers = [
            pool.submit(take_some, engine.on(open_session(autocommit=True)), seed, plain, published)
            for seed in (3, 4, 5)
        ]
        done = [id for each in takers for id in each.result()]
        assert [each.result() for each in writers] == [None, None]
    # What was left in somebody's hands comes back.
    for hours in range(2, 40, 2):
        move_clock(engine.connection, f"{hours} hours")
        engine.ask("reap")
        engine.ask("promote")
        done += engine.drain()
    assert Counter(done) == Counter(published)
    assert engine.listed(state="ready") == engine.listed(state="leased") == []
    assert sorted(engine.listed(state="done")) == sorted(published)
