"""Fixtures of pytest: a database with trunq in it for each test, on a server that lives as long as the tests.

pytest finds them by itself where trunq is installed. Every project's pytest imports this module: it imports
nothing itself, and starts nothing until a test asks for a fixture. docs/client/testing.md shows them at work.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from trunq import Client
    from trunq.embedded import Embedded

_FORGETFUL: Final = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""Settings of a server whose data is thrown away."""

_numbers: Final = count(1)


@pytest.fixture(scope="session")
def trunq_server() -> Iterator[Embedded]:
    """An embedded Postgres; needs the extra `embedded`. Its `dsn` leads to an empty database.

    A fixture of this name in your conftest.py that gives anything with a `dsn`, whose role may create
    databases, stands in for it.
    """
    from trunq import embedded

    with embedded.start(settings=_FORGETFUL) as server:
        yield server


@pytest.fixture(scope="session")
def trunq_template(trunq_server: Embedded) -> Iterator[str]:
    """Address of the database that each test gets a copy of, with trunq in it.

    Override it to put tables and queues of your own there, and close your connections to it.
    """
    from trunq import install

    # The process, for those who share a server of their own between several.
    name = f"trunq_template_{os.getpid()}"
    dsn = _create(trunq_server, name, "template1")
    install.install(dsn)
    _execute(dsn, "select trunq.let_clock_move()")
    yield dsn
    _execute(trunq_server.dsn, "drop database {} with (force)", name)


@pytest.fixture
def trunq_dsn(trunq_server: Embedded, trunq_template: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a fresh copy of `trunq_template`, and TRUNQ_DSN while the test runs."""
    from psycopg.conninfo import conninfo_to_dict

    name = f"trunq_test_{os.getpid()}_{next(_numbers)}"
    dsn = _create(trunq_server, name, str(conninfo_to_dict(trunq_template)["dbname"]))
    # Workers and clients that name no database go by it.
    monkeypatch.setenv("TRUNQ_DSN", dsn)
    yield dsn
    _execute(trunq_server.dsn, "drop database {} with (force)", name)


@pytest.fixture
def trunq_client(trunq_dsn: str) -> Iterator[Client]:
    """A client of `trunq_dsn`, closed in the end."""
    from trunq import Client

    with Client(trunq_dsn) as client:
        yield client


def _create(server: Embedded, name: str, template: str) -> str:
    from psycopg.conninfo import make_conninfo

    _execute(server.dsn, "create database {} template {}", name, template)
    return make_conninfo(server.dsn, dbname=name)


def _execute(dsn: str, statement: str, *names: str) -> None:
    import psycopg
    from psycopg import sql

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))
