"""Filters with lanes: what discovery passes over, and what a lane holds when a filter changes."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from engine import Engine
from laning import LATER, make

Connection = psycopg.Connection[Any]


def choose(laned: Engine, *kinds: str) -> None:
    laned.ask("subscribe", subscription="default", filter={"kinds": list(kinds)} if kinds else {})


def test_a_lane_in_which_nothing_passes_has_no_turn(session: Connection) -> None:
    laned = make(session)
    choose(laned, "a")
    laned.publish(30, keys=["x", "y", "z"] * 10, kinds=["b", "b", "a"] * 10)
    assert len(laned.lease(4).ids) == 4
    assert laned.fetch("select array_agg(distinct lane) from {turn}") == ["z"]


def test_what_does_not_pass_takes_no_token(session: Connection) -> None:
    laned = make(session)
    choose(laned, "a")
    laned.ask("set_lanes", rate=0.0001, burst=3)
    ids = laned.publish(20, keys=["x"], kinds=["b", "a"] * 10)
    assert laned.lease(20).ids == ids[1:7:2]


def test_a_filter_that_changes_counts_for_what_a_lane_still_holds(session: Connection) -> None:
    laned = make(session)
    choose(laned, "a")
    ids = laned.publish(20, keys=["x"], kinds=["a", "b"] * 10)
    first = laned.lease(2)
    assert first.ids == [ids[0], ids[2]]
    choose(laned, "b")
    assert laned.status().ready == 9
    assert laned.listed(state="ready", limit=100) == ids[:2:-2]
    assert laned.drain() == ids[3::2]
    choose(laned)
    assert laned.drain() == []
    assert laned.status().ready == 0


@pytest.mark.parametrize("kinds", [("a", "b"), ()])
def test_rotation_keeps_what_a_wider_filter_lets_pass(session: Connection, kinds: tuple[str, ...]) -> None:
    laned = make(session)
    choose(laned, "a")
    ids = laned.publish(9, keys=["x"], kinds=["a", "a", "b"] * 3)
    laned.ack(laned.lease())
    choose(laned, *kinds)
    laned.rotate(LATER)
    with laned.clock(LATER):
        assert laned.drain() == ids[1:]
    assert laned.rotate(LATER) > 0
    assert laned.is_empty("log")


def test_rotation_waits_for_nothing_that_does_not_pass(session: Connection) -> None:
    laned = make(session)
    laned.ask("pause_lane", lane="x")
    laned.publish(9, keys=["x"], kinds=["b"])
    laned.publish(1, keys=["y"])
    laned.ack(laned.lease())
    choose(laned, "a")
    laned.rotate(LATER)
    assert laned.is_empty("log")
    laned.ask("resume_lane", lane="x")
    (alive,) = laned.publish(1, keys=["x"], kinds=["a"])
    assert laned.drain() == [alive]


def test_much_that_does_not_pass_is_walked_over(session: Connection) -> None:
    laned = make(session)
    choose(laned, "seldom")
    laned.run("insert into {log} (key, kind) select 'k' || n % 50, 'often' from generate_series(1, 30000) n")
    (seldom,) = laned.publish(1, keys=["k1"], kinds=["seldom"])
    assert laned.drain() == [seldom]
    assert laned.fetch("select count(distinct lane) from {turn}") == 1
