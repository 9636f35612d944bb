"""Pipelines over connections that go silent in the middle of a statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from freezing import freezing
from pipeline.piping import Bench
from trunq.connection.silence import limit
from trunq.pipeline import sink as sinks
from trunq.pipeline import source as sources
from trunq.pipeline.control import Run
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.work.frame import _bytes
from waiting import wait_until

WAITING = "select count(*) from pg_locks where not granted"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A second of silence is enough to ask."""
    monkeypatch.setenv("TRUNQ_SILENCE", "1")
    limit.cache_clear()
    yield
    limit.cache_clear()


def fails_when_silent(bench: Bench, locked: str, work: Callable[[str], Any]) -> None:
    """While a statement of `work` waits for a lock, its connection goes silent: then it fails.

    The server has finished the statement by then, so that nothing is to be waited for.
    """
    with (
        ThreadPoolExecutor(1) as threads,
        freezing(bench.dsn) as proxy,
        psycopg.connect(bench.dsn) as blocker,
    ):
        blocker.execute(f"lock table {locked}".encode())
        working = threads.submit(work, proxy.dsn)
        wait_until(lambda: working.done() or bench.one(WAITING) == 1)
        proxy.silence()
        blocker.rollback()
        with pytest.raises(psycopg.OperationalError, match="the connection was silent"):
            working.result(30)


@pytest.fixture
def moved(bench: Bench) -> Pipeline:
    """A pipeline from a table into a table, which ran once."""
    bench.sql("create table source (id int)")
    bench.sql("insert into source select generate_series(1, 10)")
    source, sink = {"format": "table", "table": "source"}, {"format": "table", "table": "moved"}
    bench.run(bench.make(source, sink, name="moved"))
    return Pipeline("moved", source=source, sink=sink)


def test_a_source_that_went_silent_fails_the_run(bench: Bench, moved: Pipeline) -> None:
    fails_when_silent(bench, "source", lambda dsn: sources.make(moved, dsn, bench.executor.control).plan({}))


def test_a_sink_that_went_silent_fails_the_run(bench: Bench, moved: Pipeline) -> None:
    run = Run("moved", "of_a_test", 1, 1, 1, {})
    fails_when_silent(bench, "trunq_sink.mark", lambda dsn: sinks.make(moved, dsn).applied(run))


def test_a_lookup_that_went_silent_fails_the_run(bench: Bench, moved: Pipeline) -> None:
    fails_when_silent(bench, "source", lambda dsn: _bytes(dsn, "source"))
