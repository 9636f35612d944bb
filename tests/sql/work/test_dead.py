"""Dead messages: their list, and how long they are kept: functions/work/dead.sql."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from calling import call, new_names, refused
from engine import Engine


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    return Engine(session, next(new_names("dead"))).create()


def kill(work: Engine, count: int, subscription: str = "default") -> list[int]:
    work.publish(count, headers=[{"h": 1}])
    held = work.lease(count, subscription=subscription)
    work.answer("reject", held, errors=["bad"] * count)
    return held.ids


def test_dead_messages_are_kept_for_ever_unless_the_subscription_says_how_long(work: Engine) -> None:
    kill(work, 3)
    with work.clock("1000 days"):
        assert work.ask("forget") == 0
        work.ask("subscribe", subscription="default", dead_retention="1001 days")
        assert work.ask("forget") == 0
    with work.clock("1002 days"):
        assert work.ask("forget") == 3
        assert work.call("list_dead") == []
        assert work.ask("forget") == 0


def test_only_what_is_too_old_goes_and_only_where_it_is_asked_for(work: Engine) -> None:
    work.ask("subscribe", subscription="mail")
    work.ask("subscribe", subscription="default", dead_retention="1 day")
    kill(work, 2)
    kill(work, 2, "mail")
    with work.clock("2 days"):
        younger = kill(work, 1)
        assert work.ask("forget") == 2
        assert [row.id for row in work.call("list_dead", subscription="default")] == younger
        assert len(work.call("list_dead", subscription="mail")) == 2


def test_a_limit_can_be_taken_back(work: Engine) -> None:
    work.ask("subscribe", subscription="default", dead_retention="1 day")
    (row,) = work.call("list_subscriptions")
    assert row.dead_retention == timedelta(days=1)
    work.ask("subscribe", subscription="default", max_attempts=7)
    assert work.call("list_subscriptions")[0].dead_retention == timedelta(days=1)
    work.ask("subscribe", subscription="default", dead_retention="0")
    assert work.call("list_subscriptions")[0].dead_retention is None
    with refused("TQ005", "dead_retention"):
        work.ask("subscribe", subscription="default", dead_retention="-1 day")


def test_many_old_ones_go_in_parts(work: Engine) -> None:
    work.ask("subscribe", subscription="default", dead_retention="1 hour")
    kill(work, 1500)
    with work.clock("2 hours"):
        assert [work.ask("forget") for _ in range(3)] == [1000, 500, 0]


def test_the_leader_forgets(work: Engine) -> None:
    duties = {row.duty for row in call(work.connection, "list_duties")}
    assert "forget" in duties
    work.ask("subscribe", subscription="default", dead_retention="1 hour")
    kill(work, 1)
    with work.clock("2 hours"):
        assert work.status().oldest_dead >= timedelta(hours=2)
        call(work.connection, "perform_duties")
        assert (work.status().dead, work.status().oldest_dead) == (0, None)


def test_a_brief_list_leaves_out_what_is_dear_to_read(work: Engine) -> None:
    ids = kill(work, 2)
    work.ask("requeue")
    held = work.lease(2)
    work.answer("reject", held, errors=["worse"] * 2)
    full = work.call("list_dead")
    brief = work.call("list_dead", brief=True)
    assert [row.id for row in full] == [row.id for row in brief] == ids[::-1]
    assert [(row.payload["n"], row.headers) for row in full] == [(1, {"h": 1}), (0, {"h": 1})]
    assert {(row.payload, row.headers) for row in brief} == {(None, None)}
    assert [[error["error"] for error in row.errors] for row in full] == [["bad", "worse"]] * 2
    assert [[error["error"] for error in row.errors] for row in brief] == [["worse"]] * 2


def test_the_dead_of_several_subscriptions_are_listed_together_newest_first(work: Engine) -> None:
    work.ask("subscribe", subscription="mail")
    work.publish(4)
    for subscription in ("default", "mail", "default", "mail"):
        work.answer("reject", work.lease(2, subscription=subscription))
    rows = work.call("list_dead", limit=3)
    assert [row.subscription for row in rows] == ["mail", "mail", "default"]
    rows += work.call("list_dead", before=rows[-1].dead_id)
    assert len({row.dead_id for row in rows}) == len(rows) == 8
    assert [row.dead_id for row in rows] == sorted((row.dead_id for row in rows), reverse=True)


@pytest.mark.parametrize("verb", ["retry", "reject"])
def test_columns_of_the_user_survive_sessions_that_write_values_otherwise(work: Engine, verb: str) -> None:
    work.run("alter table {log} add during tstzrange, add wait interval, add share float8, add price money")
    work.run(
        "insert into {log} (during, wait, share, price) values (%s, %s, %s, '1234.56')",
        "[2026-01-02,2026-04-03)",
        "-1 day +2 hours",
        0.1 + 0.2,
    )
    held = work.lease()
    odd = {"DateStyle": "SQL, DMY", "IntervalStyle": "sql_standard", "extra_float_digits": "0"}
    for name, value in odd.items():
        work.run(f"set {name} = '{value}'")
    work.answer(verb, held, **({"delays": ["1 hour"]} if verb == "retry" else {}))
    for name in odd:
        work.run(f"reset {name}")
    with work.clock("2 hours"):
        assert work.ask("promote" if verb == "retry" else "requeue") == 1
    assert work.fetch("select count(*) from {log}") == 2
    assert work.fetch("select count(distinct (during, wait, share, price)) from {log}") == 1
    assert work.fetch("select max(share) from {log}") == 0.1 + 0.2


def test_views_do_not_mind_how_a_session_writes_dates(work: Engine) -> None:
    kill(work, 2)
    work.answer("retry", (work.publish(), work.lease())[1], delays=["1 hour"])
    plain = [
        (row.id, row.state, row.finished_at, row.due_at) for row in work.call("list_messages", brief=True)
    ]
    work.run("set DateStyle = 'SQL, DMY'")
    work.run("set array_nulls = off")
    work.run("create temp table told as select * from trunq.list_messages('{queue}', p_brief => true)")
    assert work.status().estimated == []
    work.run("reset DateStyle")
    work.run("reset array_nulls")
    rows = work.run("select id, state, finished_at, due_at from told order by id desc").fetchall()
    assert rows == plain


def kill_some(work: Engine) -> dict[str, int]:
    """Five dead messages that differ in kind, key, error and age, each by what it is alone in."""
    ids = work.publish(5, kinds=["a", "b", "a", "a", "a"], keys=["k", "k", "l", "k", "k"])
    old = work.lease(4)
    work.answer("reject", old, errors=["No Route 100%", "no route 100%", "no route 100%", "timed out"])
    with work.clock("1 hour"):
        work.answer("reject", work.lease(1), errors=["no route 100%"])
    return dict(zip(("first", "kind", "key", "error", "young"), ids, strict=True))


FILTERS = [
    ({"kind": "b"}, {"kind"}),
    ({"key": "l"}, {"key"}),
    ({"error": "ROUTE 100%"}, {"first", "kind", "key", "young"}),
    ({"error": "r%100"}, set()),
    ({"older_than": "30 minutes"}, {"first", "kind", "key", "error"}),
    ({"newer_than": "30 minutes"}, {"young"}),
    ({"kind": "a", "key": "k", "error": "no route", "older_than": "30 minutes"}, {"first"}),
    ({"subscription": "default"}, {"first", "kind", "key", "error", "young"}),
]


@pytest.mark.parametrize(("given", "found"), FILTERS)
def test_the_dead_are_chosen_by_kind_key_error_and_age(
    work: Engine, given: dict[str, str], found: set[str]
) -> None:
    named = kill_some(work)
    wanted = {named[name] for name in found}
    rest = set(named.values()) - wanted
    with work.clock("1 hour"):
        assert {row.id for row in work.call("list_dead", **given)} == wanted
        assert work.ask("count_dead", **given) == len(wanted)
        assert work.ask("requeue", **given) == len(wanted)
        assert {row.id for row in work.call("list_dead")} == rest
        held = work.lease(5)
        assert set(held.ids) == wanted if held else not wanted


@pytest.mark.parametrize(("given", "found"), FILTERS)
def test_the_chosen_are_purged_and_no_others(work: Engine, given: dict[str, str], found: set[str]) -> None:
    named = kill_some(work)
    with work.clock("1 hour"):
        assert work.ask("purge", **given) == len(found)
        assert {row.id for row in work.call("list_dead")} == {
            id for name, id in named.items() if name not in found
        }


def test_parts_come_to_an_end_while_messages_die(work: Engine) -> None:
    first = kill(work, 3)
    (newest,) = (row.dead_id for row in work.call("list_dead", limit=1))
    last = kill(work, 1)
    assert work.ask("count_dead", before=newest + 1) == 3
    assert work.ask("count_dead", limit=2) == 2
    assert work.ask("purge", before=newest + 1, limit=2) == 2
    assert [row.id for row in work.call("list_dead")] == [*last, first[2]]
    assert work.ask("requeue", before=newest + 1, limit=2) == 1
    assert work.ask("requeue", before=newest + 1, limit=2) == 0
    assert [row.id for row in work.call("list_dead")] == last
