"""Unique keys under many hands: who waits for whom, and that nothing is lost, doubled or held for ever."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import errors

from calling import ask
from conftest import Connect
from engine import Engine
from race.conftest import Meanwhile
from waiting import wait_until_blocked

Connection = psycopg.Connection[Any]


def take(engine: Engine, unique_key: str = "k", **options: Any) -> tuple[int, bool]:
    ((id, is_new),) = engine.call("publish_unique", unique_key=unique_key, **{"payload": {}, **options})
    return id, is_new


def open_transaction(session: Connection, level: str = "read committed") -> Connection:
    session.execute(f"begin isolation level {level}".encode())
    return session


@pytest.fixture(params=["refuse", "replace"])
def policy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def keyed(session: Connection, policy: str) -> Iterator[Engine]:
    engine = Engine(session, "keyed").create(unique=policy)
    engine.ask("subscribe", subscription="default", backoff_base="0", max_attempts=0)
    yield engine
    engine.ask("drop_queue", force=True)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_publishers_of_one_key_wait_for_each_other_and_nobody_else_does(
    keyed: Engine, open_session: Connect, meanwhile: Meanwhile, policy: str, end: str
) -> None:
    before, _ = take(keyed, "old")
    first = keyed.on(open_transaction(open_session()))
    mine, is_new = take(first)
    assert is_new
    other = open_session()
    waiting = meanwhile(lambda session: take(keyed.on(session)), other)
    wait_until_blocked(keyed.connection, other)
    # Readers, other keys and the duty go on.
    assert take(keyed, "another")[1]
    held = keyed.lease(10)
    assert held.ids[0] == before
    keyed.ack(held)
    keyed.ask("forget")
    first.run(end)
    id, is_new = waiting.result(120)
    assert is_new == (end == "rollback" or policy == "replace")
    if not is_new:
        assert id == mine
    assert keyed.drain() == [id]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_lease_beside_an_open_replacement_waits_for_nobody_and_loses_nothing(
    session: Connection, open_session: Connect, end: str
) -> None:
    keyed = Engine(session, "debounced").create(unique="replace")
    first, _ = take(keyed)
    publisher = keyed.on(open_transaction(open_session()))
    second, is_new = take(publisher)
    assert is_new
    held = keyed.lease()
    assert held.ids == [first], "nothing that is not committed stands for it"
    keyed.ack(held)
    publisher.run(end)
    assert keyed.drain() == ([second] if end == "commit" else [])
    assert take(keyed)[1]
    keyed.ask("drop_queue", force=True)


def test_a_key_taken_by_a_prepared_transaction_is_taken(
    keyed: Engine, open_session: Connect, meanwhile: Meanwhile, policy: str
) -> None:
    publisher = keyed.on(open_session())
    publisher.run("begin")
    publisher.run("set local trunq.notify = off")
    id, _ = take(publisher)
    publisher.run("prepare transaction 'keyed'")
    try:
        other = open_session()
        waiting = meanwhile(lambda session: take(keyed.on(session)), other)
        wait_until_blocked(keyed.connection, other)
        assert not keyed.lease()
    finally:
        keyed.run("commit prepared 'keyed'")
    newest, is_new = waiting.result(120)
    assert is_new == (policy == "replace")
    assert keyed.drain() == [newest if is_new else id]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_snapshot_that_does_not_see_the_holder_fails_and_takes_nothing(
    keyed: Engine, open_session: Connect, level: str, policy: str
) -> None:
    publisher = keyed.on(open_transaction(open_session(), level))
    publisher.run("select count(*) from {log}")
    id, _ = take(keyed)
    with pytest.raises(errors.SerializationFailure):
        take(publisher)
    publisher.connection.rollback()
    again = keyed.on(open_transaction(open_session(), level))
    assert take(again)[1] == (policy == "replace")
    again.run("rollback")
    assert keyed.drain() == [id]


def test_many_at_once_crosswise_do_not_deadlock_and_publish_each_key_once(
    keyed: Engine, open_session: Connect, policy: str
) -> None:
    keys = [f"key {n}" for n in range(60)]

    def publish(session: Connection, seed: int) -> Counter[str]:
        chance = random.Random(seed)
        new: Counter[str] = Counter()
        for _ in range(15):
            chosen = chance.sample(keys, 20)
            rows = keyed.on(session).call("publish_many_unique", payloads=["1"] * 20, unique_keys=chosen)
            new.update(key for key, row in zip(chosen, rows, strict=True) if row.is_new)
        return new

    with ThreadPoolExecutor(6) as threads:
        work = [threads.submit(publish, open_session(), seed) for seed in range(6)]
        new = sum((future.result() for future in work), Counter[str]())
    assert set(new) == set(keys)
    if policy == "refuse":
        assert set(new.values()) == {1}
    assert len(keyed.drain()) == len(keys)


def test_two_that_take_keys_by_copy_and_by_insert_leave_one_of_each(
    keyed: Engine, open_session: Connect, policy: str
) -> None:
    keys = [f"key {n:03}" for n in range(200)]

    def copy(session: Connection) -> int:
        with session.cursor() as cursor:
            with cursor.copy(f"copy trunq_log.{keyed.queue} (unique_key) from stdin".encode()) as copying:
                for key in keys:
                    copying.write_row([key])
            return cursor.rowcount

    def insert(session: Connection) -> int:
        return (
            keyed.on(session).run("insert into {log} (unique_key) select unnest(%s::text[])", keys).rowcount
        )

    with ThreadPoolExecutor(4) as threads:
        counts = [each.result() for each in [threads.submit(f, open_session()) for f in (copy, insert) * 2]]
    assert sum(counts) == (200 if policy == "refuse" else 800)
    assert len(keyed.drain()) == 200


class Ledger:
    """What publishers and readers did to a queue that replaces, many at once."""

    def __init__(self, keyed: Engine, keys: list[str]) -> None:
        self.keyed = keyed
        self.published: dict[str, list[int]] = {key: [] for key in keys}
        self.done: Counter[int] = Counter()
        self.over = threading.Event()
        self._one = threading.Lock()

    def publish(self, own: Connection, seed: int) -> None:
        chance, engine = random.Random(seed), self.keyed.on(own)
        for _ in range(60):
            key = chance.choice(list(self.published))
            own.execute("begin")
            id, is_new = take(engine, key, key=key, unique_until=chance.choice(["done", "leased"]))
            assert is_new
            if chance.random() < 0.3:
                own.execute("rollback")
                continue
            # Noted before others can take the key: the order of the list is that of the commits.
            with self._one:
                own.execute("commit")
                self.published[key].append(id)

    def read(self, own: Connection, seed: int) -> None:
        chance, engine = random.Random(seed), self.keyed.on(own)
        while not self.over.is_set():
            if held := engine.lease(chance.randint(1, 4), worker=f"w{seed}"):
                verb = chance.choice(["ack", "ack", "retry", "release", "lose"])
                if verb == "lose":
                    engine.ask("reclaim", subscription="default", worker=f"w{seed}")
                else:
                    engine.answer(verb, held)
                if verb == "ack":
                    with self._one:
                        self.done.update(held.ids)
            engine.ask("promote")
            engine.ask("forget")


@pytest.mark.parametrize("lanes", [None, "key"])
def test_the_newest_of_each_key_is_handed_out_and_none_is_held_for_ever(
    session: Connection, open_session: Connect, lanes: str | None
) -> None:
    """Publishers replace and roll back; readers ack, retry, release and lose leases; the duty forgets."""
    keyed = Engine(session, "debounced").create(unique="replace", lanes=lanes)
    keyed.ask("subscribe", subscription="default", backoff_base="0", max_attempts=0)
    ledger = Ledger(keyed, [f"key {n}" for n in range(8)])
    with ThreadPoolExecutor(6) as threads:
        readers = [threads.submit(ledger.read, open_session(), seed) for seed in range(2)]
        writers = [threads.submit(ledger.publish, open_session(), seed) for seed in range(10, 14)]
        try:
            for writer in writers:
                writer.result()
        finally:
            ledger.over.set()
        for reader in readers:
            reader.result()
    done, published = ledger.done, ledger.published
    with keyed.clock("1 hour"):
        keyed.ask("reap")
    with keyed.clock("2 hours"):
        keyed.ask("promote")
        done.update(keyed.drain())
    assert set(done.values()) == {1}
    assert set(done) <= {id for ids in published.values() for id in ids}
    assert {ids[-1] for ids in published.values()} <= set(done)
    assert keyed.status().ready == keyed.status().leased == keyed.status().delayed == 0
    assert [take(keyed, key, on_conflict="refuse")[1] for key in published] == [True] * len(published)
    keyed.drain()
    keyed.ask("forget")
    assert keyed.fetch("select count(*) from trunq_data.{queue}_unique") == 0
    ask(session, "drop_queue", queue=keyed.queue, force=True)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_of_two_that_insert_one_content_the_second_waits_and_fails_or_goes_on(
    session: Connection, open_session: Connect, meanwhile: Meanwhile, end: str
) -> None:
    work = Engine(session, "keyed").create(unique="refuse", unique_on="content")
    try:
        insert = "insert into {log} (kind, payload) values ('mail', '7') returning id"
        first = work.on(open_transaction(open_session()))
        first.run(insert)
        other = open_session()
        waiting = meanwhile(lambda session: work.on(session).run(insert).fetchone(), other)
        wait_until_blocked(session, other)
        assert session.execute("insert into trunq_log.keyed (payload) values ('8') returning id").fetchone()
        first.run(end)
        if end == "commit":
            with pytest.raises(psycopg.Error, match="same kind"):
                waiting.result()
        else:
            assert waiting.result()
        assert len(work.drain()) == 2
    finally:
        work.ask("drop_queue", force=True)
