"""A unique key that is used again and again beside a transaction of long ago costs what it cost."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from conftest import Connect
from counting import cost_of
from engine import Engine

USES = 10_000

USE = """do $$
declare
  v_ids bigint[];
begin
  for v_n in 1..{uses} loop
    v_ids := '{{}}';
    for v_again in 1..{times} loop
      select v_ids || p.id into v_ids from trunq.publish_unique('{queue}', '1', 'k') p;
    end loop;
    perform trunq_queue.{queue}_free_keys(v_ids);
    commit;
  end loop;
end $$"""


@pytest.fixture(params=["refuse", "replace"])
def work(request: pytest.FixtureRequest, connection: psycopg.Connection[Any], connect: Connect) -> Engine:
    work = Engine(connection, "work").create(unique=request.param)
    pinned = connect(autocommit=False)
    pinned.execute("select pg_current_xact_id(), count(*) from trunq.queue")
    return work


def use(work: Engine, uses: int) -> None:
    """Take the one key and free it so often, in a queue that replaces, by two messages; then handle them."""
    policy = work.fetch("select unique_policy from trunq.queue where name = %s", work.queue)
    times = 2 if policy == "replace" else 1
    work.connection.execute(USE.format(uses=uses, queue=work.queue, times=times).encode())
    while held := work.lease(1000):
        work.ack(held)


def costs(work: Engine) -> list[int]:
    """Pages of a publish that takes the key, one that meets a holder, a lease, an ack, and a retaking."""
    publish = "select * from trunq.publish_unique(%s, '1', 'k')"
    pages = [cost_of(work.connection, publish, work.queue).pages for _ in range(2)]
    pages.append(
        cost_of(work.connection, "select * from trunq.lease(%s, 'default', 'w', 5)", work.queue).pages
    )
    lease_id, token, ids = work.run(
        "select lease_id, token, ids from {lease} order by lease_id desc limit 1"
    ).fetchall()[0]
    ack = "select trunq.ack(%s, 'default', %s, %s, %s)"
    pages.append(cost_of(work.connection, ack, work.queue, lease_id, token, ids).pages)
    return pages


def test_one_key_used_ten_thousand_times_costs_what_it_cost_at_first(work: Engine) -> None:
    use(work, 100)
    costs(work)
    before = costs(work)
    use(work, USES)
    assert work.fetch("select max(turn) from trunq_data.{queue}_unique") > USES
    costs(work)  # the lease after one of a thousand messages reads that one's ids, in a plain queue too
    after = costs(work)
    # An index of ten thousand dead entries is a level deeper than one of a hundred.
    assert all(late <= early + 20 for early, late in zip(before, after, strict=True)), (before, after)
    forgetting = cost_of(work.connection, "select trunq.forget(%s)", work.queue)
    assert forgetting.rows_changed <= 10
    assert work.fetch("select count(*) from trunq_data.{queue}_unique") == 0


def test_a_plain_queue_pays_for_no_unique_key(connection: psycopg.Connection[Any]) -> None:
    """Nor does a message without one, in a queue that has them, for a look at keys."""
    pages = []
    for unique in (None, "refuse", "replace"):
        work = Engine(connection, f"queue_{unique or 'plain'}").create(unique=unique)
        for _ in range(3):
            work.publish(50)
            taken = cost_of(connection, "select * from trunq.lease(%s, 'default', 'w', 50)", work.queue)
            assert taken.rows == 50
        pages.append(taken.pages)
    assert max(pages) <= min(pages) + 3, pages


def test_a_unique_key_is_written_without_a_check_that_is_prepared_for_each(
    connection: psycopg.Connection[Any],
) -> None:
    """See docs/decisions/0004. A queue of an older version loses it when it is brought up to date."""
    work = Engine(connection, "checked").create(unique="refuse")
    checks = (
        "select array_agg(conname) from pg_constraint"
        " where contype = 'c' and conrelid = 'trunq_data.{queue}_unique'::regclass"
    )
    assert work.fetch(checks) is None
    work.run(
        "alter table trunq_data.{queue}_unique add constraint until_is_known check (until in ('l', 'd'))"
    )
    work.run("select trunq._complete_tables(q) from trunq.queue q where q.name = '{queue}'")
    assert work.fetch(checks) is None
