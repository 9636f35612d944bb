"""Limits of a pipeline, or of each of its customers: what is used up waits, and says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.piping import Bench
from pipeline.test_instance import EACH, SINK, SOURCE, customers
from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline
from trunq.pipeline.errors import Wait


def add(bench: Bench, customer: str, id: int) -> None:
    bench.sql(f"insert into source_{customer} values ({id}, 'more')")


def test_a_quota_of_a_day_puts_off_one_customer_and_says_so(bench: Bench) -> None:
    customers(bench, "acme", "other")
    name = bench.make(SOURCE, SINK, **EACH, limits={"rows_a_day": 1})
    for customer in ("acme", "other"):
        bench.run(name, {"customer": customer})
        add(bench, customer, 2)
    with pytest.raises(Wait) as wait:
        bench.run(name, {"customer": "acme"})
    assert 0 < wait.value.seconds <= 600

    rows = {row.value: row for row in bench.client.list_instances(name)}
    assert (rows["acme"].put_off_for, rows["acme"].rows_today) == ("rows_a_day", 1)
    assert rows["acme"].put_off_until is not None
    assert rows["other"].put_off_for is None
    [warning] = bench.client.list_warnings("pipelines")
    assert (
        warning.warning
        == f'pipeline "{name}/acme" has used its limits.rows_a_day of today (1): runs of it wait'
    )
    # The hint: with other limits it goes on.
    bench.make(SOURCE, SINK, **EACH, limits={"rows_a_day": 10}, name=name)
    assert bench.run(name, {"customer": "acme"})["rows_out"] == 1
    assert bench.client.list_warnings("pipelines") == []


def test_the_next_day_has_a_quota_of_its_own(bench: Bench) -> None:
    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH, limits={"bytes_a_day": 1})
    bench.run(name, {"customer": "acme"})
    add(bench, "acme", 2)
    with pytest.raises(Wait):
        bench.run(name, {"customer": "acme"})
    bench.sql("update trunq.pipeline set day = day - 1")
    assert bench.run(name, {"customer": "acme"})["rows_out"] == 1


def test_a_rate_lets_so_many_runs_begin_and_no_more(bench: Bench) -> None:
    customers(bench, "acme", "other")
    name = bench.make(SOURCE, SINK, **EACH, limits={"rate": "2/hour"})
    for id in (2, 3):
        bench.run(name, {"customer": "acme"})
        add(bench, "acme", id)
    with pytest.raises(Wait):
        bench.run(name, {"customer": "acme"})
    assert bench.client.list_instances(name)[0].put_off_for == "rate"
    assert bench.run(name, {"customer": "other"})["number"] == 1
    bench.sql("update trunq.pipeline_run set begun_at = begun_at - interval '1 hour'")
    assert bench.run(name, {"customer": "acme"})["number"] == 3


def test_what_is_begun_goes_on_though_the_quota_is_used_up(bench: Bench) -> None:
    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH, limits={"rows_a_day": 1})
    message = bench.client.run_pipeline(name, {"customer": "acme"})
    begin(bench, name, message)
    bench.sql("update trunq.pipeline set day = (trunq.clock() at time zone 'UTC')::date, day_rows = 5")
    assert bench.execute(message)["rows_out"] == 1


def test_a_backfill_waits_where_one_run_at_a_time_is_allowed(bench: Bench) -> None:
    customers(bench, "acme")
    bench.sql("create table moved_acme (id int unique, word text)")
    sink = {**SINK, "mode": "upsert", "key": ["id"], "newest": "word"}
    name = bench.make(SOURCE, sink, **EACH, limits={"running": 1})
    message = bench.client.run_pipeline(name, {"customer": "acme"})
    begin(bench, name, message)
    backfill = bench.client.backfill_pipeline(f"{name}/acme", {"column": "id", "from": "0", "to": "9"})
    with pytest.raises(Wait):
        bench.execute(backfill)
    bench.execute(message)
    assert bench.execute(backfill)["rows_out"] == 1


def test_of_a_run_and_a_backfill_that_are_planned_at_once_one_begins(bench: Bench) -> None:
    customers(bench, "acme")
    bench.sql("create table moved_acme (id int unique, word text)")
    sink = {**SINK, "mode": "upsert", "key": ["id"], "newest": "word"}
    name = bench.make(SOURCE, sink, **EACH, limits={"running": 1})
    bench.run(name, {"customer": "acme"})
    control = bench.executor.control
    asked = [
        replace(bench.asked(message), pipeline=f"{name}/acme")
        for message in (
            bench.client.run_pipeline(name, {"customer": "acme"}),
            bench.client.backfill_pipeline(f"{name}/acme", {"column": "id", "from": "0", "to": "9"}),
        )
    ]
    planned = [control.open(each) for each in asked]
    assert [each["action"] for each in planned] == ["plan", "plan"]
    begun = [control.begin(*each, {"all": True}) for each in zip(asked, planned, strict=True)]
    assert [each is None for each in begun] == [False, True]
    with pytest.raises(Wait):
        bench.execute(asked[1].message_id)


def test_limits_are_those_of_the_pipeline_where_there_is_no_per(bench: Bench) -> None:
    customers(bench, "a")
    name = bench.make(
        {"format": "table", "table": "source_a"}, {"format": "table", "table": "b"}, limits={"rows_a_day": 1}
    )
    bench.run(name)
    add(bench, "a", 2)
    with pytest.raises(Wait):
        bench.run(name)
    assert f'pipeline "{name}" has used' in bench.client.list_warnings("pipelines")[0].warning


@pytest.mark.parametrize("limits", [{"limits": {"rows_a_day": 10}}, {}])
@pytest.mark.parametrize("more", [0, 1])
def test_nothing_says_that_runs_wait_when_they_do_not(
    bench: Bench, limits: dict[str, Any], more: int
) -> None:
    customers(bench, "a")
    source, sink = {"format": "table", "table": "source_a"}, {"format": "table", "table": "b"}
    name = bench.make(source, sink, limits={"rows_a_day": 1})
    bench.run(name)
    with pytest.raises(Wait):
        bench.run(name)
    assert bench.client.list_warnings("pipelines")
    if more:
        add(bench, "a", 2)
    bench.make(source, sink, **limits, name=name)
    bench.run(name)
    assert bench.client.list_warnings("pipelines") == []


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({}, "limits are empty"),
        ({"rate": "fast"}, "rate is 'fast': as \"10/minute\""),
        ({"rate": "0/hour"}, "rate is"),
        ({"rate": "1001/hour"}, "rate is"),
        ({"running": 0}, "greater than 0"),
        ({"rows_a_day": -1}, "greater than 0"),
        ({"rows_an_hour": 1}, "there is no limits.rows_an_hour; is it rows_a_day"),
    ],
)
def test_limits_that_cannot_be_are_refused(limits: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidPipeline, match=why):
        Pipeline(
            "p",
            source={"format": "table", "table": "a"},
            sink={"format": "table", "table": "b"},
            limits=limits,
        )


@pytest.mark.parametrize("limits", [7, {"rate": "fast"}, {"running": "x"}, {"what": 1}])
def test_the_database_refuses_limits_that_cannot_be(bench: Bench, limits: Any) -> None:
    definition = {"source": {"format": "table", "table": "a"}, "sink": {"format": "table", "table": "b"}}
    with pytest.raises(InvalidPipeline, match=r"limits"):
        bench.client.create_pipeline("p", {**definition, "limits": limits})


def begin(bench: Bench, name: str, message: int) -> None:
    """Begin its run, as somebody who is at it still."""
    control, asked = bench.executor.control, bench.asked(message)
    opened = control.open(asked, {"customer": "acme"})
    mine = replace(asked, pipeline=opened["pipeline"])
    assert control.begin(mine, opened, {"all": True, "message": {"customer": "acme"}})


def test_a_clock_that_went_back_puts_no_run_off_until_the_time_that_it_had(bench: Bench) -> None:
    bench.sql("create table source (id int, customer text)")
    sink = {"format": "table", "table": "moved"}
    name = bench.make({"format": "table", "table": "source"}, sink, limits={"rate": "1/minute"})
    bench.sql("insert into source values (1, 'acme')")
    bench.run(name)
    bench.sql("update trunq.pipeline_run set begun_at = begun_at + interval '1 day'")
    bench.sql("insert into source values (2, 'acme')")
    assert bench.run(name)["rows_out"] == 1
