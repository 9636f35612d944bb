"""To look at a queue, to rotate it and to read its stream costs the same however much it has handled.

For each feature, since what one adds is seldom in the way of another: a plain queue tells nothing of lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from counting import cost_of
from engine import Engine
from laning import LATER
from streaming import LAKE, named, take

ROUND = 100
FEW, MANY = 2, 10
"""Rounds of so many messages."""
KEYS = [f"k{n}" for n in range(10)]
CREW = {"subscription": "crew", "worker": "ada"}


def nothing(_: Engine) -> None:
    pass


def limited(work: Engine) -> None:
    work.ask("subscribe", subscription="default", max_running=1000, rate=1_000_000, burst=1_000_000)


FEATURES: dict[str, tuple[dict[str, Any], Callable[[Engine], object]]] = {
    "plain": ({}, nothing),
    "lanes": ({"lanes": "key"}, nothing),
    "in order": ({"lanes": "key"}, lambda work: work.ask("subscribe", subscription="default", in_order=True)),
    "limited lanes": ({"lanes": "key"}, lambda work: work.ask("set_lanes", max_running=5)),
    "limited": ({}, limited),
    "filtered": ({}, lambda work: work.ask("subscribe", subscription="default", filter={"keys": KEYS[:5]})),
    "filtered lanes": (
        {"lanes": "key"},
        lambda work: work.ask("subscribe", subscription="default", filter={"keys": KEYS[:5]}),
    ),
    "columns": ({}, lambda work: work.ask("add_column", column="customer", type="text", default="acme")),
    "filtered by columns": (
        {},
        lambda work: (
            work.ask("add_column", column="customer", type="text", default="acme"),
            work.ask("subscribe", subscription="default", filter={"columns": {"customer": "acme"}}),
        ),
    ),
    "aged": ({}, lambda work: work.ask("subscribe", subscription="default", max_age="1 day")),
    "grouped": ({}, lambda work: work.ask("create_group", group="crew", slots=4)),
    "unique": ({"unique": "refuse"}, nothing),
    "replaced": ({"unique": "replace"}, nothing),
    "archived": ({}, lambda work: work.ask("create_archive")),
    "archived at once": ({}, lambda work: work.ask("create_archive", at_once=True)),
    "archived in order": (
        {"lanes": "key"},
        lambda work: (
            work.ask("subscribe", subscription="default", in_order=True),
            work.ask("create_archive"),
        ),
    ),
}


def handle(work: Engine, feature: str, rounds: int) -> None:
    """So much, by every reader, and what the leader does about it."""
    keys = KEYS * (ROUND // len(KEYS))
    for n in range(rounds):
        if feature in ("unique", "replaced"):
            payloads = [{"n": at} for at in range(ROUND)]
            unique_keys = [f"{n}-{at}" for at in range(ROUND)]
            work.call("publish_many_unique", payloads=payloads, keys=keys, unique_keys=unique_keys)
        else:
            work.publish(ROUND, keys=keys)
        while held := work.lease(50):
            work.ack(held)
        read(work, feature)
    with work.clock("2 minutes"):
        work.connection.execute("call trunq.perform_each_duty()")


def read(work: Engine, feature: str, **more: Any) -> None:
    """All batches of the stream and, where there is one, of the group."""
    while batch := take(work, **more):
        work.ask("finish_batch", **named(batch))
    while feature == "grouped" and (found := work.call("next_batch", **CREW, **more)):
        (batch,) = found
        work.ask("finish_batch", subscription="crew", batch_id=batch.batch_id, token=batch.token)


def costs(work: Engine, feature: str) -> dict[str, int]:
    """Pages of each look, its plans made."""
    name, connection = work.queue, work.connection
    looks = {
        "status": f"select * from trunq.status('{name}')",
        "needing": "select trunq._all_subscriptions_needing(q, n) from trunq.queue q, generate_series(0, 3) n"
        f" where q.name = '{name}'",
        "next_batch": f"select * from trunq_queue.{name}_next_batch('lake', 'ada')",
    }
    if "lanes" in feature or "order" in feature:
        looks["list_lanes"] = f"select * from trunq.list_lanes('{name}')"
    found = {}
    with work.clock("2 minutes"):
        for look, statement in looks.items():
            cost_of(connection, statement)
            cost = cost_of(connection, statement)
            assert cost.seq_scans == 0, look
            found[look] = cost.pages
    # A stream holds its last batch: that is an empty one.
    for _ in range(3):
        work.ask("tick", force=True)
        read(work, feature, cut=False)
    with work.clock(LATER):
        found["rotate"] = rotate(work)
    # A slot without messages is taken along now and then.
    assert work.is_empty("log") == (feature != "grouped")
    return found


def rotate(work: Engine) -> int:
    """Pages of all that rotation does, until there is nothing more to do."""
    pages = 0
    for _ in range(50):
        statement = f"select from (select trunq.rotate('{work.queue}') step offset 0) r where r.step = 1"
        cost = cost_of(work.connection, statement)
        pages += cost.pages
        if cost.rows == 0:
            return pages
    raise AssertionError("rotate never comes to an end")


@pytest.mark.parametrize("feature", FEATURES)
def test_looks_and_rotation_cost_the_same_after_five_times_as_much(
    connection: psycopg.Connection[Any], feature: str
) -> None:
    options, prepare = FEATURES[feature]
    counted = []
    for rounds in (FEW, MANY):
        work = Engine(connection, f"handled_{rounds}").create(**options)
        work.ask("subscribe", **LAKE, mode="exclusive")
        prepare(work)
        handle(work, feature, rounds)
        counted.append(costs(work, feature))
    few, many = counted
    assert [look for look in few if many[look] > 1.3 * few[look] + 50] == [], counted
