"""The session of a runner: how far a run is, and the end of one whose task sleeps."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from pipeline.piping import Bench
from pipeline.test_runner import running
from trunq.pipeline.engine import Engine
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("spark")

TABLE = {"format": "table", "table": "source"}
MOVED = {"format": "table", "table": "moved"}
SLOW: dict[str, Any] = {"transform": "pipeline.transforms:dawdles"}


@pytest.fixture
def filled(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A table `source`; the session is that of all tests, and is not ended."""
    bench.sql("create table source (id bigint)")
    bench.sql("insert into source select generate_series(1, 10)")
    monkeypatch.setattr(Engine, "close", lambda _engine: None)
    return bench


def test_a_run_says_how_far_it_is_and_is_cancelled_while_its_task_sleeps(
    filled: Bench, tmp_path: Path
) -> None:
    slow = filled.make(TABLE, MOVED, **SLOW)
    other = filled.make(TABLE, {**MOVED, "table": "other"}, sql=["select id + 1 as id from input"])
    with running(filled) as runner:
        wait_until(lambda: runner._executor is not None and runner._executor.engine._session is not None, 120)
        filled.client.run_pipeline(slow, str(tmp_path))
        wait_until(lambda: [*tmp_path.iterdir()], 120)
        wait_until(lambda: (filled.client.list_runs(slow)[0].progress or {}).get("tasks"), 120)
        # Another one is done beside it.
        filled.client.run_pipeline(other)
        wait_until(lambda: filled.client.list_runs(other) and filled.client.list_runs(other)[0].outcome, 120)
        assert filled.client.list_runs(slow)[0].outcome is None
        assert filled.client.cancel_pipeline(slow)
        wait_until(lambda: filled.client.list_runs(slow)[0].outcome == "cancelled", 120)
    assert filled.one("select count(*) from pg_class where relname like 'stage\\_%'") == 0


def test_a_lost_lease_ends_the_jobs_of_a_run(filled: Bench, tmp_path: Path) -> None:
    slow = filled.make(TABLE, MOVED, **SLOW)
    with running(filled) as runner:
        filled.client.run_pipeline(slow, str(tmp_path))
        wait_until(lambda: [*tmp_path.iterdir()], 120)
        tracker = wait_until(lambda: runner._executor and runner._executor.engine._session, 120)
        active = tracker.sparkContext.statusTracker().getActiveJobsIds
        assert active()
        ((_, lost),) = runner._handling.values()
        assert isinstance(lost, threading.Event)
        lost.set()
        wait_until(lambda: not active(), 120)
        wait_until(lambda: not runner._handling, 120)
        # Nobody is at it, and it has not failed.
        assert filled.sql("select outcome, error, holder from trunq.pipeline_run") == [(None, None, None)]
