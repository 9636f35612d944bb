"""Creating and dropping queues at the same time."""

from __future__ import annotations

from typing import Any

import pytest

from calling import answer, ask, call, fetch, lease, publish, refresh, refused
from conftest import Connect
from waiting import wait_until_blocked


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_two_make_queues_at_once_and_neither_waits(connect: Connect, isolation: str) -> None:
    session, first, second = connect(), connect(autocommit=False), connect(autocommit=False)
    second.execute(f"set transaction isolation level {isolation}".encode())
    second.execute("set local lock_timeout = '1s'")
    fetch(second, "select count(*) from trunq.queue")
    ask(first, "create_queue", queue="one")
    assert ask(second, "create_queue", queue="two") is True
    first.commit()
    second.commit()
    for queue in ("one", "two"):
        id = ask(session, "publish", queue=queue)
        assert lease(session, queue).ids == [id]


def test_a_queue_that_was_never_made_is_not_known_to_publish(connect: Connect) -> None:
    session, maker = connect(), connect(autocommit=False)
    ask(session, "create_queue", queue="before")
    ask(maker, "create_queue", queue="never")
    ask(maker, "publish", queue="never")
    ask(maker, "publish", queue="before")
    maker.rollback()
    ask(maker, "create_queue", queue="after")
    maker.commit()
    for queue in ("before", "after"):
        id = ask(session, "publish", queue=queue)
        assert id in lease(session, queue, 10).ids
    with refused("TQ001", "never"):
        ask(session, "publish", queue="never")


def test_to_find_a_queue_there_is_waits_for_nobody(connect: Connect) -> None:
    session, maker = connect(), connect(autocommit=False)
    ask(session, "create_queue", queue="mine")
    ask(maker, "create_queue", queue="open")
    session.execute("set lock_timeout = '1s'")
    assert ask(session, "create_queue", queue="mine") is False
    id = ask(session, "publish", queue="mine")
    assert lease(session, "mine").ids == [id]


def test_a_snapshot_from_before_a_queue_was_made_again_leaves_the_new_one_to_all(connect: Connect) -> None:
    session, first, second = connect(), connect(autocommit=False), connect(autocommit=False)
    ask(session, "create_queue", queue="orders")
    second.execute("set transaction isolation level repeatable read")
    ask(first, "drop_queue", queue="orders", force=True)
    ask(first, "create_queue", queue="orders")
    fetch(second, "select count(*) from trunq.queue")
    first.commit()
    assert ask(second, "create_queue", queue="other") is True
    second.commit()
    id = ask(session, "publish", queue="orders")
    held = lease(session, "orders")
    assert held.ids == [id]
    assert answer(session, "ack", held) == 1


def test_a_queue_that_is_being_dropped_is_made_anew(connect: Connect, meanwhile: Any) -> None:
    session, dropper, watcher = connect(), connect(autocommit=False), connect()
    ask(session, "create_queue", queue="orders")
    ask(dropper, "drop_queue", queue="orders", force=True)
    late = meanwhile(ask, session, "create_queue", queue="orders")
    wait_until_blocked(watcher, session)
    dropper.commit()
    assert late.result(120) is True
    assert publish(session, "orders") == [1]


def test_ids_are_those_of_the_queue_made_meanwhile(connect: Connect, meanwhile: Any) -> None:
    session, maker, watcher = connect(), connect(autocommit=False), connect()
    ask(session, "create_queue", queue="orders")
    publish(session, "orders", 3)
    ask(maker, "drop_queue", queue="orders", force=True)
    ask(maker, "create_queue", queue="orders")
    late = meanwhile(ask, session, "draw_ids", queue="orders", count=3)
    wait_until_blocked(watcher, session)
    maker.commit()
    assert late.result(120) == [1, 2, 3]
    assert publish(session, "orders", 1)[0] > 3


def test_a_queue_is_dropped_while_another_is_being_made(connect: Connect) -> None:
    session, maker = connect(), connect(autocommit=False)
    ask(session, "create_queue", queue="orders")
    ask(maker, "create_queue", queue="other")
    ask(session, "drop_queue", queue="orders")
    maker.commit()
    assert [row.queue for row in call(session, "list_queues")] == ["other"]


def test_a_drop_waits_for_a_delayed_publish_and_takes_it_along(connect: Connect, meanwhile: Any) -> None:
    session, publisher = connect(), connect(autocommit=False)
    ask(session, "create_queue", queue="orders")
    ask(publisher, "publish", queue="orders", delay="1 hour")
    late = meanwhile(ask, session, "drop_queue", queue="orders", force=True)
    wait_until_blocked(connect(), session)
    publisher.commit()
    late.result(120)
    assert fetch(session, "select count(*) from trunq.delayed") == 0


def test_an_upgrade_waits_for_a_queue_that_is_being_made(
    connect: Connect, database: str, meanwhile: Any
) -> None:
    session, maker = connect(), connect(autocommit=False)
    ask(maker, "create_queue", queue="orders")
    late = meanwhile(refresh, session)
    wait_until_blocked(connect(), session)
    maker.commit()
    assert late.result(120) == ["orders"]


MADE_MEANWHILE = """
create or replace function trunq._subscription(p_queue text, p_subscription text, p_mode text default null)
returns trunq.subscription language plpgsql as $$
declare
  v_sub trunq.subscription;
begin
  insert into trunq.subscription (queue_id, name, mode, start)
  select q.queue_id, p_subscription, 'shared', '3:3:' from trunq.queue q where q.name = p_queue
  on conflict (queue_id, name) do update set mode = excluded.mode
  returning * into v_sub;
  return v_sub;
end $$
"""


def test_a_subscription_made_in_the_middle_of_a_lease_is_found(connect: Connect) -> None:
    """The call looks twice for what is missing, to say which; the second look may find it."""
    session = connect()
    ask(session, "create_queue", queue="orders")
    (id,) = publish(session, "orders")
    # What another session does between the two looks, this one does in the second.
    session.execute(MADE_MEANWHILE)
    session.execute("set statement_timeout = '10s'")
    assert lease(session, "orders", subscription="s").ids == [id]


@pytest.mark.slow
@pytest.mark.parametrize("function", ["empty_queue", "drop_queue"])
@pytest.mark.parametrize("busy", ["tick", "unsubscribe"])
def test_whoever_stands_in_the_way_of_a_queue_for_oneself_is_named_and_then_it_goes_on(
    connect: Connect, function: str, busy: str
) -> None:
    """Each holds something else: the lock of the ticks, the row of a subscription."""
    session, other = connect(), connect(autocommit=False)
    ask(session, "create_queue", queue="orders")
    ask(session, "publish", queue="orders", delay="1 hour")
    arguments: dict[str, Any] = {"force": True} if busy == "tick" else {"subscription": "default"}
    ask(other, busy, queue="orders", **arguments)
    named: dict[str, Any] = {"queue": "orders"} | ({"force": True} if function == "drop_queue" else {})
    with refused("TQ009", "orders", "pg_stat_activity"):
        ask(session, function, **named)
    other.commit()
    ask(session, function, **named)
    assert fetch(session, "select count(*) from trunq.delayed") == 0


@pytest.mark.parametrize("name", ["orders_id_idx", "orders_txid_id_idx"])
def test_a_queue_cannot_have_the_name_of_an_index_of_another_that_is_being_made(
    connect: Connect, meanwhile: Any, name: str
) -> None:
    session, maker = connect(), connect(autocommit=False)
    ask(maker, "create_queue", queue="orders")
    late = meanwhile(ask, session, "create_queue", queue=name)
    wait_until_blocked(connect(), session)
    maker.commit()
    with refused("TQ004", name, "choose another name"):
        late.result(120)
    with refused("TQ004", name, "choose another name"):
        ask(session, "create_queue", queue=name)
    assert [row.queue for row in call(session, "list_queues")] == ["orders"]


def test_a_queue_cannot_have_the_name_of_a_table_or_type_of_the_user(connect: Connect) -> None:
    session = connect()
    session.execute("create table trunq_data.orders_lease ()")
    session.execute("create domain trunq_log.prices as text")
    for name in ("orders", "prices"):
        with refused("TQ004", name, "choose another name"):
            ask(session, "create_queue", queue=name)
    assert call(session, "list_queues") == []
