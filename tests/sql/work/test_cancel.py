"""Cancelling messages: functions/work/cancel.sql."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import call, fetch, refused
from engine import Engine
from laning import make, make_any

Connection = psycopg.Connection[Any]


@pytest.fixture
def engine(session: Connection, queue: str) -> Engine:
    return Engine(session, queue)


def cancel(engine: Engine, *ids: int, **more: Any) -> dict[int, str]:
    """Cancel for one reader; the states the messages were in."""
    rows = engine.call("cancel", ids=list(ids), **more)
    assert {row.subscription for row in rows} <= {more.get("subscription", "default")}
    return {row.id: row.state for row in rows}


def dead(engine: Engine, subscription: str = "default") -> dict[int, str]:
    return {row.id: row.reason for row in engine.call("list_dead", subscription=subscription)}


def noted(engine: Engine) -> int:
    return int(engine.fetch("select count(*) from trunq.cancelled where queue_id = {id}"))


def flag(engine: Engine) -> bool:
    query = "select has_cancelled from trunq.subscription where queue_id = {id} and name = 'default'"
    return bool(engine.fetch(query))


@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_of_what_waits_the_others_come(engine: Engine, count: int) -> None:
    ids = engine.publish(5)
    assert cancel(engine, ids[2]) == {ids[2]: "ready"}
    found = []
    while held := engine.lease(count):
        found += held.ids
        engine.ack(held)
    assert found == [ids[0], ids[1], ids[3], ids[4]]
    assert dead(engine) == {ids[2]: "cancelled"}
    assert engine.state(ids[2]) == "dead"
    assert [one["outcome"] for one in engine.message(ids[2]).attempts] == ["cancelled"]


@pytest.mark.parametrize("count", [1, 3, 7, 100])
def test_a_lease_whose_messages_were_all_cancelled_hides_none_behind_it(engine: Engine, count: int) -> None:
    gone = engine.publish(7)
    (alive,) = engine.publish()
    more = engine.publish(7)
    cancel(engine, *gone, *more)
    held = engine.lease(count)
    assert held.ids == [alive]
    assert engine.ack(held) == 1
    assert not engine.lease(count)
    assert dead(engine) == dict.fromkeys(gone + more, "cancelled")
    assert engine.status().ready == engine.status().leased == 0
    assert engine.fetch("select sum(size) from {receipt} where outcome = 'c'") == 14


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("sort", ["plain", "lanes"])
def test_a_lease_that_would_take_long_ends_and_has_workers_look_again(
    session: Connection, sort: str, count: int
) -> None:
    engine = make_any(session, sort)
    gone = engine.publish(2 * count, keys=["a"])
    (alive,) = engine.publish(keys=["a"])
    cancel(engine, *gone)
    slow = f"pg_sleep(case when new.id = {gone[0]} and new.queue_id = {engine.queue_id} then 2.1 else 0 end)"
    engine.run(
        "create or replace function slow() returns trigger language plpgsql as"
        f" $$ begin perform {slow}; return null; end $$"
    )
    engine.run("create trigger slow after insert on trunq.dead for each row execute function slow()")
    try:
        engine.run("listen trunq_{id}")
        assert not engine.lease(count)
        assert [told.payload for told in session.notifies(timeout=0)] == ["look"]
        while not (held := engine.lease(count)):
            assert [told.payload for told in session.notifies(timeout=0)] == ["look"]
        assert held.ids == [alive]
    finally:
        engine.run("unlisten *")
        engine.run("drop function slow cascade")


@pytest.mark.parametrize("count", [1, 100])
def test_one_lease_may_hold_what_expired_and_what_was_cancelled(engine: Engine, count: int) -> None:
    expired = engine.publish(2, max_age="1 hour")
    cancelled = engine.publish(2)
    alive = engine.publish(2)
    both = engine.publish(1, max_age="1 hour")
    cancel(engine, *cancelled, *both)
    with engine.clock("2 hours"):
        assert engine.drain() == alive
    reasons = dead(engine)
    assert reasons.pop(both[0]) in ("expired", "cancelled")
    assert reasons == dict.fromkeys(expired, "expired") | dict.fromkeys(cancelled, "cancelled")
    assert engine.lease(count).ids == []


def test_what_is_left_of_a_lease_with_receipts_can_be_answered_in_parts(engine: Engine) -> None:
    expired = engine.publish(1, max_age="1 hour")
    cancelled = engine.publish(1)
    alive = engine.publish(3)
    cancel(engine, *cancelled)
    with engine.clock("2 hours"):
        held = engine.lease(10)
        assert held.ids == alive
        assert engine.ack(held, alive[:1]) == 1
        assert engine.answer("retry", held, alive[1:2], delays=["0"]) == 1
        assert engine.ack(held, alive) == 1
        # Those that were not handed out have their answer.
        assert engine.ack(held, expired + cancelled) == 0
        assert engine.status().leased == 0


def test_a_scheduled_message_is_dead_at_once_for_all_that_would_read_it(engine: Engine) -> None:
    engine.ask("subscribe", subscription="other", filter={"kinds": ["b"]})
    engine.ask("subscribe", subscription="stream", mode="exclusive")
    a = engine.ask("publish", kind="a", delay="1 hour")
    b = engine.ask("publish", kind="b", delay="1 hour", headers={"x": 1}, payload={"n": 1})
    rows = engine.call("cancel", ids=[a, b])
    assert [(row.subscription, row.id, row.state) for row in rows] == [
        ("default", a, "scheduled"),
        ("default", b, "scheduled"),
        ("other", b, "scheduled"),
    ]
    assert dead(engine) == {a: "cancelled", b: "cancelled"}
    assert dead(engine, "other") == {b: "cancelled"}
    assert engine.fetch("select count(*) from trunq.delayed where queue_id = {id}") == 0
    assert noted(engine) == 0
    with engine.clock("2 hours"):
        assert engine.ask("promote") == 0
        assert engine.ask("requeue", subscription="other") == 1
        (again,) = engine.lease(subscription="other").messages
        assert (again.id, again.kind, again.payload, again.headers) == (b, "b", {"n": 1}, {"x": 1})


def test_a_scheduled_message_that_only_batches_would_read_is_gone(engine: Engine) -> None:
    engine.ask("unsubscribe", subscription="default")
    engine.ask("subscribe", subscription="stream", mode="exclusive")
    id = engine.ask("publish", kind="a", delay="1 hour")
    assert engine.call("cancel", ids=[id]) == [(None, id, "scheduled")]
    with engine.clock("2 hours"):
        assert engine.ask("promote") == 0


def test_for_one_subscription_the_others_keep_it(engine: Engine) -> None:
    engine.ask("subscribe", subscription="other")
    (ready,) = engine.publish()
    later = engine.ask("publish", delay="1 hour")
    assert cancel(engine, ready, later, subscription="other") == {ready: "ready", later: "scheduled"}
    with engine.clock("2 hours"):
        assert engine.ask("promote") == 1
        assert engine.drain("default") == [ready, later]
        assert engine.drain("other") == []
    assert dead(engine, "other") == {ready: "cancelled", later: "cancelled"}
    assert dead(engine) == {}


def test_a_retry_that_waits_is_dead_at_once_with_its_errors(engine: Engine) -> None:
    (id,) = engine.publish()
    engine.answer("retry", engine.lease(), errors=["broken"], delays=["1 hour"])
    assert cancel(engine, id) == {id: "retrying"}
    (row,) = engine.call("list_dead")
    assert (row.reason, row.errors[0]["error"], row.attempts) == ("cancelled", "broken", 2)
    assert noted(engine) == 0


def test_what_is_acked_has_won(engine: Engine) -> None:
    ids = engine.publish(2)
    held = engine.lease(2)
    assert cancel(engine, ids[0]) == {ids[0]: "leased"}
    assert engine.ack(held) == 2
    assert engine.state(ids[0]) == "done"
    assert cancel(engine, *ids) == dict.fromkeys(ids, "done")
    assert dead(engine) == {}


@pytest.mark.parametrize("verb", ["retry", "release", "time_out", "put off"])
def test_what_is_given_back_is_dead(engine: Engine, verb: str) -> None:
    first, second = engine.publish(2)
    held = engine.lease(2)
    cancel(engine, first)
    more = {"errors": ["no handler"] * 2} if verb == "put off" else {}
    assert engine.answer("release" if verb == "put off" else verb, held, **more) == 2
    assert dead(engine) == {first: "cancelled"}
    assert engine.state(second) in ("ready", "retrying")


def test_what_is_rejected_is_dead_for_that(engine: Engine) -> None:
    (id,) = engine.publish()
    held = engine.lease()
    cancel(engine, id)
    engine.answer("reject", held)
    assert dead(engine) == {id: "rejected"}


def test_a_lease_that_ran_out_does_not_bring_it_back(engine: Engine) -> None:
    (id,) = engine.publish()
    engine.lease()
    cancel(engine, id)
    with engine.clock("2 minutes"):
        assert engine.ask("reap") == 1
    assert dead(engine) == {id: "cancelled"}


def test_extend_tells_what_was_cancelled(engine: Engine) -> None:
    ids = engine.publish(3)
    held = engine.lease(3)
    assert call(engine.connection, "extend", **held.named)[0].cancelled == []
    cancel(engine, ids[2], ids[0])
    (told,) = call(engine.connection, "extend", **held.named, lease_time="1 hour")
    assert told.cancelled == [ids[0], ids[2]]
    (shorter,) = call(engine.connection, "extend", **held.named, lease_time="1 second")
    assert shorter.expires_at < told.expires_at


def test_requeue_gives_it_another_life(engine: Engine) -> None:
    ids = engine.publish(3)
    held = engine.lease(1)
    cancel(engine, *ids)
    engine.answer("retry", held)
    assert not engine.lease(9)
    assert dead(engine) == dict.fromkeys(ids, "cancelled")
    assert engine.ask("requeue") == 3
    assert noted(engine) == 0
    assert sorted(engine.drain()) == ids


def test_what_was_cancelled_is_forgotten_when_it_is_over(engine: Engine) -> None:
    done, failed, running, waiting = engine.publish(4)
    held, longer = engine.lease(2), engine.lease()
    later = engine.ask("publish", delay="1 day")
    engine.ask("subscribe", subscription="other")
    cancel(engine, done, failed, running, waiting, later, subscription="default")
    assert flag(engine)
    engine.ack(held, [done])
    engine.answer("retry", held, [failed])
    assert engine.ask("forget") == 2
    assert noted(engine) == 3
    # The next look is later.
    engine.ack(longer)
    assert engine.ask("forget") == 0
    assert not engine.lease()
    with engine.clock("2 minutes"):
        assert engine.ask("forget") == 2
    assert flag(engine)
    with engine.clock("2 days"):
        engine.ask("promote")
        assert not engine.lease()
        assert engine.ask("forget") == 1
    assert not flag(engine)


def test_a_retry_that_had_not_seen_it_is_found_later(engine: Engine) -> None:
    (id,) = engine.publish()
    engine.answer("retry", engine.lease(), delays=["1 hour"])
    # As it is when the retry looked before the cancel committed, and committed after it.
    engine.run(
        "insert into trunq.cancelled select {id}, subscription_id, %s, now(), now() from trunq.subscription"
        " where queue_id = {id}",
        id,
    )
    engine.run("update trunq.subscription set has_cancelled = true where queue_id = {id}")
    engine.ask("forget")
    assert dead(engine) == {id: "cancelled"}
    assert (noted(engine), flag(engine)) == (0, False)


def test_what_was_cancelled_counts_neither_against_a_rate_nor_a_running_limit(engine: Engine) -> None:
    gone = engine.publish(5)
    ids = engine.publish(5)
    engine.ask("subscribe", subscription="default", rate=1, rate_interval="1000 days", burst=3, max_running=2)
    cancel(engine, *gone)
    first, second = engine.lease(9), engine.lease(9)
    assert first.ids + second.ids == ids[:2]
    assert not engine.lease(9)
    engine.ack(first)
    assert engine.lease(9).ids == ids[2:3]


def test_it_goes_with_its_subscription_and_its_queue(engine: Engine) -> None:
    cancel(engine, *engine.publish(2))
    engine.ask("reset", subscription="default")
    assert noted(engine) == 0
    cancel(engine, *engine.publish(2))
    engine.ask("empty_queue")
    assert noted(engine) == 0
    cancel(engine, *engine.publish(2))
    queue_id = engine.queue_id
    engine.ask("drop_queue", force=True)
    assert fetch(engine.connection, "select count(*) from trunq.cancelled where queue_id = %s", queue_id) == 0


def test_mistakes_cancel_nothing(engine: Engine) -> None:
    ids = engine.publish(2)
    engine.ask("subscribe", subscription="stream", mode="exclusive")
    mistakes: list[tuple[str, str, dict[str, Any]]] = [
        ("TQ013", "no message 999999", {"ids": [*ids, 999999]}),
        ("TQ013", "no message -1", {"ids": [-1]}),
        ("TQ005", "not null", {"ids": None}),
        ("TQ005", "not null", {"ids": [ids[0], None]}),
        ("TQ005", "in parts", {"ids": list(range(10001))}),
        ("TQ002", "nobody", {"ids": ids, "subscription": "nobody"}),
        ("TQ002", "drop table", {"ids": ids, "subscription": "'; drop table trunq.queue; --"}),
        ("TQ011", "exclusive", {"ids": ids, "subscription": "stream"}),
    ]
    for sqlstate, words, given in mistakes:
        with refused(sqlstate, words), engine.connection.transaction():
            engine.call("cancel", **given)
    with refused("TQ001", "drop table"), engine.connection.transaction():
        call(engine.connection, "cancel", queue="'; drop table trunq.queue; --", ids=ids)
    assert engine.call("cancel", ids=[]) == []
    assert engine.drain() == ids
    assert noted(engine) == 0


@pytest.mark.parametrize("count", [1, 20])
def test_lanes_do_not_hand_out_what_was_cancelled(session: Connection, count: int) -> None:
    engine = make(session)
    engine.ask("set_lanes", max_running=3)
    leased, retried = engine.publish(2, keys=["a", "b"])
    held = engine.lease(2)
    engine.answer("retry", held, [retried], delays=["1 hour"])
    later = engine.ask("publish", key="a", delay="1 hour")
    ready = engine.publish(9, keys=["a", "b", "c"] * 3)
    given = [leased, retried, later, *ready[:6]]
    assert cancel(engine, *given) == {
        leased: "leased",
        retried: "retrying",
        later: "scheduled",
        **dict.fromkeys(ready[:6], "ready"),
    }
    engine.answer("release", held, [leased])
    left: list[int] = []
    while more := engine.lease(count):
        left += more.ids
    # They take no place among the three that may run. Which lane comes first depends on who buries them.
    assert sorted(left) == ready[6:]
    assert dead(engine) == dict.fromkeys(given, "cancelled")


def test_of_a_subscription_in_order_a_cancelled_message_lets_its_key_go_on(session: Connection) -> None:
    engine = make(session)
    engine.ask("subscribe", subscription="default", in_order=True)
    ids = engine.publish(5, keys=["a"])
    engine.answer("retry", engine.lease(), delays=["1 hour"])
    assert not engine.lease()
    assert cancel(engine, ids[0], ids[1]) == {ids[0]: "retrying", ids[1]: "ready"}
    held = engine.lease()
    assert held.ids == [ids[2]]
    assert cancel(engine, ids[2]) == {ids[2]: "leased"}
    engine.answer("retry", held, delays=["1 hour"])
    assert engine.drain() == ids[3:]
    assert dead(engine) == dict.fromkeys(ids[:3], "cancelled")


def test_a_message_of_before_a_subscription_is_not_its_own(engine: Engine) -> None:
    ids = engine.publish(1)
    engine.ask("subscribe", subscription="young")
    with refused("TQ013", "young"), engine.connection.transaction():
        engine.call("cancel", ids=ids, subscription="young")
    assert cancel(engine, *ids) == {ids[0]: "ready"}
    (id,) = engine.publish(1)
    assert engine.drain("young") == [id]


def test_what_was_dead_stays_so(engine: Engine) -> None:
    (rejected,) = engine.publish()
    engine.answer("reject", engine.lease())
    assert cancel(engine, rejected) == {rejected: "dead"}
    engine.ask("purge")
    assert cancel(engine, rejected) == {rejected: "purged"}
    assert noted(engine) == 0


def test_cancelling_twice_changes_nothing(engine: Engine) -> None:
    (id,) = engine.publish()
    assert cancel(engine, id, id) == cancel(engine, id) == {id: "ready"}
    assert noted(engine) == 1
    assert not engine.lease()
    assert cancel(engine, id) == {id: "dead"}
