"""What tests of races need: calls beside the test, and a server that may be killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from conftest import Connect
from trunq import embedded
from trunq.embedded import Embedded

Meanwhile = Callable[..., Future[Any]]


@pytest.fixture
def meanwhile(open_session: Connect) -> Iterator[Meanwhile]:
    """Run a call on a session beside the test: `meanwhile(function, session, ...)` gives its future."""
    running: list[tuple[Future[Any], psycopg.Connection[Any]]] = []
    with ThreadPoolExecutor() as pool:

        def start(
            function: Callable[..., Any], session: psycopg.Connection[Any], *arguments: Any, **named: Any
        ) -> Any:
            running.append((pool.submit(function, session, *arguments, **named), session))
            return running[-1][0]

        yield start
        for future, session in running:
            # A test that failed may leave somebody waiting for ever.
            if not future.done():
                session.cancel()


@pytest.fixture(scope="session")
def spare(server: Embedded) -> Iterator[Embedded]:
    """Another server of the same version: its transaction ids are lower, and it may be killed."""
    settings = {
        "fsync": "off",
        "max_prepared_transactions": "10",
        # What is not waited for reaches the disk only when a test says so.
        "wal_writer_delay": "10s",
        "autovacuum": "off",
    }
    with embedded.start(major=server.major, settings=settings) as spare:
        yield spare
