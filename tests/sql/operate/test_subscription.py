"""Subscriptions: functions/operate/subscription.sql."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from calling import answer, ask, call, drain, fetch, lease, new_names, publish, refused
from engine import Engine

Connection = psycopg.Connection[Any]


def only(session: Connection, queue: str, name: str) -> Any:
    """The subscription of this name."""
    (row,) = [row for row in call(session, "list_subscriptions", queue=queue) if row.subscription == name]
    return row


def test_a_subscription_is_made_once(session: Connection, queue: str) -> None:
    assert ask(session, "subscribe", queue=queue, subscription="s") is True
    assert ask(session, "subscribe", queue=queue, subscription="s") is False
    assert len(call(session, "list_subscriptions", queue=queue)) == 2


def test_subscriptions_are_listed_by_queue_and_name(session: Connection, queue: str) -> None:
    ask(session, "subscribe", queue=queue, subscription="b", mode="exclusive")
    ask(session, "subscribe", queue=queue, subscription="a")
    listed = [(row.subscription, row.mode) for row in call(session, "list_subscriptions", queue=queue)]
    assert listed == [("a", "shared"), ("b", "exclusive"), ("default", "shared")]
    everywhere = [(row.queue, row.subscription) for row in call(session, "list_subscriptions")]
    assert (queue, "a") in everywhere
    assert everywhere == sorted(everywhere)


def test_given_policies_are_changed_and_others_kept(session: Connection, queue: str) -> None:
    first = {"max_attempts": 9, "lease_time": timedelta(seconds=7), "backoff": "linear", "jitter": 0.5}
    ask(session, "subscribe", queue=queue, subscription="s", **first)
    second = {"backoff_base": timedelta(0), "backoff_cap": timedelta(minutes=2), "keep_results": False}
    assert ask(session, "subscribe", queue=queue, subscription="s", **second) is False
    row = only(session, queue, "s")
    for name, value in (first | second).items():
        assert getattr(row, name) == value


def test_no_attempts_means_for_ever(session: Connection, queue: str) -> None:
    ask(session, "subscribe", queue=queue, subscription="default", max_attempts=0, backoff_base=timedelta(0))
    assert only(session, queue, "default").max_attempts is None
    publish(session, queue)
    for attempt in range(1, 12):
        held = lease(session, queue)
        assert (held.messages[0].attempt, held.messages[0].max_attempts) == (attempt, None)
        answer(session, "retry", held)


IMPOSSIBLE: list[dict[str, Any]] = [
    {"max_attempts": -1},
    {"lease_time": "0"},
    {"lease_time": "-1 s"},
    {"backoff": "sometimes"},
    {"backoff": ""},
    {"backoff_base": "-1 s"},
    {"backoff_cap": "-1 s"},
    {"jitter": -0.1},
    {"jitter": 1.1},
    {"jitter": float("nan")},
]


def test_impossible_policies_are_refused(session: Connection, queue: str) -> None:
    before = only(session, queue, "default")
    for name in ("s", "default"):
        for policy in IMPOSSIBLE:
            with refused("TQ005", next(iter(policy)), "policy", name):
                ask(session, "subscribe", queue=queue, subscription=name, **policy)
    assert call(session, "list_subscriptions", queue=queue) == [before]


def test_modes_and_starts_are_those_there_are(session: Connection, queue: str) -> None:
    for wrong in ({"mode": "both"}, {"mode": ""}, {"mode": None}, {"start": "now"}, {"start": None}):
        with refused("TQ005", "a subscription"):
            ask(session, "subscribe", queue=queue, subscription="s", **wrong)
    assert len(call(session, "list_subscriptions", queue=queue)) == 1


def test_a_subscription_never_changes_its_mode(session: Connection, queue: str) -> None:
    ask(session, "subscribe", queue=queue, subscription="s", mode="exclusive")
    with refused("TQ011", "is exclusive, not shared"):
        ask(session, "subscribe", queue=queue, subscription="s", mode="shared", lease_time=timedelta(9))
    with refused("TQ011", "is shared, not exclusive"):
        ask(session, "subscribe", queue=queue, subscription="default", mode="exclusive")
    assert only(session, queue, "s").mode == "exclusive"
    assert only(session, queue, "s").lease_time == timedelta(minutes=1)


@pytest.mark.parametrize("queue_name", ["nowhere", "", None])
def test_an_unknown_queue_has_no_subscriptions(session: Connection, queue_name: str | None) -> None:
    with refused("TQ001", "create_queue"):
        ask(session, "subscribe", queue=queue_name, subscription="s")
    with refused("TQ001", "create_queue"):
        ask(session, "unsubscribe", queue=queue_name, subscription="s")
    if queue_name is not None:
        with refused("TQ001", "create_queue"):
            call(session, "list_subscriptions", queue=queue_name)


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_subscribe_needs_read_committed(session: Connection, queue: str, level: str) -> None:
    with refused("TQ007", "subscribe", level.upper()), session.transaction():
        session.execute(f"set transaction isolation level {level}")
        ask(session, "subscribe", queue=queue, subscription="s")
    assert len(call(session, "list_subscriptions", queue=queue)) == 1


def test_latest_sees_what_comes_and_earliest_what_is_there_too(session: Connection, queue: str) -> None:
    there = publish(session, queue, 2)
    ask(session, "subscribe", queue=queue, subscription="late")
    ask(session, "subscribe", queue=queue, subscription="early", start="earliest")
    came = publish(session, queue, 2)
    assert drain(session, queue, "late") == came
    assert drain(session, queue, "early") == there + came
    assert drain(session, queue) == there + came


def test_subscriptions_read_without_regard_to_each_other(session: Connection, queue: str) -> None:
    for name in ("a", "b"):
        ask(session, "subscribe", queue=queue, subscription=name, backoff_base=timedelta(0))
    ids = publish(session, queue, 3)
    answer(session, "retry", lease(session, queue, 3, subscription="a"))
    answer(session, "reject", lease(session, queue, 1, subscription="b"))
    assert sorted(drain(session, queue, "a")) == ids
    assert drain(session, queue, "b") == ids[1:]
    assert drain(session, queue) == ids


def test_an_ended_subscription_takes_everything_with_it(session: Connection, queue: str) -> None:
    ask(session, "subscribe", queue=queue, subscription="s")
    (number,) = [
        row.subscription_id
        for row in call(session, "list_subscriptions", queue=queue)
        if row.subscription == "s"
    ]
    publish(session, queue, 3)
    answer(session, "retry", lease(session, queue, 1, subscription="s"), delays=[timedelta(hours=1)])
    answer(session, "reject", lease(session, queue, 1, subscription="s"))
    held = lease(session, queue, 1, subscription="s")
    assert ask(session, "unsubscribe", queue=queue, subscription="s") is True
    assert ask(session, "unsubscribe", queue=queue, subscription="s") is False
    for table in ("subscription", "mark", "delayed", "dead"):
        assert fetch(session, f"select count(*) from trunq.{table} where subscription_id = %s", number) == 0
    with refused("TQ002", '"s"', "subscribe"):
        answer(session, "ack", held)
    assert len(drain(session, queue)) == 3


def test_the_same_name_again_is_a_new_subscription(session: Connection, queue: str) -> None:
    ask(session, "subscribe", queue=queue, subscription="s")
    publish(session, queue, 2)
    held = lease(session, queue, 1, subscription="s")
    ask(session, "unsubscribe", queue=queue, subscription="s")
    assert ask(session, "subscribe", queue=queue, subscription="s") is True
    with refused("TQ003"):
        answer(session, "ack", held)
    assert drain(session, queue, "s") == []
    (new,) = publish(session, queue)
    assert drain(session, queue, "s") == [new]


def test_who_holds_more_than_the_retention_and_reads_nothing_is_named(
    session: psycopg.Connection[Any],
) -> None:
    work = Engine(session, next(new_names("warned"))).create(retention="1 hour")
    work.ask("subscribe", subscription="busy")
    work.ask("subscribe", subscription="lake", mode="exclusive")
    work.publish()
    work.drain("busy")
    with work.clock("50 minutes"):
        assert ["for five minutes" in row.warning for row in work.call("list_warnings")] == [True, True]
    with work.clock("2 hours"):
        default, lake = work.call("list_warnings")
        assert (default.queue, default.subscription, lake.subscription) == (work.queue, "default", "lake")
        assert f'"default" of queue "{work.queue}" has held messages since' in default.warning
        assert "default_subscription => false" in default.hint
        assert "unsubscribe" in lake.hint
        held = work.lease()
        assert [row.subscription for row in work.call("list_warnings")] == ["lake"], "somebody reads from it"
        work.ack(held)
        work.ask("advance", subscription="lake", tick_id=work.ask("tick", force=True))
        assert work.call("list_warnings") == []


@pytest.mark.parametrize(("start", "seen"), [("latest", [6]), ("earliest", [1, 2, 3, 4, 5, 6])])
def test_a_subscription_starts_afresh(session: Connection, queue: str, start: str, seen: list[int]) -> None:
    ask(session, "subscribe", queue=queue, subscription="s", max_attempts=3)
    publish(session, queue, 5)
    held = lease(session, queue, 3, subscription="s")
    answer(session, "reject", held, held.ids[:1])
    answer(session, "retry", held, held.ids[1:2])
    ask(session, "reset", queue=queue, subscription="s", start=start)
    assert len(held.ids) == 3
    with refused("TQ003"):
        answer(session, "ack", held, held.ids[2:])
    publish(session, queue, 1)
    (told,) = call(session, "status", queue=queue)[1:]
    assert (told.subscription, told.ready, told.leased, told.delayed, told.dead) == ("s", len(seen), 0, 0, 0)
    assert drain(session, queue, "s") == seen
    assert drain(session, queue) == [1, 2, 3, 4, 5, 6]
    assert only(session, queue, "s").max_attempts == 3


def test_a_stream_starts_afresh_at_a_tick(session: Connection, queue: str) -> None:
    ask(session, "subscribe", queue=queue, subscription="s", mode="exclusive")
    publish(session, queue, 2)
    ask(session, "tick", queue=queue)
    ask(session, "reset", queue=queue, subscription="s")
    publish(session, queue, 1)
    ask(session, "tick", queue=queue)
    told = {row.subscription: row.ready for row in call(session, "status", queue=queue)}
    assert told["s"] == 1
    ask(session, "reset", queue=queue, subscription="s", start="earliest")
    told = {row.subscription: row.ready for row in call(session, "status", queue=queue)}
    assert told["s"] == 3


def test_reset_refuses_what_is_not_there(session: Connection, queue: str) -> None:
    with refused("TQ002", "nosuch"):
        ask(session, "reset", queue=queue, subscription="nosuch")
    with refused("TQ005", "middle"):
        ask(session, "reset", queue=queue, subscription="default", start="middle")


def test_a_reset_keeps_what_was_said_of_lanes_ranks_and_workers(session: Connection) -> None:
    work = Engine(session, next(new_names("laned"))).create(lanes="key")
    work.ask("set_lanes", max_running=2, policy="ranked", function="mine")
    work.ask("set_lane", lane="a", rate=3)
    work.run(
        "insert into trunq.worker (subscription_id, name, slots, seen_at)"
        " select subscription_id, 'w', 4, trunq.clock() from trunq.subscription where queue_id = {id}"
    )
    work.ask("reset", subscription="default")
    assert [row.function for row in work.call("list_rankings")] == ["mine"]
    assert [row.rate for row in work.call("list_lanes") if row.lane == "a"] == [3]
    assert (
        work.fetch(
            "select count(*) from trunq.worker w join trunq.subscription s using (subscription_id)"
            " where s.queue_id = {id}"
        )
        == 1
    )


def test_whatever_belongs_to_a_subscription_follows_it_through_a_reset(session: Connection) -> None:
    rows = session.execute(
        "select conrelid::regclass::text from pg_constraint"
        " where contype = 'f' and confrelid = 'trunq.subscription'::regclass and confupdtype <> 'c'"
    ).fetchall()
    assert rows == []
