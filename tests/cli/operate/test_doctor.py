"""trunq doctor says what is wrong, since when, and what helps; its exit code says how bad it is."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from calling import call, fetch, move_clock, named
from copying import copied_server
from engine import Engine
from pooling import needs_pgbouncer, pooling
from shelling import Shell, start
from trunq import Client, InvalidArgument, install
from trunq.diagnosis import diagnose
from trunq.embedded import Embedded
from waiting import wait_until


@pytest.fixture(scope="module")
def healthy() -> Iterator[Embedded]:
    """A server as it should be: that of the other tests does without much of what keeps data."""
    with copied_server() as server:
        yield server


@pytest.fixture
def database(healthy: Embedded) -> Iterator[str]:
    """Of that server, with a queue and somebody who leads."""
    with Client(healthy.dsn) as client:
        client.create_queue("mail")
        client.elect("me", lease_time="1 day")
        yield healthy.dsn
        client.drop_queue("mail", force=True)


def test_all_is_well(trunq: Shell) -> None:
    done = trunq("doctor")
    assert (done.status, done.said) == (0, "All is well.")
    assert trunq("doctor", "--json").json == []


def test_a_warning_is_said_with_the_command_that_helps(trunq: Shell, client: Client) -> None:
    client.publish("mail", 1)
    client.pause_queue("mail")
    done = trunq("doctor")
    assert done.status == 1
    assert '! warning subscription "default" of queue "mail" is paused without an end' in done.said
    assert done.said.endswith("trunq queue resume mail 1 warning")
    (row,) = trunq("doctor", "--json").json
    assert (row["area"], row["severity"], row["queue"]) == ("pauses", "warning", "mail")
    assert trunq("queue", "resume", "mail").status == 0
    assert trunq("doctor").status == 0


def test_errors_come_first(trunq: Shell, client: Client) -> None:
    client.publish("mail", 1)
    client.pause_subscription("mail", "default")
    client.resign("me", client.elect("me") or 0)
    done = trunq("doctor")
    assert done.status == 2
    assert done.said.index("✗ error nobody performs the duties") < done.said.index("! warning subscription")
    assert done.said.endswith("trunq subscription resume mail default 1 error, 1 warning")


def test_a_database_without_trunq_or_with_another_version_is_an_error() -> None:
    with copied_server() as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("comment on schema trunq_data is 'functions of an older release'")
            (row,) = diagnose(server.dsn)
            assert row[:2] == ("version", "warning")
            connection.execute("insert into trunq.migration (number, name) values (9999, 'of the future')")
            rows = diagnose(server.dsn)
            assert rows[0][:2] == ("version", "error")
            assert "9999" in rows[0].finding
            connection.execute("delete from trunq.migration where number = 9999")
            install.install(server.dsn)
            assert diagnose(server.dsn) == []
            connection.execute("create database bare")
        (row,) = diagnose(named(server.dsn, "bare"))
        assert (row.area, row.severity) == ("version", "error")
        assert row.hint.startswith("`trunq db install`")


def test_a_clock_that_is_wrong_is_a_warning(database: str) -> None:
    assert diagnose(database) == []
    (ahead,) = diagnose(database, lambda: time.time() + 60)
    assert ahead.finding == "the clock of this machine is 60 s ahead of the server's"
    (behind,) = diagnose(database, lambda: time.time() - 60)
    assert behind.finding == "the clock of this machine is 60 s behind the server's"


def test_a_role_that_may_not_look_is_told_so_and_it_is_no_error(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create role doctors_worker login")
        try:
            connection.execute("select trunq.grant_role('mail', 'worker', 'doctors_worker')")
            found = diagnose(make_conninfo(database, user="doctors_worker"))
        finally:
            connection.execute("drop owned by doctors_worker; drop role doctors_worker")
    assert {row.severity for row in found} == {"unseen"}
    assert any(row.area == "version" and "table migration" in row.finding for row in found)


@pytest.mark.parametrize(
    ("right", "areas", "end"),
    [
        ("connect on database postgres", "version, database", "This role sees nothing of trunq."),
        ("usage on schema trunq", "version, cluster, leader, workers", "All that this role may see is well."),
    ],
)
def test_a_role_without_rights_is_told_the_grant_once(
    database: str, shell: Shell, right: str, areas: str, end: str
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        owner = connection.info.user
        connection.execute("create role stranger login")
        try:
            connection.execute(f"grant {right} to stranger".encode())
            done = shell("doctor", "--dsn", make_conninfo(database, user="stranger"))
        finally:
            connection.execute("drop owned by stranger; drop role stranger")
    assert done.said.startswith(f"? unseen this role may not look at {areas}")
    assert done.said.count(f"grant {owner} to stranger shows them") == 1
    assert done.said.endswith(end)


def test_a_diagnosis_of_another_version_with_other_columns_is_told(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        body = fetch(connection, "select pg_get_functiondef('trunq.diagnose(integer,text[])'::regprocedure)")
        try:
            connection.execute("drop function trunq.diagnose(integer, text[])")
            connection.execute(
                "create function trunq.diagnose(integer) returns table (area text, severity text, queue text,"
                " subscription text, finding text, hint text, since timestamptz, tomorrow text)"
                " language sql as $$ select 'leader', 'error', null, null, 'nobody leads', 'trunq leader',"
                " null::timestamptz, '' $$"
            )
            assert [row.finding for row in diagnose(database) if row.area == "leader"] == ["nobody leads"]
        finally:
            connection.execute("drop function if exists trunq.diagnose(integer)")
            connection.execute(body.encode())


@needs_pgbouncer
def test_a_pooler_that_keeps_notifications_is_found_out(healthy: Embedded, database: str) -> None:
    with pooling(healthy, database) as dsn:
        (row,) = diagnose(dsn)
    assert row[:2] == ("wake-up", "warning")
    assert "a pooler stands in between" in row.finding
    with pooling(healthy, database, "session") as dsn:
        assert diagnose(dsn) == []


def test_it_looks_again_and_again_until_it_is_stopped(database: str, tmp_path: Path) -> None:
    process = start("doctor", "--watch", "--every", "1", "--dsn", database, directory=tmp_path)
    seen: set[int] = set()
    with psycopg.connect(database, autocommit=True) as connection:

        def looked_again() -> bool:
            asked = "select pid from pg_stat_activity where application_name = 'trunq doctor'"
            seen.update(pid for (pid,) in connection.execute(asked))
            return len(seen) > 4

        # Two connections a look.
        wait_until(looked_again)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert out.count("All is well.") >= 2, "each look is told, also into a pipe"
    assert "Traceback" not in err


def test_until_when_the_disk_lasts_is_said_of_one_beside_it_and_by_its_size(
    database: str, client: Client, trunq: Shell
) -> None:
    assert diagnose(database) == [], "this machine has room"
    (row,) = diagnose(database, disk="1MB")
    assert row[:2] == ("disk", "error")
    assert row.finding.startswith("of a disk of 1024 kB this database has ")
    assert "select trunq.set_queue('mail', p_retain_size => " in row.hint
    assert diagnose(database, disk="1.5 pb") == [], "each unit, on each Postgres"
    assert trunq("doctor", "--disk", "1MB").status == 2
    assert trunq("doctor", "--disk", "1.5TB").status == 0


@pytest.mark.parametrize("size", ["a lot", "", "-1GB", "200GiB", "9999999PB"])
def test_a_disk_of_no_size_is_refused_and_nothing_is_looked_at(size: str, trunq: Shell) -> None:
    done = trunq("doctor", f"--disk={size}")
    assert (done.status, done.out) == (2, "")
    assert "is not the size of a disk; write it as Postgres writes sizes: 200GB, 1.5TB." in done.said
    with pytest.raises(InvalidArgument, match="is not the size of a disk"):
        diagnose("", disk=size)


def test_a_function_that_somebody_changed_is_put_back_by_the_command_that_it_says(
    trunq: Shell, client: Client, database: str
) -> None:
    with psycopg.connect(database, autocommit=True) as session:
        for name in ("trunq.version()", "trunq_queue.mail_wake()"):
            body = fetch(session, "select pg_get_functiondef(%s::regprocedure)", name)
            session.execute(body.replace("AS $function$", "AS $function$ /* a hotfix */ ").encode())
    done = trunq("doctor")
    assert done.status == 2
    assert "function trunq.version() was changed by hand trunq db upgrade --repair" in done.said
    assert "function trunq_queue.mail_wake() was changed by hand trunq db upgrade --repair" in done.said
    would = trunq("db", "upgrade", "--dry-run").said
    assert "function trunq.version() was changed by hand: --repair puts it back" in would
    assert trunq("db", "upgrade").status == 0
    assert trunq("doctor").status == 2
    repaired = trunq("db", "upgrade", "--repair").said
    assert "its functions were applied again" in repaired
    assert trunq("doctor").said == "All is well."


def test_what_died_is_requeued_as_the_hint_about_failures_says(
    trunq: Shell, client: Client, database: str
) -> None:
    with psycopg.connect(database, autocommit=True) as session:
        work = Engine(session, "mail")
        work.publish(12)
        call(session, "sample")
        held = work.lease(12)
        work.answer("reject", held)
        move_clock(session, "6 seconds")
        call(session, "sample")
        (hint,) = [row.hint for row in call(session, "diagnose") if row.area == "failures"]
    commands = [command.split() for command in re.findall("trunq ([a-z -]+)", hint)]
    assert [command[:2] for command in commands] == [
        ["dead", "list"],
        ["message", "list"],
        ["dead", "requeue"],
    ]
    assert [trunq(*command).status for command in commands[:2]] == [0, 0]
    assert trunq(*commands[2], "--yes").status == 0
    assert client.count_dead("mail") == 0
