"""The view of a queue's messages: functions/keep/messages.sql."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import fetch, new_names, refresh
from conftest import Connect
from counting import cost_of
from engine import Engine

SHARED = (
    "id, kind, key, payload, headers, attempt, published_at, due_at, worker, leased_at, finished_at, result"
)


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    return Engine(session, next(new_names("messages"))).create()


def view(work: Engine, columns: str = "id, state", where: str = "true") -> list[Any]:
    return work.connection.execute(
        f"select {columns} from trunq_queue.{work.queue}_messages where {where} order by 1, 2".encode()
    ).fetchall()


def fill(work: Engine) -> dict[str, int]:
    """A message in each state, by name; some have come there the long way."""
    work.ask("subscribe", subscription="default", max_attempts=2, keep_results=True)
    ids = dict(
        zip(
            ("done", "retrying", "dead", "purged", "given up", "again", "leased", "ready"),
            work.publish(8, kinds=["k"] * 8, headers=[{"h": 1}] * 8),
            strict=True,
        )
    )
    held = work.lease(7, worker="ada")
    work.ack(held, [ids["done"]], results=[{"sum": 3}])
    work.answer("reject", held, [ids["dead"], ids["purged"]], errors=["bad", "worse"])
    work.ask("purge", ids=[ids["purged"]])
    work.answer("retry", held, [ids["retrying"]], errors=["no"], delays=["1 hour"])
    for name in ("given up", "again"):
        work.answer("retry", held, [ids[name]], errors=["not yet"], delays=["0"])
    work.lease(1, worker="bob")  # what was ready before
    again = work.lease(2, worker="eve")
    work.answer("retry", again, [ids["given up"]], errors=["never"], delays=["0"])
    work.ack(again, [ids["again"]])
    ids["scheduled"] = work.publish(delay="1 day")[0]
    ids["last"] = work.publish()[0]
    return ids


def test_it_says_what_the_list_says(work: Engine, open_session: Connect) -> None:
    fill(work)
    work.ask("subscribe", subscription="mail")
    work.publish(3)
    work.answer("release", work.lease(2, subscription="mail"))
    work.ask("subscribe", subscription="lake", mode="exclusive")
    for subscription in ("default", "mail"):
        columns = f"state, {SHARED}, error"
        listed = work.connection.execute(
            f"select {columns} from trunq.list_messages(%s, %s) order by state, id".encode(),
            (work.queue, subscription),
        ).fetchall()
        assert listed
        assert view(work, columns, f"subscription = '{subscription}'") == listed
    assert {subscription for (subscription, _) in view(work, "subscription, id")} == {"default", "mail"}


def test_every_state_is_there(work: Engine) -> None:
    ids = fill(work)
    states = dict(view(work))
    assert {name: states[id] for name, id in ids.items()} == {
        "done": "done", "retrying": "retrying", "dead": "dead", "purged": "purged", "given up": "dead",
        "again": "done", "leased": "leased", "ready": "leased", "scheduled": "scheduled", "last": "ready",
    }  # fmt: skip


def test_who_reads_the_log_reads_the_view_and_nothing_behind_it(work: Engine) -> None:
    role = next(new_names("reader"))
    fill(work)
    run = work.connection.execute
    run(f"create role {role}".encode())
    run(f"grant usage on schema trunq_queue to {role}".encode())
    run(f"grant select on trunq_log.{work.queue} to {role}".encode())
    run(f"drop view trunq_queue.{work.queue}_messages".encode())
    refresh(work.connection)
    seen = view(work)
    run(f"set role {role}".encode())
    try:
        assert view(work) == seen
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            run(f"select from trunq_data.{work.queue}_lease".encode())
    finally:
        run("reset role")
        run(f"drop owned by {role}".encode())
        run(f"drop role {role}".encode())


def test_it_goes_with_its_queue(work: Engine) -> None:
    name = f"trunq_queue.{work.queue}_messages"
    assert fetch(work.connection, "select to_regclass(%s) is not null", name)
    work.ask("drop_queue", force=True)
    assert fetch(work.connection, "select to_regclass(%s) is null", name)


def test_each_page_of_the_queue_is_read_once(work: Engine) -> None:
    """The bound on its pages that the docs promise, whatever is asked, for any number of readers."""
    for n in range(3):
        work.ask("subscribe", subscription=f"s{n}")
    fill(work)
    work.run(f"insert into trunq_log.{work.queue} (kind) select 'k' from generate_series(1, 20000)")
    for _ in range(60):
        work.ack(work.lease(50))
    pages = sum(work.pages(table) for table in ("log", "lease", "receipt"))
    assert pages > 100
    read = cost_of(work.connection, f"select * from trunq_queue.{work.queue}_messages where state = 'leased'")
    assert read.rows == 2
    assert read.pages < 1.7 * pages


def test_of_lanes_it_says_what_the_list_says(session: psycopg.Connection[Any]) -> None:
    """What discovery found and no lease handed out is ready, in whatever lane."""
    for lanes in ("key", "priority,kind"):
        work = Engine(session, next(new_names("messages"))).create(lanes=lanes)
        work.publish(12, keys=list("abcdabcdabcd"), kinds=list("klmklmklmklm"))
        held = work.lease(5, worker="ada")
        work.ack(held, held.ids[:2])
        work.answer("retry", held, held.ids[2:3], errors=["no"], delays=["1 hour"])
        work.publish(2, keys=["z", "a"], kinds=["k", "k"])
        listed = sorted((row.id, row.state) for row in work.call("list_messages", limit=1000))
        assert view(work) == listed
        assert {state for _, state in listed} == {"done", "leased", "ready", "retrying"}


def test_it_leaves_out_what_the_filter_of_a_subscription_does(work: Engine) -> None:
    work.ask("subscribe", subscription="mail", filter={"kinds": ["mail"]})
    mail, other = work.publish(2, kinds=["mail", "fax"])
    assert view(work, "subscription, id") == [("default", mail), ("default", other), ("mail", mail)]
