"""What becomes of a sink's columns when those of the source change."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline
from trunq.pipeline.errors import SinkUnwritable
from trunq.pipeline.sink.widening import wider

TABLE = {"format": "table", "table": "source"}
MOVED = {"format": "table", "table": "moved", "mode": "upsert", "key": ["id"]}
WIDEN = 'evolve = "widen" makes it bigint'


def kind(bench: Bench, column: str) -> str:
    query = (
        "select format_type(atttypid, atttypmod) from pg_attribute where attrelid = 'moved'::regclass"
        " and attname = %s"
    )
    return str(bench.one(query, column))


def moved(bench: Bench, narrow: str, value: str, evolve: Any = "add") -> str:
    """A pipeline after its first run, with a column n of this type."""
    bench.sql(f"create table source (id int primary key, n {narrow}); insert into source values (1, {value})")
    name = bench.make(TABLE, MOVED, evolve=evolve)
    bench.run(name)
    return name


def retype(bench: Bench, wide: str, value: str) -> None:
    bench.sql(f"alter table source alter n type {wide}; insert into source values (2, {value})")


@pytest.mark.parametrize(
    ("narrow", "value", "wide", "more", "becomes"),
    [
        ("smallint", "1", "int", "100000", "integer"),
        ("int", "1", "bigint", "9007199254740993", "bigint"),
        ("bigint", "9007199254740993", "numeric(30,4)", "1.5", "numeric"),
        ("real", "0.5", "float8", "1e300", "double precision"),
        ("int", "2147483647", "float8", "0.25", "double precision"),
        ("numeric(5,2)", "999.99", "numeric(9,3)", "123456.789", "numeric(9,3)"),
        ("numeric(5,2)", "999.99", "numeric", "0.123456", "numeric"),
        ("date", "'infinity'", "timestamp", "'2030-01-31 12:00'", "timestamp without time zone"),
    ],
)
def test_a_type_is_widened_to_one_that_holds_both(
    bench: Bench, narrow: str, value: str, wide: str, more: str, becomes: str
) -> None:
    name = moved(bench, narrow, value, "widen")
    retype(bench, wide, more)
    bench.run(name)
    assert kind(bench, "n") == becomes
    assert bench.one("select count(*) from moved m join source s using (id) where m.n = s.n") == 2


def test_what_would_lose_a_value_is_no_widening() -> None:
    for there, given in (
        ("bigint", "double precision"),
        ("integer", "smallint"),
        ("date", "timestamp with time zone"),
        ("double precision", "numeric"),
        ("numeric(9,2)", "numeric(5,2)"),
        ("text", "integer"),
        ("numeric", "numeric(5,2)"),
    ):
        assert wider(there, given) is None
    assert wider("numeric(5,2)", "numeric(5,4)") == "numeric(7,4)"
    assert wider("numeric(999,1)", "numeric(1000,999)") == "numeric"


def test_a_refused_type_says_how_to_widen_it_and_the_contract_can_be_changed_afterwards(bench: Bench) -> None:
    name = moved(bench, "int", "1")
    retype(bench, "bigint", "3000000000")
    with pytest.raises(InvalidPipeline, match='column "n" of moved is integer and comes as bigint') as caught:
        bench.run(name)
    assert WIDEN in str(caught.value.hint)
    bench.client.cancel_pipeline(name)
    bench.make(TABLE, MOVED, name=name, evolve="widen")
    bench.run(name)
    assert bench.sql("select id, n from moved order by id") == [(1, 1), (2, 3000000000)]


def test_a_column_has_a_rule_of_its_own(bench: Bench) -> None:
    name = moved(bench, "int", "1", {"column": {"n": "widen"}})
    bench.sql("alter table source alter n type bigint, alter id type bigint")
    with pytest.raises(InvalidPipeline, match='column "id" of moved is integer and comes as bigint'):
        bench.run(name)
    assert kind(bench, "n") == "integer"


def test_a_view_over_the_column_is_told_and_when_it_is_dropped_the_run_goes_on(bench: Bench) -> None:
    name = moved(bench, "int", "1", "widen")
    bench.sql("create view seen as select n from moved")
    retype(bench, "bigint", "3000000000")
    with pytest.raises(InvalidPipeline, match=r'"n" of moved cannot become bigint: .*view') as caught:
        bench.run(name)
    assert "drop what depends on the column" in str(caught.value.hint)
    bench.sql("drop view seen")
    bench.run(name)
    assert bench.one("select n from moved where id = 2") == 3000000000


def test_a_foreign_key_whose_other_column_keeps_its_type_is_told(bench: Bench) -> None:
    name = moved(bench, "int", "1", "widen")
    bench.sql("create table other (n int primary key)")
    bench.sql("insert into other values (1)")
    bench.sql("alter table moved add foreign key (n) references other")
    retype(bench, "numeric", "1.5")
    with pytest.raises(InvalidPipeline, match=r'"n" of moved cannot become numeric: .*foreign key') as caught:
        bench.run(name)
    assert "drop what depends on the column" in str(caught.value.hint)


def test_a_table_that_is_held_fails_the_run_in_a_sentence(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = moved(bench, "int", "1", "widen")
    retype(bench, "bigint", "3000000000")
    monkeypatch.setattr("trunq.pipeline.sink.widening._WAIT", "50ms")
    with psycopg.connect(bench.dsn) as other:
        other.execute("lock table moved in share mode")
        with pytest.raises(SinkUnwritable, match="a column of moved is to be widened"):
            bench.run(name)
    bench.run(name)
    assert bench.one("select n from moved where id = 2") == 3000000000


def test_what_cannot_be_is_refused_before_anything_runs() -> None:
    for evolve, sink, words in (
        ("grow", MOVED, "evolve: 'grow' is none of add, refuse, ignore, widen, quarantine, freeze"),
        ({"type": "widen"}, MOVED, "there is no evolve.type; is it types"),
        (
            "widen",
            {"format": "queue", "queue": "q"},
            "a sink of format 'queue' has no columns: leave widen out",
        ),
        ({"tables": "refuse"}, {"format": "queue", "queue": "q"}, "leave tables out"),
        ("freeze", {"format": "parquet", "path": "s3://lake/files"}, "only a list of all of them tells"),
    ):
        with pytest.raises(InvalidPipeline, match=words):
            Pipeline("p", source=TABLE, sink=sink, evolve=evolve)
