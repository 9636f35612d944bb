"""Many tables with one definition: found, changed, gone, renamed, refused; each row of each arrives."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from psycopg.conninfo import make_conninfo

from pipeline.killing import POINTS, execute_and_die
from pipeline.piping import Bench
from scope import some
from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.many import value_of_table
from trunq.pipeline.errors import MessageRefused
from trunq.pipeline.plan import plan_pipeline
from trunq.pipeline.runner import Runner
from trunq.record import PipelineInstance
from trunq.sql import back_migrations

SOURCE = {"format": "table", "tables": "shop.*"}
SINK = {"format": "table", "table": "copy.${table}", "mode": "upsert"}
NAMES = ("customer", "orders", "product")


@pytest.fixture
def shop(bench: Bench) -> Bench:
    """A schema of three tables, and one that they are copied into."""
    bench.sql("create schema shop; create schema copy")
    for name in NAMES:
        bench.sql(f"create table shop.{name} (id int primary key, word text)")
        bench.sql(f"insert into shop.{name} values (1, '{name}'), (2, '{name}')")
    return bench


def run(bench: Bench, name: str = "shop") -> None:
    """Look, and do all that this asks for."""
    bench.client.run_pipeline(name)
    Runner(bench.dsn, until_empty=True).run()


def tables(bench: Bench) -> dict[str, PipelineInstance]:
    return {row.value.removeprefix("shop."): row for row in bench.client.list_instances("shop")}


def words(bench: Bench, table: str) -> list[str]:
    return [word for (word,) in bench.sql(f"select word from {table} order by id")]


def warnings(bench: Bench) -> dict[str, str]:
    rows = bench.client.list_warnings("pipelines")
    return {
        row.warning: row.hint for row in rows if "stands still" in row.warning or "no table" in row.warning
    }


def test_each_table_is_an_instance_with_state_runs_and_figures_of_its_own(shop: Bench) -> None:
    shop.make(SOURCE, SINK, name="shop")
    run(shop)
    for name in NAMES:
        assert words(shop, f"copy.{name}") == [name] * 2
        (one,) = shop.client.list_runs(f"shop/shop.{name}")
        assert (one.rows_out, one.outcome) == (2, "done")
    assert {row.pipeline: row.runs for row in tables(shop).values()} == {
        f"shop/shop.{name}": 1 for name in NAMES
    }
    (row,) = shop.client.list_pipelines()
    assert (row.pipeline, row.runs) == ("shop", 3)
    assert (row.state["tables"], row.state["refused"]) == (3, 0)
    # The key is that of the table.
    shop.sql(
        "update shop.orders set word = 'changed' where id = 1; insert into shop.orders values (3, 'new')"
    )
    run(shop)
    assert words(shop, "copy.orders") == ["changed", "orders", "new"]
    assert len(shop.client.list_runs("shop/shop.customer")) == 1


def test_a_table_is_run_alone_by_its_name_or_by_a_message(shop: Bench) -> None:
    shop.make(SOURCE, SINK, name="shop")
    assert shop.run("shop", {"table": "shop.orders"})["rows_out"] == 2
    assert shop.one("select to_regclass('copy.product') is null")
    shop.sql("insert into shop.orders values (3, 'new')")
    assert shop.run("shop/shop.orders")["rows_out"] == 1
    with pytest.raises(MessageRefused, match=r"has no table shop\.none") as refused:
        shop.run("shop", {"table": "shop.none"})
    assert "trunq pipeline instances shop" in str(refused.value.hint)
    with pytest.raises(InvalidPipeline, match="no runs of its own"):
        shop.client.set_pipeline_state("shop", {})


def test_a_new_table_comes_along_and_one_that_is_gone_is_said_with_the_command(shop: Bench) -> None:
    shop.make(SOURCE, SINK, name="shop")
    run(shop)
    shop.sql("create table shop.visit (id int primary key, word text)")
    shop.sql("insert into shop.visit values (1, 'v'); drop table shop.orders")
    run(shop)
    assert (words(shop, "copy.visit"), words(shop, "copy.orders")) == (["v"], ["orders"] * 2)
    assert tables(shop)["orders"].refused == "table shop.orders is gone, or matches no more"
    assert next(iter(tables(shop))) == "orders"
    ((warning, hint),) = warnings(shop).items()
    assert warning == (
        'pipeline "shop/shop.orders" stands still: table shop.orders is gone, or matches no more'
    )
    command = re.search(r"trunq pipeline drop (\S+)", hint)
    assert command is not None
    run(shop)
    assert tables(shop)["orders"].runs == 1
    with pytest.raises(MessageRefused, match=r"stands still: table shop\.orders is gone"):
        shop.run("shop/shop.orders")
    # Back again, it goes on where it was.
    shop.sql("create table shop.orders (id int primary key, word text)")
    shop.sql("insert into shop.orders values (7, 'back')")
    run(shop)
    assert (tables(shop)["orders"].refused, warnings(shop)) == (None, {})
    assert words(shop, "copy.orders") == ["orders", "orders", "back"]
    with pytest.raises(InvalidPipeline, match="which is there") as refused:
        shop.client.drop_pipeline(command[1])
    # That way out, to its end.
    assert "except = ['shop.orders']" in str(refused.value.hint)
    shop.make({**SOURCE, "except": ["shop.orders"]}, SINK, name="shop")
    run(shop)
    shop.client.drop_pipeline(command[1])
    assert (sorted(tables(shop)), warnings(shop)) == (["customer", "product", "visit"], {})
    assert words(shop, "copy.orders") == ["orders", "orders", "back"]


def test_a_table_that_was_renamed_is_read_under_its_new_name_and_that_is_said(shop: Bench) -> None:
    shop.make(SOURCE, SINK, name="shop")
    run(shop)
    shop.sql("alter table shop.orders rename to lines")
    run(shop)
    assert words(shop, "copy.lines") == ["orders"] * 2
    assert tables(shop)["orders"].refused == (
        "table shop.orders is shop.lines by now, which is read from its beginning, as a table of its own"
    )
    shop.client.drop_pipeline("shop/shop.orders")
    assert warnings(shop) == {}


def test_a_run_that_is_open_when_its_table_goes_is_given_up_by_who_drops_it(shop: Bench) -> None:
    shop.make(SOURCE, SINK, name="shop")
    run(shop)
    shop.sql("insert into shop.orders values (3, 'new')")
    asked = shop.asked(shop.client.run_pipeline("shop/shop.orders"))
    assert execute_and_die(shop.dsn, asked, "begun") == -9
    shop.sql("drop table shop.orders")
    shop.run("shop")
    assert tables(shop)["orders"].open_run == 2
    assert shop.client.cancel_pipeline("shop/shop.orders")
    shop.client.drop_pipeline("shop/shop.orders")
    assert sorted(tables(shop)) == ["customer", "product"]


def test_what_cannot_be_read_is_named_and_the_others_go_on(shop: Bench) -> None:
    shop.sql("create view shop.seen as select 1 as id; create table shop.keyless (id int)")
    shop.make(SOURCE, SINK, name="shop")
    run(shop)
    assert words(shop, "copy.orders") == ["orders"] * 2
    told = warnings(shop)
    assert sorted(told) == [
        'pipeline "shop/shop.keyless" stands still: it has no primary key, by which its rows are found in the'
        " sink",
        'pipeline "shop/shop.seen" stands still: it is a view, whose rows do not say when they were written',
    ]
    assert list(tables(shop))[:2] == ["keyless", "seen"]
    # The ways out: a key, and left out. What was never read leaves nothing.
    shop.sql("alter table shop.keyless add primary key (id); insert into shop.keyless values (5)")
    assert shop.run("shop/shop.keyless")["rows_out"] == 1
    shop.make({**SOURCE, "except": ["shop.seen"]}, SINK, name="shop")
    run(shop)
    assert (warnings(shop), shop.one("select id from copy.keyless")) == ({}, 5)
    assert sorted(tables(shop)) == ["customer", "keyless", "orders", "product"]


def test_a_right_that_is_missing_is_named_with_the_grant(shop: Bench) -> None:
    role = f"reads_shop_{os.getpid()}"
    shop.sql(f"create role {role} login; grant usage on schema shop to {role}")
    shop.sql(f"grant select on shop.orders, shop.product to {role}")
    try:
        shop.make({**SOURCE, "dsn": make_conninfo(shop.dsn, user=role)}, SINK, name="shop")
        run(shop)
        ((warning, hint),) = warnings(shop).items()
        assert warning == f'pipeline "shop/shop.customer" stands still: role {role} may not read it'
        assert words(shop, "copy.orders") == ["orders"] * 2
        for statement in hint.split(";")[:2]:
            shop.sql(statement)
        run(shop)
        assert (warnings(shop), words(shop, "copy.customer")) == ({}, ["customer"] * 2)
    finally:
        shop.sql(f"drop owned by {role}; drop role {role}")


def test_one_failing_table_stops_no_other_and_a_changed_definition_reaches_each(shop: Bench) -> None:
    shop.make(SOURCE, SINK, name="shop")
    run(shop)
    shop.sql("alter table copy.orders add constraint small check (id < 3)")
    for name in NAMES:
        shop.sql(f"insert into shop.{name} values (3, 'secret')")
    shop.run("shop")
    for message in shop.client.lease("pipelines", "default", "bench", 10):
        shop.client.release(message)
        if message.payload == {"table": "shop.orders"}:
            with pytest.raises(Exception, match="small"):
                shop.execute(message.id)
        else:
            assert shop.execute(message.id)["rows_out"] == 1
    worst = shop.client.list_instances("shop", 1)[0]
    assert (worst.value, worst.failures, worst.instances) == ("shop.orders", 1, 3)
    assert "small" in str(shop.client.list_pipelines("shop")[0].error)
    # With a run open, too, a table may be left out, and another rule given.
    shop.make({**SOURCE, "except": "shop.customer"}, SINK, name="shop", columns={"mask": {"word": "null"}})
    shop.sql("alter table copy.orders drop constraint small")
    run(shop)
    assert words(shop, "copy.orders") == ["orders", "orders", None]
    assert "matches no more" in str(tables(shop)["customer"].refused)


def test_paused_and_dropped_it_takes_its_tables_along(shop: Bench) -> None:
    shop.make(SOURCE, SINK, name="shop")
    run(shop)
    shop.client.pause_pipeline("shop")
    assert all(row.paused for row in tables(shop).values())
    assert shop.client.resume_pipeline("shop")
    shop.client.pause_pipeline("shop/shop.orders")
    assert [name for name, row in tables(shop).items() if row.paused] == ["orders"]
    shop.client.drop_pipeline("shop")
    assert shop.one("select count(*) from trunq.pipeline") == 0
    assert words(shop, "copy.product") == ["product"] * 2


def test_odd_and_long_names_have_an_instance_a_table_and_a_directory_of_their_own(
    shop: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    odd = ["Orders", "a.b", 'say "hi"', "../up", "..", "x" * 63, "x" * 62 + "y", "100%", "*", "naïve", "a b"]
    odd += ["'; drop table shop.orders; --", "$$", "new\nline", "_x"]
    for at, name in enumerate(odd):
        quoted = '"' + name.replace('"', '""') + '"'
        shop.connection.execute(f"create table shop.{quoted} (id int primary key, word text)".encode())
        shop.connection.execute(f"insert into shop.{quoted} values ({at}, 'odd')".encode())
    shop.sql('create table shop."${HOME}" (id int primary key)')
    shop.make(SOURCE, SINK, name="shop")
    shop.make(SOURCE, {"format": "delta", "path": "lake/${schema}/${table}", "mode": "append"}, name="lake")
    run(shop, "lake")
    run(shop)
    assert sorted(warnings(shop)) == [
        f'pipeline "{name}/{value_of_table("shop", "${HOME}")}" stands still: its name has ${{, which stands'
        " for a variable in a definition"
        for name in ("lake", "shop")
    ]
    assert len(tables(shop)) == len(odd) + 4
    for at, name in enumerate(odd):
        quoted = '"' + name.replace('"', '""') + '"'
        assert shop.connection.execute(f"select id from copy.{quoted}".encode()).fetchall() == [(at,)], name
    lakes = list((tmp_path / "lake" / "shop").iterdir())
    assert sorted(len(DeltaTable(path).to_pyarrow_table()) for path in lakes) == [1] * len(odd) + [2] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]
    # A second look finds all as it was.
    run(shop)
    assert {row.runs for row in tables(shop).values() if row.refused is None} == {1}


def test_tables_of_one_name_in_two_schemas_are_told_apart(shop: Bench) -> None:
    shop.sql("create schema other; create table other.orders (id int primary key, word text)")
    shop.sql("insert into other.orders values (9, 'other')")
    both = {**SOURCE, "tables": ["shop.*", "other.*"]}
    shop.make(both, SINK, name="shop")
    run(shop)
    ((warning, hint),) = warnings(shop).items()
    assert warning == (
        'pipeline "shop/shop.orders" stands still: its rows would be written into the same as those of'
        " other.orders"
    )
    assert "${schema}" in hint
    shop.make(both, {**SINK, "table": "copy.${schema}_${table}"}, name="shop")
    run(shop)
    assert warnings(shop) == {}
    assert words(shop, "copy.shop_orders") == ["orders"] * 2


def test_what_it_writes_itself_is_no_table_to_be_read(shop: Bench) -> None:
    shop.make(SOURCE, {**SINK, "table": "shop.copy_of_${table}"}, name="shop")
    run(shop)
    run(shop)
    assert sorted(tables(shop)) == sorted(NAMES)
    assert words(shop, "shop.copy_of_orders") == ["orders"] * 2
    shop.make(SOURCE, {**SINK, "table": "shop.${table}"}, name="itself")
    shop.run("itself")
    rows = shop.client.list_instances("itself")
    assert {row.refused for row in rows} == {"its rows would be written into itself"}


def test_a_partition_is_part_of_its_table_and_a_key_may_be_renamed(shop: Bench) -> None:
    shop.sql(
        "create table shop.day (id int, day int, word text, primary key (id, day)) partition by list (day)"
    )
    shop.sql("create table shop.day_1 partition of shop.day for values in (1)")
    shop.sql("insert into shop.day values (1, 1, 'p')")
    shop.make({**SOURCE, "tables": "shop.day*"}, SINK, name="shop", columns={"rename": {"id": "number"}})
    run(shop)
    shop.sql("update shop.day set word = 'q'")
    run(shop)
    assert sorted(tables(shop)) == ["day"]
    assert tables(shop)["day"].message["key"] == ["id", "day"]
    assert shop.sql("select number, day, word from copy.day") == [(1, 1, "q")]


def test_a_column_that_the_index_of_a_key_only_includes_is_no_part_of_the_key(shop: Bench) -> None:
    shop.sql("create table shop.wide (id int, word text, primary key (id) include (word))")
    shop.sql("insert into shop.wide values (1, 'a')")
    shop.make({**SOURCE, "tables": "shop.wide"}, SINK, name="shop")
    run(shop)
    shop.sql("update shop.wide set word = 'b'")
    run(shop)
    assert tables(shop)["wide"].message["key"] == ["id"]
    assert shop.sql("select id, word from copy.wide") == [(1, "b")]


def test_two_looks_at_once_and_those_that_are_killed_read_each_row_once(shop: Bench) -> None:
    shop.make(SOURCE, {**SINK, "mode": "append"}, name="shop")
    assert execute_and_die(shop.dsn, shop.asked(shop.client.run_pipeline("shop")), "found") == -9
    assert shop.client.list_instances("shop") == []
    assert execute_and_die(shop.dsn, shop.asked(shop.client.run_pipeline("shop")), "looked") == -9
    assert sorted(tables(shop)) == sorted(NAMES)
    for _ in range(3):
        shop.client.run_pipeline("shop")
    runners = [threading.Thread(target=Runner(shop.dsn, until_empty=True).run) for _ in range(2)]
    for each in runners:
        each.start()
    for each in runners:
        each.join(120)
    run(shop)
    assert {row.runs for row in tables(shop).values()} == {1}
    for name in NAMES:
        assert words(shop, f"copy.{name}") == [name] * 2


def test_a_run_of_a_table_that_is_killed_at_any_point_brings_each_row_once(shop: Bench) -> None:
    shop.make(SOURCE, {**SINK, "mode": "append"}, name="shop")
    for at, point in enumerate(some(POINTS[::3], POINTS), 3):
        shop.sql(f"insert into shop.orders values ({at}, 'x')")
        asked = shop.asked(shop.client.run_pipeline("shop", {"table": "shop.orders"}))
        assert execute_and_die(shop.dsn, asked, point) == -9, point
        shop.sql("update trunq.pipeline_run set held_until = null")
        run(shop)
        assert shop.sql("select count(*), count(distinct id) from copy.orders") == [(at, at)], point
    assert words(shop, "copy.product") == ["product"] * 2


def test_a_look_that_another_overtook_or_whose_definition_changed_begins_anew(shop: Bench) -> None:
    shop.make(SOURCE, SINK, name="shop")
    control = shop.executor.control
    begun = control.begin_look("shop")
    shop.make({**SOURCE, "except": ["shop.orders"]}, SINK, name="shop")
    assert control.take_tables("shop", begun["look"], [], asks=True) is None
    begun = control.begin_look("shop")
    shop.run("shop")
    assert control.take_tables("shop", begun["look"], [], asks=True) is None
    assert sorted(tables(shop)) == ["customer", "product"]


def test_a_trigger_looks_at_each_of_its_times_and_asks_for_no_table_twice(shop: Bench) -> None:
    shop.make(SOURCE, SINK, name="shop", trigger={"every": "10 minutes"})
    first = shop.execute(shop.client.publish("pipelines", None, kind="shop"))
    assert (first["outcome"], first["asked"], first["tables"]) == ("asked", 3, 3)
    assert shop.execute(shop.client.publish("pipelines", None, kind="shop"))["asked"] == 0
    shop.sql("create table shop.visit (id int primary key)")
    assert shop.execute(shop.client.publish("pipelines", None, kind="shop"))["asked"] == 1


def test_a_message_of_a_queue_names_the_table(shop: Bench) -> None:
    shop.client.create_queue("changes")
    shop.make(SOURCE, SINK, name="shop", trigger={"on": "message", "queue": "changes"})
    shop.client.publish("changes", {"table": "shop.orders"})
    assert shop.one("select trunq._relay('shop')") == 1
    Runner(shop.dsn, until_empty=True).run()
    assert [row.pipeline for row in shop.client.list_runs("shop")] == ["shop/shop.orders"]


def test_shares_of_a_table_are_runs_of_that_one_alone(shop: Bench) -> None:
    shop.sql("alter table shop.orders add at timestamptz default now()")
    shop.make({**SOURCE, "tables": "shop.orders"}, {**SINK, "newest": "at"}, name="shop")
    run(shop)
    shop.sql("delete from copy.orders")
    whole = {"column": "id", "from": "1", "to": "3"}
    with pytest.raises(InvalidPipeline, match="no runs of its own"):
        shop.client.backfill_pipeline("shop", whole, "1")
    shop.client.backfill_pipeline("shop/shop.orders", whole, "1")
    Runner(shop.dsn, until_empty=True).run()
    assert words(shop, "copy.orders") == ["orders"] * 2
    assert [row.outcome for row in shop.client.list_backfills("shop/shop.orders")] == ["done"]


def everything(bench: Bench) -> dict[str, Any]:
    """All that lies in the database: which rows, written by which transaction, and where sequences stand."""
    rows = bench.sql(
        "select c.oid::regclass::text, c.relkind::text from pg_class c join pg_namespace n"
        " on n.oid = c.relnamespace where c.relkind in ('r', 'S')"
        " and n.nspname !~ '^(pg_|information_schema)'"
    )
    columns = {"r": "t::text, xmin::text", "S": "last_value, is_called::text"}
    return {name: bench.sql(f"select {columns[kind]} from {name} t order by 1") for name, kind in rows}


def test_the_plan_tells_of_each_table_what_its_run_would_do_and_writes_nothing(
    shop: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    shop.sql("create table shop.keyless (id int)")
    shop.make(SOURCE, SINK, name="shop")
    dsn = make_conninfo(shop.dsn, options="-c default_transaction_read_only=on")
    before = everything(shop)
    planned = plan_pipeline("shop", dsn)
    assert planned.reads == "4 tables, 4 of them new, and each has a next run of its own"
    each = {one.pipeline: one for one in planned.instances or []}
    orders = each["shop/shop.orders"]
    assert (orders.reads, orders.rows, orders.is_exact) == ("all rows of shop.orders", 2, True)
    assert (orders.columns, orders.makes_sink) == ({"id": "integer", "word": "text"}, True)
    assert orders.engine == "process"
    assert "pipeline.spark_from_bytes is 200,000,000" in orders.why
    keyless = each["shop/shop.keyless"].refused
    assert [one["message"].partition(",")[0] for one in keyless] == [
        "it cannot be read: it has no primary key"
    ]
    assert [one.pipeline for one in plan_pipeline("shop", dsn, limit=1).instances or []] == [
        "shop/shop.customer"
    ]
    assert everything(shop) == before
    run(shop)
    shop.sql("insert into shop.product values (3, 'p'); drop table shop.orders")
    before = everything(shop)
    planned = plan_pipeline("shop", dsn)
    assert planned.reads.startswith("3 tables, 0 of them new")
    assert any("shop/shop.orders is gone" in note for note in planned.notes)
    assert {one.pipeline: one.rows for one in planned.instances or []} == {
        "shop/shop.customer": 0, "shop/shop.keyless": None, "shop/shop.product": 1,
    }  # fmt: skip
    assert plan_pipeline("shop/shop.product", dsn).rows == 1
    assert everything(shop) == before
    assert list(tmp_path.iterdir()) == []


def test_no_table_at_all_is_a_warning(shop: Bench) -> None:
    shop.make({**SOURCE, "tables": ["shpo.*"]}, SINK, name="shop")
    run(shop)
    assert list(warnings(shop)) == ['pipeline "shop" has found no table that matches ["shpo.*"]']
    shop.make(SOURCE, SINK, name="shop")
    run(shop)
    assert warnings(shop) == {}


def test_the_older_release_is_refused_until_the_pipeline_is_dropped(shop: Bench) -> None:
    shop.make(SOURCE, SINK, name="shop")
    run(shop)
    back = next(each.sql for each in back_migrations().values() if each.name.endswith("_tables"))
    with (
        pytest.raises(psycopg.errors.RaiseException, match='pipeline "shop" has many tables') as refused,
        shop.connection.transaction(),
    ):
        shop.sql(back)
    assert "trunq pipeline drop shop" in str(refused.value)
    shop.client.drop_pipeline("shop")
    assert shop.one("select count(*) from trunq.pipeline") == 0


def test_a_message_that_names_no_table_does_not_ask_many_tables_for_runs(shop: Bench) -> None:
    each = {"message": {"customer": "text"}, "per": "message.customer"}
    one = {"format": "table", "table": "orders_${message.customer}"}
    copy = {"format": "table", "table": "copy_${message.customer}"}
    shop.make(SOURCE, SINK, name="shop")
    shop.make(one, copy, name="customers", **each)
    plain = {"format": "table", "table": "copy.every"}
    for first, given in (
        ("customers", (one, copy)),
        ("plain", ({**plain, "table": "shop.orders"}, plain)),
        ("shop", (SOURCE, SINK)),
    ):
        more = {
            **(each if first == "customers" else {}),
            "then": ["customers" if first == "shop" else "shop"],
        }
        with pytest.raises(InvalidPipeline, match="one of them has a run for each table") as refused:
            shop.make(*given, name=first, **more)
        assert "a trigger of its own" in str(refused.value.hint)
    # A pipeline without per runs after each of the tables.
    shop.make({**plain, "table": "shop.orders"}, plain, name="after")
    shop.make(SOURCE, SINK, name="shop", then=["after"])
    run(shop)
    assert shop.one("select count(*) from copy.every") == 2
