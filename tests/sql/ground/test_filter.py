"""Filters of subscriptions: functions/ground/filter.sql."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import ask, call, drain, new_names, refused
from engine import Engine
from laning import EVERY_QUEUE, make_any

Connection = psycopg.Connection[Any]


@pytest.fixture(params=EVERY_QUEUE)
def engine(session: Connection, request: pytest.FixtureRequest) -> Engine:
    return make_any(session, request.param)


MESSAGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "mail": {"kind": "mail", "key": "a"},
    "fax": {"kind": "fax", "key": "b", "headers": {"country": "CZ", "test": True}},
    "post": {"kind": "post", "headers": {"country": "DE", "lines": [1, 2]}},
    "nothing": {"key": "", "headers": {"country": None}},
}

CASES: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {*MESSAGES}),
    ({"kinds": ["mail", "fax"]}, {"mail", "fax"}),
    ({"kinds": []}, set()),
    ({"not_kinds": ["mail"]}, {"plain", "fax", "post", "nothing"}),
    ({"not_kinds": []}, {*MESSAGES}),
    ({"keys": ["a", ""]}, {"mail", "nothing"}),
    ({"not_keys": ["a", "b"]}, {"plain", "post", "nothing"}),
    ({"headers": {"country": "CZ"}}, {"fax"}),
    ({"headers": {"lines": [2]}}, {"post"}),
    ({"headers": {}}, {"fax", "post", "nothing"}),
    ({"headers": {"country": None}}, {"nothing"}),
    ({"not_headers": {"country": "CZ"}}, {"plain", "mail", "post", "nothing"}),
    ({"not_headers": {"country": "DE", "test": True}}, {"plain", "mail", "nothing"}),
    ({"not_headers": {}}, {*MESSAGES}),
    ({"kinds": ["fax", "post"], "not_keys": ["b"]}, {"post"}),
    ({"kinds": ["fax"], "headers": {"country": "DE"}}, set()),
    ({"kinds": ["'; drop table trunq.queue; --", "\\", "{}", "%s", "mail"]}, {"mail"}),
]


def publish_all(engine: Engine) -> dict[int, str]:
    return {int(engine.ask("publish", **message)): name for name, message in MESSAGES.items()}


@pytest.mark.parametrize(
    ("filter", "expected"), CASES, ids=lambda case: str(sorted(case) if isinstance(case, set) else case)[:50]
)
@pytest.mark.parametrize("count", [1, 100])
def test_a_shared_subscription_reads_what_passes(
    engine: Engine, filter: dict[str, Any], expected: set[str], count: int
) -> None:
    engine.ask("subscribe", subscription="default", filter=filter)
    names = publish_all(engine)
    assert engine.status().ready == len(expected)
    found = set()
    while held := engine.lease(count):
        found |= {names[id] for id in held.ids}
    assert found == expected
    assert engine.status().ready == 0


@pytest.mark.parametrize(
    ("filter", "expected"), CASES, ids=lambda case: str(sorted(case) if isinstance(case, set) else case)[:50]
)
def test_an_exclusive_subscription_reads_what_passes(
    engine: Engine, filter: dict[str, Any], expected: set[str]
) -> None:
    engine.ask("subscribe", subscription="stream", mode="exclusive", filter=filter)
    names = publish_all(engine)
    engine.ask("tick", force=True)
    (batch,) = engine.call("next_batch", subscription="stream", worker="w")
    rows = engine.call("read_batch", subscription="stream", batch_id=batch.batch_id)
    assert {names[row.id] for row in rows} == expected


@pytest.mark.parametrize(
    ("filter", "expected"), CASES, ids=lambda case: str(sorted(case) if isinstance(case, set) else case)[:50]
)
def test_messages_of_a_transaction_that_commits_late_are_filtered_too(
    engine: Engine, open_session: Any, filter: dict[str, Any], expected: set[str]
) -> None:
    engine.ask("subscribe", subscription="default", filter=filter)
    late = open_session(autocommit=False)
    names = publish_all(engine.on(late))
    publish_all(engine)
    drain(engine.connection, engine.queue)
    late.commit()
    assert {names[id] for id in engine.drain()} == expected


@pytest.mark.parametrize("lanes", [None, "key"])
def test_positions_go_on_over_what_does_not_match(session: Connection, lanes: str | None) -> None:
    engine = Engine(session, next(new_names("ring"))).create(retention="2000 days", lanes=lanes)
    engine.ask("subscribe", subscription="default", filter={"kinds": ["seldom"]})
    engine.publish(300, kinds=["often"])
    (seldom,) = engine.publish(kinds=["seldom"])
    engine.publish(300, kinds=["often"])
    assert engine.drain() == [seldom]
    engine.ask("subscribe", subscription="default", filter={})
    assert engine.lease(10).ids == []
    engine.rotate("3000 days")
    assert engine.is_empty("log")


def test_a_change_counts_for_what_is_read_from_then_on(engine: Engine) -> None:
    engine.ask("subscribe", subscription="default", filter={"kinds": ["a"]})
    first = engine.publish(kinds=["a"])
    engine.publish(kinds=["b"])
    assert engine.drain() == first
    engine.ask("subscribe", subscription="default", filter={"kinds": ["b"]})
    engine.publish(kinds=["a"])
    second = engine.publish(kinds=["b"])
    assert engine.drain() == second


def test_what_was_handed_out_comes_again_whatever_the_filter_has_become(engine: Engine) -> None:
    engine.ask("subscribe", subscription="default", filter={"kinds": ["a"]})
    retried, dead = engine.publish(2, kinds=["a"])
    held = engine.lease(2)
    engine.ask("subscribe", subscription="default", filter={"kinds": ["b"]})
    assert engine.answer("retry", held, [retried], delays=["0"]) == 1
    assert engine.answer("reject", held, [dead]) == 1
    assert engine.ask("requeue") == 1
    assert engine.status().ready == 2
    assert sorted(engine.drain()) == [retried, dead]


def test_other_policies_leave_the_filter_as_it_is(engine: Engine) -> None:
    engine.ask("subscribe", subscription="s", filter={"kinds": ["a"]})
    engine.ask("subscribe", subscription="s", max_attempts=3)
    (row,) = [row for row in engine.call("list_subscriptions") if row.subscription == "s"]
    assert row.filter == {"kinds": ["a"]}
    engine.ask("subscribe", subscription="s", filter={})
    (row,) = [row for row in engine.call("list_subscriptions") if row.subscription == "s"]
    assert row.filter is None


def test_a_long_backlog_of_others_is_counted_and_passed(engine: Engine) -> None:
    engine.ask("subscribe", subscription="default", filter={"headers": {"n": 1}})
    ids = engine.publish(6000, headers=[{"n": n % 20} for n in range(6000)])
    status = engine.status()
    assert 200 < status.ready < 400
    # Lanes are counted one by one.
    assert bool(status.estimated) == ("plain" in engine.queue)
    assert engine.drain() == ids[1::20]


MISTAKES: list[tuple[Any, str]] = [
    ({"colour": ["red"]}, 'a filter has no "colour"'),
    ({"kinds; drop table trunq.queue": ["red"]}, "a filter has no"),
    ({"kinds": "mail"}, '"kinds" of a filter is an array of texts'),
    ({"kinds": [1]}, '"kinds" of a filter is an array of texts'),
    ({"not_keys": [None]}, '"not_keys" of a filter is an array of texts'),
    ({"keys": [["a"]]}, '"keys" of a filter is an array of texts'),
    ({"kinds": None}, '"kinds" of a filter is an array of texts'),
    ({"headers": ["a"]}, '"headers" of a filter is an object'),
    ({"not_headers": "a"}, '"not_headers" of a filter is an object'),
    ({"keys": ["k" * 100 + str(n) for n in range(2000)]}, "a filter has at most"),
    (Jsonb(["mail"]), "a filter is a JSON object"),
    (Jsonb(None), "a filter is a JSON object"),
]


@pytest.mark.parametrize(("filter", "words"), MISTAKES, ids=lambda case: str(case)[:40])
def test_what_is_no_filter_is_refused_in_words(engine: Engine, filter: Any, words: str) -> None:
    with refused("TQ005", words):
        engine.ask("subscribe", subscription="s", filter=filter)
    assert len(call(engine.connection, "list_subscriptions", queue=engine.queue)) == 1


@pytest.mark.parametrize("text", ["'", "\\", '"', "{", "}", "$1", "%s", "%", ",", "null", "é\n", "'||'"])
def test_any_text_is_only_a_value(engine: Engine, text: str) -> None:
    filters = {
        "kinds": {"kinds": [text]},
        "keys": {"keys": [text]},
        "headers": {"headers": {text: text}},
        "not_headers": {"not_headers": {text: "other"}},
    }
    for name, filter in filters.items():
        ask(engine.connection, "subscribe", queue=engine.queue, subscription=name, filter=filter)
    id = engine.ask("publish", kind=text, key=text, headers={text: text})
    engine.ask("publish", kind="x", key="x", headers={text: "other"})
    assert {name: engine.status(name).ready for name in filters} == dict.fromkeys(filters, 1)
    assert {name: engine.drain(name) for name in filters} == {name: [id] for name in filters}


def test_history_shows_what_passes(engine: Engine) -> None:
    engine.ask("subscribe", subscription="default", filter={"kinds": ["a"]})
    passing = engine.publish(kinds=["a"])
    other = engine.publish(kinds=["b"])
    assert engine.listed() == passing
    assert engine.drain() == passing
    assert engine.listed() == engine.listed(state="done") == passing
    with refused("TQ013"):
        engine.call("show_message", id=other[0])


def test_a_plan_compares_by_itself_and_calls_no_function(session: Connection, queue: str) -> None:
    session.execute(
        "prepare passing(text[], jsonb) as"
        f" select g.id from trunq_log.{queue} g"
        " where trunq._passes($1, null, null, null, $2, null, g.kind, g.key, g.headers)".encode()
    )
    session.execute("set plan_cache_mode = force_generic_plan")
    plan = "\n".join(line for (line,) in session.execute("explain execute passing(null, null)"))
    assert "ANY ($1)" in plan
    assert "@> $2" in plan
    assert "_passes" not in plan
