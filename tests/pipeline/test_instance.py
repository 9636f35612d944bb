"""One definition, many customers: a state, a mark and runs for each value of `per`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline.control import Run
from trunq.pipeline.errors import MessageRefused, Wait
from trunq.pipeline.work.share import unsliced
from trunq.sql import back_migrations
from waiting import wait_until

EACH: dict[str, Any] = {"message": {"customer": "text"}, "per": "message.customer"}
SOURCE = {"format": "table", "table": "source_${message.customer}"}
SINK = {"format": "table", "table": "moved_${message.customer}"}


def customers(bench: Bench, *names: str) -> None:
    for name in names:
        bench.sql(f'create table "source_{name}" (id int, word text)')
        bench.sql(f"insert into \"source_{name}\" values (1, '{name}')")


def ask(bench: Bench, pipeline: str, payload: Any) -> int:
    """Publish what asks for a run, unchecked."""
    return bench.client.publish("pipelines", payload, kind=pipeline)


def test_each_customer_has_a_table_a_state_and_numbers_of_its_own(bench: Bench) -> None:
    customers(bench, "acme", "b-2")
    name = bench.make(SOURCE, SINK, **EACH)
    assert bench.run(name, {"customer": "acme"})["number"] == 1
    bench.sql("insert into source_acme values (2, 'more')")
    assert bench.run(name, {"customer": "acme"})["number"] == 2
    assert bench.run(name, {"customer": "b-2"})["number"] == 1

    assert bench.sql("select id from moved_acme order by 1") == [(1,), (2,)]
    assert bench.sql('select id from "moved_b-2"') == [(1,)]
    assert bench.run(name, {"customer": "b-2"}) == {"outcome": "nothing new"}
    rows = {row.pipeline: row for row in bench.client.list_instances(name)}
    assert {each: row.runs for each, row in rows.items()} == {f"{name}/acme": 2, f"{name}/b-2": 1}
    assert {row.instances for row in rows.values()} == {2}
    assert {row.pipeline for row in bench.client.list_runs(name)} == set(rows)
    assert bench.client.list_pipelines(name)[0].runs == 3
    marks = bench.sql("select count(distinct pipeline), count(*) from trunq_sink.mark")
    assert marks == [(2, 2)]


def test_an_instance_has_the_name_of_a_pipeline_for_every_call(bench: Bench) -> None:
    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH)
    bench.run(name, {"customer": "acme"})
    one = f"{name}/acme"

    assert bench.client.list_pipelines(one)[0].runs == 1
    assert bench.client.set_pipeline_state(one, {})["snapshot"]
    assert bench.run(one)["rows_out"] == 1
    assert [row.number for row in bench.client.list_runs(one)] == [2, 1]
    bench.client.pause_pipeline(one)
    with pytest.raises(Wait):
        bench.run(one)
    assert bench.client.resume_pipeline(one)
    bench.client.pause_pipeline(name)
    with pytest.raises(Wait):
        bench.run(one)
    assert bench.client.list_pipelines(one)[0].paused
    bench.client.drop_pipeline(one)
    assert bench.client.list_instances(name) == []


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (None, "customer of the message is missing"),
        ({}, "customer of the message is missing"),
        ({"customer": ""}, "is empty"),
        ({"customer": "../x"}, "'../x', which is not as"),
        ({"customer": "'; drop table source_acme"}, "which is not as"),
        ({"customer": {"id": 1}}, "is an object, not text"),
        ({"customer": ["acme"]}, "is a list, not text"),
        ({"customer": 7}, "is 7, not text"),
        ({"customer": "x" * 10_000}, "has 10000 characters"),
        ({"customer": "acme\n"}, "characters that are none of a text"),
        ("acme", "customer of the message is missing"),
    ],
)
def test_a_message_that_does_not_fit_is_refused_and_leaves_nothing(
    bench: Bench, payload: Any, why: str
) -> None:
    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH)
    with pytest.raises(MessageRefused, match=why):
        bench.execute(ask(bench, name, payload))
    assert bench.client.list_instances(name) == []


def test_a_value_that_makes_a_name_too_long_is_refused(bench: Bench) -> None:
    name = bench.make(SOURCE, SINK, **EACH)
    with pytest.raises(MessageRefused, match=r"source.table: source_xxx.* has 69 bytes"):
        bench.execute(ask(bench, name, {"customer": "x" * 62}))


def test_who_asks_without_a_customer_hears_it_and_the_hint_works(bench: Bench) -> None:
    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH)
    with pytest.raises(InvalidPipeline, match=r"has a run for each message.customer") as refused:
        bench.client.run_pipeline(name, {"day": 3})
    assert refused.value.message.endswith('this message has no value of it that can be one: {"day": 3}')
    assert refused.value.hint == f'name one: trunq pipeline run {name} --message \'{{"customer": "acme"}}\''
    with pytest.raises(InvalidPipeline, match="so a message has to say which"):
        bench.client.run_pipeline(name)
    assert bench.run(name, {"customer": "acme"})["rows_out"] == 1


def test_runs_of_customers_are_beside_each_other_and_those_of_one_are_not(bench: Bench) -> None:
    customers(bench, "acme", "other")
    name = bench.make(SOURCE, SINK, **EACH)
    control = bench.executor.control
    first = bench.asked(bench.client.run_pipeline(name, {"customer": "acme"}))
    assert control.open(first)["action"] == "begin"
    opened = control.open(first, {"customer": "acme"})
    slice = {"all": True, "message": {"customer": "acme"}}
    assert control.begin(_of(first, opened), opened, slice)

    assert bench.run(name, {"customer": "other"})["number"] == 1
    with pytest.raises(Wait):
        bench.run(name, {"customer": "acme", "more": True})


def test_a_run_that_is_taken_up_has_the_values_that_its_slice_was_fixed_with(bench: Bench) -> None:
    customers(bench, "acme")
    name = bench.make(
        {"format": "table", "table": "source_${message.customer}"},
        {**SINK},
        message={"customer": "text", "note": "text"},
        per="message.customer",
    )
    message = bench.client.run_pipeline(name, {"customer": "acme", "note": "old"})
    asked = bench.asked(message)
    values = {"customer": "acme", "note": "old"}
    opened = bench.executor.control.open(asked, values)
    held = _of(asked, opened)
    begun = bench.executor.control.begin(held, opened, {"all": True, "message": values})
    assert begun is not None
    bench.sql("update trunq.pipeline_run set held_until = null, holder = null")
    bench.client.run_pipeline(name, {"customer": "acme", "note": "new"})
    taken = bench.executor.control.open(asked)
    assert (taken["action"], taken["run"]["slice"]["message"]["note"]) == ("take", "old")
    assert bench.execute(message)["rows_out"] == 1


def _of(asked: Any, opened: dict[str, Any]) -> Any:
    return replace(asked, pipeline=opened["pipeline"])


def test_the_name_of_an_instance_with_the_message_of_another_is_refused(bench: Bench) -> None:
    customers(bench, "acme", "globex")
    name = bench.make(SOURCE, SINK, **EACH)
    bench.run(name, {"customer": "acme"})
    with pytest.raises(MessageRefused, match="is 'globex', which is another instance"):
        bench.execute(ask(bench, f"{name}/acme", {"customer": "globex"}))
    assert bench.one("select to_regclass('moved_globex')") is None
    assert bench.run(name, {"customer": "globex"})["number"] == 1


def test_rows_that_are_sent_again_are_of_an_instance(bench: Bench) -> None:
    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH)
    bench.run(name, {"customer": "acme"})
    message = bench.client.publish("pipelines", {"customer": "acme"}, kind=name, headers={"resend": True})
    with pytest.raises(MessageRefused, match=f"a message names it, as {name}/VALUE"):
        bench.execute(message)


def test_functions_see_the_newest_message_where_a_run_is_asked_for_without_one(bench: Bench) -> None:
    source = {"format": "python", "function": "pipeline.customers:rows"}
    name = bench.make(source, {"format": "table", "table": "moved"}, **EACH)
    bench.run(name, {"customer": "acme", "more": 1})
    assert bench.run(f"{name}/acme")["rows_out"] == 1
    assert bench.sql("select customer from moved") == [("acme",)] * 2


@pytest.mark.parametrize(
    ("payload", "backfill", "more"), [(None, 0, {}), ({"from": 1}, 7, {}), ({}, 0, {"quarantine": [1]})]
)
def test_tasks_of_spark_see_that_message_too(payload: Any, backfill: int, more: dict[str, Any]) -> None:
    said = {"customer": "acme"}
    run = Run("p/acme", "i", 1, 1, 1, {"message": said, **more}, payload, backfill)
    assert run.message == unsliced(run).message == said


def test_a_backfill_is_of_an_instance_with_what_its_newest_message_said(bench: Bench) -> None:
    customers(bench, "acme")
    bench.sql("create table moved_acme (id int unique, word text)")
    sink = {**SINK, "mode": "upsert", "key": ["id"], "newest": "word"}
    name = bench.make(SOURCE, sink, **EACH)
    bench.run(name, {"customer": "acme"})
    bench.sql("delete from moved_acme")
    range = {"column": "id", "from": "0", "to": "9"}
    with pytest.raises(InvalidPipeline, match=r"no runs of its own") as refused:
        bench.client.backfill_pipeline(name, range)
    assert refused.value.hint is not None
    assert f"{name}/VALUE" in refused.value.hint
    assert bench.execute(bench.client.backfill_pipeline(f"{name}/acme", range))["rows_out"] == 1
    assert bench.one("select count(*) from moved_acme") == 1


@pytest.mark.parametrize("call", ["cancel_pipeline", "skip_pipeline", "accept_pipeline", "resend_quarantine"])
def test_what_is_of_one_run_names_an_instance(bench: Bench, call: str) -> None:
    name = bench.make(SOURCE, SINK, **EACH)
    with pytest.raises(InvalidPipeline, match=r"each value of message.customer has"):
        getattr(bench.client, call)(name)


def test_a_definition_that_is_changed_is_that_of_the_instances_too(bench: Bench) -> None:
    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH)
    bench.run(name, {"customer": "acme"})
    assert bench.make(SOURCE, {**SINK, "table": "again_${message.customer}"}, **EACH, name=name) == name
    bench.sql("insert into source_acme values (2, 'more')")
    bench.run(name, {"customer": "acme"})
    assert bench.sql("select id from again_acme") == [(2,)]


def test_per_cannot_change_and_another_name_can_have_it(bench: Bench) -> None:
    name = bench.make({"format": "table", "table": "a"}, {"format": "table", "table": "b"})
    with pytest.raises(InvalidPipeline, match=r"mean nothing for each message.customer") as refused:
        bench.make(SOURCE, SINK, **EACH, name=name)
    assert refused.value.hint == "make a pipeline of another name, or drop this one first"
    bench.client.drop_pipeline(name)
    assert bench.make(SOURCE, SINK, **EACH, name=name) == name


def test_what_runs_after_an_instance_is_asked_with_its_message(bench: Bench) -> None:
    customers(bench, "acme")
    after = bench.make(SOURCE, {"format": "table", "table": "after_${message.customer}"}, **EACH)
    name = bench.make(SOURCE, SINK, **EACH, then=[after])
    bench.run(name, {"customer": "acme"})
    messages = bench.client.lease("pipelines", "default", "bench", 10)
    assert [(each.kind, each.key, each.payload) for each in messages] == [
        (after, "acme", {"customer": "acme"})
    ]
    with pytest.raises(InvalidPipeline, match=r"whose runs have no message for its per"):
        bench.make({"format": "table", "table": "a"}, {"format": "table", "table": "b"}, then=[after])


def test_a_pipeline_is_dropped_with_its_instances(bench: Bench) -> None:
    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH)
    bench.run(name, {"customer": "acme"})
    bench.client.drop_pipeline(name)
    assert bench.one("select count(*) from trunq.pipeline") == 0
    assert bench.one("select count(*) from trunq.pipeline_run") == 0


def test_the_worst_instances_come_first_and_the_rest_is_counted(bench: Bench) -> None:
    customers(bench, "a", "b", "c")
    name = bench.make(SOURCE, SINK, **EACH)
    for customer in ("a", "b", "c"):
        bench.run(name, {"customer": customer})
    bench.sql("insert into source_b values (2, 'more')")
    bench.sql("alter table moved_b add check (id < 2)")
    with pytest.raises(Exception, match=r"check"):
        bench.run(name, {"customer": "b"})
    first, *rest = bench.client.list_instances(name, limit=2)
    assert (first.value, first.failures, first.instances, len(rest)) == ("b", 1, 3, 1)
    assert f"{name}/b: " in (bench.client.list_pipelines(name)[0].error or "")


def test_an_integer_is_a_customer_and_text_is_none(bench: Bench) -> None:
    customers(bench, "7")
    name = bench.make(SOURCE, SINK, message={"customer": "integer"}, per="message.customer")
    assert bench.run(name, {"customer": 7})["rows_out"] == 1
    for wrong in ("7", 7.5, True, 2**70):
        with pytest.raises(MessageRefused, match=r"not a whole number"):
            bench.execute(ask(bench, name, {"customer": wrong}))


def test_a_field_may_lie_deeper_in_the_message(bench: Bench) -> None:
    customers(bench, "acme")
    source = {**SOURCE, "table": "source_${message.order.customer}"}
    sink = {**SINK, "table": "moved_${message.order.customer}"}
    name = bench.make(source, sink, message={"order.customer": "text"}, per="message.order.customer")
    assert bench.run(name, {"order": {"customer": "acme", "id": 3}})["rows_out"] == 1
    assert bench.client.list_instances(name)[0].message == {"order": {"customer": "acme"}}


def test_an_older_release_is_refused_until_the_pipeline_is_dropped(bench: Bench) -> None:
    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH)
    bench.run(name, {"customer": "acme"})
    back = next(each.sql for each in back_migrations().values() if each.name.endswith("_instance"))
    with (
        pytest.raises(psycopg.errors.RaiseException, match=f'pipeline "{name}" has per'),
        bench.connection.transaction(),
    ):
        bench.sql(back)
    bench.client.drop_pipeline(name)
    other = bench.make(
        {"format": "table", "table": "source_acme"},
        {"format": "table", "table": "moved"},
        trigger={"every": "1 hour", "priority": 1},
    )
    with (
        pytest.raises(psycopg.errors.RaiseException, match=f'pipeline "{other}" has .* trigger.priority'),
        bench.connection.transaction(),
    ):
        bench.sql(back)
    bench.client.drop_pipeline(other)
    with bench.connection.transaction(force_rollback=True):
        bench.sql(back)


@pytest.mark.parametrize("change", ["create", "drop"])
def test_who_changes_a_pipeline_waits_for_a_run_that_ends_and_that_one_for_nobody(
    bench: Bench, connect: Callable[[], psycopg.Connection[Any]], change: str
) -> None:
    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH)
    bench.run(name, {"customer": "acme"})
    definition = bench.client.list_pipelines(name)[0].definition
    ending = connect()
    # The second change of a row in a transaction locks the key that it refers to.
    count = "update trunq.pipeline set day_rows = day_rows + 1 where parent_id is not null"
    with ThreadPoolExecutor(1) as pool:
        with ending.transaction():
            ending.execute(count)
            if change == "create":
                changed: Future[Any] = pool.submit(bench.client.create_pipeline, name, definition)
            else:
                changed = pool.submit(bench.client.drop_pipeline, name)
            wait_until(lambda: waits_for_lock(bench))
            ending.execute(count)
        changed.result(30)


def test_another_source_is_refused_while_a_run_of_an_instance_begins(
    bench: Bench, connect: Callable[[], psycopg.Connection[Any]]
) -> None:
    customers(bench, "acme")
    name = bench.make(SOURCE, SINK, **EACH)
    bench.run(name, {"customer": "acme"})
    definition = bench.client.list_pipelines(name)[0].definition
    other = {**definition, "source": {**SOURCE, "table": "other_${message.customer}"}}
    asked = bench.asked(bench.client.run_pipeline(name, {"customer": "acme"}))
    opened = bench.executor.control.open(asked)
    begin = (
        "select trunq._begin_run(%s, %s, '{}', %s, %s::bigint, '{\"customer\": \"acme\"}',"
        " p_plan_hash => %s::bigint)"
    )
    given = [f"{name}/acme", asked.message_id, opened["snapshot"], opened["done"], opened["plan_hash"]]
    beginning = connect()
    with ThreadPoolExecutor(1) as pool:
        with beginning.transaction():
            assert beginning.execute(begin.encode(), given).fetchone() is not None
            changed = pool.submit(bench.client.create_pipeline, name, other)
            wait_until(lambda: waits_for_lock(bench))
        with pytest.raises(InvalidPipeline, match=f'"{name}/acme" has an open run'):
            changed.result(30)


def waits_for_lock(bench: Bench) -> bool:
    """Whether somebody waits for a lock of another."""
    waiting = "select count(*) from pg_stat_activity where datname = current_database()"
    return bool(bench.one(f"{waiting} and wait_event_type = 'Lock'"))
