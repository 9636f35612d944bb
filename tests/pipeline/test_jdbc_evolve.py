"""What becomes of a table that is reached by JDBC: stamps, other names and types of its columns, strict
sessions, and a mark that cannot be written.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from pipeline.databases import KINDS, Other, opened
from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline.errors import DatabaseFailed
from trunq.pipeline.plan import plan_pipeline

pytestmark = pytest.mark.usefixtures("spark", "_jdbc")

_numbers = count(1)
SOURCE = {"format": "table", "table": "source"}
MOVED = {"format": "table", "table": "moved"}


@pytest.fixture(scope="module", params=KINDS)
def other_server(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A server."""
    yield from opened(request.param)


@pytest.fixture
def other(other_server: Any) -> Other:
    """A database of its own."""
    return Other(other_server, f"shop_{next(_numbers)}")


@pytest.mark.slow
def test_columns_are_stamped_and_renamed_and_get_wider_types(bench: Bench, other: Other) -> None:
    bench.sql("create table source (id int, n int); insert into source values (1, 7)")
    sink = {**other.place, "table": "moved", "mode": "upsert", "key": ["id"]}
    name = bench.make(SOURCE, sink, stamp=True)
    bench.run(name)
    assert other.sql("select id, n, _run, _at is not null from moved")[0][:3] == ("1", "7", "1")
    bench.sql("alter table source rename id to person; insert into source values (2, 8)")
    evolve: dict[str, Any] = {"rename": {"id": "person"}}
    if other.kind == "postgresql":
        bench.sql("alter table source alter n type bigint; insert into source values (3, 3000000000)")
        evolve["types"] = "widen"
    bench.make(SOURCE, {**sink, "key": ["person"]}, stamp=True, name=name, evolve=evolve)
    notes = plan_pipeline(name, bench.dsn).notes
    assert "column id of moved is renamed person" in notes
    assert ("column n of moved becomes bigint, and is integer" in notes) == (other.kind == "postgresql")
    bench.run(name)
    wide = [("3", "3000000000", "2")] if other.kind == "postgresql" else []
    assert other.sql("select person, n, _run from moved order by person") == [
        ("1", "7", "2" if wide else "1"), ("2", "8", "2"), *wide
    ]  # fmt: skip
    assert other.tables() == ["moved", "trunq_mark"]


@pytest.mark.slow
def test_a_float_is_no_cursor_and_the_way_out_works(bench: Bench, other: Other) -> None:
    other.sql("create table orders (id int, x double precision)")
    other.sql("insert into orders values (1, 0.1), (2, 1e15)")
    name = bench.make({**other.place, "table": "orders", "cursor": "x"}, MOVED)
    with pytest.raises(InvalidPipeline, match='"x" of orders holds floats, which databases') as told:
        bench.run(name)
    assert "cast(x as decimal(30,10)) as place" in told.value.hint
    query = "select t.*, cast(x as decimal(30,10)) as place from orders t"
    name = bench.make({**other.place, "query": query, "cursor": "place"}, MOVED)
    assert bench.run(name)["rows_out"] == 2
    assert bench.run(name) == {"outcome": "nothing new"}
    other.sql("insert into orders values (3, 2e15)")
    assert bench.run(name)["rows_out"] == 1


@pytest.mark.slow
def test_a_session_that_is_told_otherwise_is_strict_and_in_utc(bench: Bench, other: Other) -> None:
    if other.kind != "mariadb":
        pytest.skip("sessions of Postgres are strict")
    place = {**other.place, "properties": {"sessionVariables": "sql_mode='',time_zone='+05:00'"}}
    bench.sql("create table source (id int, day date, at timestamptz)")
    bench.sql("insert into source values (1, '2030-01-02', '2030-01-02 03:04:05+00')")
    name = bench.make(SOURCE, {**place, "table": "moved"})
    bench.run(name)
    assert other.sql("select id, day, at from moved") == [("1", "2030-01-02", "2030-01-02 03:04:05.000000")]
    other.sql("create table kept (at timestamp null); insert into kept values ('2030-01-02 03:04:05')")
    bench.run(bench.make({**place, "table": "kept"}, MOVED))
    zone = other.one("select timestampdiff(hour, utc_timestamp, now())")
    assert (
        bench.one("select extract(hour from at at time zone 'UTC')::int from moved") == (3 - int(zone)) % 24
    )
    # No value becomes another in silence: that day is none of MariaDB's.
    bench.sql("insert into source values (2, '12000-01-01', now())")
    with pytest.raises(DatabaseFailed):
        bench.run(name)
    assert other.one("select count(*) from moved") == "1"


@pytest.mark.slow
def test_a_mark_that_is_not_written_fails_the_run_and_nothing_of_it_is_there(
    bench: Bench, other: Other
) -> None:
    if other.kind != "postgresql":
        pytest.skip("a trigger of MariaDB keeps no row as it is")
    bench.sql("create table source as select 1 as id")
    name = bench.make(SOURCE, {**other.place, "table": "moved"})
    bench.run(name)
    other.sql(
        "create function keep() returns trigger language plpgsql as 'begin return null; end';"
        "create trigger keep before update on trunq_mark for each row execute function keep()"
    )
    bench.sql("insert into source values (2)")
    with pytest.raises(DatabaseFailed, match='0 rows of "trunq_mark" were changed to note run 2'):
        bench.run(name)
    assert other.sql("select id from moved") == [("1",)]
    other.sql("drop trigger keep on trunq_mark")
    bench.run(name)
    assert other.sql("select id from moved order by id") == [("1",), ("2",)]


@pytest.mark.slow
def test_types_of_mariadb_do_not_widen_and_the_way_out_works(bench: Bench, other: Other) -> None:
    if other.kind != "mariadb":
        pytest.skip("those of Postgres do")
    bench.sql("create table source (id int, n int); insert into source values (1, 7)")
    sink = {**other.place, "table": "moved"}
    name = bench.make(SOURCE, sink)
    bench.run(name)
    with pytest.raises(InvalidPipeline, match=r"alter table \.\.\. modify column n bigint"):
        bench.make(SOURCE, sink, name=name, evolve="widen")
    other.sql("alter table moved modify column n bigint not null default 4")
    bench.sql("alter table source alter n type bigint; insert into source values (2, 3000000000)")
    bench.run(name)
    assert other.one("select max(n) from moved") == "3000000000"
