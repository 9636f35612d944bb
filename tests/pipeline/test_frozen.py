"""A runner stops in the middle of a commit, as in a debugger or on a machine that is paused; others end its
run, and the next one; then it goes on. Every row arrives once.

A push takes one sink for each way to commit; TRUNQ_TEST_ALL, or TRUNQ_KILLS, takes each.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
import pytest

from pipeline.killing import LONG, start
from pipeline.piping import Bench
from pipeline.test_kill import FIRST, SINKS, Moving
from scope import EVERY
from waiting import wait_until

CHOSEN: Final = list(SINKS) if EVERY else list(FIRST)
POINTS: Final = ("tried", "staging", "written", "committing", "marked")


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.killing.DIRECTORY", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@contextmanager
def frozen(bench: Bench, message: int, point: str) -> Iterator[None]:
    """A process that is at this point of a run; afterwards it goes on, and ends."""
    process = start(bench.dsn, bench.asked(message), f"frozen {point}")
    there = psutil.Process(process.pid)
    try:
        wait_until(lambda: not process.is_alive() or there.status() == psutil.STATUS_STOPPED, LONG)
        assert process.is_alive(), point
        yield
    finally:
        there.send_signal(signal.SIGCONT)
        process.join(LONG)
        process.kill()
    assert process.exitcode in (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHOSEN)
def test_one_who_was_frozen_while_others_took_its_run_changes_nothing(bench: Bench, kind: str) -> None:
    moving = Moving(bench, kind)
    for point in [*POINTS, *(["taken"] if "delta" in kind else [])]:
        round, message = moving.ask()
        with frozen(bench, message, point):
            moving.end(round, message, point)
            moving.end(*moving.ask(), point)
        moving.check(point)
    moving.check_leftovers()
