"""What a look at the dead, and a part of a sweep, read does not grow with how many there are, or queues."""

from __future__ import annotations

from typing import Any

import psycopg

from counting import cost_of
from engine import Engine

DEAD = """
insert into trunq.dead (queue_id, subscription_id, id, reason, created_at, died_at, attempt, kind, errors)
select {id}, s.subscription_id, n, 'rejected', trunq.clock(), trunq.clock(), 1, 'k',
  jsonb_build_array(jsonb_build_object('error', format('KeyError: ''customer-%%s''', n) || repeat(' ', 300)))
from trunq.subscription s, generate_series(1, %s) n where s.queue_id = {id}"""

QUEUES = """
with made as (
  insert into trunq.queue (name, span, id_sequence) select 'many_' || n, '12 hours', 'many_' || n
  from generate_series(1, 1000) n
  returning queue_id),
read as (
  insert into trunq.subscription (queue_id, name, mode, start)
  select queue_id, 'default', 'shared', pg_current_snapshot() from made returning queue_id, subscription_id)
insert into trunq.dead (queue_id, subscription_id, id, reason, created_at, died_at, attempt, errors)
select queue_id, subscription_id, n, 'rejected', trunq.clock(), trunq.clock(), 1, '[{{"error": "boom"}}]'
from read, generate_series(1, 5) n"""


def pages(connection: psycopg.Connection[Any], look: str) -> int:
    cost_of(connection, look)
    return cost_of(connection, look).pages


def test_a_look_at_groups_reads_as_much_among_a_thousand_queues(connection: psycopg.Connection[Any]) -> None:
    work = Engine(connection, "work").create()
    work.run(DEAD, 3000)
    looks = [
        "select * from trunq.list_dead_groups(p_look => 2000)",
        "select * from trunq.list_dead_groups('work', p_look => 2000)",
        "select * from trunq.list_dead_groups('work', 'default', 2000)",
    ]
    few = [pages(connection, look) for look in looks]
    work.run(QUEUES)
    work.run(DEAD, 30_000)
    many = [pages(connection, look) for look in looks]
    assert [m < 1.5 * f + 100 for f, m in zip(few, many, strict=True)] == [True] * 3, (few, many)
    # Not only the newest: a look that goes on in the middle.
    middle = "select * from trunq.list_dead_groups(p_look => 2000, p_before => 15000)"
    assert pages(connection, middle) < 1.5 * few[0] + 3000


def test_a_part_of_a_sweep_reads_as_much_behind_thirty_thousand(connection: psycopg.Connection[Any]) -> None:
    work = Engine(connection, "work").create()
    for number in range(20):
        work.ask("subscribe", subscription=f"reader_{number}")
    costs = []
    for count in (600, 2000):
        # By 21 subscriptions: more than a part looks at.
        work.run(DEAD, count)
        sweep = work.ask("start_sweep", act="purge", error="nothing has this")
        part = f"select trunq.carry_sweep('work', {sweep})"
        connection.execute(part.encode())
        costs.append(cost_of(connection, part).pages)
    assert costs[1] < 1.5 * costs[0] + 500, costs
