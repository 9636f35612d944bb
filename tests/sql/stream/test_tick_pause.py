"""Ticks that nobody cuts, and ticks that another system cuts: functions/stream/tick.sql."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from calling import call, new_names, refused
from engine import Engine
from streaming import LAKE, ids, named, read, take


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    """A queue with one stream, which stands at its newest tick."""
    work = Engine(session, next(new_names("paused"))).create(
        retention="2000 days", default_subscription=False
    )
    work.ask("subscribe", **LAKE, mode="exclusive")
    return work


def ticks(work: Engine) -> list[int]:
    return [row.tick_id for row in work.call("list_ticks")]


def test_while_ticks_are_paused_neither_leader_nor_reader_cuts_one(work: Engine) -> None:
    assert work.ask("pause_ticks")
    assert not work.ask("pause_ticks")
    before, found = ticks(work), work.publish(600)
    with work.clock("1 hour"):
        assert work.ask("tick") is None
        assert take(work) is None
    assert work.ask("subscribe", subscription="second", mode="exclusive")
    assert ticks(work) == before
    assert [row.ticks_paused for row in work.call("status")] == [True, True]
    assert work.ask("tick", force=True) == before[-1] + 1
    batch = take(work)
    assert ids(read(work, batch)) == found, "one that was cut is read"
    work.ask("finish_batch", **named(batch))
    more = work.publish(1)
    assert work.ask("resume_ticks")
    assert not work.ask("resume_ticks")
    assert ids(read(work, take(work))) == more


def test_one_that_starts_while_ticks_are_paused_begins_at_the_newest(work: Engine) -> None:
    work.ask("pause_ticks")
    found = work.publish(3)
    work.ask("subscribe", subscription="second", mode="exclusive")
    work.ask("resume_ticks")
    (batch,) = work.call("next_batch", subscription="second", worker="w")
    assert ids(work.call("read_batch", subscription="second", batch_id=batch.batch_id)) == found


def test_external_ticks_are_cut_by_who_says_so(work: Engine) -> None:
    with refused("TQ005", "not external", "set_queue"):
        work.ask("cut_tick")
    work.ask("set_queue", tick_external=True)
    first, found = ticks(work)[-1], work.publish(600)
    with work.clock("1 hour"):
        assert work.ask("tick") is None
        assert take(work) is None
    at = datetime(2026, 3, 1, 8, tzinfo=UTC)
    assert work.ask("cut_tick", tick_id=50, created_at=at, last_message_id=7000) == 50
    (row,) = work.call("list_ticks", **{"from": 50})
    assert (row.created_at, row.last_message_id, row.reachable) == (at, 7000, True)
    batch = take(work)
    assert (batch.from_tick_id, batch.to_tick_id, ids(read(work, batch))) == (first, 50, found)
    work.ask("finish_batch", **named(batch))
    for wrong, words in (
        ({"tick_id": 50}, "does not come after"),
        ({"last_message_id": -1}, "cannot have come to"),
        ({"created_at": "infinity"}, "cannot be from"),
    ):
        with refused("TQ005", words):
            work.ask("cut_tick", **wrong)
    assert work.ask("cut_tick", last_message_id=1) == 51
    (row,) = work.call("list_ticks", **{"from": 51})
    assert row.last_message_id >= 600, "ids that were drawn are not after it"
    work.ask("pause_ticks")
    with refused("TQ005", "paused", "resume_ticks"):
        work.ask("cut_tick")
    work.ask("resume_ticks")
    work.ask("set_queue", tick_external=False)
    work.publish(1)
    assert take(work, max_ticks=5).to_tick_id == 51


def test_the_tick_before_the_last_is_kept_whatever_its_number(work: Engine) -> None:
    work.ask("set_queue", tick_external=True)
    for tick in (50, 90):
        work.publish(1)
        work.ask("cut_tick", tick_id=tick)
        work.ask("finish_batch", **named(take(work)))
    work.rotate("3000 days")
    assert ticks(work) == [50, 90]


def test_thresholds_of_nothing_tick_at_every_look_at_something(work: Engine) -> None:
    for options in ({"tick_max_count": 0}, {"tick_max_count": 500, "tick_max_lag": "0"}):
        work.ask("set_queue", **options)
        work.publish(40)
        assert work.ask("tick") is not None
        assert work.ask("tick") is None
    (row,) = [row for row in call(work.connection, "list_queues") if row.queue == work.queue]
    assert (row.tick_max_count, row.tick_paused, row.tick_external) == (500, False, False)


def test_a_stream_whose_ticks_are_paused_loses_nothing_without_a_tick(work: Engine) -> None:
    work.ask("set_queue", hold_at_most="2000 days")
    work.publish(3)
    work.ask("pause_ticks")
    work.rotate("3000 days")
    assert work.call("list_losses") == []
    work.ask("resume_ticks")
    work.rotate("3000 days")
    assert [loss.messages for loss in work.call("list_losses")] == [3]
