"""What a push leaves out is what another test has: the lists by which it is chosen are true."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import scope
from conftest import (
    BY_VERSION,
    LONGEST_FIRST,
    OWN_WAYS,
    SYNC,
    TESTS,
    left_to_other_turns,
    left_to_their_twins,
)


def test_files_that_the_lists_name_are_there() -> None:
    named = [*BY_VERSION, *LONGEST_FIRST, *(f"{SYNC}/{name}" for name in OWN_WAYS)]
    assert [name for name in named if not (TESTS / name).exists()] == []


def test_those_who_share_cases_run_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope, "ALL", False)
    shares = [scope.share(range(10), number, 4) for number in range(4)]
    assert sorted(case for part in shares for case in part) == list(range(10))
    assert scope.some(1, 2) == 1
    monkeypatch.setattr(scope, "ALL", True)
    assert scope.share(range(10), 3, 4) == range(10)
    assert scope.some(1, 2) == 2


def test_each_file_of_the_sync_client_has_a_test_and_those_with_own_ways_have_each_test_once() -> None:
    items: list[Any] = [
        SimpleNamespace(path=TESTS / folder / file, name=name)
        for folder, file, name in (
            ("client/_async", "test_tick.py", "test_a"),
            ("client/_async", "test_tick.py", "test_b"),
            (SYNC, "test_tick.py", "test_a[1]"),
            (SYNC, "test_tick.py", "test_a[2]"),
            (SYNC, "test_tick.py", "test_b"),
            (SYNC, "test_bell.py", "test_a[1]"),
            (SYNC, "test_bell.py", "test_a[2]"),
            (SYNC, "test_bell.py", "test_b"),
        )
    ]
    left = [(item.path.name, item.name) for item in left_to_their_twins(items)]
    assert left == [("test_tick.py", "test_a[2]"), ("test_tick.py", "test_b"), ("test_bell.py", "test_a[2]")]


def test_of_slow_tests_one_turn_of_four_runs_each_and_of_others_one_of_two() -> None:
    items: list[Any] = [
        SimpleNamespace(
            path=TESTS / folder / f"test_{number % 7}.py",
            name=f"test_{number}",
            get_closest_marker=lambda mark, number=number: mark == "slow" and number % 2 == 0,
        )
        for number in range(40)
        for folder in ("race", "")
    ]
    ran = [set(range(len(items))) for _ in range(scope.TURNS)]
    for turn, here in enumerate(ran):
        here -= {items.index(item) for item in left_to_other_turns(items, turn)}
    times = [sum(number in here for here in ran) for number in range(len(items))]
    slow = [number for number, item in enumerate(items) if item.get_closest_marker("slow")]
    halves = [
        number for number, item in enumerate(items) if item.path.parent.name == "race" and number not in slow
    ]
    assert {times[number] for number in slow} == {1}
    assert {times[number] for number in halves} == {2}
    assert {times[number] for number in range(len(items)) if number not in {*slow, *halves}} == {4}
    assert all(len(here) < len(items) for here in ran)


def test_the_commit_decides_whose_turn_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope, "ALL", False)
    monkeypatch.delenv("TRUNQ_TEST_TURN", raising=False)
    assert scope.turn() is None
    monkeypatch.setenv("TRUNQ_TEST_TURN", "commit")
    assert scope.turn() in range(scope.TURNS)
    monkeypatch.setenv("TRUNQ_TEST_TURN", "6")
    assert scope.turn() == 2
    monkeypatch.setattr(scope, "ALL", True)
    assert scope.turn() is None
