"""Captures through an upgrade, a copy of the schema alone, and a dump."""

from __future__ import annotations

import subprocess

import pytest

from calling import ask, call, fetch, named, refresh
from conftest import Connect
from trunq import install
from trunq.embedded import Embedded


def test_an_upgrade_makes_their_functions_again(connect: Connect) -> None:
    session = connect()
    ask(session, "create_queue", queue="changes")
    session.execute("create table things (id integer primary key)")
    ask(session, "capture", table="things", queue="changes", kind="it's {op}")
    body = "create or replace function trunq_data.capture_1() returns trigger language plpgsql as"
    session.execute(f"{body} $$ begin return null; end $$".encode())
    refresh(session)
    session.execute("insert into things values (1)")
    assert fetch(session, "select kind from trunq_log.changes") == "it's insert"
    assert fetch(
        session, "select prosecdef and proacl::text !~ '[{,]=' from pg_proc where proname = 'capture_1'"
    )


@pytest.mark.slow
def test_they_go_with_a_dump_and_with_a_copy_of_the_schema_alone(
    server: Embedded, database: str, connect: Connect
) -> None:
    session = connect()
    ask(session, "create_queue", queue="changes")
    session.execute("create table dropped (id integer); create table things (id integer primary key, a text)")
    ask(session, "capture", table="dropped", queue="changes")
    ask(session, "uncapture", table="dropped")
    ask(session, "capture", table="things", queue="changes", ignore=["a"], where={"not_in": {"id": [7]}})
    before = call(session, "list_captures")
    for number, options in enumerate(((), ("--schema-only",))):
        name = f"{session.info.dbname}_copy_{number}"
        session.execute(f"create database {name} template template0".encode())
        copy = named(server.dsn, name)
        try:
            dump = [server.binaries / "pg_dump", *options, f"--dbname={database}"]
            text = subprocess.run(dump, capture_output=True, check=True).stdout
            command = [server.binaries / "psql", "--quiet", "--set=ON_ERROR_STOP=1", f"--dbname={copy}"]
            subprocess.run(command, input=text, capture_output=True, check=True)
            install.install(copy)
            restored = connect(copy)
            assert [each[:-1] for each in call(restored, "list_captures")] == [each[:-1] for each in before]
            restored.execute("insert into things values (1), (7)")
            assert fetch(restored, "select string_agg(key, ',') from trunq_log.changes") == "1"
            assert ask(restored, "capture", table="things", queue="changes") is False
            restored.execute("create table others (id integer)")
            assert ask(restored, "capture", table="others", queue="changes") is True
            restored.close()
        finally:
            session.execute(f"drop database {name} with (force)".encode())
