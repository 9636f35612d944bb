"""The pace of calls to an API in SQL: moments one behind the other, and none while the API wants none."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import ask, fetch, move_clock

Connection = psycopg.Connection[Any]


def take(connection: Connection, name: str = "a", every: float | None = 10) -> tuple[float, bool]:
    told = ask(connection, "_take_pace", name=name, every=every)
    return told["seconds"], told["is_ours"]


def test_each_takes_the_next_moment_by_its_own_length(connection: Connection) -> None:
    taken = [take(connection), take(connection), take(connection, every=2), take(connection)]
    assert [seconds for seconds, _ in taken] == pytest.approx([0, 10, 20, 22], abs=1)
    assert all(is_ours for _, is_ours in taken)
    # Another host, or key, has its own.
    assert take(connection, "b") == (0, True)
    # Moments that nobody took are gone: no burst makes up for them.
    move_clock(connection, "1 hour")
    assert [take(connection)[0] for _ in range(2)] == pytest.approx([0, 10], abs=1)


def test_who_has_no_pace_takes_no_moment(connection: Connection) -> None:
    assert [take(connection, every=None) for _ in range(3)] == [(0, True)] * 3
    assert fetch(connection, "select count(*) from trunq.pace") == 0


def test_while_an_api_wants_none_nobody_takes_a_moment(connection: Connection) -> None:
    ask(connection, "_hold_pace", name="a", seconds=600)
    ask(connection, "_hold_pace", name="a", seconds=60)
    for every in (10, None):
        seconds, is_ours = take(connection, every=every)
        assert not is_ours
        assert 590 < seconds <= 600
    assert ask(connection, "_is_pace_held", name="a")
    assert take(connection, "b") == (0, True)
    move_clock(connection, "10 minutes")
    assert not ask(connection, "_is_pace_held", name="a")
    # Who waited for it goes one behind the other.
    assert [take(connection)[0] for _ in range(2)] == pytest.approx([0, 10], abs=1)


def test_a_hold_that_comes_moves_the_moments_behind_it(connection: Connection) -> None:
    take(connection)
    ask(connection, "_hold_pace", name="a", seconds=60)
    move_clock(connection, "59.9 seconds")
    assert fetch(connection, "select next_at - trunq.clock() < interval '1 second' from trunq.pace")


def test_those_that_nobody_used_for_a_day_go(connection: Connection) -> None:
    take(connection, "old")
    ask(connection, "_hold_pace", name="held", seconds=3 * 86_400)
    move_clock(connection, "25 hours")
    take(connection, "new")
    assert fetch(connection, "select array_agg(name order by name) from trunq.pace") == ["held", "new"]


def test_of_a_clock_that_went_back_no_moment_and_no_hold_stays(connection: Connection) -> None:
    """Else all who call that host would wait until the clock is there again."""
    for _ in range(3):
        take(connection)
    ask(connection, "_hold_pace", name="held", seconds=600)
    move_clock(connection, "-1 hour")
    assert not ask(connection, "_is_pace_held", name="held")
    assert [take(connection)[0] for _ in range(2)] == pytest.approx([0, 10], abs=1)
    assert take(connection, "held") == (0, True)
