"""A run of a pipeline does not read all types of the database each time, and knows those that are new."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pipeline.piping import Bench
from trunq.arrow import adbc
from waiting import wait_until

SMALL = {"format": "table", "table": "small"}
LANDED = {"format": "table", "table": "landed"}


@pytest.fixture
def bench(database: str, connection: psycopg.Connection[Any]) -> Iterator[Bench]:
    made = Bench(database, connection)
    yield made
    made.close()


def run(bench: Bench, pipeline: str) -> int:
    """Run it for one new row; how many columns of the database's tables were read for that."""
    read = (
        "select seq_tup_read + idx_tup_fetch from pg_stat_sys_tables where relid = 'pg_attribute'::regclass"
    )
    # Sessions that end say what they read.
    others = (
        "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    )
    bench.sql("insert into small default values")
    bench.sql("select pg_stat_force_next_flush()")
    before = bench.one(read)
    bench.run(pipeline)
    bench.client.close()
    wait_until(lambda: bench.one(others) == 0, 60)
    return int(bench.one(read)) - int(before)


def test_a_run_costs_the_same_beside_hundreds_of_tables(bench: Bench) -> None:
    bench.sql("create table small (id bigint generated always as identity primary key)")
    pipeline = bench.make(SMALL, LANDED)
    run(bench, pipeline)
    few = run(bench, pipeline)
    made = "execute format('create table other_%s (a int, b int)', n)"
    bench.sql(f"do $$ begin for n in 1..300 loop {made}; end loop; end $$")
    run(bench, pipeline)
    assert run(bench, pipeline) < 1.2 * few + 100


def test_a_type_that_is_new_is_read_as_what_it_is(bench: Bench) -> None:
    bench.sql("create table small (id bigint generated always as identity primary key)")
    pipeline = bench.make(SMALL, LANDED)
    run(bench, pipeline)
    bench.sql("create type mood as enum ('good', 'bad')")
    bench.sql("alter table small add mood mood default 'good', add moods mood[] default '{bad,good}'")
    run(bench, pipeline)
    assert bench.sql("select mood, moods from landed where mood is not null") == [("good", ["bad", "good"])]


def test_what_is_kept_of_many_addresses_is_bounded(database: str) -> None:
    for number in range(adbc._MOST + 3):
        with adbc.connect(database, f"reader {number}") as connection, connection.cursor() as cursor:
            cursor.execute("select current_setting('application_name')")
            assert cursor.fetchone() == (f"reader {number}",)
    assert len(adbc._cache) == adbc._MOST
