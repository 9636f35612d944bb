"""Many customers of one definition, one of them slow and one failing; and who asks for their runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pipeline import customers as sources
from pipeline.piping import Bench
from pipeline.test_instance import EACH, SINK, SOURCE, customers
from pipeline.test_runner import running
from scope import some
from trunq.errors import InvalidArgument, InvalidPipeline
from waiting import wait_until

ROWS = {"format": "python", "function": "pipeline.customers:rows"}
MOVED = {"format": "table", "table": "moved"}


@contextmanager
def released() -> Iterator[None]:
    """The slow one ends before its runner is to."""
    try:
        yield
    finally:
        sources.GO_ON.set()


@pytest.mark.slow
def test_a_slow_customer_and_one_that_fails_delay_nobody(bench: Bench) -> None:
    sources.GO_ON.clear()
    sources.BEGUN.clear()
    others = [f"c{n}" for n in range(some(98, 498))]
    # The slow one has asked for more than anybody.
    asked = ["slow", *({"customer": "slow", "more": n} for n in range(20)), "fails", *others]
    name = bench.make(ROWS, MOVED, **EACH)
    for each in asked:
        bench.client.run_pipeline(name, each if isinstance(each, dict) else {"customer": each})
    with running(bench), released():
        assert sources.BEGUN.wait(120)
        wait_until(lambda: bench.one("select to_regclass('moved') is not null"), 120)
        wait_until(lambda: bench.client.list_pipelines(name)[0].runs == len(others), 300)
        assert bench.one("select count(distinct customer) from moved") == len(others)
        # The facts: the slow one is at its first run still, and the other is tried again.
        rows = {row.value: row for row in bench.client.list_instances(name, limit=1000)}
        assert (rows["slow"].runs, rows["slow"].open_run) == (0, 1)
        assert (rows["fails"].runs, rows["fails"].open_run) == (0, 1)
        assert rows["fails"].failures > 0
        assert rows["fails"].error is not None
        assert "the customer's server is away" in rows["fails"].error
        assert next(iter(rows)) == "fails"
        assert {rows[each].runs for each in others} == {1}
        tried = {
            run.pipeline.partition("/")[2]: run.attempts for run in bench.client.list_runs(name, limit=1000)
        }
        assert {tried[each] for each in others} == {1}, "none of them was put back for another's sake"
        sources.GO_ON.set()
        wait_until(lambda: bench.one("select count(*) from moved where customer = 'slow'") > 0, 120)
    assert bench.one("select count(*) - count(distinct (customer, number)) from moved") == 0
    assert bench.one("select count(distinct pipeline) from trunq_sink.mark") >= len(others) + 1


@pytest.mark.slow
def test_the_queue_of_pipelines_has_lanes_where_the_first_has_per(bench: Bench) -> None:
    customers(bench, "acme", "other")
    name = bench.make(SOURCE, SINK, **EACH)
    for customer in ("acme", "acme", "acme", "other"):
        bench.client.run_pipeline(name, {"customer": customer})
    urgent = bench.client.run_pipeline(name, {"customer": "acme"}, priority=-1)
    bench.sql("select trunq.set_lanes('pipelines', p_policy => 'priority')")
    leased = [bench.client.lease("pipelines", "default", "me", 1)[0] for _ in range(3)]
    assert leased[0].id == urgent
    assert {each.key for each in leased[1:]} == {"acme", "other"}


@pytest.mark.slow
def test_a_queue_without_lanes_says_so_to_who_gives_a_priority_and_the_way_out_works(bench: Bench) -> None:
    bench.client.create_queue("pipelines")
    name = bench.make(SOURCE, SINK, **EACH)
    with pytest.raises(InvalidArgument, match=r"priorit"):
        bench.client.run_pipeline(name, {"customer": "acme"}, priority=1)
    assert bench.client.convert_queue("pipelines", lanes="priority,key")
    assert bench.client.run_pipeline(name, {"customer": "acme"}, priority=1)


@pytest.mark.slow
@pytest.mark.parametrize("each", [["acme", "b"], {"table": "customer", "column": "name"}])
def test_a_trigger_asks_for_each_customer_and_not_again_while_that_waits(bench: Bench, each: Any) -> None:
    customers(bench, "acme", "b")
    bench.sql(
        "create table customer (name text); insert into customer values ('acme'), ('b'), ('../x'), (null)"
    )
    name = bench.make(SOURCE, SINK, **EACH, trigger={"every": "1 hour", "for": each, "priority": 3})
    fired = bench.client.publish("pipelines", None, kind=name)
    assert bench.execute(fired) == {"outcome": "asked", "instances": 2}
    # What waits is not asked for twice, though no instance is there yet.
    assert bench.execute(bench.client.publish("pipelines", None, kind=name))["instances"] == 0
    held = bench.client.lease("pipelines", "default", "bench", 10)
    assert sorted((one.key, one.payload["customer"]) for one in held) == [("acme", "acme"), ("b", "b")]
    ids = [one.id for one in held]
    bench.client.release(held)
    for id in ids:
        assert bench.execute(id)["rows_out"] == 1
    # What waits is not asked for twice.
    assert bench.execute(bench.client.publish("pipelines", None, kind=name))["instances"] == 2
    assert bench.execute(bench.client.publish("pipelines", None, kind=name))["instances"] == 0


@pytest.mark.slow
def test_the_table_of_customers_may_lie_at_an_address_that_a_variable_has(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.sql("create table customer (name text); insert into customer values ('acme')")
    each = {"table": "customer", "column": "name", "dsn": "${CRM}"}
    name = bench.make(SOURCE, SINK, **EACH, trigger={"every": "1 hour", "for": each})
    with pytest.raises(InvalidPipeline, match=r"names \$\{CRM\}, which is not in the environment"):
        bench.execute(bench.client.publish("pipelines", None, kind=name))
    monkeypatch.setenv("CRM", "host=127.0.0.1 port=1 password=hush-hush bad=1")
    with pytest.raises(Exception, match="bad") as told:
        bench.execute(bench.client.publish("pipelines", None, kind=name))
    assert "hush-hush" not in str(told.value)
    monkeypatch.setenv("CRM", bench.dsn)
    fired = bench.client.publish("pipelines", None, kind=name)
    assert bench.execute(fired) == {"outcome": "asked", "instances": 1}


@pytest.mark.slow
def test_a_schedule_of_customers_has_messages_of_its_priority(bench: Bench) -> None:
    name = bench.make(SOURCE, SINK, **EACH, trigger={"every": "1 hour", "for": ["acme"], "priority": 3})
    bench.execute(bench.client.publish("pipelines", None, kind=name))
    assert bench.sql("select priority, key from trunq_log.pipelines order by id desc limit 1") == [
        (3, "acme")
    ]


@pytest.mark.slow
def test_messages_of_a_queue_ask_with_the_customer_as_their_key(bench: Bench) -> None:
    bench.client.create_queue("orders")
    name = bench.make(SOURCE, SINK, **EACH, trigger={"on": "message", "queue": "orders"})
    bench.client.publish("orders", {"customer": "acme", "id": 3})
    assert bench.one("select trunq._relay(%s)", name) == 1
    assert bench.sql("select kind, key from trunq_log.pipelines") == [(name, "acme")]


@pytest.mark.slow
def test_instances_start_no_triggers_of_their_own(bench: Bench) -> None:
    customers(bench, "acme")
    bench.client.create_queue("orders")
    name = bench.make(SOURCE, SINK, **EACH, trigger={"on": "message", "queue": "orders"})
    bench.run(name, {"customer": "acme"})
    assert bench.sql("select pipeline from trunq._list_triggered()") == [(name,)]
    bench.client.drop_pipeline(f"{name}/acme")
    bench.client.publish("orders", {"customer": "acme"})
    assert bench.one("select trunq._relay(%s)", name) == 1


@pytest.mark.slow
def test_a_message_that_does_not_fit_is_dead_with_the_reason_and_tried_once(bench: Bench) -> None:
    name = bench.make(SOURCE, SINK, **EACH)
    id = bench.client.publish("pipelines", {"customer": "../x"}, kind=name)
    with running(bench):
        wait_until(lambda: bench.client.list_dead("pipelines"), 60)
    [dead] = bench.client.list_dead("pipelines")
    assert (dead.id, dead.attempts) == (id, 1)
    assert "customer of the message is '../x', which is not as [a-z0-9]" in str(dead.errors)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trigger", "why"),
    [
        ({"every": "1 hour"}, "its trigger says none"),
        ({"continuous": True}, "its trigger says none"),
        ({"every": "1 hour", "for": ["a"], "priority": "high"}, "is a whole number"),
    ],
)
def test_the_database_refuses_triggers_that_cannot_be(bench: Bench, trigger: Any, why: str) -> None:
    definition = {"source": SOURCE, "sink": SINK, **EACH}
    with pytest.raises(InvalidPipeline, match=why):
        bench.client.create_pipeline("p", {**definition, "trigger": trigger})


@pytest.mark.slow
@pytest.mark.parametrize("per", ["customer", "message.", 7, "message.a;b"])
def test_the_database_refuses_a_per_that_cannot_be(bench: Bench, per: Any) -> None:
    with pytest.raises(InvalidPipeline, match=r"per names a field of the message"):
        bench.client.create_pipeline("p", {"source": SOURCE, "sink": SINK, "per": per})


@pytest.mark.slow
def test_an_instance_may_run_in_a_process_of_its_own(bench: Bench) -> None:
    name = bench.make(ROWS, MOVED, **EACH, isolate=True)
    bench.client.run_pipeline(name, {"customer": "acme"})
    with running(bench):
        wait_until(lambda: bench.client.list_pipelines(name)[0].runs == 1, 60)
    assert bench.sql("select customer, number from moved") == [("acme", 1)]
