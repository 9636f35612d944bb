"""Unique keys through an upgrade, a copy of the schema alone, and a restore into another cluster."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import ask, fetch, refresh
from engine import Engine
from keying import is_free, take

Connection = psycopg.Connection[Any]


@pytest.fixture
def keyed(connection: Connection) -> Engine:
    return Engine(connection, "keyed").create(unique="replace")


def made(keyed: Engine) -> list[tuple[Any, ...]]:
    return keyed.run(
        "select p.proname, pg_get_functiondef(p.oid), p.proacl::text from pg_proc p"
        " where p.proname like 'keyed\\_%%' order by 1"
    ).fetchall()


def test_an_upgrade_makes_the_same_functions_and_keeps_grants_and_keys(keyed: Engine) -> None:
    keyed.run("create role keyed_upgraded")
    try:
        keyed.ask("grant_role", role="publisher", grantee="keyed_upgraded")
        before = made(keyed)
        assert {"keyed_take_key", "keyed_publish_unique", "keyed_unique_many"} <= {row[0] for row in before}
        take(keyed)
        assert refresh(keyed.connection)
        assert made(keyed) == before
        assert not is_free(keyed)
    finally:
        keyed.run("drop owned by keyed_upgraded")
        keyed.run("drop role keyed_upgraded")


def test_a_copy_of_the_schema_alone_is_the_same_kind_of_queue(keyed: Engine) -> None:
    keyed.connection.execute("delete from trunq.queue")
    keyed.connection.execute("select trunq._restore_rows()")
    assert fetch(keyed.connection, "select unique_policy from trunq.queue where name = 'keyed'") == "replace"


def test_what_is_published_again_after_a_restore_holds_its_key(keyed: Engine) -> None:
    first, _ = take(keyed)
    take(keyed, "later", delay="1 hour")
    take(keyed, "done")
    held = keyed.lease(10)
    keyed.ack(held, [id for id in held.ids if id != first])
    assert ask(keyed.connection, "rebase") == 1
    assert (is_free(keyed), is_free(keyed, "later"), is_free(keyed, "done")) == (False, False, True)
    held = keyed.lease(10)
    assert held.ids == [first]
    keyed.ack(held)
    assert is_free(keyed)
