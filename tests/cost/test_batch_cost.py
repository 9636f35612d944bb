"""Batches and rotation cost the same behind a hundred times as much history: promise 6."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from conftest import Connect
from counting import Cost, cost_of
from engine import Engine

FEW = 100


@pytest.fixture(scope="module")
def rounds() -> tuple[int, int]:
    return 20, 2_000


def with_history(connection: psycopg.Connection[Any], name: str, rounds: int) -> Engine:
    """So many finished batches and so many answered leases, and something new for everybody."""
    work = Engine(connection, name).create(retention="2000 days")
    for stream in ("reader", "mover"):
        work.ask("subscribe", subscription=stream, mode="exclusive")
    work.run(
        f"""do $$ declare l record; b record; begin
          for n in 1 .. {rounds} loop
            perform trunq.publish('{name}');
            perform trunq.tick('{name}', true);
            commit;
            select max(lease_id) lease_id, max(token) token, array_agg(id) ids into l from trunq.lease('{name}', 'default', 'w', 5);
            perform trunq.ack('{name}', 'default', l.lease_id, l.token, l.ids);
            select * into b from trunq.next_batch('{name}', 'reader', 'w');
            perform trunq.finish_batch('{name}', 'reader', b.batch_id, b.token);
            perform trunq.advance('{name}', 'mover', b.to_tick_id);
            commit;
          end loop;
        end $$"""  # noqa: E501
    )
    # What may still be held is looked at by status.
    with work.clock("2 minutes"):
        work.ask("reap")
    return work


def costs(work: Engine) -> dict[str, Cost]:
    """Each function once; before it is counted, once for the plans."""
    name, connection = work.queue, work.connection
    work.publish(3)
    work.ask("tick", force=True)
    work.ask("tick", force=True)

    def cost(statement: str, *parameters: Any) -> Cost:
        return cost_of(connection, statement, *parameters)

    found = {}
    for _ in range(2):
        found["next_batch"] = cost(f"select * from trunq_queue.{name}_next_batch('reader', 'w')")
        (batch,) = work.call("next_batch", subscription="reader", worker="w")
        found["read_batch"] = cost("select * from trunq.read_batch(%s, 'reader', %s)", name, batch.batch_id)
        found["finish_batch"] = cost(
            f"select trunq_queue.{name}_finish_batch('reader', %s, %s)", batch.batch_id, batch.token
        )
        found["position"] = cost("select trunq.position(%s, 'reader')", name)
        found["advance"] = cost("select trunq.advance(%s, 'mover', %s)", name, batch.to_tick_id)
        found["rotate, nothing old"] = cost("select trunq.rotate(%s)", name)
        found["list_warnings"] = cost("select * from trunq.list_warnings(%s)", name)
        with work.clock("2 minutes"):  # it counts what the last minute has done
            found["status"] = cost("select * from trunq.status(%s)", name)
    return found


def test_batches_and_rotation_cost_the_same_behind_a_hundred_times_as_much_history(
    connect: Connect, rounds: tuple[int, int]
) -> None:
    few, many = (with_history(connect(), f"rounds_{count}", count) for count in rounds)
    # A session plans by the size of the tables when it first asks: one was there from the start, one is late.
    for expected, found in ((costs(few), costs(many)), (costs(few.on(connect())), costs(many.on(connect())))):
        for name, cost in found.items():
            assert cost.seq_scans == 0, name
            assert cost.pages <= 1.5 * expected[name].pages + 30, name
            # Of each of three subscriptions status also looks where the oldest message lies that it holds,
            # and whether leases ask for parts. list_warnings looks once for each kind of warning.
            assert cost.pages < {"status": 4.2, "list_warnings": 4}.get(name, 1) * FEW, name


def test_emptying_a_segment_costs_the_same_behind_a_hundred_times_as_much_history(
    connection: psycopg.Connection[Any], rounds: tuple[int, int]
) -> None:
    steps = []
    for count in rounds:
        work = with_history(connection, f"emptied_{count}", count)
        work.drain()
        for stream in ("reader", "mover"):
            work.ask("advance", subscription=stream, tick_id=work.ask("tick", force=True))
            work.ask("advance", subscription=stream, tick_id=work.ask("tick", force=True))
        with work.clock("2 minutes"):
            work.ask("reap")
        with work.clock("3000 days"):
            costs = [cost_of(connection, "select trunq.rotate(%s)", work.queue) for _ in range(4)]
        assert work.is_empty("log")
        assert work.fetch("select count(*) from {receipt}") == 2, "of the two positions carried"
        steps.append(costs)
    for few, many in zip(*steps, strict=True):
        assert many.seq_scans == few.seq_scans, "TRUNCATE builds empty indexes"
        assert many.rows_read <= few.rows_read + 10
        # The first looks once at each tick that goes out of reach.
        assert many.pages <= 1.5 * few.pages + 200


def test_an_empty_cycle_of_a_stream_reads_few_pages(connection: psycopg.Connection[Any]) -> None:
    """Tick, next, read, finish: what PgQ is measured against (benchmarks/stream.py)."""
    work = Engine(connection, "cycle").create(default_subscription=False)
    work.ask("subscribe", subscription="reader", mode="exclusive")
    for _ in range(8):  # plans are made, and kept
        pages = [cost_of(connection, f"select trunq.tick('{work.queue}', true)").pages]
        taking = f"select * from trunq_queue.{work.queue}_next_batch('reader', 'w')"
        pages.append(cost_of(connection, taking).pages)
        (batch,) = work.call("next_batch", subscription="reader", worker="w")
        reading = "select * from trunq.read_batch(%s, 'reader', %s)"
        pages.append(cost_of(connection, reading, work.queue, batch.batch_id).pages)
        finishing = f"select trunq_queue.{work.queue}_finish_batch('reader', %s, %s)"
        pages.append(cost_of(connection, finishing, batch.batch_id, batch.token).pages)
    assert sum(pages) <= 85, pages
