"""A lease that asks costs what it takes, however much waits, was handed out, or is set aside for others."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import new_names
from counting import Cost, cost_of
from engine import Engine

FEW, MANY = 1000, 20_000
MAIL, FAX, TEXT = {"kinds": ["mail"]}, {"kinds": ["fax"]}, {"kinds": ["text"]}
LEASE = "select * from trunq.lease(%s, %s, 'w', 5)"
SET_ASIDE = "select count(*) from trunq.delayed where queue_id = {id}"
ASK = "select * from trunq.lease(%s, 'default', 'w', 5, p_asks => '{\"kinds\": [\"mail\"]}')"


def made(connection: psycopg.Connection[Any], count: int, kinds: list[str]) -> Engine:
    """A queue where so many wait."""
    work = Engine(connection, next(new_names("ask_cost"))).create()
    work.lease(asks=MAIL)
    for _ in range(count // 500):
        work.publish(500, kinds=kinds)
    return work


def mail(work: Engine, rows: int = 5) -> Cost:
    cost = cost_of(work.connection, ASK, work.queue)
    assert cost.rows == rows
    assert cost.seq_scans == 0
    return cost


def same(few: Cost, many: Cost) -> None:
    # An index may have a level more.
    assert many.pages < 1.6 * few.pages + 40, (few, many)
    assert many.rows_read <= few.rows_read + 30, (few, many)
    assert (many.rows_inserted, many.rows_changed) == (few.rows_inserted, few.rows_changed)


def test_what_is_set_aside_for_others_costs_nothing(connection: psycopg.Connection[Any]) -> None:
    costs = []
    for count in (FEW, MANY):
        work = made(connection, count, ["fax"])
        while work.fetch(SET_ASIDE) < count:
            assert not work.lease(asks=MAIL)
        # It has looked at all of them; what comes then is taken from the log, and from what is set aside.
        assert not work.lease(asks=MAIL)
        work.publish(10, kinds=["mail"])
        mail(work)
        fresh = mail(work)
        work.publish(10, kinds=["mail"])
        assert not work.lease(asks=TEXT)
        while not work.lease(asks=FAX):
            pass
        mail(work)
        costs.append((fresh, mail(work), mail(work, 0)))
    for few, many in zip(*costs, strict=True):
        same(few, many)


def test_what_waits_behind_it_costs_nothing(connection: psycopg.Connection[Any]) -> None:
    costs = []
    for count in (FEW, MANY):
        work = made(connection, count, ["mail"])
        mail(work)
        costs.append([mail(work)])
        work.publish(5, kinds=["fax"])
    same(costs[0][0], costs[1][0])


def test_what_was_handed_out_costs_nothing(connection: psycopg.Connection[Any]) -> None:
    costs = []
    for count in (FEW, MANY):
        work = made(connection, count, ["fax"])
        while work.fetch(SET_ASIDE) < count:
            work.lease(asks=MAIL)
        while held := work.lease(1000, asks=FAX):
            work.ack(held)
        work.publish(10, kinds=["fax"])
        work.publish(5, kinds=["mail"])
        mail(work)
        work.publish(10, kinds=["fax"])
        work.publish(5, kinds=["mail"])
        costs.append(mail(work))
    same(*costs)


def test_who_does_not_ask_pays_nothing(connection: psycopg.Connection[Any]) -> None:
    """A subscription of the same queue, beside one of which many messages are set aside."""
    plain = Engine(connection, next(new_names("ask_cost"))).create()
    beside = made(connection, FEW, ["fax"])
    beside.ask("subscribe", subscription="other")
    assert not beside.lease(asks=MAIL)
    costs = []
    for work, subscription in ((plain, "default"), (beside, "other")):
        work.publish(20)
        cost_of(connection, LEASE, work.queue, subscription)
        costs.append(cost_of(connection, LEASE, work.queue, subscription))
        assert costs[-1].rows == 5
    assert costs[1].pages <= costs[0].pages + 3
    assert costs[1].rows_read == costs[0].rows_read
    assert (costs[1].rows_inserted, costs[1].rows_changed) == (1, 0)


@pytest.mark.parametrize("offset", ["0", "1 hour"])
def test_looks_write_only_now_and_then(connection: psycopg.Connection[Any], offset: str) -> None:
    """An idle worker looks every few seconds, and a transaction may stay open for hours."""
    work = made(connection, FEW, ["fax"])
    with work.clock(offset):
        for _ in range(3):
            work.lease(asks=MAIL)
        written = "select n_tup_upd + n_tup_ins from pg_stat_xact_user_tables where relname = 'ask'"
        with connection.transaction():
            before = work.fetch(written)
            for _ in range(20):
                assert not work.lease(asks=MAIL)
            assert work.fetch(written) == before
