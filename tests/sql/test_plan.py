"""The hot functions go by their index on every version of Postgres: no scan, no sort of what waits.

Told by the tables' own counters, and by the plans where the server has auto_explain.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import psycopg
import pytest
from psycopg import errors

from calling import new_names
from counting import Cost, cost_of
from engine import Engine

WAITING = 20_000

LEASE = "select * from trunq.lease(%s, p_subscription => %s, p_worker => 'w', p_max_messages => %s)"
ANSWER = "select trunq.{}(%s, p_subscription => 'default', p_lease_id => %s, p_token => %s, p_ids => %s)"


@pytest.fixture(scope="session")
def stock(shared_database: str) -> Iterator[str]:
    """A queue with as much behind its readers as before them, and no statistics, as vacuum never comes."""
    with psycopg.connect(shared_database, autocommit=True) as connection:
        work = Engine(connection, next(new_names("stock"))).create()
        work.ask("subscribe", subscription="idle")
        work.publish(WAITING)
        work.drain()
        work.drain("idle")
        work.publish(WAITING)
        yield work.queue


@pytest.fixture
def work(stock: str, session: psycopg.Connection[Any]) -> Engine:
    """That queue, through a session that has looked up what it looks up only once."""
    work = Engine(session, stock)
    held = work.lease(3)
    work.ack(held, held.ids[:1])
    work.answer("retry", held, held.ids[1:2], delays=["0"])
    work.answer("reject", held, held.ids[2:])
    work.publish()
    work.ask("promote")
    return work


def assert_by_index(cost: Cost, rows: int, pages: int) -> None:
    assert cost.seq_scans == 0
    assert cost.rows_read <= rows
    assert cost.pages <= pages


def test_a_lease_reads_what_it_takes(work: Engine) -> None:
    for count in (1, 10, 100, 1000):
        cost = cost_of(work.connection, LEASE, work.queue, "default", count)
        assert cost.rows == count
        assert_by_index(cost, rows=count + 10, pages=150 + count)
        assert (cost.rows_inserted, cost.rows_changed) == (1, 0)


def test_an_ack_writes_one_row_and_reads_hardly_more(work: Engine) -> None:
    for count in (1, 100, 1000):
        held = work.lease(count)
        cost = cost_of(work.connection, ANSWER.format("ack"), work.queue, held.lease_id, held.token, held.ids)
        assert_by_index(cost, rows=10, pages=150)
        assert (cost.rows_inserted, cost.rows_changed) == (1, 0)


@pytest.mark.parametrize("verb", ["retry", "reject", "release"])
def test_other_answers_read_their_messages_alone(work: Engine, verb: str) -> None:
    def answer() -> Cost:
        held = work.lease(100)
        return cost_of(work.connection, ANSWER.format(verb), work.queue, held.lease_id, held.token, held.ids)

    # DDL of whoever is beside lets a session read the catalog again: the cheapest of three did not.
    cost = min((answer() for _ in range(3)), key=attrgetter("pages"))
    assert_by_index(cost, rows=120, pages=3000)
    assert cost.rows_changed == 0


def test_a_publish_reads_nothing(work: Engine) -> None:
    cost = cost_of(work.connection, "select trunq.publish(p_queue => %s, p_payload => '1')", work.queue)
    assert_by_index(cost, rows=0, pages=60)
    assert (cost.rows_inserted, cost.rows_changed) == (1, 0)


def test_a_look_in_vain_reads_and_writes_nothing(work: Engine) -> None:
    work.drain("idle")
    cost = cost_of(work.connection, LEASE, work.queue, "idle", 100)
    assert_by_index(cost, rows=10, pages=150)
    assert cost.rows == 0
    # One that took 3 ms, on a busy machine, writes an empty lease; the next need not.
    looks = [cost_of(work.connection, LEASE, work.queue, "idle", 100) for _ in range(5)]
    assert min(look.rows_inserted for look in looks) == 0


@pytest.mark.parametrize("duty", ["promote", "reap", "tick", "rotate"])
def test_a_duty_with_nothing_to_do_reads_hardly_anything(work: Engine, duty: str) -> None:
    def look() -> Cost:
        work.ask(duty)
        return cost_of(work.connection, f"select trunq.{duty}(%s)", work.queue)

    # What tests before this one put off falls due meanwhile: of three looks one had nothing to do.
    assert_by_index(min((look() for _ in range(3)), key=attrgetter("pages")), rows=100, pages=500)


def test_a_batch_is_read_by_the_index(work: Engine) -> None:
    work.ask("subscribe", subscription="lake", mode="exclusive")
    work.publish(600)
    work.ask("tick", force=True)
    (batch,) = work.call("next_batch", subscription="lake", worker="a", max_ticks=100)
    statement = "select * from trunq.read_batch(p_queue => %s, p_subscription => 'lake', p_batch_id => %s)"
    work.connection.execute(statement, (work.queue, batch.batch_id))
    cost = cost_of(work.connection, statement, work.queue, batch.batch_id)
    assert cost.rows >= 600
    # The first 500 come by a plan that is kept; the query for the rest passes over them once more.
    assert_by_index(cost, rows=cost.rows + 500 + 10, pages=150 + cost.rows)
    work.ask("unsubscribe", subscription="lake")


def test_the_plans_of_lease_and_answer_use_their_index(work: Engine) -> None:
    nodes = [node for plan in explained(work) for node in walk(plan)]
    if not nodes:
        pytest.skip("this server has no auto_explain; the counters above must do")
    assert not {node["Node Type"] for node in nodes} & {"Seq Scan", "Bitmap Heap Scan", "Gather"}
    # Given arrays are sorted, never what lies in a table.
    sorted_tables = [
        below["Relation Name"]
        for node in nodes
        if node["Node Type"] in ("Sort", "Incremental Sort")
        for below in walk(node)
        if "Relation Name" in below
    ]
    assert sorted_tables == []
    conditions = {node["Index Cond"] for node in nodes if "_log_" in node.get("Relation Name", "")}
    # One start key: the row comparison, or the transaction itself.
    assert conditions
    assert all("ROW(txid, id) > ROW(" in condition or "txid = " in condition for condition in conditions)


def explained(work: Engine) -> Iterator[dict[str, Any]]:
    """Plans of what runs inside lease and retry."""
    try:
        work.connection.execute("load 'auto_explain'")
    except errors.UndefinedFile:
        return
    told: list[str] = []
    work.connection.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
    for setting, value in {
        "auto_explain.log_min_duration": "0",
        "auto_explain.log_nested_statements": "on",
        "auto_explain.log_format": "json",
        "auto_explain.log_level": "notice",
    }.items():
        work.connection.execute("select set_config(%s, %s, false)", (setting, value))
    work.answer("retry", work.lease(10), delays=["0"] * 10)
    work.connection.execute("set auto_explain.log_min_duration = -1")
    for message in told:
        explained = json.loads(message[message.index("{") :])
        if "trunq_log" in explained["Query Text"]:
            yield explained["Plan"]


def walk(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", []):
        yield from walk(below)
