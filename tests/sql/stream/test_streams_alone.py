"""Queues that streams alone read: where their messages are. stream/stream.sql, functions/keep/history.sql."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from calling import new_names, refused
from engine import Engine


def test_a_queue_of_streams_alone_shows_its_messages(session: psycopg.Connection[Any]) -> None:
    work = Engine(session, next(new_names("alone"))).create(default_subscription=False)
    for name in ("lake", "mail"):
        work.ask("subscribe", subscription=name, mode="exclusive")

    def states(id: int) -> dict[str, str]:
        return {row.subscription: row.state for row in work.call("show_message", id=id)}

    done, retried, dead = work.publish(3, keys=["a", "b", "c"], options={"max_attempts": 2})
    (later,) = work.publish(delay="1 hour")
    assert states(later) == {"lake": "scheduled", "mail": "scheduled"}
    assert states(done) == {"lake": "ready", "mail": "ready"}
    work.ask("tick", force=True)
    (batch,) = work.call("next_batch", subscription="lake", worker="ada", max_ticks=10)
    (row, _) = work.call("show_message", id=done)
    assert (row.state, row.worker, row.payload, row.attempts) == ("leased", "ada", {"n": 0}, [])
    assert row.expires_at == batch.expires_at
    named = {"subscription": "lake", "batch_id": batch.batch_id, "token": batch.token}
    work.ask("retry_batch", **named, ids=[retried], after="1 hour", error="busy")
    work.ask("retry_batch", **named, ids=[dead], after="0", error="bad")
    work.ask("finish_batch", **named)
    assert states(done) == {"lake": "done", "mail": "ready"}
    (row, _) = work.call("show_message", id=retried)
    assert (row.state, row.attempt, row.error) == ("retrying", 2, "busy")
    assert states(dead) == {"lake": "ready", "mail": "ready"}, "it comes again in the next batch"
    work.ask("tick", force=True)
    (batch,) = work.call("next_batch", subscription="lake", worker="ada", max_ticks=10)
    named = {"subscription": "lake", "batch_id": batch.batch_id, "token": batch.token}
    work.ask("retry_batch", **named, error="bad")
    work.ask("finish_batch", **named)
    assert states(dead) == {"lake": "dead", "mail": "ready"}
    work.ask("purge", ids=[dead])
    assert states(dead) == {"lake": "purged", "mail": "ready"}
    with refused("TQ013", "no message 99"):
        states(99)


def test_a_group_by_key_shows_a_message_once(session: psycopg.Connection[Any]) -> None:
    work = Engine(session, next(new_names("alone"))).create(default_subscription=False)
    work.ask("create_group", group="ledgers", slots=4)
    for id in work.publish(8, keys=list("abcdefgh")):
        assert [(row.subscription, row.state) for row in work.call("show_message", id=id)] == [
            ("ledgers", "ready")
        ]


def test_who_lists_messages_of_streams_alone_is_told_where_they_are(session: psycopg.Connection[Any]) -> None:
    work = Engine(session, next(new_names("alone"))).create(default_subscription=False)
    work.ask("subscribe", subscription="lake", mode="exclusive")
    work.publish(50)
    with pytest.raises(psycopg.Error, match="streams alone read it") as caught:
        work.listed()
    hint = str(caught.value.diag.message_hint)
    first, second = re.findall(r"(select .*?\)|trunq\.show_message\(.*?\))", hint)
    assert [row[1] for row in session.execute(first.encode())] == ["lake"]
    assert [row[1] for row in session.execute(f"select * from {second}".encode())] == ["ready"]


def test_a_queue_of_streams_has_no_message_null(session: psycopg.Connection[Any]) -> None:
    work = Engine(session, next(new_names("alone"))).create(default_subscription=False)
    work.ask("subscribe", subscription="lake", mode="exclusive")
    with refused("TQ013", "has no message"):
        work.call("show_message", id=None)
