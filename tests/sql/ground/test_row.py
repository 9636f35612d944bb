"""A row of a log is a transaction, an id, and for whom it is: two retries may share the first two."""

from __future__ import annotations

from itertools import count
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import Lease, new_names
from engine import Engine

SUBSCRIPTIONS = ["default", "audit"]
LATER = count(1)
"""Promotion does not look twice at one minute."""

POLICY = {"backoff": "constant", "backoff_base": "1 minute", "jitter": 0}

Given = tuple[Engine, int]


def make(session: psycopg.Connection[Any], lanes: str | None = None, **options: Any) -> Engine:
    """A queue with two subscriptions, of which each hands a message out at most 5 times."""
    queue = Engine(session, next(new_names("rows"))).create(lanes=lanes)
    for name in SUBSCRIPTIONS:
        queue.ask("subscribe", subscription=name, max_attempts=5, **POLICY, **options)
    return queue


def fail(queue: Engine, name: str) -> None:
    queue.answer("retry", queue.lease(subscription=name), errors=[f"{name} failed"])


def promote(queue: Engine) -> int:
    with queue.clock(f"{2 * next(LATER)} minutes"):
        return int(queue.ask("promote"))


def two_retries(queue: Engine) -> int:
    """A message that both retry, "audit" for the second time; their rows have one transaction and one id."""
    (id,) = queue.publish(keys=["a"])
    fail(queue, "audit")
    assert promote(queue) == 1
    fail(queue, "audit")
    fail(queue, "default")
    assert promote(queue) == 2
    rows = queue.run("select count(*) from {log} where subscription_id is not null group by txid, id")
    assert max(number for (number,) in rows) == 2
    return id


def states(queue: Engine, id: int) -> list[str]:
    return [queue.state(id, name) for name in SUBSCRIPTIONS]


def viewed(queue: Engine, id: int) -> list[str]:
    """The same by the view of messages."""
    rows = queue.run("select subscription, state from trunq_queue.{queue}_messages where id = %s", id)
    found = dict(rows.fetchall())
    return [found[name] for name in SUBSCRIPTIONS]


KINDS = [
    pytest.param({}, id="plain"),
    pytest.param({"lanes": "key"}, id="lanes"),
    pytest.param({"lanes": "key", "in_order": True}, id="in order"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", SUBSCRIPTIONS)
def test_each_of_two_subscriptions_leases_its_own_row(
    session: psycopg.Connection[Any], kind: dict[str, Any], first: str
) -> None:
    queue = make(session, **kind)
    id = two_retries(queue)
    assert states(queue, id) == viewed(queue, id) == ["ready", "ready"]
    found: dict[str, Lease] = {}
    for name in sorted(SUBSCRIPTIONS, key=lambda name: name != first):
        found[name] = queue.lease(subscription=name)
    assert [found[name].messages[0].attempt for name in SUBSCRIPTIONS] == [2, 3]
    assert states(queue, id) == viewed(queue, id) == ["leased", "leased"]
    assert [len(queue.message(id, name).attempts) for name in SUBSCRIPTIONS] == [2, 3]
    for held in found.values():
        queue.ack(held)
    assert states(queue, id) == viewed(queue, id) == ["done", "done"]
    assert [row.ready for row in queue.call("status")] == [0, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_attempt_of_one_is_not_that_of_the_other(
    session: psycopg.Connection[Any], kind: dict[str, Any]
) -> None:
    queue = make(session, **kind)
    queue.ask("subscribe", subscription="default", max_attempts=3)
    id = two_retries(queue)
    for name in SUBSCRIPTIONS:
        fail(queue, name)
    # The third attempt of "default" is still to come.
    assert states(queue, id) == ["retrying", "retrying"]
    assert [queue.message(id, name).attempt for name in SUBSCRIPTIONS] == [3, 4]
    assert [len(queue.message(id, name).attempts) for name in SUBSCRIPTIONS] == [2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_that_both_have_done_cannot_be_cancelled(
    session: psycopg.Connection[Any], kind: dict[str, Any]
) -> None:
    queue = make(session, **kind)
    id = two_retries(queue)
    for name in SUBSCRIPTIONS:
        queue.ack(queue.lease(subscription=name))
    assert {row.state for row in queue.call("cancel", ids=[id])} == {"done"}


def test_in_order_states_and_cancel_are_right_with_another_message_behind(
    session: psycopg.Connection[Any],
) -> None:
    queue = make(session, lanes="key", in_order=True)
    id, _ = queue.publish(2, keys=["a"])
    for name in reversed(SUBSCRIPTIONS):
        fail(queue, name)
    assert promote(queue) == 2
    held = [queue.lease(subscription=name) for name in SUBSCRIPTIONS]
    assert [each.ids for each in held] == [[id], [id]]
    assert [row.state for row in queue.call("list_messages", state="leased")] == ["leased"]
    for each in held:
        queue.ack(each)
    assert states(queue, id) == viewed(queue, id) == ["done", "done"]
    assert [queue.message(id, name).attempt for name in SUBSCRIPTIONS] == [2, 2]
    assert {row.state for row in queue.call("cancel", ids=[id])} == {"done"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_archive_has_the_attempts_of_each(session: psycopg.Connection[Any], kind: dict[str, Any]) -> None:
    queue = make(session, **kind)
    queue.ask("create_archive")
    two_retries(queue)
    for name in SUBSCRIPTIONS:
        queue.ack(queue.lease(subscription=name))
    queue.ask("archive")
    kept = queue.run(
        "select subscription, attempt from trunq_archive.{queue} order by subscription, lease_id"
    )
    assert kept.fetchall() == [("audit", 1), ("audit", 2), ("audit", 3), ("default", 1), ("default", 2)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_taker_gets_the_attempts_of_each(session: psycopg.Connection[Any], kind: dict[str, Any]) -> None:
    queue = make(session, **kind)
    two_retries(queue)
    for name in SUBSCRIPTIONS:
        queue.ack(queue.lease(subscription=name))
    slice = queue.fetch("select trunq._plan_history(%s, 'lake', '{{}}', 1000) -> 'slice'", queue.queue)
    rows = []
    for part in slice["parts"]:
        rows += queue.run(
            "select subscription, attempt from trunq._read_history(%s, {id}, %s,"
            " trunq._list_leases(%s, {id}, %s, 0, 1000)) order by lease_id",
            queue.queue,
            Jsonb(part),
            queue.queue,
            Jsonb(part),
        ).fetchall()
    assert sorted(rows) == [("audit", 1), ("audit", 2), ("audit", 3), ("default", 1), ("default", 2)]


@pytest.mark.parametrize("kind", KINDS[1:])
def test_what_runs_in_a_lane_is_counted_once(session: psycopg.Connection[Any], kind: dict[str, Any]) -> None:
    queue = make(session, **kind)
    two_retries(queue)
    held = queue.lease(subscription="default")
    assert [row.running for row in queue.call("list_lanes")] == [1]
    assert [row.running for row in queue.call("list_lanes", subscription="audit")] == [0]
    queue.ack(held)
    assert sum(row.running for row in queue.call("list_lanes")) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_reference_tells_the_attempt_of_its_own(
    session: psycopg.Connection[Any], kind: dict[str, Any]
) -> None:
    queue = make(session, **kind)
    two_retries(queue)
    for name in SUBSCRIPTIONS:
        error = queue.fetch("select trunq.add_reference(%s)", f"{name} failed")
        queue.answer("retry", queue.lease(subscription=name), errors=[error])
        reference = str(error).rsplit("reference ", 1)[1]
        (found,) = queue.call("find_reference", reference=reference)
        assert (found.subscription, found.attempt) == (name, {"default": 2, "audit": 3}[name])


def test_in_order_the_next_message_of_a_lane_comes_after_each_of_the_two(
    session: psycopg.Connection[Any],
) -> None:
    queue = make(session, lanes="key", in_order=True)
    id = two_retries(queue)
    (later,) = queue.publish(keys=["a"])
    for name in SUBSCRIPTIONS:
        held = queue.lease(10, subscription=name)
        assert held.ids == [id]
        queue.ack(held)
        assert queue.lease(10, subscription=name).ids == [later]


@pytest.mark.parametrize(
    ("kind", "walk"), [({}, 50_000), ({"lanes": "key"}, 5_000), ({"lanes": "key", "in_order": True}, 5_000)]
)
@pytest.mark.parametrize("first", SUBSCRIPTIONS)
def test_a_walk_that_ends_between_two_rows_of_one_place_loses_neither(
    session: psycopg.Connection[Any], kind: dict[str, Any], walk: int, first: str
) -> None:
    """The rows of another subscription fill the walk of "default", up to the first of the two."""
    queue = make(session, **kind)
    rows = queue.run("select name, subscription_id from trunq.subscription where queue_id = {id}")
    subscriptions = dict(rows.fetchall())
    second = next(name for name in SUBSCRIPTIONS if name != first)
    queue.run(
        "insert into {log} (id, subscription_id, attempt, key, payload)"
        " select 1000 + n, case when n < %s then %s else s.id end, 2, 'a', '1'"
        " from generate_series(1, %s) n cross join lateral unnest(array[%s, %s]) with ordinality s(id, at)"
        " where n = %s or s.at = 1 order by n, s.at",
        walk, subscriptions["audit"], walk, subscriptions[first], subscriptions[second], walk,
    )  # fmt: skip
    assert queue.drain() == [1000 + walk]
    assert queue.lease(subscription="default").messages == []
