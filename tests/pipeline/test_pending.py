"""Work that is pending, and nobody is told (dlt#3227): each of these is named, with why and what helps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.piping import Bench
from pipeline.test_instance import EACH, SINK, SOURCE, customers
from trunq.errors import TrunqError
from trunq.pipeline.errors import MessageRefused, Wait
from waiting import wait_until

SECRETS = {"from": "function", "function": "pipeline.customers:secrets_of"}


def warnings(bench: Bench, part: str) -> list[tuple[str, str | None]]:
    """Those with a text in them, and what helps."""
    found = bench.client.list_warnings("pipelines")
    return [(each.warning, each.hint) for each in found if part in each.warning]


def fail(bench: Bench, pipeline: str, payload: Any = None, times: int = 1) -> None:
    """Ask for a run once, which fails each time that it is tried."""
    message = bench.client.run_pipeline(pipeline, payload)
    for _ in range(times):
        with pytest.raises(TrunqError):
            bench.execute(message)
    held = bench.client.lease("pipelines", "default", "bench", 100)
    bench.client.ack([each for each in held if each.id == message])


def test_runs_that_wait_for_a_runner_are_named(bench: Bench) -> None:
    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH)
    bench.client.run_pipeline(name, {"customer": "acme"})
    bench.sql("set trunq.clock_offset = '10 minutes'")
    found = bench.sql("select subscription, warning, hint from trunq.list_warnings('pipelines')")
    assert [row for row in found if row[0] == "default" and "nobody has read" in row[1]], found


def test_a_run_that_cannot_begin_is_named_until_it_can(bench: Bench) -> None:
    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH)
    bench.run(name, {"customer": "acme"})
    fail(bench, name, {"customer": "gone"}, times=2)
    assert warnings(bench, "has begun no run") == [], "twice may be a moment"
    fail(bench, name, {"customer": "gone"})
    first, other = bench.client.list_instances(name)
    assert (first.value, first.failures, first.open_run) == ("gone", 3, None)
    assert first.error is not None
    assert "source_gone" in first.error
    assert first.failing_since is not None
    assert (other.failures, other.error) == (0, None)
    assert "source_gone" in str(bench.client.list_pipelines(f"{name}/gone")[0].error)
    assert f"{name}/gone: " in str(bench.client.list_pipelines(name)[0].error)
    [(warning, hint)] = warnings(bench, "has begun no run")
    assert f'pipeline "{name}/gone" has begun no run since' in warning
    assert hint is not None
    assert hint.endswith(f"trunq pipeline run {name}/gone")
    customers(bench, "gone")
    assert bench.run(f"{name}/gone")["rows_out"] == 1
    assert warnings(bench, "has begun no run") == []
    assert [row.failures for row in bench.client.list_instances(name)] == [0, 0]


def test_a_source_with_nothing_new_ends_the_failures_too(bench: Bench) -> None:
    bench.sql("create table source (id int)")
    name = bench.make({"format": "table", "table": "source"}, {"format": "table", "table": "moved"})
    bench.sql("alter table source rename to away")
    fail(bench, name, times=3)
    assert len(warnings(bench, f'pipeline "{name}" has begun no run')) == 1
    bench.sql("alter table away rename to source")
    assert bench.run(name) == {"outcome": "nothing new"}
    assert warnings(bench, "has begun no run") == []
    assert bench.client.list_pipelines(name)[0].error is None


def test_credentials_that_fail_are_counted_before_a_run_and_in_an_open_one(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    customers(bench, "acme")
    name = bench.make(
        SOURCE,
        {**SINK, "dsn": "${credentials.dsn}"},
        **EACH,
        credentials=SECRETS,
    )
    secrets = tmp_path / "secrets.json"
    monkeypatch.setenv("SECRETS", str(secrets))
    secrets.write_text("{}")
    fail(bench, name, {"customer": "acme"}, times=2)
    [row] = bench.client.list_instances(name)
    assert (row.failures, row.open_run) == (2, None)
    assert "gives no credentials of 'acme'" in str(row.error)

    secrets.write_text(json.dumps({"acme": {"dsn": bench.dsn}}))
    bench.sql("create table moved_acme (id int check (id > 1), word text)")
    fail(bench, name, {"customer": "acme"})
    [row] = bench.client.list_instances(name)
    assert (row.failures, row.open_run) == (1, 1), "of its open run from now on"
    secrets.write_text("{}")
    fail(bench, name, {"customer": "acme", "again": True})
    [row] = bench.client.list_instances(name)
    assert (row.failures, row.open_run) == (2, 1)
    assert "gives no credentials" in str(row.error)

    secrets.write_text(json.dumps({"acme": {"dsn": bench.dsn}}))
    bench.sql("alter table moved_acme drop constraint moved_acme_id_check")
    bench.run(f"{name}/acme")
    [row] = bench.client.list_instances(name)
    assert (row.failures, row.open_run, row.runs) == (0, None, 1)


def test_an_open_run_whose_message_is_dead_is_named_and_the_way_out_ends_it(bench: Bench) -> None:
    customers(bench, "acme", "other")
    bench.sql("create table moved_acme (id int check (id > 1), word text)")
    name = bench.make(SOURCE, SINK, **EACH)
    bench.run(name, {"customer": "other"})
    message = bench.client.run_pipeline(name, {"customer": "acme"})
    with pytest.raises(TrunqError):
        bench.execute(message)
    assert warnings(bench, "nobody goes on") == [], "its message is tried again"
    held = bench.client.lease("pipelines", "default", "bench", 10)
    bench.client.reject(held[0], "for good")
    [(warning, hint)] = warnings(bench, "nobody goes on")
    assert f'run 1 of pipeline "{name}/acme" is open' in warning
    assert (
        hint == f"to go on: trunq pipeline run {name}/acme; to give it up: trunq pipeline cancel {name}/acme"
    )
    bench.sql("alter table moved_acme drop constraint moved_acme_id_check")
    bench.run(f"{name}/acme")
    assert bench.one("select count(*) from moved_acme") == 1
    assert warnings(bench, "nobody goes on") == []


@pytest.mark.parametrize("paused", ["instance", "pipeline"])
def test_a_pause_that_a_run_waits_for_is_named_with_what_ends_it(bench: Bench, paused: str) -> None:
    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH)
    bench.run(name, {"customer": "acme"})
    one = name if paused == "pipeline" else f"{name}/acme"
    bench.client.pause_pipeline(one)
    assert warnings(bench, "is paused") == [], "nobody has asked"
    message = bench.client.run_pipeline(f"{name}/acme")
    with pytest.raises(Wait):
        bench.execute(message)
    [row] = bench.client.list_instances(name)
    assert (row.put_off_for, row.put_off_until) == ("pause", None)
    [(warning, hint)] = warnings(bench, "is paused")
    assert warning.startswith(f'pipeline "{name}/acme" is paused')
    assert hint == f"trunq pipeline resume {one}"
    bench.client.resume_pipeline(one)
    assert warnings(bench, "is paused") == []
    bench.execute(message)
    assert bench.client.list_instances(name)[0].put_off_for is None


def test_a_rate_that_puts_off_for_hours_is_named(bench: Bench) -> None:
    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH, limits={"rate": "1/day"})
    bench.run(name, {"customer": "acme"})
    bench.sql("insert into source_acme values (2, 'more')")
    with pytest.raises(Wait):
        bench.run(name, {"customer": "acme", "more": True})
    [(warning, _)] = warnings(bench, "limits.rate (1/day)")
    assert f'pipeline "{name}/acme"' in warning
    bench.make(SOURCE, SINK, **EACH, limits={"rate": "2/day"}, name=name)
    assert bench.run(f"{name}/acme")["rows_out"] == 1
    assert warnings(bench, "limits.rate") == []


def test_values_of_a_trigger_that_cannot_be_are_named_until_they_can(bench: Bench) -> None:
    customers(bench, "acme")
    bench.sql("create table customer (name text)")
    bench.sql("insert into customer values ('acme'), ('../x'), (''), ('Big Co'), (null)")
    trigger = {"every": "1 hour", "for": {"table": "customer", "column": "name"}}
    name = bench.make(SOURCE, SINK, **EACH, trigger=trigger)

    def fire() -> None:
        bench.execute(bench.client.publish("pipelines", None, kind=name))

    fire()
    [(warning, hint)] = warnings(bench, "asks for no run")
    assert f'pipeline "{name}" asks for no run of 3 values that its trigger found: ' in warning
    assert "../x" in warning
    assert "Big Co" in warning
    assert hint is not None
    assert hint.startswith("correct them in customer, or give message a pattern: trunq pipeline create FILE")
    # What it says: corrected, or no more there.
    bench.sql(
        "delete from customer where name in ('', '../x'); update customer set name = 'big' where name ~ ' '"
    )
    fire()
    assert warnings(bench, "asks for no run") == []
    bench.sql("insert into customer values ('Acme')")
    fire()
    assert len(warnings(bench, "asks for no run of a value")) == 1
    bench.make(
        SOURCE,
        SINK,
        message={"customer": {"pattern": "[A-Za-z]+"}},
        per="message.customer",
        trigger=trigger,
        name=name,
    )
    assert warnings(bench, "asks for no run") == []
    fire()
    assert warnings(bench, "asks for no run") == []


def test_numbers_of_a_trigger_that_cannot_be_are_named(bench: Bench) -> None:
    bench.sql("create table customer (number int); insert into customer values (7), (-7)")
    trigger = {"every": "1 hour", "for": {"table": "customer", "column": "number"}}
    name = bench.make(SOURCE, SINK, message={"customer": "integer"}, per="message.customer", trigger=trigger)
    assert bench.execute(bench.client.publish("pipelines", None, kind=name))["instances"] == 1
    assert "-7 is not as" in warnings(bench, "asks for no run of a value")[0][0]


def test_a_trigger_whose_table_is_gone_is_named_until_it_is_back(bench: Bench) -> None:
    bench.sql("create table customer (name text)")
    trigger = {"every": "1 hour", "for": {"table": "customer", "column": "name"}}
    name = bench.make(SOURCE, SINK, **EACH, trigger=trigger)
    bench.sql("alter table customer rename to away")
    message = bench.client.publish("pipelines", None, kind=name)
    for _ in range(3):
        with pytest.raises(Exception, match="customer"):
            bench.execute(message)
    assert len(warnings(bench, f'pipeline "{name}" has begun no run')) == 1
    bench.sql("alter table away rename to customer")
    bench.execute(message)
    assert warnings(bench, "has begun no run") == []


def test_a_message_that_is_refused_counts_for_nobody(bench: Bench) -> None:
    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH)
    bench.run(name, {"customer": "acme"})
    with pytest.raises(MessageRefused):
        bench.execute(bench.client.publish("pipelines", {"customer": "../x"}, kind=name))
    assert [row.failures for row in bench.client.list_instances(name)] == [0]


def test_the_warnings_of_a_customer_are_shown_with_its_pipeline(bench: Bench) -> None:
    from trunq.cli.pipeline.sight import warnings_of  # noqa: PLC0415  # the shell's

    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH)
    fail(bench, name, {"customer": "gone"}, times=3)
    wait_until(lambda: len(warnings_of(bench.client, name)) == 1)
    assert len(warnings_of(bench.client, f"{name}/gone")) == 1
    assert warnings_of(bench.client, f"{name}/acme") == []
