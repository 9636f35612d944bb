"""Capture and uncapture beside open writers, and beside each other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

from calling import ask, call, drain, fetch, refused
from conftest import Connect
from waiting import wait_until

Connection = psycopg.Connection[Any]


def prepare(connection: Connection) -> None:
    ask(connection, "create_queue", queue="changes")
    connection.execute("create table things (id integer primary key)")


def waits(connection: Connection, backend: int) -> Callable[[], bool]:
    """Whether a session waits for a lock."""
    asked = "select wait_event_type = 'Lock' from pg_stat_activity where pid = %s"
    return lambda: bool(fetch(connection, asked, backend))


def test_an_open_writer_is_waited_for_in_turns_and_told_of(connect: Connect) -> None:
    first, writer, other = connect(), connect(), connect()
    prepare(first)
    writer.execute("begin")
    writer.execute("insert into things values (1)")
    with refused("TQ009", 'table "public.things" is in use by an open transaction', "pg_stat_activity"):
        ask(first, "capture", table="things", queue="changes")
    # Nothing is left of it, and nobody was in the way.
    assert call(first, "list_captures") == []
    assert fetch(first, "select count(*) from pg_proc where proname ~ '^capture_'") == 0
    other.execute("insert into things values (2)")
    writer.execute("commit")
    assert ask(first, "capture", table="things", queue="changes") is True
    writer.execute("begin")
    writer.execute("insert into things values (3)")
    with refused("TQ009", "in use"):
        ask(first, "uncapture", table="things")
    writer.execute("commit")
    assert ask(first, "uncapture", table="things") is True
    assert len(drain(first, "changes")) == 1


def test_a_capture_waits_for_a_writer_that_ends(connect: Connect) -> None:
    first, writer, watcher = connect(), connect(), connect()
    prepare(first)
    writer.execute("begin")
    writer.execute("insert into things values (1)")
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(ask, first, "capture", table="things", queue="changes")
        wait_until(waits(watcher, first.info.backend_pid))
        writer.execute("commit")
        assert made.result() is True
    # A transaction that began before and writes after is captured.
    writer.execute("insert into things values (2)")
    assert len(drain(first, "changes")) == 1


def test_of_two_who_capture_a_table_at_once_one_makes_it(connect: Connect) -> None:
    first, second, watcher = connect(), connect(), connect()
    prepare(first)
    first.execute("begin")
    assert ask(first, "capture", table="things", queue="changes") is True
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(ask, second, "capture", table="things", queue="changes", kind="{op}")
        wait_until(waits(watcher, second.info.backend_pid))
        first.execute("commit")
        assert again.result() is False
    (listed,) = call(first, "list_captures")
    assert listed.kind == "{op}"
    first.execute("insert into things values (1)")
    assert len(drain(first, "changes")) == 1


def test_a_queue_is_not_dropped_while_a_table_is_being_captured_into_it(connect: Connect) -> None:
    first, second = connect(), connect()
    prepare(first)
    first.execute("begin")
    ask(first, "capture", table="things", queue="changes")
    with refused("TQ009", "in use by an open transaction"):
        ask(second, "drop_queue", queue="changes")
    first.execute("commit")
    with refused("TQ009", "public.things"):
        ask(second, "drop_queue", queue="changes")
    first.execute("insert into things values (1)")
    assert len(drain(first, "changes")) == 1


def test_dropping_a_queue_waits_for_no_writer_of_the_table_with_a_lock_on_the_log(connect: Connect) -> None:
    first, writer = connect(), connect()
    prepare(first)
    ask(first, "capture", table="things", queue="changes")
    writer.execute("begin")
    writer.execute("insert into things values (1)")
    with refused("TQ009", "in use by an open transaction"):
        ask(first, "drop_queue", queue="changes", force=True)
    writer.execute("insert into things values (2)")
    writer.execute("commit")
    ask(first, "drop_queue", queue="changes", force=True)
    writer.execute("insert into things values (3)")
    assert fetch(first, "select count(*) from things") == 3


def test_writers_of_a_captured_table_do_not_wait_for_each_other(connect: Connect) -> None:
    first, second = connect(), connect()
    prepare(first)
    ask(first, "capture", table="things", queue="changes")
    first.execute("begin")
    first.execute("insert into things values (1)")
    second.execute("set lock_timeout = '1s'")
    second.execute("insert into things values (2)")
    first.execute("commit")
    assert len(drain(first, "changes")) == 2


def test_a_drop_that_is_rolled_back_forgets_nothing(connect: Connect) -> None:
    first, second = connect(), connect()
    prepare(first)
    ask(first, "capture", table="things", queue="changes")
    first.execute("begin")
    first.execute("drop table things")
    assert ask(second, "forget", queue="changes") == 0
    first.execute("rollback")
    first.execute("insert into things values (1)")
    assert len(drain(first, "changes")) == 1


def test_a_prepared_transaction_publishes_when_it_commits(connect: Connect) -> None:
    first = connect()
    prepare(first)
    ask(first, "capture", table="things", queue="changes")
    first.execute("begin")
    first.execute("insert into things values (1)")
    first.execute("prepare transaction 'captured'")
    assert drain(first, "changes") == []
    first.execute("commit prepared 'captured'")
    assert len(drain(first, "changes")) == 1
