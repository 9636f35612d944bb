"""What a listener of a queue reads is the same whatever backlog, history and other queues there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from calling import ask, fetch
from counting import cost_of
from engine import Engine
from growing import each_in_its_database

SIZES = {"small": 2, "large": 20}

BUILD = """
do $$ declare l record; begin
  for n in 1 .. {n} loop
    perform trunq.create_queue('{queue}_' || n);
  end loop;
  for n in 1 .. {n} * 5 loop
    insert into trunq_log.{queue} (payload) select to_jsonb(repeat('x', 200)) from generate_series(1, 400);
    if n % 2 = 0 then perform trunq.tick('{queue}', true); end if;
    commit;
  end loop;
  for n in 1 .. {n} * 50 loop
    select min(lease_id) lease_id, min(token) token, array_agg(id) ids into l
    from trunq.lease('{queue}', 'default', 'w', 5);
    perform trunq.ack('{queue}', 'default', l.lease_id, l.token, l.ids);
    commit;
  end loop;
end $$
"""


@pytest.fixture(scope="module")
def queues() -> Iterator[dict[str, Engine]]:
    """Two queues in databases of their own: ticks are common to all queues."""
    with each_in_its_database(SIZES, BUILD) as made:
        yield made


def looks(work: Engine) -> list[tuple[int, int]]:
    """Pages and rows that looks read: at nothing, at three messages, at a page of a backlog."""
    connection = work.connection
    place: Any = ask(connection, "find_place", queue=work.queue)
    earliest = ask(connection, "find_place", queue=work.queue, start="earliest")
    read = "select * from trunq.read_on(%s, %s, %s)"
    costs = []
    for _ in range(2):  # the first fills the caches
        costs = [cost_of(connection, read, work.queue, place, 100)]
        assert costs[0].rows == 0
        work.publish(3)
        costs.append(cost_of(connection, read, work.queue, place, 100))
        assert costs[1].rows == 4
        place = fetch(
            connection, "select place from trunq.read_on(%s, %s, 100) where id is null", work.queue, place
        )
        costs.append(cost_of(connection, read, work.queue, earliest, 100))
        assert costs[2].rows == 100
    assert sum(cost.seq_scans for cost in costs) == 0
    return [(cost.pages, cost.rows_read) for cost in costs]


def test_a_look_costs_the_same_with_ten_times_as_much_of_everything(queues: dict[str, Engine]) -> None:
    small, large = (looks(queues[name]) for name in SIZES)
    for (pages, rows), (more_pages, more_rows) in zip(small, large, strict=True):
        assert more_rows <= rows + 2
        # An index that is one level higher.
        assert more_pages <= pages + 12, (small, large)
