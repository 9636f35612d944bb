"""A group by key under load: producers that roll back, members that abandon batches or come late."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import psycopg

from calling import new_names
from conftest import Connect
from engine import Engine

CREW = {"subscription": "crew"}
KEYS = [f"customer {n}" for n in range(12)]
MEMBERS = ("ada", "bob", "cat", "dan")
ROUNDS = 15
LOOKS = 5000
"""More than it takes: who looks so often has lost something."""


def produce(work: Engine, seed: int) -> int:
    """So many transactions over keys of its own, some rolled back. How many messages were committed."""
    chance = random.Random(seed)
    committed = 0
    for _ in range(ROUNDS):
        keys = chance.choices(KEYS[seed :: len(MEMBERS)], k=chance.randint(1, 5))
        work.ask("publish_many", payloads=[{"n": committed + n} for n in range(len(keys))], keys=keys)
        if chance.random() < 0.2:
            work.connection.rollback()
        else:
            work.connection.commit()
            committed += len(keys)
    return committed


def consume(work: Engine, member: str, seed: int) -> tuple[int, int]:
    """Reads until all is done. How often it abandoned a batch, and was refused because it was late."""
    chance = random.Random(seed)
    abandoned = refused = 0
    for _ in range(LOOKS):
        if done(work):
            break
        fate = chance.random()
        # Those that are abandoned or late run out at once.
        rows = work.call("next_batch", **CREW, worker=member, lease_time="1 ms" if fate < 0.3 else "10 min")
        work.connection.commit()
        if not rows or fate < 0.15:
            abandoned += len(rows)
            continue
        (batch,) = rows
        try:
            for row in work.call("read_batch", **CREW, batch_id=batch.batch_id):
                work.connection.execute(
                    "insert into effect (key, n) values (%s, %s)", (row.key, row.payload["n"])
                )
            work.ask("finish_batch", **CREW, batch_id=batch.batch_id, token=batch.token)
            work.connection.commit()
        except psycopg.Error as error:
            work.connection.rollback()
            if error.sqlstate != "TQ003":
                raise
            refused += 1
    return abandoned, refused


def done(work: Engine) -> bool:
    row = work.connection.execute("select count(*) >= max(target) from effect, goal").fetchone()
    work.connection.commit()
    return bool(row and row[0])


def test_by_key_nothing_is_lost_doubled_or_overtaken(connect: Connect) -> None:
    work = Engine(connect(), next(new_names("slot_ledger")))
    work.create(default_subscription=False)
    work.ask("create_group", group="crew", slots=8)
    work.ask("subscribe", **CREW, mode="exclusive", max_attempts=0)
    work.connection.execute(
        "create table effect (at bigint generated always as identity, key text, n integer);"
        "create table goal (target integer); insert into goal values (null)"
    )
    with ThreadPoolExecutor(8) as pool:
        producers = [pool.submit(produce, work.on(connect(autocommit=False)), seed) for seed in range(4)]
        readers = [
            pool.submit(consume, work.on(connect(autocommit=False)), member, seed)
            for seed, member in enumerate(MEMBERS)
        ]
        committed = sum(each.result() for each in producers)
        work.connection.execute("update goal set target = %s", (committed,))
        fates = [each.result() for each in readers]
    rows = work.connection.execute("select key, n from effect order by at").fetchall()
    assert len(rows) == len(set(rows)) == committed, "each once"
    for key in KEYS:
        found = [n for each, n in rows if each == key]
        assert found == sorted(found), f"{key} was overtaken"
    assert sum(abandoned for abandoned, _ in fates) > 0
    (group,) = work.call("list_groups")
    assert (group.pending, group.slots) == (0, 8)
