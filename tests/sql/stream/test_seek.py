"""A stream is moved to a tick or a time, forward and back, or starts there."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from calling import new_names, refused
from engine import Engine
from streaming import LAKE, ids, named, put_batches, read, stream, take


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    """A queue that one stream reads."""
    work = Engine(session, next(new_names("seek")))
    work.create(retention="2000 days", default_subscription=False)
    work.ask("subscribe", **LAKE, mode="exclusive", max_attempts=3)
    return work


def test_seek_goes_back_and_forth(work: Engine) -> None:
    batches = put_batches(work, 3)
    first = work.ask("position", **LAKE)
    assert work.ask("finish_batch", **named(take(work, max_ticks=9)))
    assert work.ask("seek", **LAKE, tick_id=first + 1) == first + 1
    assert (work.ask("position", **LAKE), stream(work).pending) == (first + 1, 10)
    assert ids(read(work, take(work))) == batches[1]
    assert work.ask("seek", **LAKE, start="latest") > first + 3
    assert take(work) is None
    assert work.ask("seek", **LAKE, start="earliest") == 1
    assert take(work).from_tick_id == 1


def test_seek_to_a_time_misses_nothing_since(work: Engine) -> None:
    put_batches(work, 1)
    with work.clock("1 h"):
        put_batches(work, 1)
    with work.clock("2 h"):
        batches = put_batches(work, 1)
    at: datetime = work.fetch("select trunq.clock()") + timedelta(minutes=90)
    position = work.ask("seek", **LAKE, at=at)
    (tick,) = work.call("list_ticks", **{"from": position}, to=position)
    assert tick.created_at <= at < tick.created_at + timedelta(hours=1)
    assert ids(read(work, take(work))) == batches[0]


def test_seek_ends_the_batch_in_hand(work: Engine) -> None:
    batches = put_batches(work, 2)
    batch = take(work)
    rows = read(work, batch)
    work.ask("finish_batch", **named(batch), upto_txid=rows[0].txid, upto_id=rows[0].id)
    part = take(work)
    work.ask("seek", **LAKE, tick_id=batch.to_tick_id)
    for ended in (part, batch):
        with refused("TQ003"):
            work.ask("fail_batch", **named(ended))
    with refused("TQ003"):
        work.ask("finish_batch", **named(part))
    assert stream(work).batches == 0
    assert ids(read(work, take(work))) == batches[1]


def test_seek_is_refused_by_name_where_messages_are_gone(work: Engine) -> None:
    before = work.fetch("select trunq.clock()")
    batches = put_batches(work, 3)
    assert work.ask("finish_batch", **named(take(work, max_ticks=9)))
    # As after rotation emptied what the first batch had.
    work.run("update trunq.queue set reachable_tick_id = 3 where name = '{queue}'")
    with refused("TQ012", f'tick 2 of queue "{work.queue}" is out of reach'):
        work.ask("seek", **LAKE, tick_id=2)
    with refused("TQ012", "has no tick 999", "trunq.list_ticks"):
        work.ask("seek", **LAKE, tick_id=999)
    with refused("TQ012", "keeps no tick in reach from", "the first in reach is tick 3"):
        work.ask("seek", **LAKE, at=before)
    with refused("TQ012", "is out of reach"):
        work.ask("subscribe", subscription="late", mode="exclusive", tick_id=2)
    assert [row.subscription for row in work.call("list_subscriptions")] == ["lake"]
    assert work.ask("seek", **LAKE, start="earliest") == 3
    assert ids(read(work, take(work))) == batches[1]


@pytest.mark.parametrize("given", [{}, {"tick_id": 1, "start": "latest"}, {"start": "tomorrow"}])
def test_seek_goes_to_one_place(work: Engine, given: dict[str, Any]) -> None:
    with refused("TQ005"):
        work.ask("seek", **LAKE, **given)


def test_a_subscription_starts_at_a_tick_or_a_time(work: Engine) -> None:
    batches = put_batches(work, 3)
    work.ask("subscribe", subscription="at_tick", mode="exclusive", tick_id=3)
    now = work.fetch("select trunq.clock()")
    work.ask("subscribe", subscription="at_time", mode="exclusive", at=now)
    work.ask("subscribe", subscription="shared", tick_id=4)
    assert [work.ask("position", subscription=name) for name in ("at_tick", "at_time")] == [3, 5]
    assert work.drain("shared") == batches[2]
    with refused("TQ005", "starts at one place"):
        work.ask("subscribe", subscription="both", mode="exclusive", tick_id=3, at=now)
