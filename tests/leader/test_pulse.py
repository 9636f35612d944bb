"""The leader's line of statistics."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from serving import Queue
from trunq.leader import Leader
from waiting import async_wait_until, wait_until


@pytest.fixture
def queue(database: str, connection: psycopg.Connection[Any]) -> Queue:
    return Queue(database, connection, backoff="constant", backoff_base="0 s", jitter=0.0)


@asynccontextmanager
async def leading(leader: Leader) -> AsyncIterator[None]:
    """A leader that runs beside the test."""
    task = asyncio.create_task(leader.run_async())
    try:
        yield
        leader.stop()
        await task
    finally:
        task.cancel()


def told(caplog: pytest.LogCaptureFixture, name: str) -> int:
    """A count over all lines."""
    return sum(getattr(record, name, 0) for record in caplog.records if hasattr(record, "promoted"))


async def test_a_line_at_each_interval_says_what_was_done_since_the_last(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trunq.leader")
    queue.connection.execute("select trunq.publish(%s, p_delay => '10 milliseconds')", (queue.name,))
    async with leading(Leader(queue.dsn, "one", statistics=0.2)):
        await async_wait_until(lambda: told(caplog, "promoted") == 1)
        seen = len([record for record in caplog.records if hasattr(record, "promoted")])
        await async_wait_until(
            lambda: len([record for record in caplog.records if hasattr(record, "promoted")]) > seen + 2
        )
    assert told(caplog, "promoted") == 1
    assert told(caplog, "errors") == 0
    assert told(caplog, "duties") > 3
    (line, *_) = [record.getMessage() for record in caplog.records if getattr(record, "promoted", 0)]
    assert "1 promoted, 0 reaped, 0 fired" in line


async def test_duties_that_fail_are_counted(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trunq.leader")
    queue.connection.execute("alter function trunq.forget_memos rename to forgets_memos")
    async with leading(Leader(queue.dsn, "one", statistics=0.2)):
        await async_wait_until(lambda: told(caplog, "errors") > 0)


async def test_who_was_not_told_so_says_nothing(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trunq.leader")
    leader = Leader(queue.dsn, "one")
    async with leading(leader):
        await async_wait_until(lambda: leader.performed.calls.get("forget_memos"))
    assert not [record for record in caplog.records if hasattr(record, "promoted")]


def test_as_a_process_it_is_told_by_an_option_and_writes_json(queue: Queue) -> None:
    command = ["leader", "--dsn", queue.dsn, "--statistics", "200ms", "--log-format", "json"]
    with subprocess.Popen(
        [sys.executable, "-m", "trunq.cli", *command], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            line = wait_until(lambda: _line(process), 60)
        finally:
            process.terminate()
    assert {"duties", "ticks", "promoted", "reaped", "fired", "rotated", "archived", "errors"} <= set(line)
    assert line["term"] == 1


def _line(process: subprocess.Popen[str]) -> Any:
    said = json.loads(process.stderr.readline())  # type: ignore[union-attr]
    return said if "promoted" in said else None
