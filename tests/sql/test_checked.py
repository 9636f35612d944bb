"""plpgsql_check finds no error in any function of ours, of one queue of each kind."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from calling import ask, new_names
from conftest import TEMPLATE
from trunq import embedded, install
from trunq.embedded import Embedded

PACKAGED = 15
"""The version of Postgres that Debian packages plpgsql_check for here."""

KINDS: dict[str, dict[str, str]] = {
    "plain": {},
    "laned": {"lanes": "key"},
    "refusing": {"unique": "refuse"},
    "replacing": {"unique": "replace", "lanes": "priority"},
    "shared": {"unique": "replace", "lanes": "key"},
    "pipelines": {},
}

CHECK = r"""
    select p.oid::regprocedure::text, c.lineno, c.message
    from pg_proc p join pg_language l on l.oid = p.prolang and l.lanname = 'plpgsql'
    left join lateral (
      select t.tgrelid, p.proname ~ '^capture_' as is_capture
      from pg_trigger t where t.tgfoid = p.oid limit 1) t on true
    cross join lateral public.plpgsql_check_function_tb(p.oid, relid => coalesce(t.tgrelid, 0),
      fatal_errors => false, anyelememttype => 'trunq.queue'::regtype,
      oldtable => case when t.is_capture then 'gone' end,
      newtable => case when t.is_capture then 'added' end) c
    where p.pronamespace in (select n.oid from pg_namespace n where n.nspname ~ '^(trunq|pgq)')
      and c.level = 'error'
      and (p.prorettype <> 'trigger'::regtype or t.tgrelid is not null)
      -- It does not see what EXECUTE puts into a record, nor that _fail raises; and the specimen with unique
      -- keys has no tables.
      and c.message !~ 'is not assigned yet' and c.sqlstate <> '2F005' and p.proname !~ '^_uniquespecimen_'
      -- Asked only where PgQ's cascaded queues are; and of a subscription in order, which needs lanes.
      and not (p.proname = 'maint_operations' and c.message ~ 'pgq_node')
      and not (p.proname ~ '_give_back$' and c.message ~ '_go_on\(')
      -- A queue with lanes leases lane by lane: what goes ahead of a range is made for it, and never called.
      and not (c.message ~ '\mahead\M'
        and split_part(p.proname, '_', 1) in (select q.name from trunq.queue q where q.lanes is not null))
    order by 1, 2
"""


@pytest.fixture
def checked(servers: Callable[[int], Embedded]) -> psycopg.Connection[tuple[object, ...]]:
    if PACKAGED not in embedded.majors():
        pytest.skip("needs Debian's postgresql-15 and postgresql-15-plpgsql-check")
    dsn = servers(PACKAGED).dsn
    name = next(new_names("checked"))
    with psycopg.connect(dsn, autocommit=True) as connection:
        available = "select from pg_available_extensions where name = 'plpgsql_check'"
        if connection.execute(available).fetchone() is None:
            pytest.skip("needs Debian's postgresql-15-plpgsql-check")
        connection.execute(f"create database {name} template {TEMPLATE}".encode())
    dsn = make_conninfo(dsn, dbname=name)
    install.install(dsn, "pgq")
    return psycopg.connect(dsn, autocommit=True)


def test_no_function_has_an_error_that_a_check_finds(
    checked: psycopg.Connection[tuple[object, ...]],
) -> None:
    with checked as session:
        session.execute("create extension plpgsql_check schema public")
        for queue, given in KINDS.items():
            ask(session, "create_queue", queue=queue, **given)
        ask(session, "subscribe", queue="laned", subscription="ordered", in_order=True)
        ask(session, "set_tenancy", queue="shared")
        session.execute("select pgq.create_queue('events')")
        session.execute("create table orders (id integer primary key, status text)")
        for table_format in ("plain", "debezium"):
            ask(session, "capture", table="orders", queue="plain", format=table_format, ignore=["status"])
            assert session.execute(CHECK.encode()).fetchall() == []
        # It does find one.
        session.execute(
            "create function trunq.broken() returns integer language plpgsql as"
            " $$ begin return (select q.no_such_column from trunq.queue q); end $$"
        )
        assert [row[0] for row in session.execute(CHECK.encode())] == ["trunq.broken()"]
