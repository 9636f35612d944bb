"""Which lanes hold something is found from lane to lane, or by blocked turns where these are fewer."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from engine import Engine
from laning import LATER, make

WAITING = """
select distinct on (priority, lane) lane, state from {turn} where subscription_id = {sub}
order by priority, lane, seq desc
"""


def waiting(work: Engine) -> dict[str, str]:
    """Lanes that are not idle, by all turns there are."""
    sub = work.fetch(
        "select subscription_id from trunq.subscription where queue_id = {id} and name = 'default'"
    )
    rows = work.run(WAITING.replace("{sub}", str(sub))).fetchall()
    found = {lane: state for lane, state in rows if state != "i"}
    told = work.run("select lane, state from trunq_queue.{queue}_waiting_lanes(%s)", sub).fetchall()
    assert len(told) == len(dict(told))
    assert dict(told) == found
    return found


def answered(work: Engine, count: int, lanes: int) -> None:
    """Messages of so many lanes, one after the other."""
    for _ in range(count // lanes):
        work.publish(lanes, keys=[f"k{n}" for n in range(lanes)])
        work.drain()


@pytest.mark.parametrize(
    ("lanes", "blocked"), [(3, 3), (250, 250), (251, 251), (600, 600), (600, 2), (600, 300)]
)
def test_every_lane_that_holds_something_is_found(
    session: psycopg.Connection[Any], lanes: int, blocked: int
) -> None:
    work = make(session)
    work.ask("subscribe", subscription="default", in_order=True)
    names = [f"k{n}" for n in range(lanes)]
    work.publish(lanes + blocked, keys=names + names[:blocked])
    held = work.lease(lanes)
    assert sorted(waiting(work)) == sorted(names[:blocked])
    assert work.status().ready == blocked
    assert len(work.call("list_lanes", limit=1000)) == lanes
    some = held.ids[: lanes // 2]
    work.ack(held, some)
    later = work.lease(lanes)
    waiting(work)
    for each in (later, held):
        if each:
            work.ack(each, [id for id in each.ids if id not in some])
    work.drain()
    assert work.status().ready == 0


def test_what_lanes_hold_outlives_the_segments_of_their_turns(session: psycopg.Connection[Any]) -> None:
    """Some 1,000 turns are carried in a call."""
    work = make(session)
    work.ask("subscribe", subscription="default", in_order=True)
    names = [f"k{n}" for n in range(1200)]
    ids = work.publish(2400, keys=names * 2)
    held = work.lease(1200)
    work.answer("retry", held, delays=["8 days"] * len(held.ids))
    before = waiting(work)
    assert len(before) == 1200
    work.rotate(LATER)
    assert sorted(waiting(work)) == sorted(before)
    with work.clock(LATER):
        assert work.status().ready == 1200
        while work.ask("promote") > 0:
            pass
        assert sorted(work.drain()) == sorted(ids)
