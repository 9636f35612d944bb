"""What is wrong with this database? diagnose names each trouble that a test makes, and what it says helps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import ask, burn, call, move_clock, publish
from copying import copied_server
from engine import Engine
from trunq import embedded
from trunq.embedded import Embedded
from trunq.record import Finding
from waiting import wait_until

Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def healthy() -> Iterator[Embedded]:
    with copied_server(
        settings={"max_prepared_transactions": "5", "max_slot_wal_keep_size": "1MB"}
    ) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            ask(connection, "create_queue", queue="work")
        yield server


@pytest.fixture
def dba(healthy: Embedded) -> Iterator[Connection]:
    """A session of that server, whose clock may move; somebody leads."""
    with psycopg.connect(healthy.dsn, autocommit=True) as connection:
        ask(connection, "elect", name="me", lease_time="1 day")
        yield connection


def findings(connection: Connection, *areas: str) -> list[Finding]:
    rows = connection.execute("select * from trunq.diagnose()").fetchall()
    return [row for row in (Finding(*each) for each in rows) if row.area in areas or not areas]


def follow(connection: Connection, hint: str) -> None:
    """Do what a hint says in SQL."""
    for statement in re.split(r", then |; ", hint):
        connection.execute(statement.encode())


@contextmanager
def own_server(**settings: str) -> Iterator[Connection]:
    """One whose settings hurt."""
    with (
        copied_server(settings=settings) as server,
        psycopg.connect(server.dsn, autocommit=True) as connection,
    ):
        ask(connection, "create_queue", queue="work")
        ask(connection, "elect", name="me", lease_time="1 day")
        yield connection


def test_of_a_healthy_database_it_says_nothing(dba: Connection) -> None:
    publish(dba, "work", 2)
    assert findings(dba) == []
    assert [area for (area,) in dba.execute("select area from trunq._areas()")] == [
        name.removeprefix("_diagnose_")
        for (name,) in dba.execute(
            "select p.proname from pg_proc p join trunq._areas() a on p.proname = '_diagnose_' || a.area"
            " where p.pronamespace = 'trunq'::regnamespace order by a.place"
        )
    ]


def test_that_nobody_leads_is_said_with_since_when(dba: Connection) -> None:
    ask(dba, "resign", name="me", term=ask(dba, "elect", name="me", lease_time="1 day"))
    (row,) = findings(dba)
    assert (row.area, row.severity, row.queue) == ("leader", "error", None)
    assert row.finding.startswith("nobody performs the duties: ")
    ask(dba, "elect", name="me")
    with dba.transaction(force_rollback=True):
        move_clock(dba, "1 hour")
        (row,) = findings(dba, "leader")
        assert row.since is not None
        assert f"since {row.since:%Y-%m-%d %H:%M}" in row.finding
    move_clock(dba, "0")
    assert findings(dba) == []


def test_positions_of_another_cluster_are_an_error_until_they_are_adopted(dba: Connection) -> None:
    dba.execute("update trunq.cluster set system_identifier = system_identifier + 1")
    row = findings(dba)[0]
    assert (row.area, row.severity) == ("cluster", "error")
    (command,) = re.findall(r'"(select trunq.adopt\(\))"', row.hint)
    dba.execute(command.encode())
    assert findings(dba) == []


def test_a_worker_that_says_nothing_and_holds_messages_is_named_until_it_is_freed(dba: Connection) -> None:
    work = Engine(dba, "silent").create()
    work.publish(3)
    held = work.lease(2, worker="ada's")
    said = {"queues": ["silent"], "subscription": "default", "host": "shop-3", "pid": 7, "seconds": 1.0}
    more = {"version": "0.1.0", "slots": 4, "handling": Jsonb([])}
    ask(dba, "_report", worker="ada's", **said, **more)
    # One that holds nothing, and one that said good-bye.
    ask(dba, "_report", worker="idle", **said, **more)
    ask(dba, "_report", worker="gone", **said, **more, last_word="drained")
    assert findings(dba, "workers") == []
    try:
        move_clock(dba, "13 seconds")
        (row,) = findings(dba, "workers")
        assert (row.severity, row.queue, row.subscription) == ("error", "silent", "default")
        assert row.finding.startswith(
            'worker "ada\'s" has said nothing for 00:00:13, and holds 2 messages: process 7 on shop-3'
        )
        follow(dba, row.hint.partition(" hands them")[0])
        assert findings(dba, "workers") == []
        assert set(work.drain()) >= set(held.ids)
    finally:
        move_clock(dba, "0")
        work.ask("drop_queue", force=True)


def test_handlers_that_fail_are_named_with_kinds_and_the_last_error(dba: Connection) -> None:
    work = Engine(dba, "failing").create()
    try:
        work.run("insert into {log} (kind) select 'paid' from generate_series(1, 40)")
        for at in (0, 5):
            move_clock(dba, f"{at} seconds")
            call(dba, "sample")
            work.ack(work.lease(10))
        assert findings(dba, "failures") == []
        held = work.lease(20)
        work.answer("reject", held, held.ids[:12], errors=["KeyError: 'iban'\nshop.py, line 7"] * 12)
        work.ack(held, held.ids[12:])
        move_clock(dba, "10 seconds")
        call(dba, "sample")
        (row,) = findings(dba, "failures")
        assert (row.severity, row.queue, row.subscription) == ("warning", "failing", "default")
        assert re.search(r"^12 of the last \d+ answers in subscription", row.finding)
        assert row.finding.endswith(": kind paid; the last error: KeyError: 'iban'")
        assert "trunq dead list failing" in row.hint
        # Half a minute without failures.
        for at in range(15, 60, 5):
            move_clock(dba, f"{at} seconds")
            work.publish(1)
            work.ack(work.lease(1))
            call(dba, "sample")
        assert findings(dba, "failures") == []
    finally:
        move_clock(dba, "0")
        work.ask("drop_queue", force=True)
        dba.execute("truncate trunq.sample")


def test_what_a_queue_lacks_is_an_error_until_it_is_put_back(dba: Connection) -> None:
    dba.execute("alter table trunq_log.work alter id drop default")
    (row,) = findings(dba)
    assert (row.area, row.severity, row.queue) == ("structure", "error", "work")
    assert row.finding == "column id of trunq_log.work has no default"
    follow(dba, row.hint.partition(", or: ")[2])
    assert findings(dba) == []


def test_what_list_warnings_says_is_among_it(dba: Connection) -> None:
    publish(dba, "work")
    try:
        move_clock(dba, "10 minutes")
        (row,) = findings(dba)
        (warned,) = call(dba, "list_warnings")
    finally:
        move_clock(dba, "0")
    assert row[:4] == ("warnings", "warning", "work", "default")
    assert (row.finding, row.hint) == (warned.warning, warned.hint)


@pytest.mark.parametrize("what", ["queue", "subscription"])
def test_a_pause_without_an_end_is_named_when_messages_wait(dba: Connection, what: str) -> None:
    ask(dba, "create_queue", queue="paused")
    given = {} if what == "queue" else {"subscription": "default"}
    ask(dba, f"pause_{what}", queue="paused", **given)
    assert findings(dba) == []
    publish(dba, "paused")
    (row,) = findings(dba)
    assert row[:4] == ("pauses", "warning", "paused", "default")
    assert row.since is not None
    follow(dba, row.hint)
    assert findings(dba) == []
    ask(dba, f"pause_{what}", queue="paused", until="2999-01-01", **given)
    assert findings(dba) == [], "somebody said until when"
    ask(dba, "drop_queue", queue="paused", force=True)


def test_an_old_transaction_is_named_and_ended(healthy: Embedded, dba: Connection) -> None:
    with psycopg.connect(healthy.dsn, application_name="webshop") as other:
        other.execute("select pg_current_xact_id()")
        try:
            move_clock(dba, "4 minutes")
            assert findings(dba, "transactions") == []
            move_clock(dba, "6 minutes")
            (row,) = findings(dba, "transactions")
        finally:
            move_clock(dba, "0")
        assert (row.area, row.severity) == ("transactions", "warning")
        assert f'process {other.info.backend_pid} of role postgres, application "webshop"' in row.finding
        follow(dba, row.hint.removesuffix(" ends it"))
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
        "select pg_reload_conf()",
    ):
        dba.execute(statement.encode())
    wait_until(lambda: "the server" in str(findings(dba)))
    found = findings(dba)
    assert [row.area for row in found] == ["settings"] * 4
    said = [row.finding for row in found]
    assert [each.partition(":")[0] for each in said] == [
        "role late has synchronous_commit off",
        "the server has synchronous_commit off",
        "database postgres has default_transaction_isolation 'serializable'",
        "role late in database postgres has session_replication_role 'replica'",
    ]
    for row in found:
        follow(dba, row.hint)
    wait_until(lambda: findings(dba) == [])
    dba.execute("drop role late")


def test_that_everybody_may_make_objects_in_its_schemas_is_an_error(dba: Connection) -> None:
    dba.execute("grant create on schema trunq to public")
    dba.execute(b"alter function trunq_queue.work_publish reset search_path")
    found = findings(dba)
    assert {(row.area, row.severity) for row in found} == {("rights", "error")}
    follow(dba, found[0].hint)
    rest = findings(dba)
    dba.execute(b"alter function trunq_queue.work_publish set search_path = pg_catalog, pg_temp")
    assert [row.finding for row in rest] in ([], [found[-1].finding])
    assert findings(dba) == []


def test_a_role_without_rights_is_told_what_it_cannot_see_and_which_grant_shows_it(dba: Connection) -> None:
    dba.execute("create role guest; grant usage on schema trunq to guest; set role guest")
    found = findings(dba)
    assert {row.severity for row in found} == {"unseen"}
    assert {"leader", "warnings", "statistics"} <= {row.area for row in found}
    dba.execute("reset role")
    for hint in {row.hint.removesuffix(" shows it") for row in found}:
        assert hint.startswith("grant ")
        dba.execute(hint.encode())
    dba.execute("set role guest")
    assert findings(dba) == []
    dba.execute("reset role; drop owned by guest; drop role guest")


def test_an_area_that_fails_leaves_the_others_their_turn(dba: Connection) -> None:
    with dba.transaction(force_rollback=True):
        dba.execute("alter table trunq.duty_done rename to gone")
        dba.execute("grant create on schema trunq to public")
        found = findings(dba)
    assert ("leader", "error") in {(row.area, row.severity) for row in found}
    assert "the look at leader failed: " in " ".join(row.finding for row in found)
    assert "rights" in {row.area for row in found}


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
        (row,) = findings(connection)
        assert (row.area, row.severity) == ("locks", "warning")
        assert "pg_dump locks each table" in row.finding
        assert re.search(r"max_locks_per_transaction = (\d+)", row.hint)
        others = [psycopg.connect(connection.info.dsn) for _ in range(6)]
        assert [each.area for each in findings(connection)] == ["locks", "connections"]
        for each in others:
            each.close()
        wait_until(lambda: [each.area for each in findings(connection)] == ["locks"])


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
        wait_until(lambda: connection.execute("select pg_notify('other', '')") and findings(connection) == [])


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
