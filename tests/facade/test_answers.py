"""The facade gives PgQ's own answers: values, column names, notices, SQLSTATEs and messages, call by call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import mirroring
from conftest import TEMPLATE
from trunq import install
from trunq.embedded import Embedded

NewDatabase = Callable[..., str]

FACADE = "trunq_facade"

_numbers = count(1)


@pytest.fixture(scope="session")
def facade(server: Embedded) -> str:
    """Name of a database with the facade in it, to make others of."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"create database {FACADE} template {TEMPLATE}")
    install.install(make_conninfo(server.dsn, dbname=FACADE), "pgq")
    return FACADE


@pytest.fixture
def original(server: Embedded) -> Iterator[str]:
    """A database with PgQ itself in it."""
    name = f"original_{next(_numbers)}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        if not mirroring.has_original(connection):
            pytest.skip("PgQ itself is not installed; its recorded answers are compared all the same")
        mirroring.create_original(connection, name)
        yield make_conninfo(server.dsn, dbname=name)
        connection.execute(f"drop database {name} with (force)")


@pytest.mark.parametrize("chapter", mirroring.chapters())
def test_every_call_is_answered_as_pgq_answers_it(facade: str, new_database: NewDatabase, chapter: str) -> None:
    given = mirroring.ask_all(new_database(facade), chapter)
    assert mirroring.differences(mirroring.recorded(chapter), given) == ""


@pytest.mark.parametrize("chapter", [name for name in mirroring.chapters() if name not in mirroring.PARTS])
def test_the_recorded_answers_are_what_pgq_says(original: str, chapter: str) -> None:
    given = mirroring.ask_all(original, chapter)
    assert mirroring.differences(mirroring.recorded(chapter), given) == ""
