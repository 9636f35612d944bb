"""Tables of several customers that one definition captures: each has a queue, a subscription and a copy."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline.runner import Runner

SOURCE = {"format": "table", "table": "source_${message.customer}", "changes": "capture"}
COPY = {"format": "table", "table": "copy_${message.customer}", "mode": "apply"}
PER: dict[str, Any] = {"message": {"customer": "text"}, "per": "message.customer"}
CUSTOMERS = ("acme", "globex")


def run(bench: Bench, name: str, customer: str) -> dict[str, Any]:
    return bench.execute(bench.client.run_pipeline(name, {"customer": customer}))


@pytest.fixture
def name(bench: Bench) -> str:
    """A pipeline that has copied the tables of its customers."""
    made = bench.make(SOURCE, COPY, name="orders", **PER)
    for customer in CUSTOMERS:
        bench.sql(f"create table source_{customer} (id int primary key, word text)")
        bench.sql(f"insert into source_{customer} values (1, '{customer}'), (2, 'gone')")
        run(bench, made, customer)
    return made


def queues(bench: Bench) -> int:
    return int(bench.one("select count(*) from trunq.queue where name like 'changes_%%'"))


def test_each_customer_has_changes_of_its_own(bench: Bench, name: str) -> None:
    bench.sql("delete from source_acme where id = 2")
    bench.sql("update source_globex set id = 3 where id = 2")
    for customer in CUSTOMERS:
        assert run(bench, name, customer)["outcome"] == "done"
        copy, source = (
            bench.sql(f"select * from {table}_{customer} order by id") for table in ("copy", "source")
        )
        assert copy == source
        assert run(bench, name, customer) == {"outcome": "nothing new"}
    assert queues(bench) == len(CUSTOMERS)


def test_what_a_capture_made_goes_with_its_customer_and_all_with_the_pipeline(
    bench: Bench, name: str
) -> None:
    bench.client.drop_pipeline(f"{name}/acme")
    assert queues(bench) == 1
    assert [each.table_name for each in bench.client.list_captures()] == ["public.source_globex"]
    bench.client.drop_pipeline(name)
    assert queues(bench) == 0
    assert bench.client.list_captures() == []


def test_a_customer_whose_table_is_read_anew_loses_nothing_of_another(bench: Bench, name: str) -> None:
    bench.sql("truncate source_acme")
    run(bench, name, "acme")
    assert [bench.one(f"select count(*) from copy_{customer}") for customer in CUSTOMERS] == [0, 2]


@pytest.mark.parametrize(
    ("source", "sink", "told"),
    [
        (SOURCE, {**COPY, "table": "copy"}, "mode = 'apply' of each would drop the rows of the others"),
        (
            {**SOURCE, "changes": "all"},
            {"format": "table", "table": "copy", "mode": "upsert", "key": ["id"], "missing": "delete"},
            "missing = 'delete' of each would drop the rows of the others",
        ),
        (SOURCE, {"format": "queue", "queue": "copy", "mode": "apply"}, "mode = 'apply' of each would drop"),
        ({**SOURCE, "subscription": "mine"}, COPY, "subscription is one for all"),
    ],
)
def test_what_would_be_one_of_all_customers_is_refused_until_it_names_them(
    bench: Bench, source: dict[str, Any], sink: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidPipeline, match=told) as caught:
        bench.make(source, sink, **PER)
    assert "write ${message.customer} into" in str(caught.value)
    named = "${message.customer}"
    source = {**source, "subscription": f"mine_{named}"} if "subscription" in source else source
    place = "queue" if "queue" in sink else "table"
    bench.make(source, {**sink, place: f"copy_{named}"}, **PER)


def test_all_tables_of_a_schema_are_copied_with_what_is_deleted(bench: Bench) -> None:
    bench.sql("create schema shop; create schema copy")
    names = ("customer", "orders")
    for name in names:
        bench.sql(f"create table shop.{name} (id int primary key, word text)")
        bench.sql(f"insert into shop.{name} values (1, '{name}'), (2, 'gone')")
    source = {"format": "table", "tables": "shop.*", "changes": "capture"}
    sink = {"format": "table", "table": "copy.${table}", "mode": "apply"}
    made = bench.make(source, sink, name="shop")

    def copied() -> None:
        bench.client.run_pipeline(made)
        Runner(bench.dsn, until_empty=True).run()
        for name in names:
            assert bench.sql(f"select * from copy.{name} order by id") == bench.sql(
                f"select * from shop.{name} order by id"
            )

    copied()
    bench.sql("delete from shop.orders where id = 2; update shop.customer set id = 7 where id = 1")
    copied()
    # The definition is made anew, and nothing begins anew.
    bench.make(source, {**sink, "deletes": "hard"}, name="shop")
    assert queues(bench) == len(names)
    bench.sql("truncate shop.orders; insert into shop.customer values (9, 'new')")
    copied()
    bench.client.drop_pipeline(made)
    assert queues(bench) == 0
    assert bench.client.list_captures() == []
