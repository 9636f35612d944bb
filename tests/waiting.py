"""Waiting for facts: a test never sleeps and hopes, it says what must become true, and until when."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg

T = TypeVar("T")

PAUSE = 0.005

PATIENCE = float(os.environ.get("TRUNQ_TEST_PATIENCE", "120"))
"""Long, for machines that do ten things at once: waiting for a fact that comes costs nothing. Shorter where
facts are not to come (tools/mutate.py).
"""


def wait_until(predicate: Callable[[], T], timeout: float = PATIENCE, what: str = "") -> T:
    """Call `predicate` until it gives something true, and return that. Fails after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := predicate()):
        assert time.monotonic() < deadline, f"not within {timeout} s: {what or predicate}"
        time.sleep(PAUSE)
    return value


async def async_wait_until(
    predicate: Callable[[], T | Awaitable[T]], timeout: float = PATIENCE, what: str = ""
) -> T:
    """`wait_until` for async tests; `predicate` may be a coroutine function."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout} s: {what or predicate}"
        await asyncio.sleep(PAUSE)


def wait_until_blocked(
    watcher: psycopg.Connection[Any], waiting: psycopg.Connection[Any] | int, timeout: float = PATIENCE
) -> None:
    """Wait until the session `waiting` (a connection or a backend's pid) is seen to wait for a lock."""
    pid = waiting if isinstance(waiting, int) else waiting.info.backend_pid

    def is_blocked() -> bool:
        row = watcher.execute(
            "select cardinality(pg_blocking_pids(%s)) > 0 or exists (select from pg_stat_activity"
            " where pid = %s and wait_event_type = 'Lock')",
            (pid, pid),
        ).fetchone()
        return bool(row and row[0])

    wait_until(is_blocked, timeout, f"backend {pid} waits for a lock")
