"""One database for many tests of a server, a queue for each of them: databases are dear, queues are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from calling import ask, named, new_names
from conftest import TEMPLATE, Connect
from trunq import embedded
from trunq.embedded import Embedded


@pytest.fixture(scope="session")
def shared_database(server: Embedded) -> str:
    """Address of a database that many tests share: only their own queues are theirs."""
    name = next(new_names("shared"))
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"create database {name} template {TEMPLATE}".encode())
    return named(server.dsn, name)


@pytest.fixture
def open_session(shared_database: str) -> Iterator[Connect]:
    """Open connections to the shared database, in autocommit unless told otherwise."""
    opened: list[psycopg.Connection[Any]] = []

    def open_one(*, autocommit: bool = True, **options: Any) -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(shared_database, autocommit=autocommit, **options))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def session(open_session: Connect) -> psycopg.Connection[Any]:
    """A connection to the shared database, in autocommit."""
    return open_session()


@pytest.fixture
def queue(session: psycopg.Connection[Any]) -> str:
    """Name of a queue nobody else has."""
    name = next(new_names("queue"))
    ask(session, "create_queue", queue=name)
    return name


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
