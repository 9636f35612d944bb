"""A source in another database that fails over, to a server that has all of it or lost some."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pipeline.piping import Bench
from standby import Pair, one, primary_and_standby
from trunq import embedded
from trunq.errors import InvalidPipeline
from trunq.pipeline.control import Control
from trunq.pipeline.definition.reading import read_definition
from trunq.pipeline.errors import SourceChanged
from trunq.pipeline.source import Context
from trunq.pipeline.source.table import TableSource
from waiting import wait_until


@pytest.fixture
def pair() -> Iterator[Pair]:
    with primary_and_standby(embedded.majors()[0]) as pair:
        yield pair


def tell(dsn: str, statement: str, times: int = 1) -> None:
    """Execute a statement, each time in a transaction of its own."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in range(times):
            connection.execute(statement.encode())


def make(bench: Bench, pair: Pair, **more: Any) -> str:
    tell(pair.primary.dsn, "create table read (id int generated always as identity, word text)")
    tell(pair.primary.dsn, "create role reader login; grant select on read to reader")
    tell(pair.primary.dsn, "insert into read (word) values ('first')")
    source = {"format": "table", "table": "read", "dsn": make_conninfo(pair.either, **more)}
    return bench.make(source, {"format": "table", "table": "moved"})


def words(bench: Bench) -> list[str]:
    return [word for (word,) in bench.sql("select word from moved order by word")]


def test_a_source_that_lost_what_a_run_had_seen_is_refused_when_others_have_its_ids(
    bench: Bench, pair: Pair
) -> None:
    pipeline = make(bench, pair)
    pair.caught_up()
    pair.sever()
    tell(pair.primary.dsn, "insert into read (word) values ('lost')", 20)
    bench.run(pipeline)
    pair.fail_over()
    tell(pair.standby.dsn, "insert into read (word) values ('new')", 40)
    with pytest.raises(InvalidPipeline, match="was restored, since the last run, and lost"):
        bench.run(pipeline)
    # The way out.
    bench.client.set_pipeline_state(pipeline, {})
    bench.run(pipeline)
    assert words(bench).count("new") == 40


def test_a_source_that_lost_nothing_goes_on(bench: Bench, pair: Pair) -> None:
    pipeline = make(bench, pair)
    bench.run(pipeline)
    tell(pair.primary.dsn, "insert into read (word) values ('second')")
    pair.caught_up()
    pair.fail_over()
    tell(pair.standby.dsn, "insert into read (word) values ('third')")
    bench.run(pipeline)
    assert words(bench) == ["first", "second", "third"]


def test_where_nobody_tells_what_was_lost_a_user_who_knows_says_so(bench: Bench, pair: Pair) -> None:
    pipeline = make(bench, pair, user="reader")
    bench.run(pipeline)
    pair.caught_up()
    pair.fail_over()
    tell(pair.standby.dsn, "insert into read (word) values ('second')")
    with pytest.raises(InvalidPipeline, match="may have lost transactions") as refused:
        bench.run(pipeline)
    told = re.search(r"--set '(.*)'$", str(refused.value.hint))
    assert told is not None
    bench.sql("select trunq.set_pipeline_state(%s, %s::jsonb)", pipeline, told[1])
    bench.run(pipeline)
    assert words(bench) == ["first", "second"]


def test_a_slice_that_was_planned_at_the_primary_is_not_read_at_a_standby(bench: Bench, pair: Pair) -> None:
    pipeline = make(bench, pair)
    wait_until(lambda: one(pair.standby.dsn, "select to_regclass('read') is not null"))
    pair.sever()
    tell(pair.primary.dsn, "insert into read (word) values ('not there')")
    made = read_definition(pipeline, bench.client.list_pipelines(pipeline)[0].definition)
    control = Control(bench.client)
    slice = TableSource(made, bench.dsn, control).plan({}).slice
    assert slice is not None
    aside = made.model_copy(update={"source": made.source.model_copy(update={"dsn": pair.standby.dsn})})
    with pytest.raises(SourceChanged, match="its source is a standby, which may lack rows"):
        list(TableSource(aside, bench.dsn, control).read(slice, Context(pipeline, 1)))


def queue_of(dsn: str) -> None:
    tell(dsn, "select trunq.create_queue('orders')")


def publish(dsn: str, word: str, times: int) -> None:
    tell(dsn, f"select trunq.publish('orders', '{{\"word\": \"{word}\"}}')", times)


def test_a_queue_that_lost_ticks_which_were_read_is_refused_when_others_have_their_numbers(
    bench: Bench, pair: Pair
) -> None:
    queue_of(pair.primary.dsn)
    source = {"format": "queue", "queue": "orders", "dsn": pair.either}
    pipeline = bench.make(source, {"format": "table", "table": "moved"})
    publish(pair.primary.dsn, "first", 1)
    bench.run(pipeline)
    pair.caught_up()
    pair.sever()
    for _ in range(3):
        publish(pair.primary.dsn, "lost", 1)
        bench.run(pipeline)
    pair.fail_over()
    for _ in range(8):
        publish(pair.standby.dsn, "new", 1)
        tell(pair.standby.dsn, "select trunq.tick('orders', true)")
    with pytest.raises(InvalidPipeline, match="was set back, or has failed over: tick"):
        bench.run(pipeline)
    bench.client.set_pipeline_state(pipeline, {})
    bench.run(pipeline)
    assert bench.one("select count(*) from moved where payload->>'word' = 'new'") == 8


@pytest.mark.parametrize("has_changes", [False, True])
def test_a_captured_table_that_lost_what_was_read_is_refused(
    bench: Bench, pair: Pair, has_changes: bool
) -> None:
    tell(pair.primary.dsn, "create table read (id int primary key)")
    source = {"format": "table", "table": "read", "changes": "capture", "dsn": pair.either}
    pipeline = bench.make(source, {"format": "table", "table": "moved", "mode": "apply"})
    tell(pair.primary.dsn, "insert into read values (1)")
    bench.run(pipeline)
    pair.caught_up()
    if not has_changes:
        # The capture stays, and the rows are read anew after the standby has heard the last of it.
        pair.sever()
        bench.client.set_pipeline_state(pipeline, {})
    for id in range(2, 6):
        if has_changes and id == 3:
            pair.caught_up()
            pair.sever()
        tell(pair.primary.dsn, f"insert into read values ({id})")
        if has_changes or id == 5:
            bench.run(pipeline)
    pair.fail_over()
    for id in range(10, 40):
        tell(pair.standby.dsn, f"insert into read values ({id})")
        tell(pair.standby.dsn, f"select trunq.tick('changes_{pipeline}', true)")
    with pytest.raises(InvalidPipeline, match=r"has failed over"):
        bench.run(pipeline)
    bench.client.set_pipeline_state(pipeline, {})
    bench.run(pipeline)
    there = one(pair.standby.dsn, "select array_agg(id order by id) from read")
    assert bench.one("select array_agg(id order by id) from moved") == there
