"""Status and lists cost hardly more with ten times as much: no leader, no statistics, no summary."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from counting import cost_of
from engine import Engine
from trunq import embedded, install

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
    with embedded.start(settings={"fsync": "off", "autovacuum": "off"}) as server:
        connections = {}
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            for name in SIZES:
                connection.execute(f"create database {name}".encode())
        for name, n in SIZES.items():
            dsn = psycopg.conninfo.make_conninfo(server.dsn, dbname=name)
            install.install(dsn)
            connections[name] = Engine(psycopg.connect(dsn, autocommit=True), name).create()
            connections[name].connection.execute(BUILD.format(n=n, queue=name).encode())
        yield connections
        for work in connections.values():
            work.connection.close()


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


def test_a_message_anywhere_is_shown_for_the_same(queues: dict[str, Engine]) -> None:
    for work in queues.values():
        assert work.state(1) == "done"
    small, large = costs(queues, "show_message(%s, 1)")
    assert large < small + 100


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
