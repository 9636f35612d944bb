"""What the doctor finds in a database, and what its hints say to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from calling import ask
from copying import copied_server
from trunq.embedded import Embedded
from trunq.record import Finding

Connection = psycopg.Connection[Any]


def findings(connection: Connection, *areas: str) -> list[Finding]:
    rows = connection.execute("select * from trunq.diagnose()").fetchall()
    return [row for row in (Finding(*each) for each in rows) if row.area in areas or not areas]


def follow(connection: Connection, hint: str) -> None:
    """Do what a hint says in SQL."""
    for statement in re.split(r", then |; ", hint):
        if statement != "restart the server":
            connection.execute(statement.encode())


@contextmanager
def own_server(**settings: str) -> Iterator[Connection]:
    """One whose settings hurt."""
    with copied_server(settings=settings) as server, led(server) as connection:
        ask(connection, "create_queue", queue="work")
        yield connection


@contextmanager
def led(server: Embedded) -> Iterator[Connection]:
    """A session of a server that somebody leads."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        ask(connection, "elect", name="me", lease_time="1 day")
        yield connection


@pytest.fixture(scope="module")
def healthy() -> Iterator[Embedded]:
    """A server in which nothing is wrong, for the tests of a file."""
    with copied_server(
        settings={"max_prepared_transactions": "5", "max_slot_wal_keep_size": "1MB"}
    ) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            ask(connection, "create_queue", queue="work")
        yield server


@pytest.fixture
def dba(healthy: Embedded) -> Iterator[Connection]:
    """A session of that server, whose clock may move; somebody leads."""
    with led(healthy) as connection:
        yield connection
