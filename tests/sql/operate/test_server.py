"""What is wrong with the server beneath? diagnose names each trouble that a test makes, and what helps."""

from __future__ import annotations

import re

import psycopg
import pytest

from calling import ask, burn, fetch, move_clock
from copying import copied_server
from diagnosing import Connection, findings, follow, led, own_server
from standby import primary_and_standby
from trunq import embedded
from trunq.embedded import Embedded
from waiting import wait_until


def test_an_old_transaction_is_named_and_ended(healthy: Embedded, dba: Connection) -> None:
    with psycopg.connect(healthy.dsn, application_name="webshop") as other:
        other.execute("select pg_current_xact_id()")
        try:
            move_clock(dba, "4 minutes")
            assert findings(dba, "transactions") == []
            move_clock(dba, "6 minutes")
            (row,) = findings(dba, "transactions")
            follow(dba, row.hint.removesuffix(" ends it"))
        finally:
            move_clock(dba, "0")
        assert (row.area, row.severity) == ("transactions", "warning")
        assert f'process {other.info.backend_pid} of role postgres, application "webshop"' in row.finding
        assert row.session is not None
        with pytest.raises(psycopg.OperationalError):
            other.execute("select")
    assert findings(dba) == []


def test_a_prepared_transaction_is_named(healthy: Embedded, dba: Connection) -> None:
    with psycopg.connect(healthy.dsn, autocommit=True) as other:
        other.execute("begin; select pg_current_xact_id(); prepare transaction 'left'")
    try:
        move_clock(dba, "6 minutes")
        (row,) = findings(dba, "transactions")
    finally:
        move_clock(dba, "0")
    assert row.finding.startswith("the prepared transaction 'left' of role postgres, since ")
    assert "rollback prepared" in row.hint
    dba.execute("rollback prepared 'left'")
    assert findings(dba) == []


def test_a_slot_that_lost_its_wal_is_an_error(dba: Connection) -> None:
    dba.execute("select pg_create_physical_replication_slot('copy', true)")
    # More than it may keep: two segments of WAL.
    for _ in range(3):
        dba.execute("select pg_logical_emit_message(false, 'x', repeat('x', 100)), pg_switch_wal()")
    dba.execute("checkpoint")
    (row,) = findings(dba)
    assert (row.area, row.severity) == ("slots", "error")
    assert 'slot "copy" is read by nobody and has lost WAL' in row.finding
    follow(dba, row.hint.partition("or: ")[2])
    assert findings(dba) == []


def test_settings_that_cost_promises_are_named_and_taken_back(dba: Connection) -> None:
    dba.execute("create role late")
    for statement in (
        "alter system set synchronous_commit = off",
        "alter database postgres set default_transaction_isolation = 'serializable'",
        "alter role late set synchronous_commit = off",
        "alter role late in database postgres set session_replication_role = 'replica'",
        "alter database postgres set default_transaction_read_only = on",
        "alter role late set default_transaction_read_only = on",
        "alter role late set standard_conforming_strings = off",
        "select pg_reload_conf()",
    ):
        dba.execute(statement.encode())
    wait_until(lambda: "the server" in str(findings(dba)))
    found = findings(dba)
    assert [row.area for row in found] == ["settings"] * 6
    said = [row.finding for row in found]
    assert [each.partition(":")[0] for each in said] == [
        "role late has synchronous_commit off",
        "the server has synchronous_commit off",
        "database postgres has default_transaction_isolation 'serializable'",
        "role late in database postgres has session_replication_role 'replica'",
        "role late has standard_conforming_strings off",
        "database postgres has default_transaction_read_only on",
    ]
    for row in found:
        follow(dba, row.hint)
    wait_until(lambda: findings(dba) == [])
    dba.execute("drop role late")


def test_a_server_without_autovacuum_and_what_nobody_vacuumed_are_named() -> None:
    with own_server(autovacuum="off") as connection:
        connection.execute(
            "insert into trunq.memo (scope, name, value, version, updated_at)"
            " select 'mine:1', n::text, '1', 1, now() from generate_series(1, 60000) n"
        )
        connection.execute("delete from trunq.memo")
        connection.execute("select pg_stat_force_next_flush()")
        wait_until(lambda: len(findings(connection, "vacuum")) == 2)
        off, dead = findings(connection)
        assert off.finding == "autovacuum is off: nobody vacuums, and tables grow"
        assert dead.finding == "trunq.memo has 60000 dead rows beside 0 live ones"
        follow(connection, dead.hint.partition(";")[0])
        follow(connection, off.hint)
        wait_until(lambda: findings(connection) == [])


def test_tables_that_nobody_froze_are_named() -> None:
    settings = {"autovacuum_freeze_max_age": "100000", "autovacuum_naptime": "2147483"}
    with own_server(**settings) as connection:
        burn(connection, 130_000)
        (row,) = findings(connection)
        assert (row.area, row.severity) == ("freeze", "warning")
        assert re.match(
            r"\d+ of trunq's tables are overdue for freezing, the oldest, trunq\S+, by \d+ transactions",
            row.finding,
        )
        for (table,) in connection.execute(
            "select oid::regclass::text from pg_class where relkind in ('r', 'm') and relnamespace >= 16384"
        ).fetchall():
            connection.execute(f"vacuum (freeze) {table}".encode())
        assert findings(connection) == []


def test_a_server_with_few_locks_and_few_connections_is_named() -> None:
    with own_server(max_locks_per_transaction="20", max_connections="10") as connection:
        with psycopg.connect(connection.info.dsn, autocommit=True) as other:
            names = [f"queue_{n}" for n in range(24)]
            for name in names:
                ask(other, "create_queue", queue=name)
        (row,) = (row for row in findings(connection, "locks") if row.queue is None)
        assert (row.area, row.severity) == ("locks", "warning")
        assert "pg_dump locks each table" in row.finding
        assert re.search(r"max_locks_per_transaction = (\d+)", row.hint)
        others = [psycopg.connect(connection.info.dsn) for _ in range(6)]
        assert {each.area for each in findings(connection, "locks", "connections")} == {
            "locks",
            "connections",
        }
        for each in others:
            each.close()
        wait_until(lambda: {each.area for each in findings(connection, "locks", "connections")} == {"locks"})


@pytest.mark.skipif(embedded.majors()[0] < 17, reason="a small queue of notifications is of Postgres 17")
def test_a_queue_of_notifications_that_fills_is_named() -> None:
    with own_server(max_notify_queue_pages="64") as connection:
        with psycopg.connect(connection.info.dsn) as deaf:
            deaf.execute("listen other")
            deaf.commit()
            deaf.execute("select 1")
            for n in range(60):
                connection.execute("select pg_notify('other', %s || repeat('x', 7000))", (str(n),))
            (row,) = findings(connection)
            assert (row.area, row.severity) == ("notifications", "error")
            assert re.search(r"the queue of NOTIFY is \d+ % full", row.finding)

        def is_read() -> bool:
            connection.execute("select pg_notify('other', '')")
            return findings(connection) == []

        wait_until(is_read)


def test_what_a_crash_may_lose_is_an_error() -> None:
    with own_server(fsync="off", track_activities="off") as connection:
        found = findings(connection)
        assert [(row.area, row.severity) for row in found] == [
            ("settings", "error"),
            ("statistics", "warning"),
        ]
        for row in found:
            follow(connection, row.hint)
        wait_until(lambda: findings(connection) == [])


def test_a_disk_that_will_be_full_is_named_with_what_frees_some(dba: Connection) -> None:
    try:
        dba.execute("truncate trunq.sample")
        for hours in range(3):
            move_clock(dba, f"{hours} hours")
            ask(dba, "sample")
            dba.execute("create table if not exists public.grows as select repeat('x', 1000) x")
            dba.execute("insert into public.grows select repeat('y', 1000) from generate_series(1, 4000)")
        size = fetch(dba, "select pg_database_size(current_database())")
        dba.execute("select set_config('trunq.disk_size', %s, false)", (f"{size + 10**12} bytes",))
        assert findings(dba, "disk") == []
        dba.execute("select set_config('trunq.disk_size', %s, false)", (f"{size + 4 * 10**8} bytes",))
        (row,) = findings(dba, "disk")
        assert (row.severity, row.queue) == ("warning", None)
        assert re.search(
            r"has grown by \d+ MB a day since .*: it is full in [34]\.\d days; the largest queue, ",
            row.finding,
        )
        assert row.since is not None
        follow(dba, row.hint.partition(": ")[2].partition("; or ")[0])
        dba.execute("select set_config('trunq.disk_size', %s, false)", (f"{size} bytes",))
        (row,) = findings(dba, "disk")
        assert row.severity == "error"
    finally:
        move_clock(dba, "0")
        dba.execute("reset trunq.disk_size; drop table if exists public.grows; truncate trunq.sample")
    assert findings(dba) == []


def test_of_a_disk_that_is_full_without_a_queue_no_queue_is_named(connection: Connection) -> None:
    connection.execute("set trunq.disk_size = '1MB'")
    (row,) = findings(connection, "disk")
    assert (row.severity, row.hint, "largest" in row.finding) == ("error", "give the disk more room", False)


def test_time_outs_that_cut_handlers_and_jit_at_no_cost_are_named_and_taken_back(dba: Connection) -> None:
    dba.execute("create role hasty; set jit = on")
    for setting in (
        "statement_timeout = '500ms'",
        "idle_in_transaction_session_timeout = '10s'",
        "idle_session_timeout = 30000",
        "jit_above_cost = 10",
    ):
        dba.execute(f"alter role hasty set {setting}".encode())
    dba.execute("alter role hasty in database postgres set statement_timeout = '1min'")
    found = findings(dba)
    assert {(row.area, row.severity) for row in found} == {("settings", "warning")}
    assert [row.finding.partition(":")[0] for row in found] == [
        "role hasty has statement_timeout 500ms",
        "role hasty has idle_in_transaction_session_timeout 10s",
        "role hasty has idle_session_timeout 30000",
        "role hasty has jit_above_cost 10",
    ]
    for row in found:
        follow(dba, row.hint)
    assert findings(dba) == []
    dba.execute("drop role hasty; reset jit")


def test_a_queue_with_so_many_partitions_that_locks_run_out_is_named() -> None:
    with copied_server(settings={"max_locks_per_transaction": "20"}) as server:
        with led(server) as connection:
            ask(connection, "create_queue", queue="wide", retention="1 minute", hold_at_most="2 hours")
            (row,) = findings(connection, "locks")
            assert (row.severity, row.queue) == ("warning", "wide")
            assert re.search(r"takes up to \d+ locks, and half of the \d+ connections at a time", row.finding)
            follow(connection, row.hint)
        server.restart()
        with led(server) as connection:
            assert findings(connection, "locks") == []


def test_a_query_on_a_standby_that_has_vacuum_wait_is_named() -> None:
    feedback = {"hot_standby_feedback": "on", "wal_receiver_status_interval": "1s"}
    with (
        primary_and_standby(embedded.majors()[0], standby_settings=feedback) as pair,
        led(pair.primary) as connection,
        psycopg.connect(pair.standby.dsn) as reader,
    ):
        pair.caught_up()
        reader.execute("begin isolation level repeatable read; select count(*) from trunq.queue")
        wait_until(
            lambda: fetch(connection, "select bool_or(backend_xmin is not null) from pg_stat_replication")
        )
        connection.execute("set synchronous_commit = off")
        burn(connection, 1_000_100)
        (row,) = findings(connection, "slots")
        assert (row.severity, row.queue) == ("warning", None)
        assert re.match(
            r'standby ".+" has vacuum here keep what was deleted within the last 10\d+ transactions',
            row.finding,
        )
        reader.rollback()
        wait_until(lambda: findings(connection, "slots") == [])
