"""A run that is ended from outside leaves no process, and says how things stand if it still can."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from running import logs_say, processes_of, started
from waiting import wait_until

pytestmark = pytest.mark.timeout(300)

MEMBERS = 3
"""Processes that a run starts itself: two workers and the Spark pipeline. It and Postgres add more."""


def test_told_to_end_while_it_starts(tmp_path: Path) -> None:
    with started(tmp_path) as run:
        wait_until(lambda: logs_say(tmp_path, "serves flights"), timeout=100, what="both workers run")
        assert len(processes_of(tmp_path)) > MEMBERS
        os.killpg(run.pid, signal.SIGTERM)
        said, _ = run.communicate(timeout=120)
    assert run.returncode == 130
    assert "Stopped, and nothing was left running. trunq demo demo starts over." in said
    assert "Traceback" not in said
    assert processes_of(tmp_path) == []


def test_killed_outright_it_takes_its_processes_along(tmp_path: Path) -> None:
    with started(tmp_path) as run:
        wait_until(lambda: logs_say(tmp_path, "serves flights"), timeout=100, what="both workers run")
        assert len(processes_of(tmp_path)) > MEMBERS
        run.kill()
        run.wait()
        wait_until(lambda: processes_of(tmp_path) == [], timeout=120, what="nothing is left")


def test_a_place_that_cannot_be_used_is_told_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "thesis.tex").write_text("years of work")
    with started(tmp_path) as run:
        said, _ = run.communicate(timeout=120)
    assert run.returncode == 1
    assert "holds other things (thesis.tex)" in said
    assert "Traceback" not in said
