"""A queue is converted while others publish, lease and answer."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import answer, ask, call, drain, fetch, lease, publish, refused
from conftest import Connect
from race.conftest import Meanwhile
from waiting import wait_until_blocked

Connection = psycopg.Connection[Any]

FORMS = ({"lanes": "key"}, {"lanes": "priority"}, {"unique": "refuse"}, {"retention": "30 days"})


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_publisher_that_has_not_committed_is_waited_for_in_short_tries(
    connect: Connect, meanwhile: Meanwhile, form: dict[str, str]
) -> None:
    session, publisher, converter, other = connect(), connect(autocommit=False), connect(), connect()
    ask(session, "create_queue", queue="orders")
    publish(publisher, "orders", 2)
    converting = meanwhile(ask, converter, "convert_queue", queue="orders", **form)
    wait_until_blocked(session, converter)
    # Who comes meanwhile waits for one try, and not for the publisher.
    other.execute("set lock_timeout = '20s'")
    later = publish(other, "orders", 1)
    publisher.commit()
    assert converting.result() is True
    assert sorted(drain(session, "orders")) == [1, 2, *later]


def test_a_publisher_that_stays_leaves_the_queue_as_it_was(connect: Connect) -> None:
    session, publisher, converter = connect(), connect(autocommit=False), connect()
    ask(session, "create_queue", queue="orders")
    publish(publisher, "orders", 1)
    with refused("TQ009", "open transaction"):
        ask(converter, "convert_queue", queue="orders", lanes="key")
    publisher.commit()
    assert fetch(session, "select lanes from trunq.queue") is None
    assert fetch(session, "select to_regclass('trunq_data.orders_turn')") is None
    assert drain(session, "orders") == [1]


@pytest.mark.parametrize("taken", [0, 3])
def test_what_a_transaction_of_before_publishes_later_is_handed_out_once(
    connect: Connect, taken: int
) -> None:
    session, late, later = connect(), connect(autocommit=False), connect(autocommit=False)
    ask(session, "create_queue", queue="orders")
    for each in (late, later):
        each.execute("select pg_current_xact_id()")
    ids = publish(session, "orders", 5, keys=["a", "b", "c", "a", "b"])
    got = lease(session, "orders", taken).ids if taken else []
    assert ask(session, "convert_queue", queue="orders", lanes="key", retention="9 days") is True
    ids += publish(late, "orders", 2, keys=["a", "z"])
    late.commit()
    ids += publish(session, "orders", 1, keys=["a"])
    got += drain(session, "orders")
    ids += publish(later, "orders", 2, keys=["b", "z"])
    later.commit()
    got += drain(session, "orders")
    assert sorted(got) == sorted(ids)
    assert len(got) == len(set(got))


def test_a_copy_under_way_is_waited_for_and_its_rows_count(connect: Connect, meanwhile: Meanwhile) -> None:
    session, copier, converter = connect(), connect(autocommit=False), connect()
    ask(session, "create_queue", queue="orders")
    with copier.cursor().copy("copy trunq_log.orders (key, payload) from stdin") as copy:
        copy.write_row(["a", "{}"])
        copy.write_row(["b", "{}"])
    converting = meanwhile(ask, converter, "convert_queue", queue="orders", lanes="key", unique="refuse")
    wait_until_blocked(session, converter)
    copier.commit()
    assert converting.result() is True
    assert sorted(drain(session, "orders")) == [1, 2]


def test_a_statement_prepared_before_publishes_after(connect: Connect) -> None:
    session, publisher, worker = connect(), connect(), connect()
    ask(session, "create_queue", queue="orders")
    insert = "insert into trunq_log.orders (key, payload) values (%s, '{}')"
    published = "select trunq_queue.orders_publish('{}', p_key => %s)"
    leased = "select id from trunq_queue.orders_lease('default', 'w', 1)"
    for _ in range(3):
        publisher.execute(insert, ("a",), prepare=True)
        publisher.execute(published, ("b",), prepare=True)
    got = [worker.execute(leased, prepare=True).fetchone() for _ in range(2)]
    ask(session, "convert_queue", queue="orders", lanes="key", unique="replace", retention="9 days")
    publisher.execute(insert, ("a",), prepare=True)
    publisher.execute(published, ("b",), prepare=True)
    while row := worker.execute(leased, prepare=True).fetchone():
        got.append(row)
    assert sorted(got) == [(n,) for n in range(1, 9)]


def test_a_lease_that_waited_with_the_function_of_before_is_refused_and_hands_out_nothing(
    connect: Connect, meanwhile: Meanwhile
) -> None:
    session, holder, worker = connect(), connect(autocommit=False), connect()
    ask(session, "create_queue", queue="orders")
    ids = publish(session, "orders", 6, keys=["a", "b", "c"] * 2)
    got = lease(session, "orders", 2).ids
    subscription = fetch(session, "select subscription_id from trunq.subscription")
    holder.execute(f"select pg_advisory_xact_lock(1953656418, {subscription})")
    waiting = meanwhile(lease, worker, "orders", 2)
    wait_until_blocked(session, worker)
    assert ask(session, "convert_queue", queue="orders", lanes="key") is True
    holder.commit()
    with pytest.raises(psycopg.errors.SerializationFailure, match="got lanes"):
        waiting.result()
    got += lease(worker, "orders", 2).ids
    assert sorted(got + drain(session, "orders")) == ids


def test_workers_answer_what_they_had_leased_before(connect: Connect) -> None:
    session = connect()
    ask(session, "create_queue", queue="orders")
    ask(session, "subscribe", queue="orders", subscription="default", backoff_base="0", jitter=0)
    publish(session, "orders", 8, keys=["a", "b"] * 4)
    done, again, back, bad = (lease(session, "orders", 2) for _ in range(4))
    ask(session, "convert_queue", queue="orders", lanes="key", retention="9 days")
    assert answer(session, "ack", done) == 2
    assert answer(session, "retry", again) == 2
    assert answer(session, "release", back) == 2
    assert answer(session, "reject", bad) == 2
    with refused("TQ003"):
        call(session, "ack", **done.named | {"token": 1}, ids=done.ids)
    assert sorted(drain(session, "orders")) == [3, 4, 5, 6]
    assert [row.id for row in call(session, "list_dead", queue="orders")] == [8, 7]


def test_a_lease_of_before_that_runs_out_is_reaped(connect: Connect) -> None:
    session = connect()
    ask(session, "create_queue", queue="orders")
    ids = publish(session, "orders", 3, keys=["a", "b", "a"])
    lease(session, "orders", 2, lease_time="1 microsecond")
    ask(session, "convert_queue", queue="orders", lanes="priority,key")
    assert ask(session, "reap", queue="orders") == 1
    session.execute("update trunq.delayed set due_at = now()")
    ask(session, "promote", queue="orders")
    assert sorted(drain(session, "orders")) == ids


def test_two_convert_at_once_and_one_does(connect: Connect, meanwhile: Meanwhile) -> None:
    session, first, second = connect(), connect(autocommit=False), connect()
    ask(session, "create_queue", queue="orders")
    assert ask(first, "convert_queue", queue="orders", lanes="key") is True
    converting = meanwhile(ask, second, "convert_queue", queue="orders", lanes="key")
    wait_until_blocked(session, second)
    first.commit()
    assert converting.result() is False
