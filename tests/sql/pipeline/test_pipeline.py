"""Pipelines in SQL: made, changed, paused, refused. tests/pipeline runs them."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import ask, call, refused

Connection = psycopg.Connection[Any]

DEFINITION = {"source": {"format": "table", "table": "a"}, "sink": {"format": "table", "table": "b"}}


def test_a_pipeline_is_made_changed_paused_and_dropped(connection: Connection) -> None:
    assert ask(connection, "create_pipeline", pipeline="p", definition=DEFINITION)
    assert not ask(connection, "create_pipeline", pipeline="p", definition={**DEFINITION, "max_bad": 0.5})
    ask(connection, "create_pipeline", pipeline="q", definition={**DEFINITION, "then": ["p"]})
    with refused("TQ031", "p -> q -> p"):
        ask(connection, "create_pipeline", pipeline="p", definition={**DEFINITION, "then": ["q"]})
    ask(connection, "pause_pipeline", pipeline="p")
    assert [(row.pipeline, row.paused) for row in call(connection, "list_pipelines")] == [
        ("p", True),
        ("q", False),
    ]
    assert ask(connection, "resume_pipeline", pipeline="p")
    assert not ask(connection, "resume_pipeline", pipeline="p")
    id = ask(connection, "run_pipeline", pipeline="p", payload={"a": 1})
    opened = ask(connection, "_open_run", pipeline="p", message_id=id, payload={"a": 1})
    assert opened["action"] == "plan"
    begun = ask(
        connection, "_begin_run", pipeline="p", message_id=id, slice={}, snapshot=opened["snapshot"], done=0
    )
    assert begun["number"] == 1
    with refused("TQ031", "open run"):
        ask(connection, "set_pipeline_state", pipeline="p", state={})
    assert ask(connection, "cancel_pipeline", pipeline="p")
    assert ask(connection, "_finish_run", run_id=begun["run_id"], attempt=0)["outcome"] == "cancelled"
    assert ask(connection, "set_pipeline_state", pipeline="p", state={"at": 1}) == {}
    with refused("TQ031", '"q" runs "p"'):
        ask(connection, "drop_pipeline", pipeline="p")
    for name in ("q", "p"):
        ask(connection, "drop_pipeline", pipeline=name)
    assert call(connection, "list_pipelines") == []


def test_a_circle_is_found_among_more_ways_than_can_be_walked(connection: Connection) -> None:
    for layer in range(12):
        then = [f"p{layer - 1}_{at}" for at in range(6)] if layer else []
        for at in range(6):
            ask(
                connection,
                "create_pipeline",
                pipeline=f"p{layer}_{at}",
                definition={**DEFINITION, "then": then},
            )
    with refused("TQ031", "would run after itself: p0_3 -> p11_0 -> p10_"):
        ask(connection, "create_pipeline", pipeline="p0_3", definition={**DEFINITION, "then": ["p11_0"]})


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("drop_pipeline", {}), ("pause_pipeline", {}), ("resume_pipeline", {}), ("run_pipeline", {}),
        ("backfill_pipeline", {"range": {"a": 1}}), ("set_pipeline_state", {"state": {}}),
        ("cancel_pipeline", {}), ("list_runs", {}), ("list_quarantine", {}), ("count_quarantine", {}),
        ("list_schema_changes", {}), ("list_schemas", {}), ("show_compaction", {}), ("list_pipelines", {}),
        ("resend_quarantine", {}), ("purge_quarantine", {}), ("skip_pipeline", {}), ("accept_pipeline", {}),
    ],
)  # fmt: skip
def test_unknown_pipelines(session: Connection, function: str, arguments: dict[str, Any]) -> None:
    with refused("TQ030", '"nothing"', "trunq.list_pipelines"):
        call(session, function, pipeline="nothing", **arguments)


@pytest.mark.parametrize(
    "definition",
    [[], {}, {"source": {"format": "a"}}, {**DEFINITION, "then": "p"}, {**DEFINITION, "then": [1]}],
)
def test_what_cannot_be_a_pipeline(session: Connection, definition: Any) -> None:
    with refused("TQ031", 'pipeline "p"'):
        session.execute(
            "select trunq.create_pipeline('p', %s::jsonb)", (psycopg.types.json.Jsonb(definition),)
        )


@pytest.mark.parametrize(
    "changing",
    [{"function": "a:b"}, {"sql": ["select 1"]}, {"transform": "a:b"}, {"columns": {"mask": {"a": "null"}}}],
)
def test_a_range_fills_no_partitions_of_rows_that_are_changed_on_the_way(
    connection: Connection, changing: dict[str, Any]
) -> None:
    """Nothing says that a range of the source has whole partitions of what comes out."""
    sink = {"format": "delta", "path": "x", "mode": "replace_partitions", "partition_by": ["day"]}
    source = {"format": "table", "table": "a", "changes": "all"}
    definition = {"source": source, "sink": sink}
    days = {"column": "day", "from": "2030-01-01", "to": "2030-02-01"}
    ask(connection, "create_pipeline", pipeline="p", definition={**definition, **changing})
    with refused("TQ031", "nothing says that a range", "a range can be filled with mode upsert"):
        ask(connection, "backfill_pipeline", pipeline="p", range=days)
    upsert = {"format": "delta", "path": "x", "mode": "upsert", "key": ["id"], "newest": "at"}
    ask(connection, "create_pipeline", pipeline="p", definition={**definition, "sink": upsert, **changing})
    assert ask(connection, "backfill_pipeline", pipeline="p", range=days)


def test_two_long_names_do_not_share_a_subscription(connection: Connection) -> None:
    """Its name has the first 39 characters: each would move it on, and either take it along when it goes."""
    name = "nightly_export_of_customer_orders_to_lake"
    queue = {"format": "queue", "queue": "orders"}
    files = {"format": "csv", "path": "/data/*.csv"}
    ask(connection, "create_pipeline", pipeline=f"{name}_eu", definition={**DEFINITION, "source": queue})
    with refused("TQ031", "would share subscription", "first 39 characters"):
        ask(connection, "create_pipeline", pipeline=f"{name}_us", definition=DEFINITION)
    ask(connection, "create_pipeline", pipeline=f"{name}_us", definition={**DEFINITION, "source": files})
    assert not ask(
        connection, "create_pipeline", pipeline=f"{name}_eu", definition={**DEFINITION, "source": queue}
    )


def test_a_clock_that_went_back_keeps_nobody_from_a_run(connection: Connection) -> None:
    """Whoever was at it may be gone: until the clock was there again, others would wait for nobody."""
    ask(connection, "create_pipeline", pipeline="p", definition=DEFINITION)
    first, second = (ask(connection, "run_pipeline", pipeline="p", payload={"n": n}) for n in (1, 2))
    opened = ask(connection, "_open_run", pipeline="p", message_id=first, payload={"n": 1})
    asks = {"pipeline": "p", "message_id": second, "payload": {"n": 2}}
    ask(
        connection, "_begin_run", pipeline="p", message_id=first, payload={"n": 1}, slice={}, done=0,
        snapshot=opened["snapshot"], plan_hash=opened["plan_hash"],
    )  # fmt: skip
    assert ask(connection, "_open_run", **asks)["action"] == "wait"
    connection.execute("set trunq.clock_offset = '-1 day'")
    assert ask(connection, "_open_run", **asks)["action"] == "take"
