"""Capture from the shell."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from shelling import Shell
from trunq import Client


@pytest.fixture
def session(database: str, client: Client) -> Iterator[psycopg.Connection[Any]]:
    """Where there is a queue and a table."""
    client.create_queue("changes")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create table orders (id integer primary key, status text, seen integer)")
        yield connection


def test_a_table_is_captured_changed_listed_and_let_go(
    trunq: Shell, client: Client, session: psycopg.Connection[Any]
) -> None:
    assert "No table is captured" in trunq("capture", "list").said
    said = trunq("capture", "create", "orders", "changes").said
    assert said == "Changes of table orders are published into queue changes."
    listed = trunq("capture", "list").said
    assert "public.orders changes {table}.{op} id plain" in listed
    again = trunq(
        *(
            "capture",
            "create",
            "orders",
            "changes",
            "--kind",
            "order_{op}",
            "--column",
            "id",
            "--column",
            "status",
        ),
        *("--ignore", "seen", "--where", '{"in": {"status": ["paid"]}}', "--deny", "truncate", "--no-key"),
        *("--format", "debezium"),
    )
    assert again.said == "Table orders was captured; its changes go into queue changes now."
    (row,) = trunq("capture", "list", "changes", "--json").json
    assert (row["kind"], row["key"], row["columns"]) == ("order_{op}", None, ["id", "status"])
    assert (row["ignore"], row["deny"], row["format"]) == (["seen"], ["truncate"], "debezium")
    session.execute("insert into orders values (1, 'paid'), (2, 'new')")
    assert [message.kind for message in client.lease("changes", "default", "w", max_messages=9)] == [
        "order_insert"
    ]
    assert trunq("capture", "create", "orders", "changes", "--json").json["created"] is False
    assert trunq("capture", "drop", "orders").said == "Changes of table orders are no longer published."
    refused = trunq("capture", "drop", "orders")
    assert (refused.status, "Table orders is not captured" in refused.said) == (1, True)
    assert trunq("capture", "drop", "orders", "--json").json == {"table": "orders", "dropped": False}


def test_mistakes_are_told(trunq: Shell, session: psycopg.Connection[Any]) -> None:
    both = trunq("capture", "create", "orders", "changes", "--key", "id", "--no-key")
    assert (both.status, "Give --key or --no-key" in both.said) == (1, True)
    missing = trunq("capture", "create", "nowhere", "changes")
    assert (missing.status, 'here is no table "nowhere"' in missing.said) == (1, True)
    bad = trunq("capture", "create", "orders", "changes", "--where", "status = 'paid'")
    assert (bad.status, "this is not JSON" in bad.said) == (2, True)


def test_what_is_wrong_with_one_is_told(trunq: Shell, session: psycopg.Connection[Any]) -> None:
    trunq("capture", "create", "orders", "changes")
    session.execute("alter table orders rename id to number")
    assert 'has no column "id" any more' in trunq("capture", "list").said
    assert 'has no column "id" any more' in trunq("status", "--once").said


def test_uninstall_takes_the_triggers_away(trunq: Shell, session: psycopg.Connection[Any]) -> None:
    trunq("capture", "create", "orders", "changes")
    done = trunq("db", "uninstall", "--yes")
    assert done.status == 0, done.said
    session.execute("insert into orders values (1)")
    assert session.execute("select count(*) from pg_trigger where tgname like 'trunq%'").fetchone() == (0,)
