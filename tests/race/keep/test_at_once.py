"""An archive that answers write, between answers, leaders and the switch: every attempt exactly once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from calling import move_clock, refused
from conftest import Connect
from engine import Engine
from waiting import wait_until, wait_until_blocked

OLD = "3000 days"


@pytest.fixture
def work(connect: Connect) -> Engine:
    engine = Engine(connect(), "work").create(retention="2000 days")
    engine.ask("create_archive", at_once=True)
    return engine


def ids(work: Engine) -> list[int]:
    return [id for (id,) in work.run("select id from trunq_archive.work order by id")]


def catch_up(work: Engine) -> list[int]:
    wait_until(lambda: work.ask("archive") == 0, what="the duty comes to an end")
    return ids(work)


@pytest.mark.parametrize("end", ["commit", "rollback", "crash"])
def test_the_row_shares_the_fate_of_its_answer_and_the_duty_waits_for_neither(
    work: Engine, connect: Connect, end: str
) -> None:
    published = work.publish(2)
    first = work.on(connect(autocommit=False))
    held = work.lease(2)
    first.ack(held, published[:1])
    assert work.ask("archive") == 0, "half of a lease is over in nobody's eyes yet"
    assert ids(work) == []
    if end == "commit":
        first.connection.commit()
    elif end == "rollback":
        first.connection.rollback()
    else:
        work.fetch("select pg_terminate_backend(%s)", first.connection.info.backend_pid)
    if end == "commit":
        assert ids(work) == published[:1]
        work.ack(held, published[1:])
    else:
        wait_until(lambda: work.ack(held) == 2, what="its locks are given back")
    assert ids(work) == published
    assert catch_up(work) == published
    wait_until(lambda: work.rotate(OLD) > 0, what="segments are emptied")
    assert ids(work) == published


def test_it_is_turned_on_and_off_between_answers(work: Engine, connect: Connect) -> None:
    published = work.publish(6)
    first = work.on(connect(autocommit=False))
    for at, switch in enumerate((False, True, False)):
        held = first.lease()
        first.connection.commit()
        first.ack(held)
        with refused("TQ009", "in use by an open transaction"):
            work.ask("create_archive", at_once=switch)
        first.connection.commit()
        work.ask("create_archive", at_once=switch)
        assert len(ids(work)) <= at + 1
    work.ask("create_archive", at_once=True)
    while held := work.lease():
        work.ack(held)
    assert catch_up(work) == published


def test_two_first_answers_of_a_month_make_it_once(work: Engine, connect: Connect) -> None:
    published = work.publish(2)
    one, two = work.lease(), work.lease()
    first, second = work.on(connect(autocommit=False)), work.on(connect(autocommit=False))
    for each in (first, second):
        move_clock(each.connection, "100 days")
        each.connection.commit()
    first.ack(one)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(second.ack, two)
        try:
            wait_until_blocked(work.connection, second.connection)
        finally:
            first.connection.commit()
        assert answer.result(timeout=120) == 1
    second.connection.commit()
    assert ids(work) == published
    assert catch_up(work) == published


def test_above_read_committed_an_answer_writes_its_row_too(work: Engine, connect: Connect) -> None:
    published = work.publish(2)
    held = work.lease(2)
    strict = connect(autocommit=False)
    strict.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    move_clock(strict, "100 days")
    strict.commit()
    work.on(strict).ack(held, published[:1])
    strict.commit()
    work.ack(held, published[1:])
    assert ids(work) == catch_up(work) == published


def test_to_drop_it_waits_for_an_answer_and_lets_others_pass(work: Engine, connect: Connect) -> None:
    work.publish(2)
    first = work.on(connect(autocommit=False))
    one, two = work.lease(), work.lease()
    first.ack(one)
    with refused("TQ009"):
        work.ask("drop_archive")
    assert work.ack(two) == 1
    first.connection.commit()
    work.ask("drop_archive")
    work.publish()
    assert work.ack(work.lease()) == 1


def test_a_queue_that_is_dropped_with_an_answer_open_keeps_its_row(work: Engine, connect: Connect) -> None:
    published = work.publish(2)
    first = work.on(connect(autocommit=False))
    held = work.lease(2)
    first.ack(held, published[:1])
    with refused("TQ009"):
        work.ask("drop_queue", force=True)
    first.connection.commit()
    work.ask("drop_queue", force=True)
    rows: list[Any] = work.connection.execute("select id from trunq_archive.work").fetchall()
    assert rows == [(published[0],)]
