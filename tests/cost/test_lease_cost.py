"""A look costs what it takes, whatever stands in its way: ATTACKS, section C."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest

from calling import come_back
from conftest import Connect
from copying import copied_server
from counting import Cost, cost_of
from engine import Engine
from scope import some

IN_THE_WAY = some(120_000, 500_000)
"""Rows: more than two walks of fifty thousand."""
OPEN = some(60_000, 200_000)
"""Rows of one transaction: more than one walk."""
FEW = 100
LEASE = "select * from trunq.lease(%s, 'default', 'w', %s)"


@pytest.fixture
def work(connection: psycopg.Connection[Any]) -> Engine:
    work = Engine(connection, "work").create()
    work.publish()
    work.drain()
    return work


def look(work: Engine, count: int = 10) -> Cost:
    return cost_of(work.connection, LEASE, work.queue, count)


def put_retries_of_another(work: Engine, count: int) -> None:
    """In transactions of 10,000, as a busy reader would leave them."""
    work.ask("subscribe", subscription="other")
    work.run(
        "do $$ begin for n in 1 .. %s / 10000 loop insert into {log} (subscription_id)"
        " select (select max(subscription_id) from trunq.subscription) from generate_series(1, 10000);"
        " commit; end loop; end $$".replace("%s", str(count))
    )


def work_through(work: Engine, rounds: int, count: int) -> None:
    """Lease and ack so many times; each in a transaction, the loop in the server."""
    work.run(
        f"""do $$ declare l record; begin
          for n in 1 .. {rounds} loop
            select max(lease_id) lease_id, max(token) token, array_agg(id) ids into l
            from trunq.lease('{work.queue}', 'default', 'w', {count});
            perform trunq.ack('{work.queue}', 'default', l.lease_id, l.token, l.ids);
            commit;
          end loop; end $$"""
    )


def test_a_look_over_retries_of_another_moves_the_position(work: Engine) -> None:
    put_retries_of_another(work, IN_THE_WAY)
    leases = work.fetch("select count(*) from {lease}")
    first = look(work)
    assert first.rows == 0
    assert first.rows_read >= IN_THE_WAY
    assert work.fetch("select count(*) from {lease}") == leases + 1, "an empty lease"
    second = look(work)
    assert second.rows == 0
    # One that took 3 ms, on a busy machine, writes an empty lease; the next need not.
    assert min(look(work).rows_inserted for _ in range(5)) == 0
    assert second.pages < FEW
    assert second.rows_read < FEW
    ids = work.publish(5)
    assert look(work).pages < FEW
    work.run("update {lease} set expires_at = now() - interval '1 second' where size = 5")
    assert work.ask("reap") == 1
    come_back(work.connection, work.queue)
    assert sorted(work.drain()) == ids


def test_a_message_behind_retries_of_another_is_found_in_the_same_call(work: Engine) -> None:
    put_retries_of_another(work, IN_THE_WAY)
    ids = work.publish(5)
    held = work.lease(10)
    assert held.ids == ids
    work.ack(held)
    assert work.drain() == []


def test_so_many_retries_of_another_are_walked_in_several_calls(work: Engine) -> None:
    """Forty walks of fifty thousand rows at most: seen here with shorter ones."""
    for part in ("walk", "upcoming", "go_further"):
        source = work.fetch(f"select pg_get_functiondef('trunq_queue.{{queue}}_{part}'::regproc)")
        assert "50000 /*limit walk_rows*/" in source
        work.connection.execute(source.replace("50000 /*limit walk_rows*/", "50"))
    put_retries_of_another(work, 10_000)
    ids = work.publish(5)
    calls = 0
    while not (held := work.lease(10)):
        calls += 1
        assert calls < 10
    assert held.ids == ids
    assert calls == 10_000 // (40 * 50)
    assert work.fetch("select count(*) from {lease} where size is null") >= calls


def test_rows_nobody_committed_yet_are_walked_once(work: Engine, connect: Connect) -> None:
    open_copy = connect(autocommit=False)
    with open_copy.cursor().copy("copy trunq_log.work (kind) from stdin") as copy:
        for _ in range(OPEN):
            copy.write_row(["k"])
    assert look(work).rows == 0
    second = look(work)
    assert second.rows == 0
    # One that took 3 ms, on a busy machine, writes an empty lease; the next need not.
    assert min(look(work).rows_inserted for _ in range(5)) == 0
    assert second.pages < FEW
    ids = work.publish(3)
    held = work.lease(10)
    assert held.ids == ids
    open_copy.commit()
    assert len(work.drain()) == OPEN


def test_rows_rolled_back_are_walked_once(work: Engine, connect: Connect) -> None:
    with work.connection.transaction(force_rollback=True):
        work.run(f"insert into {{log}} (kind) select 'k' from generate_series(1, {OPEN})")
    assert look(work).rows == 0
    assert look(work).pages < FEW


def test_a_lease_costs_the_same_with_a_hundred_times_as_much_waiting(work: Engine) -> None:
    small = Engine(work.connection, "small").create()
    for queue, count in ((work, OPEN), (small, OPEN // 100)):
        queue.run(f"insert into {{log}} (payload) select to_jsonb(n) from generate_series(1, {count}) n")
        queue.ack(queue.lease(10))
    for count in (1, 100):
        assert look(work, count).pages <= 1.2 * look(small, count).pages + 10
    held = work.lease(100)
    ack = "select trunq.ack(%s, 'default', %s, %s, %s)"
    assert cost_of(work.connection, ack, work.queue, held.lease_id, held.token, held.ids).pages < FEW
    assert cost_of(work.connection, "select trunq.publish(%s)", work.queue).pages < FEW


def test_a_lease_costs_the_same_behind_a_hundred_times_as_much_history(work: Engine) -> None:
    small = Engine(work.connection, "small").create()
    for queue, rounds in ((work, 2_000), (small, 20)):
        queue.run(f"insert into {{log}} (kind) select 'k' from generate_series(1, {rounds * 5 + 500})")
        work_through(queue, rounds, 5)
    assert look(work, 100).pages <= 1.2 * look(small, 100).pages + 10


def test_late_ones_of_three_hundred_open_writers_are_read_a_lease_at_a_time() -> None:
    writers, late = 300, 100
    with (
        copied_server(settings={"max_connections": "320", "fsync": "off"}) as server,
        psycopg.connect(server.dsn, autocommit=True) as connection,
    ):
        work = Engine(connection, "work").create()
        opened = [psycopg.connect(server.dsn) for _ in range(writers)]
        insert = f"insert into trunq_log.work (kind) select 'late' from generate_series(1, {late})"
        for writer in opened:
            writer.execute(insert.encode())
        early = work.publish(10)
        assert work.drain() == early
        random.Random(1).shuffle(opened)
        for writer in opened:
            writer.commit()
            writer.close()
        newer = work.publish(10)
        for count in (1, 100):
            cost = look(work, count)
            assert cost.rows == count
            assert cost.rows_read <= count + 10
            assert cost.pages < FEW + 2 * count
        work.drain()
        order = connection.execute(
            "select u.txid::text::bigint, u.id"
            " from trunq_data.work_lease l, unnest(l.txids, l.ids) u(txid, id)"
            " where u.id <> all (%s) order by l.lease_id",
            (early,),
        ).fetchall()
    assert len(order) == writers * late + len(newer)
    assert order == sorted(set(order)), "in the order (txid, id), each once"
    assert [id for _, id in order[-len(newer) :]] == newer
