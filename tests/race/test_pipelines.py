"""Pipelines that one changes or drops while another is at them."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import ask, call, new_names, refused
from conftest import Connect
from waiting import wait_until_blocked

Connection = psycopg.Connection[Any]
DEFINITION = {"source": {"format": "table", "table": "a"}, "sink": {"format": "table", "table": "b"}}

_names = new_names("raced")


@pytest.fixture
def other(open_session: Connect) -> Connection:
    """A second session, in transactions."""
    return open_session(autocommit=False)


@pytest.fixture
def pipeline(session: Connection) -> str:
    name = next(_names)
    ask(session, "create_pipeline", pipeline=name, definition=DEFINITION)
    return name


def test_a_pause_ends_for_a_trigger_that_comes_meanwhile(
    session: Connection, other: Connection, pipeline: str, queue: str, meanwhile: Any, open_session: Connect
) -> None:
    ask(session, "pause_pipeline", pipeline=pipeline)
    triggered = {**DEFINITION, "trigger": {"on": "message", "queue": queue}}
    ask(other, "create_pipeline", pipeline=pipeline, definition=triggered)
    resumed = meanwhile(ask, session, "resume_pipeline", pipeline=pipeline)
    wait_until_blocked(open_session(), session)
    other.commit()
    assert resumed.result(120)
    (found,) = (
        row
        for row in call(session, "list_subscriptions", queue=queue)
        if row.subscription == f"trigger_{pipeline}"
    )
    assert not found.paused
    ask(session, "drop_pipeline", pipeline=pipeline)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("_open_run", {"message_id": 1}),
        ("_begin_run", {"message_id": 1, "slice": {}, "snapshot": "1:1:", "done": 0}),
        ("set_pipeline_state", {"state": {}}),
        ("pause_pipeline", {}),
        ("resume_pipeline", {}),
    ],
    ids=str,
)
def test_who_waits_for_a_drop_hears_that_the_pipeline_is_gone(
    session: Connection,
    other: Connection,
    pipeline: str,
    meanwhile: Any,
    open_session: Connect,
    function: str,
    arguments: dict[str, Any],
) -> None:
    ask(other, "drop_pipeline", pipeline=pipeline)

    def attempt() -> None:
        with refused("TQ030", pipeline):
            call(session, function, pipeline=pipeline, **arguments)

    late = meanwhile(lambda _: attempt(), session)
    wait_until_blocked(open_session(), session)
    other.commit()
    late.result(120)


def test_two_that_call_an_api_at_once_take_moments_one_behind_the_other(
    session: Connection, other: Connection, meanwhile: Any, open_session: Connect
) -> None:
    name = next(_names)
    ask(session, "_take_pace", name=name, every=10)
    first = ask(other, "_take_pace", name=name, every=10)
    waiting = meanwhile(ask, session, "_take_pace", name=name, every=10)
    wait_until_blocked(open_session(), session)
    other.commit()
    assert 5 < waiting.result(120)["seconds"] - first["seconds"] <= 10


def test_a_moment_taken_while_an_api_says_that_it_wants_none_is_behind_that(
    session: Connection, other: Connection, meanwhile: Any, open_session: Connect
) -> None:
    name = next(_names)
    ask(session, "_take_pace", name=name, every=1)
    ask(other, "_hold_pace", name=name, seconds=600)
    waiting = meanwhile(ask, session, "_take_pace", name=name, every=1)
    wait_until_blocked(open_session(), session)
    other.commit()
    assert waiting.result(120)["seconds"] > 500


def test_a_runner_that_dies_with_a_moment_holds_nobody(
    session: Connection, other: Connection, open_session: Connect
) -> None:
    name = next(_names)
    ask(other, "_take_pace", name=name, every=1000)
    other.rollback()
    assert ask(session, "_take_pace", name=name, every=0.001)["seconds"] == 0
    killed = open_session(autocommit=False)
    ask(killed, "_take_pace", name=name, every=1000)
    session.execute("select pg_terminate_backend(%s, 10000)", [killed.info.backend_pid])
    assert ask(session, "_take_pace", name=name, every=0.001)["seconds"] < 1


def test_who_pauses_a_pipeline_that_is_dropped_meanwhile_waits_and_nobody_fails(
    session: Connection, other: Connection, pipeline: str, queue: str, meanwhile: Any, open_session: Connect
) -> None:
    triggered = {**DEFINITION, "trigger": {"on": "message", "queue": queue}}
    ask(session, "create_pipeline", pipeline=pipeline, definition=triggered)
    ask(other, "_hold_pipeline", pipeline=pipeline)
    dropped = meanwhile(ask, session, "drop_pipeline", pipeline=pipeline)
    wait_until_blocked(open_session(), session)
    ask(other, "pause_pipeline", pipeline=pipeline)
    other.commit()
    dropped.result(120)
    left = [row.subscription for row in call(session, "list_subscriptions", queue=queue)]
    assert left == ["default"]
