"""Among messages that are over, the others are handed out once and in order, whatever a lease asks for."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest

from calling import new_names
from engine import Engine

SORTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "unique": {"unique": "replace"},
    "lanes": {"lanes": "key"},
    "in order": {"lanes": "key", "unique": "replace"},
    "limited lanes": {"lanes": "key"},
    "limited": {},
}


def make(session: psycopg.Connection[Any], sort: str) -> Engine:
    work = Engine(session, next(new_names("bury"))).create(**SORTS[sort])
    if sort == "in order":
        work.ask("subscribe", subscription="default", in_order=True)
    elif sort == "limited lanes":
        work.ask("set_lanes", max_running=3)
    elif sort == "limited":
        work.ask("subscribe", subscription="default", max_running=5, rate=1_000_000, burst=50)
    return work


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("asked", [1, 3, 150])
@pytest.mark.parametrize("lanes", [1, 7, 120])
def test_each_message_that_is_not_over_is_handed_out_once(
    session: psycopg.Connection[Any], sort: str, asked: int, lanes: int
) -> None:
    chance = random.Random(f"{sort} {asked} {lanes}")
    work = make(session, sort)
    expected: list[int] = []
    key_of: dict[int, int] = {}
    for _ in range(12):
        # Runs of those that are over and of those that are not, now shorter and now longer than a step.
        is_over, count = chance.random() < 0.7, chance.choice([1, 2, 50, 99, 100, 101, 130])
        keys = [chance.randrange(lanes) for _ in range(count)]
        why = chance.choice(["expired", "cancelled"]) if is_over else None
        ids = work.publish(
            count, keys=[f"k{key}" for key in keys], max_age="1 microsecond" if why == "expired" else None
        )
        if why == "cancelled":
            work.call("cancel", ids=ids)
        expected += [] if is_over else ids
        key_of |= dict(zip(ids, keys, strict=True))
    (last,) = work.publish(keys=["k0"])
    expected.append(last)
    key_of[last] = 0
    seen: list[int] = []
    held = work.lease(asked)
    while held:
        assert len(held.ids) <= asked
        if sort == "limited":
            assert len(held.ids) <= 5
        if sort == "limited lanes":
            held_keys = [key_of[id] for id in held.ids]
            assert all(held_keys.count(key) <= 3 for key in held_keys)
        seen += held.ids
        if chance.random() < 0.3 and len(seen) < len(expected):
            # Another worker looks while these run.
            other = work.lease(asked)
            seen += other.ids
            if other:
                work.ack(other)
        work.ack(held)
        held = work.lease(asked)
    assert sorted(seen) == expected
    if sort == "in order":
        for key in range(lanes):
            mine = [id for id in seen if key_of[id] == key]
            assert mine == sorted(mine)
    assert work.fetch("select count(*) from trunq.dead where queue_id = {id}") == len(key_of) - len(expected)
    assert work.status().ready == 0
    assert work.status().leased == 0
