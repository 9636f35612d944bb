"""A table that is renamed, exchanged, detached or attached between two runs loses no row."""

from __future__ import annotations

import logging

import pytest

from pipeline.piping import Bench

SOURCE = {"format": "table", "table": "read"}
APPEND = {"format": "table", "table": "moved"}
UPSERT = {**APPEND, "mode": "upsert", "key": ["id"]}


def ids(bench: Bench) -> list[int]:
    return [id for (id,) in bench.sql("select id from moved order by id")]


def test_a_table_that_took_the_name_of_another_is_read_whole_and_that_is_said(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.sql("create table read (id int primary key, word text)")
    bench.sql("insert into read values (1, 'a')")
    pipeline = bench.make(SOURCE, UPSERT)
    bench.run(pipeline)
    bench.sql("create table other as select 2 as id, 'older than the next run' as word")
    bench.sql("insert into read values (3, 'c')")
    bench.run(pipeline)
    bench.sql("begin; alter table read rename to before; alter table other rename to read; commit")
    with caplog.at_level(logging.WARNING, "trunq.pipeline"):
        bench.run(pipeline)
    assert ids(bench) == [1, 2, 3]
    assert "read is another table than the last run read, and is read whole" in caplog.text


def test_one_that_gets_its_name_back_is_read_from_where_it_was_read(bench: Bench) -> None:
    bench.sql("create table read (id int)")
    bench.sql("insert into read values (1)")
    pipeline = bench.make(SOURCE, APPEND)
    bench.run(pipeline)
    bench.sql("begin; alter table read rename to kept; create table read (id int); commit")
    bench.sql("insert into read values (2)")
    bench.sql("insert into kept values (3)")
    bench.run(pipeline)
    bench.sql("begin; drop table read; alter table kept rename to read; commit")
    bench.sql("insert into read values (4)")
    bench.run(pipeline)
    assert bench.run(pipeline) == {"outcome": "nothing new"}
    assert ids(bench) == [1, 2, 3, 4]


@pytest.mark.parametrize("cursor", [{}, {"cursor": "at", "lag": "1 hour"}])
def test_rows_of_a_partition_that_was_away_come_once(bench: Bench, cursor: dict[str, str]) -> None:
    bench.sql("create table read (id int, at timestamptz default now()) partition by range (id)")
    bench.sql("create table low partition of read for values from (0) to (10)")
    bench.sql("create table high partition of read for values from (10) to (20)")
    bench.sql("insert into read values (1), (11)")
    pipeline = bench.make({**SOURCE, **cursor}, APPEND)
    bench.run(pipeline)
    bench.sql("alter table read detach partition high")
    for id in (12, 13):
        bench.sql("insert into high values (%s)", id)
        bench.sql("insert into read values (%s)", id - 10)
        bench.run(pipeline)
    bench.sql("alter table read attach partition high for values from (10) to (20)")
    bench.sql("insert into read values (4), (14)")
    bench.run(pipeline)
    assert bench.run(pipeline) == {"outcome": "nothing new"}
    assert ids(bench) == [1, 2, 3, 4, 11, 12, 13, 14]


def test_a_table_that_becomes_a_partition_of_one_that_takes_its_name_comes_once(bench: Bench) -> None:
    bench.sql("create table read (id int)")
    bench.sql("insert into read values (1)")
    pipeline = bench.make(SOURCE, APPEND)
    bench.run(pipeline)
    bench.sql("create table wide (id int) partition by range (id)")
    bench.sql("create table high partition of wide for values from (10) to (20)")
    bench.sql("insert into wide values (11)")
    bench.sql("insert into read values (2)")
    bench.run(pipeline)
    bench.sql("alter table read rename to low")
    bench.sql("alter table wide attach partition low for values from (0) to (10)")
    bench.sql("alter table wide rename to read")
    bench.sql("insert into read values (3), (12)")
    bench.run(pipeline)
    assert ids(bench) == [1, 2, 3, 11, 12]


def test_another_table_that_a_definition_names_is_read_whole(bench: Bench) -> None:
    bench.sql("create table read as select 1 as id")
    bench.sql("create table further as select 2 as id")
    pipeline = bench.make(SOURCE, APPEND)
    bench.run(pipeline)
    bench.make({**SOURCE, "table": "further"}, APPEND, name=pipeline)
    bench.run(pipeline)
    assert ids(bench) == [1, 2]


def test_a_state_of_an_older_release_goes_on(bench: Bench) -> None:
    bench.sql("create table read as select 1 as id")
    pipeline = bench.make(SOURCE, APPEND)
    bench.run(pipeline)
    state = bench.client.list_pipelines(pipeline)[0].state
    bench.client.set_pipeline_state(pipeline, {name: state[name] for name in ("snapshot", "system")})
    bench.sql("insert into read values (2)")
    bench.run(pipeline)
    assert ids(bench) == [1, 2]
