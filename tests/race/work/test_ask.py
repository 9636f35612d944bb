"""Leases that ask for different parts beside each other: each message has one taker."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import psycopg
import pytest

from calling import move_clock
from conftest import Connect
from engine import Engine
from race.conftest import Meanwhile
from waiting import wait_until_blocked

Connection = psycopg.Connection[Any]
KINDS = ("mail", "fax", "text")
ASKS: tuple[dict[str, Any] | None, ...] = (
    {"kinds": ["mail"]},
    {"kinds": ["mail", "fax"]},
    {"not_kinds": ["mail"]},
    {"key_prefix": "k1"},
    None,
)
MAIL, FAX = {"kinds": ["mail"]}, {"kinds": ["fax"]}


@pytest.fixture
def engine(session: Connection, queue: str) -> Engine:
    return Engine(session, queue)


@pytest.fixture
def other(open_session: Connect, engine: Engine) -> Engine:
    """The same queue in a second session, in transactions."""
    return engine.on(open_session(autocommit=False))


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("asks", [FAX, None], ids=["asks", "everything"])
def test_who_waits_for_the_lock_takes_what_was_set_aside_meanwhile(
    engine: Engine, other: Engine, commits: bool, asks: dict[str, Any] | None
) -> None:
    """Also one that asks for everything, and had not seen before the lock that anybody asks."""
    ids = engine.publish(3, kinds=["fax", "mail", "fax"])
    assert other.lease(5, asks=MAIL).ids == ids[1:2]
    more = {} if asks is None else {"asks": asks}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: engine.lease(5, **more).ids)
        wait_until_blocked(other.connection, engine.connection)
        if commits:
            other.connection.commit()
        else:
            other.connection.rollback()
        found = waiting.result()
    found += engine.lease(5).ids
    assert sorted(found) == ([ids[0], ids[2]] if commits else ids)
    assert not engine.lease(5)


@pytest.mark.parametrize("commits", [True, False])
def test_what_somebody_cancels_just_now_is_left_and_not_forgotten(
    engine: Engine, other: Engine, commits: bool
) -> None:
    ids = engine.publish(3, kinds=["fax"])
    assert not engine.lease(asks=MAIL)
    other.call("cancel", ids=[ids[0]])
    assert engine.lease(5, asks=FAX).ids == ids[1:]
    assert not engine.lease(5, asks=FAX)
    if commits:
        other.connection.commit()
    else:
        other.connection.rollback()
    assert engine.lease(5, asks=FAX).ids == ([] if commits else ids[:1])
    assert engine.state(ids[0]) == ("dead" if commits else "leased")


def test_what_is_put_aside_while_an_id_is_looked_for_is_had_by_it(engine: Engine, other: Engine) -> None:
    engine.lease(asks=MAIL)
    ids = engine.publish(2, kinds=["fax"])
    assert not other.lease(asks=MAIL)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: engine.take(ids[1]).ids)
        wait_until_blocked(other.connection, engine.connection)
        other.connection.commit()
        assert waiting.result() == [ids[1]]
    assert engine.lease(5, asks=FAX).ids == ids[:1]


def publish_some(work: Engine, seed: int, published: list[int]) -> None:
    luck = random.Random(seed)
    for _ in range(15):
        count = luck.randint(1, 6)
        ids = work.publish(
            count, kinds=luck.choices(KINDS, k=count), keys=luck.choices(["k1", "k12", "x"], k=count)
        )
        if luck.random() < 0.2:
            work.connection.rollback()
        else:
            work.connection.commit()
            published.extend(ids)


def take_some(work: Engine, seed: int) -> list[int]:
    """Asking for this and that; acked, given back, forgotten or rolled back. Returns what was done."""
    luck = random.Random(seed)
    done: list[int] = []
    for _ in range(30):
        asks = luck.choice(ASKS)
        held = work.lease(luck.randint(1, 5), lease_time="1 hour", **({} if asks is None else {"asks": asks}))
        if luck.random() < 0.15:
            work.connection.rollback()
            continue
        work.connection.commit()
        for id in held.ids:
            verb = luck.choice(["ack", "ack", "ack", "retry", "release", ""])
            if verb == "ack":
                done += [id] * work.ack(held, [id])
            elif verb:
                work.answer(verb, held, [id], delays=["0"])
            work.connection.commit()
    return done


def test_nothing_is_lost_or_doubled_however_leases_meet(engine: Engine, open_session: Connect) -> None:
    published: list[int] = []
    with ThreadPoolExecutor(5) as pool:
        writers = [
            pool.submit(publish_some, engine.on(open_session(autocommit=False)), seed, published)
            for seed in (1, 2)
        ]
        takers = [
            pool.submit(take_some, engine.on(open_session(autocommit=False)), seed) for seed in (3, 4, 5)
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
    assert engine.fetch("select count(*) from trunq.delayed where queue_id = {id}") == 0


def test_what_is_deleted_while_a_lease_sets_it_aside_is_erased(
    session: Connection, open_session: Connect, queue: str, meanwhile: Meanwhile
) -> None:
    """The lease has read the message and copies it, while nobody sees that copy yet."""
    engine = Engine(session, queue)
    assert not engine.lease(asks=MAIL)
    (id,) = engine.publish(kinds=["fax"])
    # Copies wait for this lock, behind what they have read.
    engine.run(
        "create function public.linger() returns trigger language plpgsql as $$"
        " begin perform pg_advisory_xact_lock(424242); return new; end $$"
    )
    engine.run(
        "create trigger linger before insert on trunq.delayed for each row when (new.queue_id = {id})"
        " execute function public.linger()"
    )
    holder, leaser, deleter = open_session(), open_session(), open_session()
    try:
        holder.execute("select pg_advisory_lock(424242)")
        leasing = meanwhile(lambda s: engine.on(s).lease(asks=MAIL).ids, leaser)
        wait_until_blocked(holder, leaser)
        deleting = meanwhile(lambda s: engine.on(s).ask("delete", ids=[id]), deleter)
        wait([deleting], timeout=1)
        holder.execute("select pg_advisory_unlock(424242)")
        assert leasing.result() == []
        assert deleting.result() == 1
        assert (
            engine.fetch("select count(*) from trunq.delayed where queue_id = {id} and payload is not null")
            == 0
        )
        assert not engine.lease()
    finally:
        engine.run("drop trigger linger on trunq.delayed")
        engine.run("drop function public.linger()")


def test_what_a_lease_set_aside_is_not_published_again_by_a_rebase(connect: Connect) -> None:
    """Neither what is set aside, nor what was taken from there: no lease held its first row."""
    engine = Engine(connect(), "letters").create()
    ids = engine.publish(5, kinds=["mail", "fax", "text", "mail", "text"])
    for asks in (FAX, MAIL):
        engine.ack(engine.lease(asks=asks))
    engine.call("cancel", ids=ids[2:3])
    assert engine.lease(asks=MAIL).ids == ids[3:4]
    assert not engine.lease(asks=MAIL)
    assert engine.connection.execute("select trunq.rebase()").fetchone() == (1,)
    assert sorted(engine.drain()) == ids[3:]
    assert [engine.state(id) for id in ids] == ["done", "done", "dead", "done", "done"]
