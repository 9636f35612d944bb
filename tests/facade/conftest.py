"""A database with PgQ's API in it: one for all tests of a file, each with queues of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from calling import new_names
from conftest import TEMPLATE, Connect, opening
from trunq import install
from trunq.embedded import Embedded


@pytest.fixture(scope="session")
def facade(server: Embedded) -> str:
    """Address of a database with trunq and PgQ's API."""
    name = next(new_names("facade"))
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"create database {name} template {TEMPLATE}".encode())
    dsn = make_conninfo(server.dsn, dbname=name)
    install.install(dsn, facade="pgq")
    return dsn


@pytest.fixture
def open_pgq(facade: str) -> Iterator[Connect]:
    """Open connections to that database."""
    with opening(facade) as open_one:
        yield open_one


@pytest.fixture
def pgq(open_pgq: Connect) -> psycopg.Connection[Any]:
    """A connection there, in autocommit."""
    return open_pgq()


@pytest.fixture
def name(pgq: psycopg.Connection[Any]) -> str:
    """Name of a queue of PgQ's with a consumer "reader" that nobody else has; it ticks at each look."""
    found = next(new_names("queue"))
    pgq.execute("select pgq.create_queue(%s), pgq.register_consumer(%s, 'reader')", (found, found))
    pgq.execute(
        "update pgq.queue set queue_ticker_max_lag = '0', queue_ticker_idle_period = '0'"
        " where queue_name = %s",
        (found,),
    )
    return found
