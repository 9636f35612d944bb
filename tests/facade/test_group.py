"""Members of a group (pgq_coop): each has a batch of its own; one that was taken for dead holds nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from calling import ask, call, fetch
from conftest import Connect
from waiting import wait_until_blocked

Connection = psycopg.Connection[Any]


def ask_for(pgq: Connection, queue: str, member: str, dead: str | None = None) -> Any:
    return fetch(pgq, "select pgq_coop.next_batch(%s, 'group', %s, %s)", queue, member, dead)


def fill(pgq: Connection, queue: str, batches: int) -> None:
    """So many events, a tick behind each."""
    for number in range(batches):
        fetch(pgq, "select pgq.insert_event(%s, 'kind', %s)", queue, str(number))
        fetch(pgq, "select pgq.ticker(%s)", queue)


def take_for_dead(pgq: Connection, batch: int) -> None:
    pgq.execute(
        "update pgq.subscription set sub_active = now() - interval '2 h' where sub_batch = %s", (batch,)
    )


def test_of_many_who_ask_at_once_each_member_has_its_own(
    pgq: Connection, open_pgq: Connect, name: str
) -> None:
    for member in "abc":
        fetch(pgq, "select pgq_coop.register_subconsumer(%s, 'group', %s)", name, member)
    fill(pgq, name, 3)
    with ThreadPoolExecutor() as pool:
        asked = list(
            pool.map(
                lambda asks: (asks[1], ask_for(asks[0], name, asks[1])), [(open_pgq(), m) for m in "abcabc"]
            )
        )
    assert len(set(asked)) == 3, "a member that asks twice has one"
    assert len({batch for _, batch in asked}) == 3
    data = {fetch(pgq, "select ev_data from pgq.get_batch_events(%s)", batch) for _, batch in asked}
    assert data == {"0", "1", "2"}


def test_what_a_dead_member_holds_is_fenced_and_its_number_is_another_s(pgq: Connection, name: str) -> None:
    fill(pgq, name, 2)
    assert ask_for(pgq, name, "dead") is None, "it starts behind what there is"
    fill(pgq, name, 2)
    batch = ask_for(pgq, name, "dead")
    lease, token = pgq.execute(
        f"select l.lease_id, l.token from trunq_data.{name}_lease l join pgq._batch b using (lease_id)"
        " where b.batch_id = %s".encode(),
        (batch,),
    ).fetchall()[0]
    take_for_dead(pgq, batch)
    assert ask_for(pgq, name, "heir", "1 hour") == batch
    with pytest.raises(psycopg.Error) as refused:
        ask(pgq, "finish_batch", queue=name, subscription="group", batch_id=lease, token=token)
    assert refused.value.sqlstate == "TQ003"
    assert fetch(pgq, "select ev_data from pgq.get_batch_events(%s)", batch) == "0"
    # PgQ's own call has no token: whoever says the number finishes it, and once.
    assert fetch(pgq, "select pgq_coop.finish_batch(%s)", batch) == 1
    assert ask_for(pgq, name, "heir") == batch + 1


def test_who_leaves_waits_for_who_takes_it_for_dead(pgq: Connection, open_pgq: Connect, name: str) -> None:
    for member in ("leaver", "other"):
        fetch(pgq, "select pgq_coop.register_subconsumer(%s, 'group', %s)", name, member)
    fill(pgq, name, 1)
    other, leaver = open_pgq(autocommit=False), open_pgq()
    batch = ask_for(other, name, "other", "0")
    with ThreadPoolExecutor() as pool:
        leaving = pool.submit(fetch, leaver, "select pgq.unregister_consumer(%s, 'group.leaver')", name)
        wait_until_blocked(pgq, leaver)
        other.commit()
        assert leaving.result() == 0, "it was ended meanwhile"
    assert fetch(pgq, "select pgq_coop.finish_batch(%s)", batch) == 1
    found = pgq.execute("select consumer_name from pgq.get_consumer_info(%s)", (name,)).fetchall()
    assert ("group.leaver",) not in found


def test_a_group_of_pgq_s_is_one_of_trunq_s(pgq: Connection, name: str) -> None:
    fetch(pgq, "select pgq_coop.register_subconsumer(%s, 'group', 'one')", name)
    fill(pgq, name, 2)
    batch = ask_for(pgq, name, "one")
    native = call(pgq, "next_batch", queue=name, subscription="group", worker="native", cut=False)
    assert len(native) == 1, "a member of trunq's reads beside it"
    (group,) = call(pgq, "list_groups", queue=name)
    assert (group.group_name, group.slots, group.batches) == ("group", None, 2)
    assert fetch(pgq, "select pgq_coop.finish_batch(%s)", batch) == 1
    assert ask(
        pgq,
        "finish_batch",
        queue=name,
        subscription="group",
        batch_id=native[0].batch_id,
        token=native[0].token,
    )
    assert ask_for(pgq, name, "one") is None


def test_who_registers_waits_without_a_lock_that_who_unregisters_needs(
    pgq: Connection, open_pgq: Connect, name: str
) -> None:
    fetch(pgq, "select pgq_coop.register_subconsumer(%s, 'group', 'old')", name)
    find = "select subscription_id from pgq._subscription where sub_queue = %s limit 1"
    queue_id = fetch(pgq, "select queue_id from pgq.queue where queue_name = %s", name)
    ending, member = open_pgq(autocommit=False), open_pgq()
    subscription = fetch(pgq, find + " offset 1", queue_id)
    fetch(ending, "select trunq._lock_subscription(%s, 'q', 's')", subscription)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(ask_for, member, name, "new")
        wait_until_blocked(pgq, member)
        assert fetch(ending, "select pgq.unregister_consumer(%s, 'group')", name) == 2
        ending.commit()
        assert asked.result() is None, "it is registered anew, behind what there is"
    known = pgq.execute("select consumer_name from pgq.get_consumer_info(%s)", (name,)).fetchall()
    assert {("group",), ("group.new",)} <= set(known)


def test_of_two_who_register_one_name_at_once_one_does(pgq: Connection, open_pgq: Connect, name: str) -> None:
    first, second = open_pgq(autocommit=False), open_pgq()
    register = "select pgq.register_consumer(%s, 'twice')"
    assert fetch(first, register, name) == 1
    with ThreadPoolExecutor() as pool:
        other = pool.submit(fetch, second, register, name)
        wait_until_blocked(pgq, second)
        first.commit()
        assert other.result() == 0


def test_an_update_of_a_queue_lets_who_drops_it_pass(pgq: Connection, open_pgq: Connect, name: str) -> None:
    dropping, updating = open_pgq(autocommit=False), open_pgq()
    fetch(dropping, "select 1 from pgq._queue where queue_name = %s for update", name)
    update = "update pgq.queue set queue_ticker_max_count = 7 where queue_name = %s"
    with ThreadPoolExecutor() as pool:
        updated = pool.submit(updating.execute, update.encode(), (name,))
        wait_until_blocked(pgq, updating)
        assert fetch(dropping, "select pgq.drop_queue(%s, true)", name) == 1
        dropping.commit()
        assert updated.result().rowcount == 0
