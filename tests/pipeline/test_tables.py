"""Many tables with one definition: found, made, changed, gone, stepped over; each row of each arrives."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from psycopg.conninfo import make_conninfo

from pipeline.killing import execute_and_die
from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline
from trunq.pipeline.definition.many import of_table
from trunq.pipeline.definition.pattern import matches
from trunq.pipeline.plan import plan_pipeline
from trunq.pipeline.runner import Runner
from trunq.record import PipelineTable

SOURCE = {"format": "table", "tables": "shop.*"}
SINK = {"format": "table", "table": "copy.${table}", "mode": "upsert", "key": ["*"]}


@pytest.fixture
def shop(bench: Bench) -> Bench:
    """A schema of three tables, and one that they are copied into."""
    bench.sql("create schema shop; create schema copy")
    for name in ("customer", "orders", "product"):
        bench.sql(f"create table shop.{name} (id int primary key, word text)")
        bench.sql(f"insert into shop.{name} values (1, '{name}'), (2, '{name}')")
    return bench


def run(bench: Bench) -> None:
    """Look, and do all that this asks for."""
    if bench.client.list_pipelines("shop")[0].paused is False:
        bench.client.run_pipeline("shop")
    Runner(bench.dsn, until_empty=True).run()


def tables(bench: Bench) -> dict[str, PipelineTable]:
    return {row.table_name: row for row in bench.client.list_pipeline_tables("shop")}


def words(bench: Bench, table: str) -> list[str]:
    return [word for (word,) in bench.sql(f"select word from {table} order by id")]


def warnings(bench: Bench) -> list[tuple[str, str]]:
    return [
        (row.warning, row.hint) for row in bench.client.list_warnings("pipelines") if "table" in row.warning
    ]


def test_each_table_has_a_pipeline_with_state_runs_and_figures_of_its_own(shop: Bench) -> None:
    shop.make(SOURCE, SINK, name="shop")
    run(shop)
    for name in ("customer", "orders", "product"):
        assert words(shop, f"copy.{name}") == [name] * 2
        (one,) = shop.client.list_runs(f"shop__{name}")
        assert (one.rows_out, one.started_by) == (2, "shop")
    assert {row.pipeline: row.state for row in tables(shop).values()} == {
        "shop__customer": "done", "shop__orders": "done", "shop__product": "done",
    }  # fmt: skip
    assert [row.pipeline for row in shop.client.list_pipelines()] == ["shop"]
    assert len(shop.client.list_runs("shop")) == 3
    definition = shop.client.list_pipelines("shop__orders")[0].definition
    assert definition == {
        "source": {"format": "table", "table": "shop.orders"},
        "sink": {"format": "table", "table": "copy.orders", "mode": "upsert", "key": ["id"]},
    }
    shop.sql("insert into shop.orders values (3, 'new')")
    run(shop)
    assert words(shop, "copy.orders") == ["orders", "orders", "new"]
    assert len(shop.client.list_runs("shop__customer")) == 1


def test_a_new_table_comes_along_and_one_that_is_gone_is_said_with_the_command(shop: Bench) -> None:
    shop.make(SOURCE, SINK, name="shop")
    run(shop)
    shop.sql(
        "create table shop.visit (id int primary key, word text); insert into shop.visit values (1, 'v')"
    )
    shop.sql("drop table shop.orders")
    run(shop)
    assert words(shop, "copy.visit") == ["v"]
    assert words(shop, "copy.orders") == ["orders"] * 2
    assert tables(shop)["orders"].state == "gone"
    ((warning, hint),) = warnings(shop)
    assert warning == (
        'table shop.orders of pipeline "shop" is gone, or matches no more: pipeline "shop__orders" reads nothing'
    )
    command = re.search(r"trunq pipeline drop (\w+)", hint)
    assert command is not None
    runs = len(shop.client.list_runs("shop__orders"))
    run(shop)
    assert len(shop.client.list_runs("shop__orders")) == runs
    # Back again, it goes on where it was.
    shop.sql(
        "create table shop.orders (id int primary key, word text); insert into shop.orders values (7, 'back')"
    )
    run(shop)
    assert (tables(shop)["orders"].state, warnings(shop)) == ("done", [])
    assert words(shop, "copy.orders") == ["orders", "orders", "back"]
    with pytest.raises(InvalidPipeline, match="which is there") as refused:
        shop.client.drop_pipeline(command[1])
    # That way out, to its end.
    assert "except = ['shop.orders']" in str(refused.value.hint)
    shop.make({**SOURCE, "except": ["shop.orders"]}, SINK, name="shop")
    run(shop)
    shop.client.drop_pipeline(command[1])
    assert (sorted(tables(shop)), warnings(shop)) == (["customer", "product", "visit"], [])
    assert words(shop, "copy.orders") == ["orders", "orders", "back"]


def test_what_cannot_be_taken_is_stepped_over_and_named_and_the_others_go_on(shop: Bench) -> None:
    shop.sql("create view shop.seen as select 1 as id; create table shop.keyless (id int)")
    shop.make(SOURCE, SINK, name="shop")
    run(shop)
    assert words(shop, "copy.orders") == ["orders"] * 2
    told = dict(warnings(shop))
    assert sorted(told) == [
        'pipeline "shop" steps over table shop.keyless: it has no primary key, by which its rows are found in'
        " the sink",
        'pipeline "shop" steps over table shop.seen: it is a view, whose rows do not say when they were written',
    ]
    assert all("without it: except = ['shop." in hint for hint in told.values())
    first = shop.client.list_pipeline_tables("shop")[0]
    assert (first.table_name, first.state, first.pipeline, first.tables) == ("keyless", "refused", None, 5)
    # The ways out: a key, and left out.
    shop.sql("alter table shop.keyless add primary key (id); insert into shop.keyless values (5)")
    shop.make({**SOURCE, "except": ["shop.seen"]}, SINK, name="shop")
    run(shop)
    assert warnings(shop) == []
    assert shop.one("select id from copy.keyless") == 5


def test_a_right_that_is_missing_is_named_with_the_grant(shop: Bench) -> None:
    role = f"reads_shop_{os.getpid()}"
    shop.sql(f"create role {role} login; grant usage on schema shop to {role}")
    shop.sql(f"grant select on shop.orders, shop.product to {role}")
    try:
        source = {**SOURCE, "dsn": make_conninfo(shop.dsn, user=role)}
        shop.make(source, SINK, name="shop")
        run(shop)
        ((warning, hint),) = warnings(shop)
        assert warning == f'pipeline "shop" steps over table shop.customer: role {role} may not read it'
        assert words(shop, "copy.orders") == ["orders"] * 2
        for statement in hint.split(";")[:2]:
            shop.sql(statement)
        run(shop)
        assert (warnings(shop), words(shop, "copy.customer")) == ([], ["customer"] * 2)
    finally:
        shop.sql(f"drop owned by {role}; drop role {role}")


def test_the_definition_changed_changes_that_of_each_table(shop: Bench) -> None:
    shop.make(SOURCE, SINK, name="shop")
    run(shop)
    shop.make(SOURCE, SINK, name="shop", columns={"mask": {"word": "null"}})
    shop.sql("insert into shop.orders values (3, 'secret')")
    run(shop)
    assert words(shop, "copy.orders") == ["orders", "orders", None]
    assert shop.client.list_pipelines("shop__product")[0].definition["columns"] == {"mask": {"word": "null"}}
    assert shop.client.list_pipelines("shop__orders")[0].runs == 2
    with pytest.raises(InvalidPipeline, match='for one table of pipeline "shop"'):
        shop.make({"format": "table", "table": "x"}, {"format": "table", "table": "y"}, name="shop__orders")
    with pytest.raises(InvalidPipeline, match="many tables, each with a state"):
        shop.make({"format": "table", "table": "x"}, {"format": "table", "table": "y"}, name="shop")


def test_paused_cancelled_and_dropped_it_takes_its_tables_along(shop: Bench) -> None:
    shop.make(SOURCE, SINK, name="shop")
    run(shop)
    shop.client.pause_pipeline("shop")
    assert all(row.paused for row in tables(shop).values())
    assert shop.client.resume_pipeline("shop")
    assert not any(row.paused for row in tables(shop).values())
    shop.sql("alter table copy.orders add constraint small check (id < 3)")
    shop.sql("insert into shop.orders values (3, 'x')")
    shop.client.run_pipeline("shop")
    # The run of that table stays open.
    Runner(shop.dsn, until_empty=True).run()
    worst = shop.client.list_pipeline_tables("shop", 1)[0]
    assert (worst.pipeline, worst.state, worst.tables) == ("shop__orders", "failing", 3)
    assert "small" in str(shop.client.list_pipelines("shop")[0].error)
    assert shop.client.cancel_pipeline("shop")
    assert not shop.client.cancel_pipeline("shop")
    assert shop.client.list_runs("shop__orders")[0].outcome == "cancelled"
    for refused in (
        lambda: shop.client.set_pipeline_state("shop", {}),
        lambda: shop.client.backfill_pipeline("shop", {"a": 1}),
    ):
        with pytest.raises(InvalidPipeline, match="many tables") as told:
            refused()
        assert "trunq pipeline tables shop" in str(told.value.hint)
    shop.client.drop_pipeline("shop")
    assert shop.one("select count(*) from trunq.pipeline") == 0
    assert words(shop, "copy.product") == ["product"] * 2


def test_odd_and_long_names_have_a_pipeline_a_table_and_a_directory_of_their_own(
    shop: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    odd = [
        "Orders",
        "a.b",
        'say "hi"',
        "${HOME}",
        "$${x}",
        "${table}",
        "../up",
        "x" * 63,
        "x" * 62 + "y",
        "100%",
        "*",
        "naïve",
        "a b",
    ]
    for at, name in enumerate(odd):
        quoted = '"' + name.replace('"', '""') + '"'
        shop.sql(f"create table shop.{quoted} (id int primary key, word text)".replace("%", "%%"))
        shop.connection.execute(f"insert into shop.{quoted} values ({at}, 'odd')".encode())
    shop.make(SOURCE, SINK, name="shop")
    shop.make(SOURCE, {"format": "delta", "path": "lake/${schema}/${table}"}, name="lake")
    shop.client.run_pipeline("lake")
    run(shop)
    assert (warnings(shop), len(tables(shop))) == ([], 16)
    names = [row.pipeline or "" for row in tables(shop).values()]
    assert all(re.fullmatch(r"shop__[a-z0-9_]{1,42}", name) for name in names)
    assert len(set(names)) == 16
    for at, name in enumerate(odd):
        quoted = '"' + name.replace('"', '""') + '"'
        assert shop.connection.execute(f"select id from copy.{quoted}".encode()).fetchall() == [(at,)], name
    lakes = [path for path in (tmp_path / "lake" / "shop").iterdir()]
    assert len(lakes) == 16
    assert sorted(len(DeltaTable(path).to_pyarrow_table()) for path in lakes) == [1] * 13 + [2] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]
    # A second look finds all as it was.
    before = {row.pipeline: row.runs for row in tables(shop).values()}
    run(shop)
    assert {row.pipeline: row.runs for row in tables(shop).values()} == before
    assert plan_pipeline("shop__orders", shop.dsn).reads == "nothing is new"


def test_tables_of_one_name_in_two_schemas_are_told_apart(shop: Bench) -> None:
    shop.sql("create schema other; create table other.orders (id int primary key, word text)")
    shop.sql("insert into other.orders values (9, 'other')")
    shop.make({**SOURCE, "tables": ["shop.*", "other.*"]}, SINK, name="shop")
    run(shop)
    ((warning, hint),) = warnings(shop)
    assert (
        "steps over table shop.orders: its rows would be written into the same as those of other.orders"
        in warning
    )
    assert "${schema}" in hint
    shop.make(
        {**SOURCE, "tables": ["shop.*", "other.*"]}, {**SINK, "table": "copy.${schema}_${table}"}, name="shop"
    )
    run(shop)
    assert warnings(shop) == []
    assert (words(shop, "copy.shop_orders"), words(shop, "copy.other_orders")) == (["orders"] * 2, ["other"])
    found = [row.pipeline for row in shop.client.list_pipeline_tables("shop") if row.table_name == "orders"]
    assert "shop__orders" in found
    assert len(set(found)) == 2


def test_what_it_writes_itself_is_no_table_to_be_taken(shop: Bench) -> None:
    shop.make(SOURCE, {**SINK, "table": "shop.copy_of_${table}"}, name="shop")
    run(shop)
    run(shop)
    assert sorted(tables(shop)) == ["customer", "orders", "product"]
    assert words(shop, "shop.copy_of_orders") == ["orders"] * 2


def test_a_partition_is_part_of_its_table(shop: Bench) -> None:
    shop.sql(
        "create table shop.day (id int, day int, word text, primary key (id, day)) partition by list (day)"
    )
    shop.sql(
        "create table shop.day_1 partition of shop.day for values in (1); insert into shop.day values (1, 1, 'p')"
    )
    shop.make(SOURCE, SINK, name="shop")
    run(shop)
    assert sorted(tables(shop)) == ["customer", "day", "orders", "product"]
    assert words(shop, "copy.day") == ["p"]
    assert shop.client.list_pipelines("shop__day")[0].definition["sink"]["key"] == ["id", "day"]


def test_two_looks_at_once_and_one_that_is_killed_make_each_pipeline_once(shop: Bench) -> None:
    shop.make(SOURCE, SINK, name="shop")
    assert execute_and_die(shop.dsn, shop.asked(shop.client.run_pipeline("shop")), "looked") == -9
    assert shop.client.list_pipelines("shop")[0].runs == 0
    for _ in range(3):
        shop.client.run_pipeline("shop")
    runners = [threading.Thread(target=Runner(shop.dsn, until_empty=True).run) for _ in range(2)]
    for each in runners:
        each.start()
    for each in runners:
        each.join(120)
    run(shop)
    assert shop.one("select count(*) from trunq.pipeline") == 4
    for name in ("customer", "orders", "product"):
        assert words(shop, f"copy.{name}") == [name] * 2


def test_a_look_that_another_overtook_or_whose_definition_changed_begins_anew(shop: Bench) -> None:
    shop.make(SOURCE, SINK, name="shop")
    control = shop.executor.control
    asked = shop.asked(shop.client.run_pipeline("shop"))
    begun = control.begin_look("shop")
    shop.make({**SOURCE, "except": ["shop.orders"]}, SINK, name="shop")
    assert control.take_tables(asked, begun, []) is None
    assert control.end_look("shop", begun) is None
    begun = control.begin_look("shop")
    shop.run("shop")
    assert control.end_look("shop", begun) is None
    assert sorted(tables(shop)) == ["customer", "product"]


def test_a_trigger_looks_at_each_of_its_times_and_its_message_reaches_each_table(shop: Bench) -> None:
    shop.client.create_queue("changes")
    shop.make(SOURCE, SINK, name="shop", trigger={"on": "message", "queue": "changes"})
    shop.client.publish("changes", {"of": "monday"})
    assert shop.one("select trunq._relay('shop')") == 1
    Runner(shop.dsn, until_empty=True).run()
    assert [row.payload for row in shop.client.list_runs("shop")] == [{"of": "monday"}] * 3


def test_the_plan_of_many_tables_names_what_would_be_made(shop: Bench) -> None:
    shop.sql("create table shop.keyless (id int)")
    shop.make(SOURCE, SINK, name="shop")
    dsn = make_conninfo(shop.dsn, options="-c default_transaction_read_only=on")
    planned = plan_pipeline("shop", dsn)
    assert planned.reads.startswith("3 tables, 3 of them new")
    assert planned.tables is not None
    assert [each["pipeline"] for each in planned.tables] == [None] * 3
    assert "shop.keyless would be stepped over: it has no primary key" in str(planned.refused)
    run(shop)
    shop.sql("drop table shop.orders")
    planned = plan_pipeline("shop", dsn)
    assert planned.reads.startswith("2 tables, 0 of them new")
    assert any("shop.orders is gone" in note for note in planned.notes)
    assert plan_pipeline("shop__product", dsn).reads == "nothing is new"


def test_no_table_at_all_is_a_warning(shop: Bench) -> None:
    shop.make({**SOURCE, "tables": ["shpo.*"]}, SINK, name="shop")
    run(shop)
    ((warning, _),) = warnings(shop)
    assert warning == 'pipeline "shop" has found no table that matches ["shpo.*"]'


@pytest.mark.parametrize(
    ("source", "sink", "more", "said"),
    [
        ({"table": "a", "tables": "a.*"}, SINK, {}, "give table, or tables, not both"),
        ({}, SINK, {}, "table is missing, or tables"),
        ({"table": "a", "except": "a.b"}, {"format": "queue", "queue": "q"}, {}, "except goes with tables"),
        ({"tables": "shop"}, SINK, {}, "'shop' is no pattern of tables: schema.table"),
        ({"tables": "a.b.c"}, SINK, {}, "is no pattern of tables"),
        ({"tables": "a.*"}, {**SINK, "table": "copy"}, {}, "put ${table} into the sink's name"),
        ({"tables": "a.*"}, SINK, {"name": "a" * 31}, "30 characters at most"),
        ({"tables": "a.*"}, SINK, {"trigger": {"continuous": True}}, "give a trigger with every"),
        ({"table": "a"}, {**SINK, "table": "b"}, {}, "goes with source.tables: name the columns"),
        ({"tabels": "a"}, SINK, {}, "there is no source.tabels; is it table"),
        ({"tables": "a.*", "exept": "a.b"}, SINK, {}, "there is no source.exept; is it except?"),
    ],
)  # fmt: skip
def test_a_definition_of_many_tables_that_cannot_be_is_refused(
    source: dict[str, Any], sink: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidPipeline) as refused:
        Pipeline(**{"name": "shop", "source": {"format": "table", **source}, "sink": sink, **more})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("pattern", "named", "others"),
    [
        ("shop.*", ["shop.orders", "shop.a.b"], ["Shop.orders", "shops.orders"]),
        ("*.*", ["a.b"], []),
        ("shop.order_*", ["shop.order_x", "shop.order_"], ["shop.orders", "shop.orderxx"]),
        ('shop."a.b"', ["shop.a.b"], ["shop.a", "shop.axb"]),
        ('shop."*"', ["shop.*"], ["shop.x"]),
        ("sh*p.[a]", ["shoop.[a]"], ["shop.a"]),
    ],
)
def test_a_pattern_names_tables(pattern: str, named: list[str], others: list[str]) -> None:
    for name in named:
        assert matches(pattern, *name.split(".", 1)), name
    for name in others:
        assert not matches(pattern, *name.split(".", 1)), name


def test_a_name_that_would_be_too_long_in_the_sink_is_refused() -> None:
    many = Pipeline("shop", source=SOURCE, sink={**SINK, "table": "copy.copy_of_${table}"})
    with pytest.raises(InvalidPipeline, match="at most 63 bytes"):
        of_table(many, "shop", "x" * 60, ["id"])
    with pytest.raises(InvalidPipeline, match="at most 63 bytes"):
        of_table(many, "shop", "x." * 30, ["id"])
