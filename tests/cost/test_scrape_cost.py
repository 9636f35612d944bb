"""What /metrics and the lists of workers read, counted in pages: what is asked every few seconds is flat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from calling import call, fetch
from counting import cost_of
from engine import Engine
from scope import some
from trunq import embedded, install

SCRAPE = ("select * from trunq._list_figures()", "select * from trunq._list_totals()")

REPORTS = """
insert into trunq.worker_report
  (queue_id, process, subscription, worker, host, pid, at, segment, began_at, version, slots, handling)
select {id}, md5(w::text)::uuid, 'default', 'w' || w, 'shop', w, t, trunq._report_segment(t), t, '1', 4, '[]'
from generate_series({first}, {last}) w,
  generate_series(trunq.clock() - interval '59 minutes', trunq.clock(), '{every}') t
"""

PIPELINES = """
insert into trunq.pipeline (name, definition)
select 'p' || lpad(n::text, 5, '0'), '{{"source": {{"format": "table"}}, "sink": {{"format": "table"}}}}'
from generate_series({first}, {last}) n
"""

RUNS = """
insert into trunq.pipeline_run
  (pipeline_id, number, message_id, chain, slice, snapshot, begun_at, ended_at, outcome, rows_in, rows_out)
select p.pipeline_id, n, n, gen_random_uuid(), '{{}}', pg_current_snapshot(), trunq.clock(), trunq.clock(),
  'done', 1, 1
from trunq.pipeline p, generate_series(1, {runs}) n;
insert into trunq.quarantine (pipeline_id, attempt, run_id, reasons, content, created_at)
select r.pipeline_id, 1, r.run_id, '{{bad}}', '{{}}', trunq.clock() from trunq.pipeline_run r
"""

SAMPLES = """
insert into trunq.sample (queue_id, subscription, at, segment, looked_at, mode, ready)
select q.queue_id, s, t, trunq._sample_segment(t), t, 'shared', 1
from trunq.queue q, unnest('{"",default}'::text[]) s,
  generate_series(trunq.clock() - interval '150 seconds', trunq.clock(), '5 seconds') t
"""


@pytest.fixture(scope="module")
def database() -> Iterator[psycopg.Connection[Any]]:
    with embedded.start(settings={"fsync": "off", "autovacuum": "off"}) as server:
        install.install(server.dsn)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            yield connection


def pages(connection: psycopg.Connection[Any], *statements: str) -> int:
    """What statements read, caches of names filled."""
    for statement in statements:
        cost_of(connection, statement)
    return sum(cost_of(connection, statement).pages for statement in statements)


def test_reports_cost_by_workers_and_not_by_how_often_they_spoke(
    database: psycopg.Connection[Any],
) -> None:
    work = Engine(database, "spoken").create()
    for ask in ("select * from trunq.list_reports()", "select * from trunq.list_reports('spoken')"):
        database.execute("truncate trunq.worker_report")
        report(work, 1, 20, "2 minutes")
        few_rows = pages(database, ask)
        report(work, 1, 20, "10 seconds")
        many_rows = pages(database, ask)
        assert cost_of(database, ask).rows == 20
        # Twelve times as many rows; the index may have one level more.
        assert many_rows < 1.5 * few_rows + 60, f"{few_rows} and {many_rows} pages"
        report(work, 21, 100, "60 seconds")
        assert cost_of(database, ask).rows == 100
        assert pages(database, ask) < 7 * many_rows
        assert pages(database, ask) < 20 * 100


def report(work: Engine, first: int, last: int, every: str) -> None:
    text = REPORTS.format(id=work.queue_id, first=first, last=last, every=every)
    work.connection.execute(text.encode())


def test_a_scrape_costs_the_same_behind_many_runs_a_full_quarantine_and_more_pipelines(
    database: psycopg.Connection[Any],
) -> None:
    database.execute(PIPELINES.format(first=1, last=200).encode())
    sample_each(database, 200)
    few = pages(database, *SCRAPE)
    database.execute(PIPELINES.format(first=201, last=300).encode())
    database.execute(RUNS.format(runs=some(60, 333)).encode())
    sample_each(database, 300)
    told = "select * from trunq._list_figures() where figure = 'pipeline_quarantined_rows'"
    assert cost_of(database, told).rows == 200
    assert fetch(database, told.replace("*", "max(value)")) == some(60, 333)
    many = pages(database, *SCRAPE)
    assert many < 1.5 * few + 100, f"{few} and {many} pages"
    # Nor does the duty, of one call, read all of it.
    database.execute("update trunq.pipeline_sample set looked_at = looked_at - interval '1 minute'")
    look = "select trunq._sample_pipelines(trunq.clock())"
    assert cost_of(database, look).pages < 6000


def sample_each(connection: psycopg.Connection[Any], count: int) -> None:
    """Until each of so many pipelines was looked at."""
    connection.execute("update trunq.pipeline_sample set looked_at = looked_at - interval '1 minute'")
    for _ in range(count):
        connection.execute("select trunq._sample_pipelines(trunq.clock())")
        late = "select count(*) from trunq.pipeline_sample where looked_at > trunq.clock() - interval '50 s'"
        if fetch(connection, late) == count:
            break
    connection.execute("vacuum analyze trunq.pipeline_sample")
    connection.execute("vacuum analyze trunq.pipeline")


def test_a_role_of_many_queues_and_a_scrape_of_them_read_each_once(database: psycopg.Connection[Any]) -> None:
    database.execute("create role watcher")
    few, many = some(10, 40), some(40, 400)
    costs: dict[int, tuple[int, int]] = {}
    made = 0
    for count in (few, many):
        for n in range(made, count):
            Engine(database, f"seen_{n}").create()
            call(database, "grant_role", role="reader", queue=f"seen_{n}", grantee="watcher")
        made = count
        database.execute("truncate trunq.sample")
        database.execute(SAMPLES.encode())
        database.execute(
            "insert into trunq.sample (queue_id, subscription, at, segment, looked_at)"
            " select 0, '', max(at), trunq._sample_segment(max(at)), max(at) from trunq.sample"
        )
        scrape = pages(database, *SCRAPE, "select * from trunq.latest_samples()")
        database.execute("set role watcher")
        try:
            ask = "select * from trunq.latest_samples()"
            watched = pages(database, ask)
            assert cost_of(database, ask).rows == 2 * count
        finally:
            database.execute("reset role")
        costs[count] = (scrape, watched)
    share = many // few
    for before, after in zip(costs[few], costs[many], strict=True):
        assert after < 1.5 * share * before, costs
