"""What starts runs of a pipeline by itself."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pipeline.piping import Bench
from trunq.errors import InvalidName, InvalidPipeline, InvalidSchedule
from trunq.pipeline import Pipeline

TABLE = {"format": "table", "table": "source"}
MOVED = {"format": "table", "table": "moved"}
EVERY = {"every": "10 minutes"}
ORDERS = {"on": "message", "queue": "orders"}
CONTINUOUS = {"continuous": True}


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """A table `source`, and a queue `orders`."""
    bench.sql("create table source (id bigint)")
    bench.sql("insert into source select generate_series(1, 3)")
    bench.client.create_queue("orders")
    return bench


def schedules(bench: Bench) -> list[Any]:
    return bench.sql("select schedule, every::text, cron, zone, kind from trunq.list_schedules()")


def subscriptions(bench: Bench) -> list[str]:
    return [row.subscription for row in bench.client.list_subscriptions("orders")]


def asked(bench: Bench) -> list[Any]:
    return bench.sql("select kind, payload, headers from trunq_log.pipelines order by id")


def test_a_schedule_comes_changes_and_goes_with_the_trigger(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED, trigger=EVERY)
    assert schedules(filled) == [(f"pipeline/{name}", "00:10:00", None, None, name)]
    (row,) = filled.client.list_pipelines()
    assert row.trigger == {"every": "PT600S"}
    assert row.next_due is not None
    filled.make(TABLE, MOVED, name=name, trigger={"cron": "30 3 * * *", "time_zone": "Europe/Prague"})
    assert schedules(filled) == [(f"pipeline/{name}", None, "30 3 * * *", "Europe/Prague", name)]
    assert len(filled.client.preview_schedule(f"pipeline/{name}")) == 10
    filled.make(TABLE, MOVED, name=name)
    assert schedules(filled) == []
    filled.make(TABLE, MOVED, name=name, trigger=EVERY)
    filled.client.drop_pipeline(name)
    assert schedules(filled) == []


def test_a_schedule_of_a_trigger_belongs_to_its_pipeline_alone(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED, trigger=EVERY)
    with pytest.raises(InvalidSchedule, match="is the trigger of a pipeline"):
        filled.client.delete_schedule(f"pipeline/{name}")
    with pytest.raises(InvalidName):
        filled.client.create_schedule(f"pipeline/{name}", "orders", every=60)
    assert filled.client.sync_schedules([]) == []
    assert len(schedules(filled)) == 1


def test_a_due_time_asks_once_while_the_run_of_the_last_one_waits(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED, trigger=EVERY)

    def pass_time() -> None:
        filled.sql("update trunq.schedule set start_at = clock_timestamp(), next_due = clock_timestamp()")
        filled.client.fire()

    pass_time()
    pass_time()
    assert [(kind, payload) for kind, payload, _ in asked(filled)] == [(name, None)]
    id = filled.one("select id from trunq_log.pipelines")
    assert filled.execute(id)["rows_out"] == 3
    pass_time()
    assert len(asked(filled)) == 2


@pytest.mark.parametrize("trigger", [EVERY, ORDERS], ids=["every", "message"])
def test_a_pause_holds_what_starts_the_pipeline(filled: Bench, trigger: dict[str, Any]) -> None:
    name = filled.make(TABLE, MOVED, trigger=trigger)
    filled.client.pause_pipeline(name)
    filled.sql("update trunq.schedule set start_at = clock_timestamp(), next_due = clock_timestamp()")
    filled.client.publish("orders", 1)
    filled.client.fire()
    assert filled.one("select trunq._relay(%s)", name) == 0
    assert asked(filled) == []
    filled.client.resume_pipeline(name)
    filled.sql("update trunq.schedule set start_at = clock_timestamp(), next_due = clock_timestamp()")
    filled.client.fire()
    filled.sql("select trunq._relay(%s)", name)
    assert len(asked(filled)) == 1


def test_a_trigger_made_during_a_pause_is_paused(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED)
    filled.client.pause_pipeline(name)
    filled.make(TABLE, MOVED, name=name, trigger=EVERY)
    assert [row.paused for row in filled.client.list_schedules()] == [True]
    filled.make(TABLE, MOVED, name=name, trigger=ORDERS)
    assert {row.subscription: row.paused for row in filled.client.list_subscriptions("orders")} == {
        "default": False, f"trigger_{name}": True,
    }  # fmt: skip


def test_each_message_of_a_queue_asks_for_a_run_with_its_payload(filled: Bench) -> None:
    filled.client.publish("orders", {"id": 0})
    name = filled.make(TABLE, MOVED, trigger=ORDERS)
    id = filled.client.publish("orders", {"id": 1}, kind="paid", key="x", headers={"backfill": True})
    filled.client.publish("orders", {"id": 2})
    assert filled.one("select trunq._relay(%s)", name) == 2
    assert filled.one("select trunq._relay(%s)", name) == 0
    assert asked(filled) == [
        (name, {"id": 1}, {"on": {"queue": "orders", "id": id, "kind": "paid", "key": "x"}}),
        (name, {"id": 2}, {"on": {"queue": "orders", "id": id + 1}}),
    ]
    # Payloads that differ never become one run, those that say the same do.
    ids = [row[0] for row in filled.sql("select id from trunq_log.pipelines order by id")]
    filled.client.publish("orders", {"id": 1})
    filled.sql("select trunq._relay(%s)", name)
    assert [filled.execute(each).get("number") for each in ids] == [1, None]
    filled.make(TABLE, MOVED, name=name)
    assert subscriptions(filled) == ["default"]


def test_messages_ask_once_though_two_runners_move_them_on(
    filled: Bench, database: str, connection: psycopg.Connection[Any]
) -> None:
    name = filled.make(TABLE, MOVED, trigger=ORDERS)
    filled.client.publish_many("orders", list(range(5)))
    with psycopg.connect(database) as other:
        # Not committed: it holds them, and loses them at the rollback.
        assert other.execute("select trunq._relay(%s)", (name,)).fetchone() == (5,)
        assert connection.execute("select trunq._relay(%s)", (name,)).fetchone() == (0,)
        other.rollback()
    assert filled.one("select trunq._relay(%s)", name) == 5
    assert [payload for _, payload, _ in asked(filled)] == [0, 1, 2, 3, 4]


def test_a_queue_that_was_made_anew_is_told_of(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED, trigger=ORDERS)
    filled.client.drop_queue("orders", force=True)
    filled.client.create_queue("orders")
    with pytest.raises(psycopg.Error, match="has no subscription"):
        filled.one("select trunq._relay(%s)", name)
    filled.make(TABLE, MOVED, name=name, trigger=ORDERS)
    assert filled.one("select trunq._relay(%s)", name) == 0


def test_a_flood_waits_in_its_own_queue(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED, trigger=ORDERS)
    filled.client.publish_many("orders", list(range(50)))
    assert filled.one("select trunq._relay(%s)", name) == 16
    assert filled.one("select trunq._relay(%s)", name) == 0
    filled.execute(filled.one("select min(id) from trunq_log.pipelines"))
    assert filled.one("select trunq._relay(%s)", name) == 1


def test_a_continuous_pipeline_asks_again_when_its_run_is_over(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED, trigger=CONTINUOUS)
    id = filled.one("select trunq._ask_run(%s)", name)
    assert filled.one("select trunq._ask_run(%s)", name) == id
    filled.execute(id)
    assert filled.one("select trunq._ask_run(%s)", name) == id + 1
    assert asked(filled)[0] == (name, None, {"on": "continuous"})
    filled.client.pause_pipeline(name)
    assert filled.one("select trunq._ask_run(%s)", name) is None


def test_a_continuous_pipeline_that_is_cancelled_is_paused(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED, trigger=CONTINUOUS)
    assert not filled.client.cancel_pipeline(name)
    assert [row.paused for row in filled.client.list_pipelines()] == [True]


@pytest.mark.parametrize(
    ("trigger", "said"),
    [
        ({}, "give one of every, cron, on and continuous, not none"),
        ({"every": "1h", "cron": "@daily"}, "not every and cron"),
        ({"every": "soon"}, "is no length of time"),
        ({"every": "0.1s"}, "a second or more"),
        ({"cron": "61 * * * *"}, "61"),
        ({"cron": "@daily", "time_zone": "Mars/Base"}, "no time zone 'Mars/Base'"),
        ({"every": "1h", "time_zone": "UTC"}, "time_zone goes with cron"),
        ({"on": "message"}, "go together"),
        ({"on": "webhook", "queue": "orders"}, "go together"),
        ({"on": "sunday"}, "trigger.on"),
        ({"continuous": False}, "trigger.continuous"),
        ({"evry": "1h"}, "is it every?"),
    ],
    ids=str,
)
def test_what_cannot_be_a_trigger(trigger: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidPipeline, match=r"pipeline p: .*trigger") as told:
        Pipeline("p", source=TABLE, sink=MOVED, trigger=trigger)
    assert said in str(told.value)


@pytest.mark.parametrize(
    "source", [{"format": "python", "function": "a:b"}, {**TABLE, "changes": "all"}], ids=["python", "all"]
)
def test_what_only_a_run_tells_cannot_be_continuous(bench: Bench, source: dict[str, Any]) -> None:
    with pytest.raises(InvalidPipeline, match="only a run tells"):
        Pipeline("p", source=source, sink=MOVED, trigger=CONTINUOUS)
    with pytest.raises(InvalidPipeline, match="only a run tells"):
        bench.client.create_pipeline("p", {"source": source, "sink": MOVED, "trigger": CONTINUOUS})


@pytest.mark.parametrize(
    ("trigger", "sink", "said"),
    [
        ([], MOVED, "a trigger has one of"),
        ({"every": "1h", "on": "webhook"}, MOVED, "a trigger has one of"),
        ({"every": "soon"}, MOVED, '"soon" is no interval'),
        ({"every": "1h", "queue": "orders"}, MOVED, 'its trigger has no "queue"'),
        ({"on": None}, MOVED, 'not on "null"'),
        ({"on": "message"}, MOVED, "names a queue"),
        ({"on": "message", "queue": "pipelines"}, MOVED, "ask for runs already"),
        (ORDERS, {"format": "queue", "queue": "orders"}, "it would never end"),
        ({"continuous": 1}, MOVED, "continuous is true"),
    ],
    ids=str,
)
def test_the_database_refuses_what_cannot_be_a_trigger(
    filled: Bench, trigger: Any, sink: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidPipeline, match=r"pipeline .?p") as told:
        filled.client.create_pipeline("p", {"source": TABLE, "sink": sink, "trigger": trigger})
    assert said in str(told.value)
    assert filled.client.list_pipelines() == []


def test_two_pipelines_may_append_to_a_table_and_none_replaces_what_another_writes(filled: Bench) -> None:
    first, second = filled.make(TABLE, MOVED), filled.make(TABLE, {**MOVED, "table": "public.moved"})
    assert filled.run(first)["rows_out"] == filled.run(second)["rows_out"] == 3
    assert filled.one("select count(*) from moved") == 6
    whole = {**TABLE, "changes": "all"}
    for table in ("moved", "public.moved"):
        with pytest.raises(InvalidPipeline, match="what the other wrote would be gone"):
            filled.make(whole, {"format": "table", "table": table, "mode": "replace"}, name="other")
    filled.make(whole, {"format": "table", "table": "b", "mode": "replace"}, name="replacer")
    filled.make(whole, {"format": "table", "table": "b", "mode": "replace"}, name="replacer")
    with pytest.raises(InvalidPipeline, match='"other" and "replacer" write into b'):
        filled.make(TABLE, {"format": "table", "table": "b"}, name="other")


@pytest.mark.parametrize("name", ['a"b', "a'b", "a" * 200, "A", "a b", ""])
def test_a_name_that_would_have_to_be_quoted_or_is_long_is_refused(bench: Bench, name: str) -> None:
    with pytest.raises(InvalidPipeline, match="cannot be the name of a pipeline"):
        Pipeline(name, source=TABLE, sink=MOVED)
    with pytest.raises(Exception, match="name"):
        bench.client.create_pipeline(name, {"source": TABLE, "sink": MOVED})
    assert bench.client.list_pipelines() == []
