"""What tasks and driver of `format("trunq")` do as a sink, without Spark: protocols, refusals, rights."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from calling import new_names
from landing import AT, Job
from trunq.errors import (
    InvalidArgument,
    TrunqError,
)
from trunq.spark.errors import SinkMismatch, SinkRefused, StageLost
from trunq.spark.sink.option import SinkOptions
from trunq.spark.sink.writer import Written
from trunq.spark.writer import BatchWriter

_names = new_names("sunk")


def rows_of(connection: psycopg.Connection[Any], table: str, columns: str = "*") -> list[Any]:
    return connection.execute(f"select {columns} from {table} order by 1, 2").fetchall()


@pytest.fixture
def dsn(shared_database: str) -> str:
    return shared_database


@pytest.fixture
def table() -> str:
    return next(_names)


ROWS = [(1, "a", AT), (2, None, AT), (3, 'quoted "\\\n', AT)]


@pytest.mark.parametrize("engine", ["adbc", "psycopg", "auto"])
@pytest.mark.parametrize("protocol", ["staged", "partition", "direct"])
def test_rows_arrive_by_every_protocol_and_engine(
    dsn: str, session: psycopg.Connection[Any], table: str, protocol: str, engine: str
) -> None:
    given = {"table": table, "commitProtocol": protocol, "engine": engine}
    assert Job(dsn, **given).run(ROWS[:1], ROWS[1:], [])
    assert rows_of(session, table) == ROWS
    Job(dsn, **given).run(ROWS)
    assert len(rows_of(session, table)) == 6


@pytest.mark.parametrize("protocol", ["staged", "partition"])
def test_a_schema_of_stages_may_have_any_name(
    dsn: str, session: psycopg.Connection[Any], table: str, protocol: str
) -> None:
    given = {"table": table, "commitProtocol": protocol, "stageSchema": 'A%s "b"'}
    assert Job(dsn, **given).run(ROWS[:1], ROWS[1:])
    assert rows_of(session, table) == ROWS


@pytest.mark.parametrize("protocol", ["staged", "partition"])
def test_a_repeated_version_adds_nothing(
    dsn: str, session: psycopg.Connection[Any], table: str, protocol: str
) -> None:
    given = {"table": table, "commitProtocol": protocol, "txnAppId": "nightly"}
    for version in (0, 0, 1, 0, 1):
        Job(dsn, **given, txnVersion=str(version)).run(ROWS, [(4, "d", AT)])
    assert len(rows_of(session, table)) == 8
    # Another application, and another table, count by themselves.
    Job(dsn, **{**given, "txnAppId": "daily"}, txnVersion="0").run(ROWS)
    Job(dsn, **{**given, "table": f"{table}_b"}, txnVersion="0").run(ROWS)
    assert (len(rows_of(session, table)), len(rows_of(session, f"{table}_b"))) == (11, 3)
    # And one of that name that was dropped and is made again.
    session.execute(f"drop table {table}_b")
    Job(dsn, **{**given, "table": f"{table}_b"}, txnVersion="0").run(ROWS)
    assert len(rows_of(session, f"{table}_b")) == 3


def test_only_parts_in_the_messages_count(dsn: str, session: psycopg.Connection[Any], table: str) -> None:
    job = Job(dsn, table=table)
    first, lost, speculative = job.task(ROWS), job.task(ROWS), job.task(ROWS)
    assert rows_of(session, table) == []
    job.commit(first)
    assert rows_of(session, table) == ROWS
    assert len({first.part, lost.part, speculative.part}) == 3
    assert stages(session, first) == []


def stages(connection: psycopg.Connection[Any], *written: Written) -> list[str]:
    names = [each.stage for each in written]
    query = "select relname from pg_class where relname = any(%s)"
    return [row[0] for row in connection.execute(query, (names,))]


def test_of_two_jobs_with_one_version_one_wins_whole(
    dsn: str, session: psycopg.Connection[Any], table: str
) -> None:
    given = {"table": table, "txnAppId": "a", "txnVersion": "7"}
    one, other = Job(dsn, **given), Job(dsn, **given)
    of_one, of_other = one.task([(1, "one", AT)]), other.task([(2, "other", AT), (3, "other", AT)])
    assert other.commit(of_other)
    assert not one.commit(of_one, one.task([(4, "one", AT)]))
    assert rows_of(session, table, "id, word") == [(2, "other"), (3, "other")]
    assert stages(session, of_one, of_other) == []


def test_a_stage_that_a_crash_emptied_is_noticed(
    dsn: str, session: psycopg.Connection[Any], table: str
) -> None:
    job = Job(dsn, table=table, txnAppId="a", txnVersion="1")
    written = job.task(ROWS)
    session.execute(f"truncate trunq_sink.{written.stage}")
    with pytest.raises(StageLost, match=rf"3 rows for table {table} were staged, and 0 are there"):
        job.commit(written)
    session.execute(f"drop table trunq_sink.{written.stage}")
    with pytest.raises(StageLost):
        job.commit(written)
    assert rows_of(session, table) == []
    assert Job(dsn, table=table, txnAppId="a", txnVersion="1").run(ROWS)
    assert rows_of(session, table) == ROWS


def test_stages_of_dead_jobs_are_dropped_by_the_next_commit(
    dsn: str, session: psycopg.Connection[Any], table: str
) -> None:
    dead = Job(dsn, table=table, txnAppId="a", txnVersion="1").task(ROWS)
    other = Job(dsn, table=table, txnAppId="b", txnVersion="1").task(ROWS)
    old = Job(dsn, table=table)
    old.sink.began -= 4 * 86400
    ancient = old.task(ROWS)
    Job(dsn, table=table, txnAppId="a", txnVersion="2").run(ROWS)
    assert stages(session, dead, other, ancient) == [other.stage]


def test_abort_drops_what_was_staged(dsn: str, session: psycopg.Connection[Any], table: str) -> None:
    job = Job(dsn, table=table)
    written = job.task(ROWS)
    BatchWriter(job.sink).abort([written, None])
    assert stages(session, written) == []
    assert rows_of(session, table) == []


def test_overwriting_replaces_in_one_transaction(
    dsn: str, session: psycopg.Connection[Any], table: str
) -> None:
    Job(dsn, table=table).run(ROWS)
    job = Job(dsn, table=table, replaces=True)
    written = job.task(ROWS[:1])
    assert len(rows_of(session, table)) == 3
    job.commit(written)
    assert rows_of(session, table) == ROWS[:1]
    Job(dsn, table=table, replaces=True).run([])
    assert rows_of(session, table) == []


def test_upserts(dsn: str, session: psycopg.Connection[Any], table: str) -> None:
    given = {"table": table, "upsertKey": "id", "newest": "at"}
    later = AT + dt.timedelta(days=1)
    Job(dsn, **given).run([(1, "a", AT), (2, "b", later), (1, "newer", later)])
    Job(dsn, **given).run([(2, "older", AT), (3, "c", AT)])
    assert rows_of(session, table, "id, word") == [(1, "newer"), (2, "b"), (3, "c")]


def test_columns_of_types_that_spark_has_not(dsn: str, session: psycopg.Connection[Any], table: str) -> None:
    session.execute(f"create domain {table}_d as integer check (value < 100)")
    session.execute(
        f"create table {table} (n numeric(10,2), u uuid, j jsonb, v varchar(5), c char(3), d {table}_d,"
        " i bigint default 5, made integer generated always as identity, m jsonb, l jsonb)"
    )
    uuid = "0f0e0d0c-0b0a-0908-0706-050403020100"
    ddl = "v string, u string, n decimal(9,2), j string, c string, d int, m map, l structs"
    row = ("abc", uuid, Decimal("1.50"), '{"a": [1]}', "x", 99, [("k", "1")], [{"a": 1}])
    for protocol in ("staged", "partition", "direct"):
        Job(dsn, ddl, table=table, commitProtocol=protocol).run([row])
    found = session.execute(f"select n, u::text, j, v, c, d, i, m, l from {table}").fetchall()
    assert found == [(Decimal("1.50"), uuid, {"a": [1]}, "abc", "x  ", 99, 5, {"k": "1"}, [{"a": 1}])] * 3
    for column, value in (("v", "abcdef"), ("d", 100), ("u", "no uuid"), ("j", "{")):
        kind = "int" if column == "d" else "string"
        for protocol in ("staged", "direct"):
            with pytest.raises(SinkRefused, match=f"table {table} refused") as caught:
                Job(dsn, f"{column} {kind}", table=table, commitProtocol=protocol).run([(value,)])
            assert "Failing" not in str(caught.value)


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("n string", r'column "n" of \w+ is integer and comes as text'),
        ("n bigint", r'column "n" of \w+ is integer and comes as bigint'),
        ("d decimal(9,3)", r'column "d" of \w+ is numeric\(9,2\) and comes as numeric\(9,3\)'),
        ("t timestamp_ntz", r'column "t" of \w+ is timestamp with time zone and comes as timestamp without'),
        ("t date", r'column "t" of \w+ is timestamp with time zone and comes as date'),
        ("n int, More int", r'column "More" is new: \w+ has none\nHINT: its columns: n, d, t; add it'),
        ("n interval", r'column "n" is duration\[us\], for which Postgres has no type'),
    ],
)
def test_types_that_conflict_are_named(
    dsn: str, session: psycopg.Connection[Any], table: str, ddl: str, said: str
) -> None:
    session.execute(f"create table {table} (n integer, d numeric(9,2), t timestamptz)")
    with pytest.raises(TrunqError, match=said):
        Job(dsn, ddl, table=table)


@pytest.mark.parametrize("protocol", ["staged", "partition", "direct"])
def test_rows_are_on_the_disk_before_spark_remembers_their_batch(
    dsn: str, session: psycopg.Connection[Any], table: str, protocol: str
) -> None:
    how = "text default current_setting('synchronous_commit')"
    session.execute(f"create table {table} (id bigint, how {how})")
    given = {"table": table, "commitProtocol": protocol}
    Job(f"{dsn} options='-c synchronous_commit=off'", "id bigint", **given).run([(1,)], [(2,)])
    assert session.execute(f"select distinct how from {table}").fetchall() == [("on",)]


def test_null_into_not_null_is_postgres_s_own_error(
    dsn: str, session: psycopg.Connection[Any], table: str
) -> None:
    session.execute(f"create table {table} (id bigint, word text not null)")
    for protocol in ("staged", "partition", "direct"):
        with pytest.raises(SinkRefused, match='null value in column "word"'):
            Job(dsn, "id bigint, word string", table=table, commitProtocol=protocol).run([(1, None)])
    assert rows_of(session, table) == []


def test_tables_that_are_missing_are_made_or_refused(
    dsn: str, session: psycopg.Connection[Any], table: str
) -> None:
    with pytest.raises(SinkMismatch, match=f"there is no table {table}"):
        Job(dsn, table=table, createTable="false")
    ddl = "a boolean, b tinyint, c decimal(9,2), d binary, e date, f timestamp_ntz, g struct, h double"
    Job(dsn, ddl, table=table)
    found = session.execute(
        "select string_agg(format_type(atttypid, atttypmod), ', ' order by attnum) from pg_attribute"
        " where attrelid = %s::regclass and attnum > 0",
        (table,),
    ).fetchone()
    assert found == (
        "boolean, smallint, numeric(9,2), bytea, date, timestamp without time zone, jsonb, double precision",
    )
    with pytest.raises(SinkMismatch, match="has no unique index over b"):
        Job(dsn, "b tinyint", table=table, upsertKey="b")
    session.execute(f"alter table {table} add unique (b) deferrable".encode())
    with pytest.raises(SinkMismatch, match="has no unique index over b"):
        Job(dsn, "b tinyint", table=table, upsertKey="b")
    with pytest.raises(SinkMismatch, match='there is no column "z" in the rows'):
        Job(dsn, "b tinyint", table=table, upsertKey="z")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "needs the option table, or queue"),
        ({"table": "t", "queue": "q"}, "one of them"),
        ({"table": "t", "keyColumn": "k"}, "keyColumn is no option for a table"),
        ({"queue": "q", "upsertKey": "k"}, "upsertKey is no option for a queue"),
        ({"table": "a.b.c"}, "is not the name of a table"),
        ({"table": "t", "newest": "at"}, "give upsertKey, too"),
        ({"table": "t", "upsertKey": "k", "commitProtocol": "direct"}, "only adds rows"),
        ({"table": "t", "commitProtocol": "fast"}, "staged or partition or direct"),
        ({"table": "t", "txnAppId": "a"}, "give txnAppId and txnVersion, or neither"),
        ({"table": "t", "commitProtocol": "direct", "txnAppId": "a", "txnVersion": "1"}, "keeps no mark"),
        ({"table": "t", "startingOffsets": "latest"}, "has no option"),
        ({"queue": "q", "kind": "a", "kindColumn": "b"}, "not both"),
    ],
)
def test_options_that_cannot_be_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        SinkOptions.parse({"dsn": "password=secret", **given}).for_batch(False)
    assert "secret" not in repr(SinkOptions.parse({"dsn": "password=secret", "table": "t"}))


def test_what_streams_and_queues_cannot_do_is_refused() -> None:
    for given, said in (
        ({"queue": "q"}, 'queue "q" cannot be overwritten'),
        ({"table": "t", "commitProtocol": "partition"}, "only adds rows"),
        ({"table": "t", "upsertKey": "k"}, "not both"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            SinkOptions.parse(given).for_stream(True)
    with pytest.raises(InvalidArgument, match="txnVersion is for batches"):
        SinkOptions.parse({"table": "t", "txnVersion": "1"}).for_stream(False)


def test_a_partition_that_failed_is_repeated_alone(
    dsn: str, session: psycopg.Connection[Any], table: str
) -> None:
    session.execute(f"create table {table} (id bigint check (id < 10))")
    job = Job(dsn, "id bigint", table=table, commitProtocol="partition")
    first = job.task([(1,)], 0)
    with pytest.raises(SinkRefused, match="check constraint"):
        job.task([(2,), (11,)], 1)
    again, second = job.task([(1,)], 0), job.task([(2,)], 1)
    assert (first.rows, again.rows, second.rows) == (1, 0, 1)
    assert job.commit(first, second)
    assert session.execute(f"select array_agg(id order by id) from {table}").fetchone() == ([1, 2],)
    found = session.execute("select count(*) from trunq_sink.mark where mark = %s", (job.series.mark,))
    assert found.fetchone() == (0,)
