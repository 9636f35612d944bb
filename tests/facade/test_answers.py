"""The facade gives PgQ's own answers: values, column names, notices, SQLSTATEs and messages, call by call."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import mirroring
from conftest import TEMPLATE
from trunq import install
from trunq.embedded import Embedded

NewDatabase = Callable[..., str]

FACADE = "trunq_facade"


@pytest.fixture(scope="session")
def template(server: Embedded) -> str:
    """Name of a database with the facade in it, to make others of."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(f"create database {FACADE} template {TEMPLATE}")
    install.install(make_conninfo(server.dsn, dbname=FACADE), "pgq")
    return FACADE


@pytest.mark.parametrize("chapter", mirroring.chapters())
def test_every_call_is_answered_as_pgq_answers_it(
    template: str, new_database: NewDatabase, chapter: str
) -> None:
    dsn = new_database(template)
    if chapter == "pgq_node":
        if not mirroring.NODE_SCRIPT.exists():
            pytest.skip("needs the script of Debian's postgresql-15-pgq-node")
        with psycopg.connect(dsn) as connection:
            connection.execute(mirroring.NODE_SCRIPT.read_bytes())
    differences = mirroring.differences(mirroring.recorded(chapter), mirroring.ask_all(dsn, chapter))
    assert not differences, differences


def test_what_was_recorded_is_what_pgq_says(servers: Callable[[int], Embedded]) -> None:
    for chapter in mirroring.chapters():
        asked = [call.text for call in mirroring.calls(chapter)]
        assert [answer["call"] for answer in mirroring.recorded(chapter)] == asked, f"record {chapter} anew"
    if not mirroring.has_original():
        return
    dsn = servers(mirroring.ORIGINAL).dsn
    with psycopg.connect(dsn, autocommit=True) as connection:
        for chapter in mirroring.chapters():
            if chapter in mirroring.PARTS:
                continue
            mirroring.create_original(connection, f"original_{chapter}")
            given = mirroring.ask_all(make_conninfo(dsn, dbname=f"original_{chapter}"), chapter)
            differences = mirroring.differences(mirroring.recorded(chapter), given)
            assert not differences, differences
