"""Runs of pipelines in spans, under the span of the message that asked for them."""

from __future__ import annotations

import asyncio

import pytest

from pipeline.piping import Bench
from tracing import Service, at, linked, told
from trunq import Client
from trunq.pipeline.runner import Runner

TABLE = {"format": "table", "table": "source"}


@pytest.mark.slow
def test_a_run_and_what_spark_does_for_it_are_spans_under_the_message(bench: Bench) -> None:
    service = Service()
    bench.sql("create table source as select generate_series(1, 5) as id")
    bench.client.create_queue("pipelines")
    sink = {"format": "table", "table": "moved"}
    bench.make(TABLE, sink, name="plain")
    bench.make(TABLE, sink | {"table": "doubled"}, name="framed", sql=["select id * 2 as id from input"])
    bench.make({"format": "table", "table": "nowhere"}, sink | {"table": "none"}, name="broken")
    with Client(bench.dsn, telemetry=service.telemetry) as client:
        client.publish("pipelines", kind="plain")
        client.publish("pipelines", kind="framed")
        bench.client.publish("pipelines", kind="broken", options={"max_attempts": 1})
    runner = Runner(bench.dsn, until_empty=True, telemetry=service.telemetry)
    asyncio.run(runner.run_async())
    assert bench.one("select sum(id) from doubled") == 30
    handled = {told(each).get("trunq.message.kind"): each for each in service.spans("process pipelines")}
    published = {told(each)["trunq.message.kind"]: each for each in service.spans("publish pipelines")}
    run, framed = service.span("run plain"), service.spans("run framed")[-1]
    assert run.parent is not None
    assert (run.parent.trace_id, run.parent.span_id) == at(handled["plain"])
    assert linked(handled["plain"]) == [at(published["plain"])]
    assert {name: value for name, value in told(run).items() if name.startswith("trunq.")} == {
        "trunq.pipeline": "plain",
        "trunq.run": 1,
        "trunq.outcome": "done",
        "trunq.rows_in": 5,
        "trunq.rows_out": 5,
        "trunq.rows_bad": 0,
    }
    spark = service.span("spark framed")
    assert spark.parent is not None
    assert spark.parent.span_id == at(framed)[1]
    assert str(told(spark)["trunq.spark.group"]).startswith("trunq framed ")
    assert service.spans("spark plain") == []
    assert handled["broken"].status.status_code.name == "ERROR"
