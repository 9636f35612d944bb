"""Rows from a database that Spark reads by JDBC, and into one: MariaDB, and Postgres by its own driver."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from pipeline.databases import KINDS, PASSWORD, Other, opened
from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline
from trunq.pipeline import sink as sinks
from trunq.pipeline.control import Run
from trunq.pipeline.definition.part import is_expanded
from trunq.pipeline.errors import DatabaseFailed, StageLost
from trunq.pipeline.plan import plan_pipeline
from trunq.pipeline.sink import Mark

pytestmark = pytest.mark.usefixtures("spark", "_jdbc")

_numbers = count(1)
MOVED = {"format": "table", "table": "moved"}
UPSERTED = {**MOVED, "mode": "upsert", "key": ["id"]}
NEWEST = {**UPSERTED, "newest": "changed_at"}
SOURCE = {"format": "table", "table": "source"}


@pytest.fixture(scope="module", params=KINDS)
def other_server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A server."""
    yield from opened(request.param)


@pytest.fixture
def other(other_server: Any) -> Other:
    """A database of its own."""
    return Other(other_server, f"shop_{next(_numbers)}")


def orders(other: Other, last: int = 3000) -> None:
    other.sql(
        f"create table orders (id bigint primary key, word varchar(40), changed_at {other.time});"
        "create index changed on orders (changed_at);" + order(other, 1, last)
    )


def order(other: Other, first: int, last: int, at: str = "2030-01-01 00:00:00") -> str:
    """More of them."""
    return f"insert into orders select n, concat('w', n), timestamp '{at}' from {other.series(first, last)};"


def analyze(other: Other) -> None:
    other.sql(f"analyze {'table ' if other.kind == 'mariadb' else ''}orders")


@pytest.mark.slow
def test_a_whole_table_arrives_in_shares(bench: Bench, other: Other) -> None:
    orders(other)
    name = bench.make({**other.place, "table": "orders"}, {**MOVED, "mode": "replace"})
    for _ in range(2):
        done = bench.run(name)
        assert (done["rows_in"], done["rows_out"]) == (3000, 3000)
        assert bench.sql("select count(*), count(distinct id), sum(id), min(word) from moved") == [
            (3000, 3000, 4501500, "w1")
        ]
    run = bench.client.list_runs(name)[0]
    assert (run.engine, run.slice["share_by"], run.slice["least"], run.slice["most"]) == (
        "spark",
        "id",
        "1",
        "3000",
    )


@pytest.mark.slow
def test_an_upsert_of_a_whole_table_loses_what_is_missing(bench: Bench, other: Other) -> None:
    orders(other, 20)
    name = bench.make({**other.place, "table": "orders"}, {**UPSERTED, "missing": "delete"})
    bench.run(name)
    other.sql("delete from orders where id > 15")
    bench.run(name)
    assert bench.sql("select count(*), max(id) from moved") == [(15, 15)]


@pytest.mark.slow
def test_a_cursor_brings_each_row_once(bench: Bench, other: Other) -> None:
    orders(other)
    name = bench.make({**other.place, "table": "orders", "cursor": "id"}, MOVED)
    assert bench.run(name)["rows_out"] == 3000
    assert bench.run(name)["outcome"] == "nothing new"
    other.sql(order(other, 3001, 3005))
    assert bench.run(name)["rows_out"] == 5
    assert bench.sql("select count(*), count(distinct id) from moved") == [(3005, 3005)]
    assert bench.client.list_pipelines(name)[0].state == {"cursor": "3005"}


@pytest.mark.slow
def test_a_lag_finds_what_was_committed_late(bench: Bench, other: Other) -> None:
    orders(other, 10)
    place = {**other.place, "table": "orders", "cursor": "changed_at"}
    losing = bench.make(place, {**UPSERTED, "table": "lost"})
    name = bench.make({**place, "lag": "1 hour"}, NEWEST)
    for each in (losing, name):
        assert bench.run(each)["rows_out"] == 10
    other.sql(order(other, 11, 11, "2029-12-31 23:30:00.5") + order(other, 12, 12, "2029-12-31 22:30:00"))
    other.sql(order(other, 13, 13, "2030-01-01 00:00:00.000001"))
    assert bench.run(losing)["rows_out"] == 1
    assert bench.run(name)["rows_out"] == 12
    assert bench.sql("select id from lost where id > 10") == [(13,)]
    assert bench.sql("select id from moved where id > 10 order by id") == [(11,), (13,)]
    # What is lost can be filled again.
    range = {"column": "changed_at", "from": "2029-12-31", "to": "2030-01-01 00:00:00"}
    done = bench.execute(bench.client.backfill_pipeline(name, range))
    assert (done["rows_out"], bench.one("select count(*) from moved")) == (2, 13)
    with pytest.raises(InvalidPipeline, match="is neither a number nor a time"):
        bench.execute(bench.client.backfill_pipeline(name, {**range, "to": "' or ''='"}))


@pytest.mark.slow
def test_a_query_is_read_as_a_table_is(bench: Bench, other: Other) -> None:
    orders(other, 20)
    query = "select id, word as name from orders where id > 5"
    name = bench.make({**other.place, "query": query, "cursor": "id", "shares": 3}, MOVED)
    assert bench.run(name)["rows_out"] == 15
    assert bench.sql("select min(id), max(name) from moved") == [(6, "w9")]


@pytest.mark.slow
def test_sql_columns_and_checks_see_its_rows(bench: Bench, other: Other) -> None:
    orders(other, 20)
    name = bench.make(
        {**other.place, "table": "orders"},
        {**other.place, "table": "moved"},
        columns={"exclude": ["changed_at"], "rename": {"word": "name"}},
        sql=["select id, upper(name) as name from input"],
        checks=[{"column": "id", "between": [1, 15]}],
    )
    done = bench.run(name)
    assert (done["rows_in"], done["rows_out"], done["rows_bad"]) == (20, 15, 5)
    assert other.sql("select min(name), count(*) from moved") == [("W1", "15")]
    assert bench.run(name, {})["rows_out"] == 15


@pytest.mark.slow
def test_rows_arrive_in_a_table_that_is_made(bench: Bench, other: Other) -> None:
    bench.sql("create table source as select g as id, 'w' || g as word from generate_series(1, 3000) g")
    name = bench.make(SOURCE, {**other.place, "table": "moved"})
    done = bench.run(name)
    assert (done["rows_in"], done["rows_out"]) == (3000, 3000)
    assert other.sql("select count(*), count(distinct id), sum(id), min(word) from moved") == [
        ("3000", "3000", "4501500", "w1")
    ]
    # Whoever was done with the stage has dropped it.
    assert other.tables() == ["moved", "trunq_mark"]
    assert other.sql("select number, pipeline from trunq_mark") == [("1", name)]
    bench.sql("alter table source add column more int default 7; insert into source values (3001, 'x', 8)")
    assert bench.run(name)["rows_out"] >= 1
    assert other.one("select more from moved where id = 3001") == "8"


@pytest.mark.slow
def test_an_upsert_takes_the_newest_row_of_a_key(bench: Bench, other: Other) -> None:
    bench.sql("create table source (id int, word text, n int)")
    sink = {**other.place, "table": "moved", "mode": "upsert", "key": ["id"], "newest": "n"}
    name = bench.make(SOURCE, sink)
    bench.sql("insert into source values (1, 'old', 1), (1, 'new', 3), (1, 'mid', 2), (2, 'two', 5)")
    bench.run(name)
    assert other.sql("select id, word, n from moved order by id") == [("1", "new", "3"), ("2", "two", "5")]
    bench.sql("insert into source values (1, 'late', 2), (2, 'next', 6), (3, null, null)")
    bench.run(name)
    assert other.sql("select id, word, n from moved order by id") == [
        ("1", "new", "3"),
        ("2", "next", "6"),
        ("3", "NULL", "NULL"),
    ]


@pytest.mark.slow
def test_an_upsert_without_newest_takes_the_last_row(bench: Bench, other: Other) -> None:
    other.sql("create table moved (id int, word varchar(20), own int default 4, unique (id))")
    bench.sql("create table source (id int, word text)")
    name = bench.make(SOURCE, {**other.place, "table": "moved", "mode": "upsert", "key": ["id"]})
    for word in ("one", "two"):
        bench.sql("insert into source values (1, 'before'), (1, %s)", word)
        bench.run(name)
        assert other.sql("select id, word, own from moved") == [("1", word, "4")]
    bench.sql("insert into source values (null, 'nothing')")
    with pytest.raises(InvalidPipeline, match='"id" is null in a row, and rows are found by it'):
        bench.run(name)


TYPES = {
    "bool": "true",
    "small": "7::smallint",
    "big": "9223372036854775807",
    "num": "12345678901234567890.123456789::numeric(38,9)",
    "dbl": "1.5::float8",
    "txt": "'ünïcødé \U0001f600 '' \\ \" `'",
    "day": "date '0044-03-15'",
    "at": "timestamptz '2030-03-31 01:30:00.123456+00'",
    "plain": "timestamp '1850-01-01 02:30:00.5'",
    "bytes": "'\\x00ff'::bytea",
    "js": """'{"a": [1, 2]}'::jsonb""",
}


@pytest.mark.slow
def test_values_come_back_as_they_went(bench: Bench, other: Other) -> None:
    chosen = ", ".join(f"{value} as {name}" for name, value in TYPES.items())
    bench.sql(f"create table source as select 1 as id, {chosen}; insert into source values (2)")
    bench.run(bench.make(SOURCE, {**other.place, "table": "moved"}))
    bench.run(bench.make({**other.place, "table": "moved"}, {**MOVED, "table": "back"}))
    # MariaDB has no type for a time of a zone: it comes back as the same time of UTC.
    for name in TYPES:
        there, back = f"s.{name}", f"b.{name}"
        if name == "at":
            there = "s.at at time zone 'UTC'"
            back = back if other.kind == "mariadb" else "b.at at time zone 'UTC'"
        if name == "js":
            there, back = "s.js::text", "b.js::text"
        same = f"bool_and({there} is not distinct from {back})"
        assert bench.sql(f"select {same}, count(*) from source s join back b using (id)") == [(True, 2)], name


@pytest.mark.slow
def test_a_plan_says_what_a_run_would_do(bench: Bench, other: Other) -> None:
    orders(other, 20)
    analyze(other)
    source = {**other.place, "table": "orders", "cursor": "id"}
    name = bench.make(source, {**other.place, "table": "moved"})
    planned = plan_pipeline(name, bench.dsn)
    assert planned.refused == []
    assert (planned.rows, planned.is_exact, planned.engine, planned.makes_sink) == (20, True, "spark", True)
    assert planned.reads == "rows of orders with id up to 20"
    assert list(planned.added) == ["id", "word", "changed_at"]
    assert planned.notes[0].startswith("what is committed after a run, with a id that is not larger")
    assert other.tables() == ["orders"]
    bench.run(name)
    planned = plan_pipeline(name, bench.dsn)
    assert (planned.reads, planned.rows, planned.makes_sink) == ("nothing is new", 0, False)


@pytest.mark.slow
def test_a_cursor_without_an_index_is_said_with_its_cost(
    bench: Bench, other: Other, caplog: pytest.LogCaptureFixture
) -> None:
    orders(other, 20)
    other.sql("alter table orders add column n int; update orders set n = id")
    analyze(other)
    name = bench.make({**other.place, "table": "orders", "cursor": "n"}, MOVED)
    told = (
        "no index of orders begins with n: each run reads all its rows, about 20, to find the new ones;"
        " create index on orders (n) where that is much"
    )
    assert told in plan_pipeline(name, bench.dsn).notes
    bench.run(name)
    assert f"pipeline {name}: {told}" in caplog.messages
    other.sql("create index by_n on orders (n)")
    assert told not in plan_pipeline(name, bench.dsn).notes


def refused(bench: Bench, name: str, kind: type[Exception] = InvalidPipeline) -> str:
    """Why a run ends, which a plan says too; with the way out."""
    planned = plan_pipeline(name, bench.dsn)
    with pytest.raises(kind) as caught:
        bench.run(name)
    error: Any = caught.value
    assert {"message": error.message, "hint": error.hint} in planned.refused
    return f"{error.message}: {error.hint}"


@pytest.mark.slow
def test_what_a_source_cannot_be_is_said(bench: Bench, other: Other, monkeypatch: pytest.MonkeyPatch) -> None:
    orders(other, 5)
    place = {**other.place, "table": "orders"}
    assert 'has no column "gone"; it has id, word, changed_at' in refused(
        bench, bench.make({**place, "cursor": "gone"}, MOVED)
    )
    assert '"word" of orders holds no numbers, days or times' in refused(
        bench, bench.make({**place, "cursor": "word"}, MOVED)
    )
    assert "lag is a length of time, and id is a column of numbers" in refused(
        bench, bench.make({**place, "cursor": "id", "lag": "1 hour"}, UPSERTED)
    )
    assert "there is no table" in refused(bench, bench.make({**other.place, "table": "gone"}, MOVED))
    other.sql("insert into orders values (6, 'w', null)")
    name = bench.make({**place, "cursor": "changed_at"}, MOVED)
    assert '"changed_at" is null in a row, which a cursor never finds' in refused(bench, name)
    # The way out.
    query = "select * from orders where changed_at is not null"
    name = bench.make({**other.place, "query": query, "cursor": "changed_at"}, MOVED)
    assert bench.run(name)["rows_out"] == 5
    name = bench.make(place, MOVED)
    monkeypatch.setenv("JDBC_PASSWORD", "another-password")
    told = refused(bench, bench.make({**place, "user": "nobody"}, MOVED), DatabaseFailed)
    assert "refuses the credentials" in told
    assert "another-password" not in told
    monkeypatch.setenv("JDBC_PASSWORD", PASSWORD)
    nowhere = {**place, "url": other.place["url"].replace(str(other.server.port), "1")}
    assert "cannot be reached" in refused(bench, bench.make(nowhere, MOVED), DatabaseFailed)


@pytest.mark.slow
def test_a_value_that_a_table_does_not_hold_goes_to_the_quarantine(bench: Bench, other: Other) -> None:
    other.sql("create table sold (id int, price numeric(5,2), word varchar(3))")
    bench.sql(
        "create table source as select * from (values (1::bigint, '1.50', 'abc'), (3000000000, '1', 'a'),"
        " (3, '12345.6', 'b'), (4, 'x', 'c'), (5, '2', 'abcd')) v(id, price, word)"
    )
    name = bench.make(SOURCE, {**other.place, "table": "sold"}, evolve="quarantine")
    bench.run(name)
    assert other.sql("select id, price, word from sold") == [("1", "1.50", "abc")]
    assert {each.reason: each.quarantined for each in bench.client.count_quarantine(name)} == {
        "id does not fit integer": 1,
        "price does not fit numeric(5,2)": 2,
        "word does not fit character varying(3)": 1,
    }


@pytest.mark.slow
def test_a_table_that_is_to_be_there_is_not_made(bench: Bench, other: Other) -> None:
    bench.sql("create table source as select 1 as id")
    name = bench.make(SOURCE, {**other.place, "table": "sold"}, evolve="freeze")
    with pytest.raises(InvalidPipeline, match=r'sold is not there, and evolve says tables = "refuse"'):
        bench.run(name)
    assert other.tables() == []
    other.sql("create table sold (id int)")
    bench.run(name)
    assert other.sql("select id from sold") == [("1",)]


@pytest.mark.slow
def test_what_a_sink_cannot_take_is_said(bench: Bench, other: Other) -> None:
    bench.sql("create table source as select 1 as id, 'a word' as word")
    sink = {**other.place, "table": "moved", "mode": "upsert", "key": ["id"]}
    other.sql("create table moved (id int, word varchar(3))")
    name = bench.make(SOURCE, sink)
    assert "no unique index of moved is over (id)" in refused(bench, name)
    other.sql("create unique index moved_key on moved (id)")
    with pytest.raises(DatabaseFailed, match=f"jdbc:{other.kind}.* says: .*too long"):
        bench.run(name)
    assert other.one("select count(*) from moved") == "0"
    bench.client.cancel_pipeline(name)
    bench.sql("drop table source; create table source as select 1 as id, array[1] as many")
    assert "\"many\" is array<int>, which format = 'jdbc' does not write" in refused(
        bench, bench.make(SOURCE, {**other.place, "table": "other"})
    )
    if other.kind == "mariadb":
        other.sql("create table kept (id int) engine = MyISAM")
        name = bench.make(SOURCE, {**other.place, "table": "kept"})
        assert "kept is kept by MyISAM, which has no transactions" in refused(bench, name)
        other.sql("create table twice (id int primary key, many longtext, word varchar(9) unique)")
        bench.sql("drop table source; create table source as select 1 as id, 'w' as word")
        name = bench.make(SOURCE, {**sink, "table": "twice"})
        assert "twice has another unique index, over (word)" in refused(bench, name)
        other.sql("create table half (id int, word text, unique key begins (word(3)))")
        name = bench.make(SOURCE, {**sink, "table": "half", "key": ["word"]})
        assert "the unique index begins of half is over the beginning of a text" in refused(bench, name)
        other.sql(
            "create table pair (id int primary key, word varchar(9), shop int default 1, unique (word, shop))"
        )
        name = bench.make(SOURCE, {**sink, "table": "pair"})
        assert "pair has another unique index, over (word, shop)" in refused(bench, name)


SCHEMA = pa.schema([pa.field("id", pa.int64())])


def staged(sink: Any, other: Other, attempt: int, number: int = 1) -> Run:
    """An attempt at a run that has staged two rows of the part `a`, and one of another."""
    run = Run("moved", "identity", number, number, 0, {}, attempt=attempt)
    sink.begin(run, SCHEMA)
    (stage,) = [each for each in other.tables() if each.endswith(f"_{number}_{attempt}")]
    other.sql(f"insert into {stage} (id, trunq_part) values (1, 'a'), (2, 'a'), (3, 'b')")
    return run


@pytest.mark.slow
def test_of_two_attempts_at_the_same_time_one_is_taken(other: Other) -> None:
    token = is_expanded.set(True)
    try:
        sink_model = {**other.place, "password": PASSWORD, "table": "moved"}
        pipeline = Pipeline("moved", source=SOURCE, sink=sink_model)
    finally:
        is_expanded.reset(token)
    attempts = []
    for attempt in (11, 12):
        sink = sinks.make(pipeline, "")
        attempts.append((sink, staged(sink, other, attempt)))
    with ThreadPoolExecutor(2) as threads:
        taken = list(threads.map(lambda each: each[0].commit(each[1], ["a"], 2), attempts))
    assert sorted(taken) == [False, True]
    sink, run = attempts[taken.index(True)]
    assert sink.applied(run) == Mark(1, run.attempt)
    # What no part that is named wrote, as a task that was killed has, is not taken.
    assert other.sql("select id from moved order by id") == [("1",), ("2",)]
    lacking = staged(sink, other, 13, 2)
    with pytest.raises(StageLost, match="3 rows of run 2 of pipeline moved were staged, and 2 are there"):
        sink.commit(lacking, ["a"], 3)
    assert sink.applied(run) == Mark(1, run.attempt)
    assert other.one("select count(*) from moved") == "2"
    # It was cancelled.
    lacking.attempt = 0
    assert sink.commit(lacking, [], 0)
    assert sink.applied(run) == Mark(2, 0)
    assert sink.clear(Run("moved", "identity", 3, 3, 0, {}))
    assert other.tables() == ["moved", "trunq_mark"]


def test_a_key_that_is_a_number_becomes_no_text(bench: Bench, other: Other) -> None:
    bench.sql("create table source (id numeric primary key, word text); insert into source values (1.0, 'a')")
    sink = {**other.place, "table": "moved", "mode": "upsert", "key": ["id"]}
    name = bench.make(SOURCE, sink)
    if other.kind == "mariadb":
        refused = '"id" of the key is numeric without digits, which would be a text there'
        assert refused in plan_pipeline(name, bench.dsn).refused[0]["message"]
        with pytest.raises(InvalidPipeline, match=refused):
            bench.run(name)
        other.sql("create table moved (id decimal(20,5) primary key, word varchar(9))")
    bench.run(name)
    bench.sql("update source set id = 1.00, word = 'b'")
    bench.run(name)
    assert other.sql("select id + 0 = 1, word from moved") in ([("1", "b")], [("True", "b")])
