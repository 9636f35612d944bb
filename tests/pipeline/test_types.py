"""Whatever a table of Postgres has arrives as it was, by way of Arrow."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline.errors import SinkUnwritable

TABLE = {"format": "table", "table": "source"}
MOVED = {"format": "table", "table": "moved"}

VALUES = {
    "smallint": ("-32768", "32767"),
    "bigint": ("-9223372036854775808", "9223372036854775807"),
    "numeric": ("123456789012345678901234567890.123456789", "NaN", "-Infinity", "0.000"),
    "numeric(10,2)": ("-1.50", "NaN"),
    "real": ("1.1", "NaN", "-Infinity"),
    "double precision": ("0.1", "NaN", "Infinity", "1e-300"),
    "boolean": ("t", "f"),
    "text": ("", "a\u00e9\"'\\\n\t", "NULL"),
    "varchar(9)": ("x ",),
    "char(5)": ("ab",),
    '"char"': ("x",),
    "name": ("abc",),
    "bytea": ("\\x00ff", "\\x"),
    "uuid": ("0b8c5b1c-0b5c-4b5c-8b5c-0b5c4b5c8b5c",),
    "json": ('{"a":  1, "a": 2}',),
    "jsonb": ('{"a": [1, null, "\u00fc"]}', "null", '"x"'),
    "date": ("2030-01-31", "infinity", "-infinity", "0044-03-15 BC", "5874897-12-31"),
    "timestamptz": ("2030-01-31 12:00:00.000001Z", "infinity", "-infinity", "0044-03-15 12:00Z BC",
                    "200000-01-01Z"),
    "timestamp": ("2030-01-31 12:00", "infinity", "-infinity", "4713-01-01 BC"),
    "time": ("23:59:59.999999", "24:00:00"),
    "timetz": ("12:00:00+05:30",),
    "interval": ("1 year 2 mons -3 days +04:05:06.7", "-1 mons +2 days"),
    "integer[]": ("{1,NULL,3}", "{{1,2},{3,4}}", "{}"),
    "text[]": ('{"a,b",NULL,"\\""}',),
    "date[]": ("{2030-02-01}",),
    "timestamptz[]": ("{2030-02-01 12:00Z}",),
    "jsonb[]": ('{"{}"}',),
    "inet": ("10.0.0.1/8", "::1"),
    "cidr": ("10.0.0.0/8",),
    "macaddr": ("08:00:2b:01:02:03",),
    "bit(3)": ("101",),
    "varbit": ("10101",),
    "int4range": ("[1,3)", "empty"),
    "tstzmultirange": ("{[2030-01-01 00:00Z,2030-02-01 00:00Z)}",),
    "point": ("(1,2.5)",),
    "tsvector": ("'a':1 'b':2",),
    "money": ("12.30",),
    "oid": ("4294967295",),
}  # fmt: skip


def create(bench: Bench, table: str) -> None:
    columns = ", ".join(f'"c {number}" {kind}' for number, kind in enumerate(VALUES))
    bench.sql(f"create table {table} (id int primary key, {columns})")


def fill(bench: Bench, table: str) -> None:
    for row in range(max(map(len, VALUES.values())) + 1):
        values = [each[row] if row < len(each) else None for each in VALUES.values()]
        casts = ", ".join(f"%s::{kind}" for kind in VALUES)
        bench.sql(f"insert into {table} values ({row}, {casts})", *values)


@pytest.mark.parametrize("style", ["german", "sql_standard"])
def test_every_type_arrives_as_it_was_whatever_the_source_is_set_to(bench: Bench, style: str) -> None:
    create(bench, "source")
    fill(bench, "source")
    name = bench.one("select current_database()")
    settings = {
        "german": {"datestyle": "German", "intervalstyle": "iso_8601", "bytea_output": "escape",
                   "extra_float_digits": "-5", "timezone": "Asia/Kolkata"},
        "sql_standard": {"datestyle": "SQL, DMY", "intervalstyle": "sql_standard", "lc_monetary": "C",
                         "default_transaction_isolation": "serializable"},
    }[style]  # fmt: skip
    for setting, value in settings.items():
        bench.sql(f"alter database {name} set {setting} = '{value}'")
    bench.run(bench.make(TABLE, MOVED))
    for number, kind in enumerate(VALUES):
        query = f'select id, "c {number}"::text, pg_typeof("c {number}")::text from {{}} order by id'
        given, found = bench.sql(query.format("source")), bench.sql(query.format("moved"))
        if kind == "varchar(9)":
            given = [(id, text, "text") for id, text, _ in given]
        assert found == given, kind


def test_columns_that_are_dropped_generated_or_oddly_named(bench: Bench) -> None:
    bench.sql(
        'create table source (gone int, "a ""b"" %% \u00e9" int, twice int'
        ' generated always as ("a ""b"" %% \u00e9" * 2)'
        ' stored, "select" text); alter table source drop column gone'
    )
    bench.sql('insert into source ("a ""b"" %% \u00e9", "select") values (4, \'x\')')
    bench.run(bench.make(TABLE, MOVED))
    assert bench.sql("select * from moved") == [(4, 8, "x")]
    # A table that works a column out by itself does so.
    bench.sql(
        'create table other ("a ""b"" %% \u00e9" int, twice int'
        ' generated always as (3) stored, "select" text)'
    )
    bench.run(bench.make(TABLE, {**MOVED, "table": "other"}))
    assert bench.sql("select * from other") == [(4, 3, "x")]
    bench.sql('create table third ("select" text, twice int generated always as identity)')
    with pytest.raises(InvalidPipeline, match='"twice" of third is generated always as identity'):
        bench.run(bench.make(TABLE, {**MOVED, "table": "third"}))


def test_an_empty_table_makes_nothing(bench: Bench) -> None:
    bench.sql("create table source (id int)")
    name = bench.make(TABLE, MOVED)
    assert bench.run(name)["outcome"] == "nothing new"
    assert bench.one("select to_regclass('moved')") is None
    bench.sql("insert into source values (1)")
    assert bench.run(name)["rows_out"] == 1


def test_a_type_that_only_the_source_has_comes_as_what_it_is_made_of(bench: Bench) -> None:
    bench.sql("create type mood as enum ('a', 'b'); create domain small as int check (value < 9)")
    bench.sql("create type pair as (x int, y text); create table source (m mood, s small, p pair, ms mood[])")
    bench.sql("insert into source values ('b', 5, (1, 'z'), '{a,b}')")
    bench.run(bench.make(TABLE, MOVED))
    assert bench.sql("select * from moved") == [("b", 5, {"x": 1, "y": "z"}, ["a", "b"])]


def test_times_without_end_are_no_number_in_lakes_and_words_in_queues(bench: Bench, tmp_path: Path) -> None:
    bench.sql("create table source (id int, at timestamptz, day date)")
    bench.sql("insert into source values (1, '2030-01-01Z', '2030-01-01')")
    lake = bench.make(TABLE, {"format": "delta", "path": str(tmp_path / "lake")})
    files = bench.make(TABLE, {"format": "parquet", "path": str(tmp_path / "files")})
    bench.client.create_queue("moved")
    queue = bench.make(TABLE, {"format": "queue", "queue": "moved"})
    bench.run(lake)
    bench.sql("insert into source values (2, 'infinity', '-infinity')")
    for name in (lake, files):
        with pytest.raises(InvalidPipeline, match='column "at" has a time without end'):
            bench.run(name)
    assert DeltaTable(str(tmp_path / "lake")).to_pyarrow_table()["id"].to_pylist() == [1]
    bench.run(queue)
    payloads = [
        json.loads(text) for (text,) in bench.sql("select payload::text from trunq_log.moved order by id")
    ]
    assert payloads[1] == {"id": 2, "at": "infinity", "day": "-infinity"}
    assert payloads[0] == {"id": 1, "at": "2030-01-01T00:00:00+00:00", "day": "2030-01-01"}


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_numbers_that_a_decimal_cannot_hold_are_named(bench: Bench, tmp_path: Path, format: str) -> None:
    bench.sql("create table source (id int, n numeric(5, 2), small numeric(3, 5))")
    bench.sql("insert into source values (1, 1.5, 0.00999)")
    name = bench.make(TABLE, {"format": format, "path": str(tmp_path / "lake")})
    bench.run(name)
    if format == "delta":
        (row,) = DeltaTable(str(tmp_path / "lake")).to_pyarrow_table().to_pylist()
        assert row == {"id": 1, "n": Decimal("1.50"), "small": Decimal("0.00999")}
    bench.sql("insert into source values (2, 'NaN', null)")
    with pytest.raises(
        InvalidPipeline, match=r'column "n" has NaN, which decimal128\(5, 2\) of a lake has no'
    ):
        bench.run(name)
    bench.sql("update source set n = null where id = 2")
    bench.run(name)


def test_a_type_that_changes_between_runs_is_refused_or_widened(bench: Bench) -> None:
    bench.sql("create table source (id int, n numeric(5, 2)); insert into source values (1, 1.5)")
    name = bench.make(TABLE, MOVED)
    bench.run(name)
    bench.sql("alter table source alter n type text")
    with pytest.raises(InvalidPipeline, match=r'column "n" of moved is numeric\(5,2\) and comes as text'):
        bench.run(name)
    bench.sql("alter table source alter n type numeric(9, 2) using n::numeric")
    bench.sql("insert into source values (2, 123456.5)")
    with pytest.raises(SinkUnwritable, match="moved refuses a row: numeric field overflow"):
        bench.run(name)
    assert bench.one("select count(*) from moved") == 1
    bench.sql("alter table moved alter n type numeric(9, 2)")
    bench.run(name)
    # The source was rewritten, so all of it was new.
    assert bench.sql("select id, n::text from moved order by id, n") == [
        (1, "1.50"),
        (1, "1.50"),
        (2, "123456.50"),
    ]
