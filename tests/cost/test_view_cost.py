"""Status and lists cost hardly more with ten times as much: no leader, no statistics, no summary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from counting import cost_of
from engine import Engine
from growing import each_in_its_database

SIZES = {"small": 3, "large": 30}

BUILD = """
do $$ declare l record; begin
  for n in 1 .. {n} * 6 loop
    insert into trunq_log.{queue} (payload) select to_jsonb(repeat('x', 200)) from generate_series(1, 500);
    if n % 2 = 0 then perform trunq.tick('{queue}', true); end if;
    commit;
  end loop;
  for n in 1 .. {n} * 200 loop
    select min(lease_id) lease_id, min(token) token, array_agg(id) ids into l
    from trunq.lease('{queue}', 'default', 'w' || n % 5, case when n % 2 = 0 then 1 else 10 end, '1 hour');
    if n % 10 = 0 then
      perform trunq.reject('{queue}', 'default', l.lease_id, l.token, l.ids);
    else
      perform trunq.ack('{queue}', 'default', l.lease_id, l.token, l.ids);
    end if;
    commit;
  end loop;
  -- Read, and waiting again behind the backlog.
  for n in 1 .. {n} * 40 loop
    perform from trunq.lease('{queue}', 'default', 'lost', case when n % 2 = 0 then 1 else 10 end); commit;
  end loop;
  while trunq.reclaim('{queue}', 'default', 'lost') > 0 loop commit; end loop;
  for n in 1 .. 3 loop
    perform from trunq.lease('{queue}', 'default', 'w', 10); commit;
  end loop;
  -- The last row has an id of long ago.
  select min(lease_id) lease_id, min(token) token, array_agg(id) ids into l
  from trunq.lease('{queue}', 'default', 'w', 10);
  perform trunq.release('{queue}', 'default', l.lease_id, l.token, l.ids);
  insert into trunq.delayed (queue_id, id, due_at, created_at, attempt)
  select q.queue_id, nextval('trunq_data.{queue}_message_id'), now() + '1 day', now(), 1
  from trunq.queue q, generate_series(1, {n} * 2000) n where q.name = '{queue}';
end $$
"""


@pytest.fixture(scope="module")
def queues() -> Iterator[dict[str, Engine]]:
    """Two queues in databases of their own: some tables are common to all queues."""
    with each_in_its_database(SIZES, BUILD) as made:
        yield made


def costs(queues: dict[str, Engine], call: str) -> tuple[int, int]:
    """Pages that a call reads in the small and in the large queue, its caches warm."""
    read = {}
    for name, work in queues.items():
        statement = f"select * from trunq.{call}".replace("%s", f"'{name}'")
        cost_of(work.connection, statement)
        cost = cost_of(work.connection, statement)
        assert cost.seq_scans == 0
        assert cost.rows > 0
        read[name] = cost.pages
    return read["small"], read["large"]


@pytest.mark.slow
def test_status_hardly_grows(queues: dict[str, Engine]) -> None:
    small, large = costs(queues, "status(%s)")
    assert large < 4 * small


@pytest.mark.parametrize("brief", ["false", "true"])
@pytest.mark.parametrize("state", ["null", "'ready'", "'leased'", "'done'", "'dead'", "'scheduled'"])
def test_a_page_of_every_state_hardly_grows(queues: dict[str, Engine], state: str, brief: str) -> None:
    brief = ", p_brief => true" if brief == "true" else ""
    small, large = costs(
        queues,
        f"list_messages(%s, p_state => {state}, p_limit => 20{brief})",
    )
    assert large < (5000 if state == "'done'" else 2 * small + 300)


def test_leases_meet_their_receipts_by_a_hash(queues: dict[str, Engine]) -> None:
    """Where no reaper has looked since the newest tick, it expects one lease, and finds thousands."""
    work = Engine(queues["small"].connection, "answered").create()
    work.run(f"insert into trunq_log.{work.queue} (kind) select 'k' from generate_series(1, 6000)")
    work.drain()
    work.ask("tick", force=True)
    work.run(f"insert into trunq_log.{work.queue} (kind) select 'k' from generate_series(1, 4000)")
    for _ in range(100):
        work.ack(work.lease(20))
    held = work.lease(30)
    work.ack(held, held.ids[:25])
    call = f"select * from trunq.list_messages('{work.queue}', p_state => 'leased', p_limit => 20)"
    plans = [plan for plan in plans_of(work.connection, call) if "may_be_open" in plan]
    assert len(plans) == 1, "each lease is looked at once"
    assert all(":nestParams (" in plan and ":nestParams <>" not in plan for plan in plans)
    assert cost_of(work.connection, call).rows == 5
    work.ask("drop_queue", force=True)


def plans_of(connection: psycopg.Connection[Any], statement: str) -> list[str]:
    """Of all statements that run in this one. A nested loop without nestParams compares each with each."""
    told: list[str] = []

    def listen(notice: psycopg.errors.Diagnostic) -> None:
        told.append(notice.message_detail or "")

    connection.add_notice_handler(listen)
    try:
        with connection.transaction():
            connection.execute("set local client_min_messages = log")
            connection.execute("set local debug_print_plan = on")
            connection.execute(statement.encode(), prepare=False)
    finally:
        connection.remove_notice_handler(listen)
    return [detail for detail in told if "{PLANNEDSTMT" in detail]


def test_a_message_anywhere_is_shown_for_the_same(queues: dict[str, Engine]) -> None:
    for work in queues.values():
        assert work.state(1) == "done"
    small, large = costs(queues, "show_message(%s, 1)")
    assert large < small + 100


def test_why_a_message_waits_is_told_for_about_the_same(queues: dict[str, Engine]) -> None:
    ready = "(select id from trunq.list_messages(%s, p_state => 'ready', p_limit => 1))"
    for work in queues.values():
        work.ask("subscribe", subscription="default", max_running=1_000)
    small, large = costs(queues, f"explain_wait(%s, {ready})")
    assert large < 2 * small + 300
    assert large < 10_000


def test_the_dead_are_listed_for_the_same(queues: dict[str, Engine]) -> None:
    small, large = costs(queues, "list_dead(%s, p_limit => 10)")
    assert large < small + 50


def test_the_locks_of_one_subscription_are_held_at_a_time(queues: dict[str, Engine]) -> None:
    work = queues["small"]
    for n in range(5):
        work.ask("subscribe", subscription=f"s{n}")
    with work.connection.transaction():
        assert len(work.call("status")) == 6
        held = work.fetch(
            "select count(*) from pg_locks"
            " where pid = pg_backend_pid() and relation::regclass::text like 'trunq\\_%'"
        )
    assert held == 0
