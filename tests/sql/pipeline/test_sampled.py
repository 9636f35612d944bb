"""What the duty sample writes down of pipelines: functions/pipeline/sampled.sql."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import fetch, move_clock
from trunq import Client

DEFINITION = {"source": {"format": "table", "table": "a"}, "sink": {"format": "table", "table": "b"}}
PER = {
    "source": {"format": "table", "table": "a_${message.customer}"},
    "sink": {"format": "table", "table": "b"},
    "message": {"customer": "text"},
    "per": "message.customer",
}

RUN = """
with run as (
  insert into trunq.pipeline_run
    (pipeline_id, number, message_id, chain, slice, snapshot, begun_at, ended_at, outcome, rows_in, rows_out,
    error, failures)
  select p.pipeline_id, {number}, 1, gen_random_uuid(), '{{}}', pg_current_snapshot(), trunq.clock(), {ended},
    {outcome}, 7, 5, {error}, {failures}
  from trunq.pipeline p where p.name = '{name}' returning *),
done as (
  update trunq.pipeline p set done = {number} where p.name = '{name}' and {ended} is not null)
insert into trunq.quarantine (pipeline_id, attempt, run_id, reasons, content, created_at)
select r.pipeline_id, 1, r.run_id, '{{bad}}', '{{}}', trunq.clock() from run r, generate_series(1, {bad})
"""


@pytest.fixture
def client(database: str) -> Any:
    with Client(database) as client:
        yield client


def ended(connection: psycopg.Connection[Any], name: str, number: int = 1, bad: int = 0) -> None:
    """A run that ended."""
    text = RUN.format(
        name=name, number=number, bad=bad, ended="trunq.clock()", outcome="'done'", error="null", failures=0
    )
    connection.execute(text.encode())


def failing(connection: psycopg.Connection[Any], name: str, number: int = 2) -> None:
    """An open run whose attempts fail."""
    text = RUN.format(
        name=name, number=number, bad=0, ended="null::timestamptz", outcome="null", error="'no'", failures=3
    )
    connection.execute(text.encode())


def figures(connection: psycopg.Connection[Any], name: str) -> dict[str, float]:
    """What /metrics tells of a pipeline, after the duty."""
    connection.execute("update trunq.pipeline_sample set looked_at = looked_at - interval '1 minute'")
    connection.execute("select trunq._sample_pipelines(trunq.clock())")
    rows = connection.execute(
        "select substr(figure, 10), value from trunq._list_figures() where label = %s", [name]
    )
    return dict(rows.fetchall())


def test_what_is_told_of_a_pipeline_is_what_list_pipelines_tells(
    client: Client, connection: psycopg.Connection[Any]
) -> None:
    client.create_pipeline("moving", DEFINITION)
    assert figures(connection, "moving") == {"runs": 0, "quarantined_rows": 0, "failing": 0, "paused": 0}
    ended(connection, "moving", bad=3)
    told = figures(connection, "moving")
    assert {told["runs"], told["last_rows_in"], told["last_rows_out"]} == {1, 7, 5}
    (listed,) = client.list_pipelines("moving")
    assert (told["runs"], told["quarantined_rows"]) == (listed.runs, listed.quarantined) == (1, 3)
    assert 0 <= told["lag_seconds"] < 60
    failing(connection, "moving")
    client.pause_pipeline("moving")
    told = figures(connection, "moving")
    assert (told["failing"], told["paused"], told["runs"]) == (1, 1, 1)
    client.purge_quarantine("moving")
    assert figures(connection, "moving")["quarantined_rows"] == 0
    client.drop_pipeline("moving")
    assert figures(connection, "moving") == {}


def test_a_pipeline_with_instances_has_what_all_of_them_have(
    client: Client, connection: psycopg.Connection[Any]
) -> None:
    client.create_pipeline("each", PER)
    for n in (1, 2, 3):
        each = "jsonb_build_object('customer', 'c' || %s::int)"
        fetch(connection, f"select trunq._open_run('each', %s, {each}, p_message => '{{}}')", n, n)
    for n in (1, 2):
        ended(connection, f"each/c{n}", number=10 + n, bad=2)
    told = figures(connection, "each")
    assert (told["quarantined_rows"], told["last_rows_in"], told["failing"]) == (4, 7, 0)
    failing(connection, "each/c3")
    assert figures(connection, "each")["failing"] == 1
    assert figures(connection, "each/c1") == {}


def test_a_quarantine_is_counted_up_to_ten_thousand(
    client: Client, connection: psycopg.Connection[Any]
) -> None:
    client.create_pipeline("moving", DEFINITION)
    ended(connection, "moving", bad=10_500)
    assert figures(connection, "moving")["quarantined_rows"] == 10_000


def test_each_has_its_turn_and_one_that_fails_leaves_queues_theirs(
    client: Client, connection: psycopg.Connection[Any]
) -> None:
    for n in range(30):
        client.create_pipeline(f"p{n}", DEFINITION | {"sink": {"format": "table", "table": f"b{n}"}})
    connection.execute("select trunq.sample()")
    sampled = "select count(*) from trunq.pipeline_sample"
    assert fetch(connection, sampled) <= 20
    for n in range(1, 31):
        move_clock(connection, f"{5 * n} seconds")
        connection.execute("select trunq.sample()")
    assert fetch(connection, sampled) == 30
    late = "select count(*) from trunq.pipeline_sample where looked_at < trunq.clock() - interval '2 minutes'"
    assert fetch(connection, late) == 0
    connection.execute("alter table trunq.pipeline_sample add constraint none check (runs > 0) not valid")
    move_clock(connection, "200 seconds")
    assert fetch(connection, "select trunq.sample()") >= 1
    warned = "select warning from trunq.list_warnings() where queue = '(pipelines)'"
    assert "violates check constraint" in fetch(connection, warned)
    connection.execute("alter table trunq.pipeline_sample drop constraint none")
    move_clock(connection, "210 seconds")
    connection.execute("select trunq.sample()")
    assert fetch(connection, warned) is None
