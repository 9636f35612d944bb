"""What samples cost, counted in pages: behind much history, and among many queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from calling import fetch, move_clock, publish
from counting import cost_of
from engine import Engine
from scope import some
from trunq import embedded, install

READS = (
    "overview(100)",
    "overview(1)",
    "latest_samples()",
    "list_samples('busy', 'default', '1 day', 288)",
    "sampled_at()",
    "_list_figures()",
)

BUILD = """
do $$ declare l record; begin
  for n in 1 .. {n} * 10 loop
    insert into trunq_log.busy (payload) select to_jsonb(repeat('x', 200)) from generate_series(1, 500);
    commit;
  end loop;
  for n in 1 .. {n} * 100 loop
    select min(lease_id) lease_id, min(token) token, array_agg(id) ids into l
    from trunq.lease('busy', 'default', 'w' || n % 5, case when n % 2 = 0 then 1 else 20 end, '1 hour');
    if n % 10 = 0 then
      perform trunq.reject('busy', 'default', l.lease_id, l.token, l.ids);
    elsif n % 10 < 8 then
      perform trunq.ack('busy', 'default', l.lease_id, l.token, l.ids);
    end if;
    commit;
  end loop;
end $$
"""

DAY = """
insert into trunq.sample (queue_id, subscription, at, segment, looked_at, mode, ready, published, answered)
select q, s, t, trunq._sample_segment(t), t, 'shared', q, 0, 0
from generate_series(1000, 1000 + %s) q, unnest('{"",default}'::text[]) s,
  generate_series(trunq.clock() - interval '1 day', trunq.clock() - interval '5 minutes', '1 minute') t
"""


@pytest.fixture(scope="module")
def database() -> Iterator[psycopg.Connection[Any]]:
    with embedded.start(settings={"fsync": "off", "autovacuum": "off"}) as server:
        install.install(server.dsn)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            yield connection


def sample(connection: psycopg.Connection[Any], at: float) -> int:
    """The pages of one call of the duty."""
    fetch(connection, "select pg_stat_force_next_flush()")
    move_clock(connection, f"{at} seconds")
    return cost_of(connection, "select trunq.sample()").pages


def test_samples_cost_the_same_behind_history_and_what_happens_alone_costs(
    database: psycopg.Connection[Any],
) -> None:
    Engine(database, "busy").create()
    database.execute(BUILD.format(n=1).encode())
    sample(database, 0)
    sample(database, 5)
    small = sample(database, 10)
    database.execute(BUILD.format(n=8).encode())
    sample(database, 15)
    sample(database, 20)
    large = sample(database, 25)
    assert large < 2 * small + 400, f"{small} and {large} pages"
    assert large < 3000

    read = {}
    for call in READS:
        cost_of(database, f"select * from trunq.{call}")
        read[call] = cost_of(database, f"select * from trunq.{call}").pages
        assert read[call] < 3000, f"{call} reads {read[call]} pages"
    # A day of fifty other queues, whatever they had.
    database.execute(DAY.replace("%s", "50").encode())
    for call in READS:
        pages = cost_of(database, f"select * from trunq.{call}").pages
        assert pages < 1.5 * read[call] + 300, f"{call}: {read[call]} and {pages} pages"

    # Many queues in which nothing happens.
    few, many = some(10, 50), some(60, 500)
    costs = {}
    made = 0
    at = 100
    for count in (few, many):
        for n in range(made, count):
            Engine(database, f"idle_{n}").create()
        made = count
        for _ in range(2 + count // 10):
            at += 5
            sample(database, at)
        costs[count] = min(sample(database, at + 5 * n) for n in range(1, 4))
        at += 20
    assert costs[many] < costs[few] + 15 * (many - few) + 1000, costs
    # One of them has something.
    publish(database, f"idle_{many - 1}", 3)
    sample(database, at)
    assert (
        fetch(
            database,
            f"select ready from trunq.latest_samples('idle_{many - 1}') where subscription = 'default'",
        )
        == 3
    )
    assert cost_of(database, "select * from trunq.overview(100)").pages < 10000


def test_a_transaction_that_stays_open_makes_no_sample_dearer(
    database: psycopg.Connection[Any],
) -> None:
    work = Engine(database, "pinned").create()
    with psycopg.connect(database.info.dsn) as open:
        open.execute("select pg_current_xact_id()")
        seen = []
        for at in range(2000, 2000 + 5 * some(8, 30), 5):
            for _ in range(5):
                work.publish(100)
            seen.append(sample(database, at))
        few, many = min(seen[1:4]), min(seen[-3:])
        assert many < 1.5 * few + 50, seen
    assert work.fetch(
        "select published from trunq.latest_samples('pinned') where subscription is null"
    ) == 500 * (len(seen) - 1)
