"""One policy says what is tried again, how often, and after which pauses."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import psycopg
import pytest

from trunq.connection import backoff, outage
from trunq.connection.backoff import async_retrying, pause_after, retrying

SOURCE = Path(__file__).parent.parent / "src"


def failing(*errors: BaseException) -> Callable[[], str]:
    left = list(errors)

    def work() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return work


def never(_: float) -> NoReturn:
    raise AssertionError("it waits for another try")


def test_pauses_double_up_to_three_seconds_and_are_spread() -> None:
    for failures, pause in ((1, 0.1), (2, 0.2), (5, 1.6), (6, 3.0), (10_000, 3.0)):
        spread = [pause_after(failures) for _ in range(200)]
        assert pause * 0.5 <= min(spread) < pause * 0.7
        assert pause * 1.3 < max(spread) <= pause * 1.5


def test_what_is_retryable_is_tried_until_it_is_done_and_all_else_raised_at_once() -> None:
    slept: list[float] = []
    passing = [psycopg.OperationalError("lost"), psycopg.errors.DeadlockDetected(), TimeoutError("late")]
    assert retrying(also=TimeoutError, sleep=slept.append)(failing(*passing)) == "done"
    assert len(slept) == 3
    for error in (psycopg.errors.UndefinedTable(), KeyError("mine"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            retrying(sleep=never)(failing(error))


def test_the_last_error_is_raised_when_it_is_over_or_the_time_is() -> None:
    lost = psycopg.OperationalError("lost")
    with pytest.raises(psycopg.OperationalError, match="lost"):
        retrying(is_over=lambda: True, sleep=never)(failing(lost))
    with pytest.raises(psycopg.OperationalError, match="lost"):
        retrying(within=0.0, sleep=never)(failing(lost))
    assert retrying(within=60.0, is_over=lambda: False, sleep=lambda _: None)(failing(lost)) == "done"


def test_after_a_try_that_lasted_pauses_are_short_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, float]] = []
    lost = [psycopg.OperationalError("lost") for _ in range(9)]
    fail, now = failing(*lost), [0.0]
    monkeypatch.setattr(backoff, "monotonic", lambda: now[0])

    def work() -> str:
        now[0] += 1000.0 if len(told) == 6 else 0.0
        return fail()

    def sleep(seconds: float) -> None:
        now[0] += seconds

    assert (
        retrying(say=lambda _, failures, pause: told.append((failures, pause)), sleep=sleep)(work) == "done"
    )
    assert [failures for failures, _ in told] == [1, 2, 3, 4, 5, 6, 1, 2, 3]
    assert told[5][1] > 1.4
    assert told[6][1] < 0.2


def test_what_fails_again_and_again_is_said_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(outage, "monotonic", lambda: now[0])
    said = outage.Said()
    told = [
        said.is_new(*what) for what in (("one", "away"), ("other", "away"), ("one", "full")) for _ in "12"
    ]
    assert told == [True, False] * 3
    now[0] = 59.0
    assert not said.is_new("one", "full")
    now[0] = 61.0
    assert said.is_new("one", "full")
    assert not said.is_new("one", "full")
    said.forget("one")
    said.forget("nothing")
    assert said.is_new("one", "full")


async def test_an_event_loop_has_the_same_policy() -> None:
    slept: list[float] = []
    work = failing(psycopg.OperationalError("lost"), psycopg.errors.UndefinedTable())

    async def attempt() -> str:
        return work()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    with pytest.raises(psycopg.errors.UndefinedTable):
        await async_retrying(sleep=sleep)(attempt)
    assert len(slept) == 1


def test_no_other_place_has_a_policy_of_its_own() -> None:
    """But requests to APIs, whose answers say how long to wait, transactions that met each other; writers of
    one Delta log, and who listens, use the pauses of the one policy.
    """
    built = re.compile(r"tenacity|pause_after\(|stop_after_|wait_(?:exponential|fixed|random)|2\.0 \*\*")
    found = {
        str(path.relative_to(SOURCE / "trunq"))
        for path in (SOURCE / "trunq").rglob("*.py")
        if built.search(path.read_text())
    }
    assert found == {
        "arrow/delta.py",
        "client/_async/log/listen.py",
        "client/_sync/log/listen.py",
        "connection/backoff.py",
        "pipeline/request.py",
        "worker/slot/transaction.py",
    }
