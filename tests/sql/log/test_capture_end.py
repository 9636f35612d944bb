"""Captures that are changed, listed and ended; tables that are renamed or dropped: log/capture.sql."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from calling import ask, call, fetch, new_names, refused
from capturing import capture, run, table_of_orders, taken
from conftest import Connect

Connection = psycopg.Connection[Any]


@pytest.fixture
def table(session: Connection) -> Iterator[str]:
    with table_of_orders(session) as name:
        yield name


def test_uncapture_leaves_nothing_behind(session: Connection, queue: str, table: str) -> None:
    capture(session, table, queue)
    assert ask(session, "uncapture", table=table) is True
    assert ask(session, "uncapture", table=table) is False
    run(session, table, "insert into TABLE values (1)")
    assert taken(session, queue) == []
    assert fetch(session, "select count(*) from pg_trigger where tgrelid = %s::regclass", table) == 0
    assert call(session, "list_captures", queue=queue) == []
    ask(session, "drop_queue", queue=queue)


def test_captures_are_listed_with_all_that_was_given(session: Connection, queue: str, table: str) -> None:
    capture(
        session, table, queue, ignore=["seen"], where={"in": {"status": ["a"]}}, kind="k", deny=["delete"],
        columns=["id", "status"], format="debezium",
    )  # fmt: skip
    (listed,) = call(session, "list_captures", queue=queue)
    assert listed[:-1] == (
        *(f"public.{table}", queue, "k", ["id"], ["id", "status"], ["seen"], {"in": {"status": ["a"]}}),
        *(["delete"], "debezium", f"public.{table}", None),
    )
    capture(session, table, queue)
    (listed,) = call(session, "list_captures", queue=queue)
    assert listed[2:9] == ("{table}.{op}", ["id"], None, None, None, None, "plain")


def test_a_table_that_is_renamed_is_called_as_before(session: Connection, queue: str, table: str) -> None:
    capture(session, table, queue)
    renamed = f"{table}_renamed"
    session.execute(f"alter table {table} rename to {renamed}".encode())
    session.execute(f"insert into {renamed} values (1)".encode())
    assert [kind for kind, _, _ in taken(session, queue)] == [f"public.{table}.insert"]
    (listed,) = call(session, "list_captures", queue=queue)
    assert (listed.table_name, listed.published_as) == (f"public.{renamed}", f"public.{table}")
    capture(session, renamed, queue)
    session.execute(f"insert into {renamed} values (2)".encode())
    assert [kind for kind, _, _ in taken(session, queue)] == [f"public.{renamed}.insert"]
    session.execute(f"drop table {renamed}".encode())


def test_a_table_that_is_dropped_is_forgotten(session: Connection, queue: str, table: str) -> None:
    capture(session, table, queue)
    function = fetch(session, "select tgfoid from pg_trigger where tgrelid = %s::regclass limit 1", table)
    session.execute(f"drop table {table}".encode())
    (listed,) = call(session, "list_captures", queue=queue)
    assert (listed.table_name, listed.warning) == (f"public.{table}", f'table "public.{table}" was dropped')
    assert ask(session, "forget", queue=queue) == 1
    assert call(session, "list_captures", queue=queue) == []
    assert fetch(session, "select count(*) from pg_proc where oid = %s", function) == 0


def test_a_queue_that_tables_publish_into_is_dropped_by_force_alone(
    session: Connection, queue: str, table: str
) -> None:
    capture(session, table, queue)
    with refused("TQ009", f'"public.{table}"', "trunq.uncapture"):
        ask(session, "drop_queue", queue=queue)
    ask(session, "drop_queue", queue=queue, force=True)
    run(session, table, "insert into TABLE values (1)")
    assert fetch(session, f"select count(*) from {table}") == 1
    assert fetch(session, "select count(*) from pg_trigger where tgrelid = %s::regclass", table) == 0


def test_a_capture_may_go_to_another_queue(
    session: Connection, queue: str, table: str, open_session: Connect
) -> None:
    other = next(new_names("queue"))
    ask(session, "create_queue", queue=other)
    writer = open_session()
    capture(session, table, queue)
    with writer.transaction():
        run(writer, table, "insert into TABLE values (1)")
        # No trigger is missing: the open writer is not waited for.
        assert capture(session, table, other) is False
    run(writer, table, "insert into TABLE values (2)")
    assert [key for _, key, _ in taken(session, queue)] == ["1"]
    assert [key for _, key, _ in taken(session, other)] == ["2"]
