"""What cannot be captured, by whom, and what a gate of the queue refuses: functions/log/capture.sql."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql as compose

from calling import ask, call, fetch, new_names, refused
from capturing import capture
from conftest import Connect

Connection = psycopg.Connection[Any]


@pytest.fixture
def table(session: Connection) -> Iterator[str]:
    """A table that nobody else has."""
    name = next(new_names("things"))
    session.execute(f"create table {name} (id integer primary key, status text)".encode())
    yield name
    session.execute(f"drop table if exists {name} cascade".encode())


@pytest.fixture
def role(session: Connection) -> Iterator[str]:
    """A role without any rights."""
    name = next(new_names("somebody"))
    session.execute(f"create role {name}".encode())
    yield name
    session.execute(f"drop owned by {name} cascade; drop role {name}".encode())


NO_TABLES = (
    *(
        "no_such_table",
        "no_schema.t",
        "a b",
        "",
        "1",
        "a.b.c.d",
        "a.b.c",
        '"unfinished',
        "x'; drop table y; --",
    ),
)


def test_a_table_that_there_is_not(session: Connection, queue: str) -> None:
    for name in NO_TABLES:
        with refused("TQ005", "there is no table", "public.orders"):
            ask(session, "capture", table=name, queue=queue)
        with refused("TQ005", "there is no table", "public.orders"):
            ask(session, "uncapture", table=name)


NOT_ONES_OWN = [
    ("create view {} as select 1 as id", "{}", "is a view"),
    ("create materialized view {} as select 1 as id", "{}", "is a materialized view"),
    ("create sequence {}", "{}", "is no table"),
    ("create temp table {} (id integer)", "{}", "is temporary"),
    ("create table {0} (id integer); create table {0}_child () inherits ({0})", "{}", "inherit from it"),
    (
        "create table {0} (id integer); create table {0}_child () inherits ({0})",
        "{}_child",
        "is a part of",
    ),
    (
        "create table {0} (id integer) partition by list (id); create table {0}_1 partition of {0} default",
        "{}_1",
        "capture the table above",
    ),
    (
        "create foreign data wrapper {0}; create server {0} foreign data wrapper {0};"
        " create foreign table {0} (id integer) server {0}",
        "{}",
        "is a foreign table",
    ),
    (
        "create foreign data wrapper {0}; create server {0} foreign data wrapper {0};"
        " create table {0} (id integer) partition by list (id);"
        " create foreign table {0}_1 partition of {0} default server {0}",
        "{}",
        "has no transition tables",
    ),
    ("select 1", "trunq.queue", "belongs to trunq"),
    ("select 1", "trunq_log._specimen", "belongs to trunq"),
    ("select 1", "pg_class", "or to Postgres itself"),
]
"""What is made, its name, and why it cannot be captured."""


def test_what_is_no_table_of_ones_own(session: Connection, queue: str) -> None:
    for make, name, why in NOT_ONES_OWN:
        own = next(new_names("thing"))
        with session.transaction(force_rollback=True):
            session.execute(make.format(own).encode())
            with refused("TQ005", why):
                capture(session, name.format(own), queue)


OPTIONS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"ignore": ["nothing"]}, ("has no column", "nothing", "it has: id, status")),
    ({"key": ["ctid"]}, ("has no column", "ctid")),
    ({"columns": ["id", "id) from x --"]}, ("has no column", "id) from x --")),
    ({"columns": [None]}, ("must be a list of columns",)),
    ({"deny": ["drop"]}, ("cannot deny", "insert, update, delete and truncate")),
    ({"deny": [None]}, ("cannot deny",)),
    ({"format": "xml"}, ("no format", "plain or debezium")),
    ({"kind": ""}, ("an empty kind",)),
    ({"where": {"status": ["a"]}}, ('has no "status"', "in and not_in")),
    ({"where": {"in": ["a"]}}, ("an object of columns",)),
    ({"where": {"in": {}}}, ("an object of columns",)),
    ({"where": {"in": {"status": "a"}}}, ("a list of texts",)),
    ({"where": {"in": {"status": [["a"]]}}}, ("a list of texts",)),
    ({"where": {"in": {"status": [{"a": 1}]}}}, ("a list of texts",)),
    ({"where": {"in": {"true or status": ["a"]}}}, ("has no column", "true or status")),
    ({"where": {"in": {"status": ["x" * 300_000]}}}, ("at most 100000 bytes",)),
]


def test_options_that_cannot_be(session: Connection, queue: str, table: str) -> None:
    for given, words in OPTIONS:
        with refused("TQ005", *words):
            capture(session, table, queue, **given)
    assert call(session, "list_captures", queue=queue) == []


def test_a_kind_is_short(session: Connection, queue: str, table: str) -> None:
    with refused("TQ006", "too long"):
        capture(session, table, queue, kind="k" * 995 + "{op}")


NASTY = "x'; drop table t; -- $f$ $body$ $q$ \\ \" %s %1$s %L {op} {table} \n :name"


def test_no_name_and_no_value_becomes_sql(session: Connection, queue: str) -> None:
    schema, column = next(new_names("odd's \" schema")), NASTY[:60]
    quoted = compose.Identifier(schema, NASTY[:60])
    session.execute(compose.SQL("create schema {}").format(compose.Identifier(schema)))
    try:
        session.execute(
            compose.SQL("create table {} ({} text primary key, n integer)").format(
                quoted, compose.Identifier(column)
            )
        )
        given: dict[str, Any] = {
            "key": [column, "n"],
            "columns": [column, "n"],
            "ignore": [column],
            "kind": NASTY,
            "where": {"in": {column: [NASTY, "a"]}, "not_in": {"n": [7, NASTY]}},
        }
        name = quoted.as_string(session)
        for format in ("plain", "debezium"):
            capture(session, name, queue, format=format, **given)
            insert = compose.SQL("insert into {} values ({}, 1), ('b', 1)")
            session.execute(insert.format(quoted, compose.Literal(NASTY)))
            session.execute(compose.SQL("update {} set n = n + 1").format(quoted))
            session.execute(compose.SQL("delete from {}").format(quoted))
            session.execute(compose.SQL("truncate {}").format(quoted))
            rows = session.execute(
                f"select kind, key, payload from trunq_log.{queue} order by txid, id".encode()
            ).fetchall()
            session.execute(f"truncate trunq_log.{queue}".encode())
            expected = [
                NASTY.replace("{op}", op).replace("{table}", f"{schema}.{NASTY[:60]}")
                for op in ("insert", "update", "delete", "truncate")
            ]
            assert [kind for kind, _, _ in rows] == expected
            assert [key for _, key, _ in rows] == [f"{NASTY}:1", f"{NASTY}:2", f"{NASTY}:2", None]
            assert rows[0][2]["after"] == {column: NASTY, "n": 1}
        (listed,) = call(session, "list_captures", queue=queue)
        assert (listed.warning, listed.condition) == (None, given["where"])
        assert ask(session, "uncapture", table=name) is True
    finally:
        session.execute(compose.SQL("drop schema {} cascade").format(compose.Identifier(schema)))


def test_who_changes_the_table_needs_no_right_on_trunq_and_gets_none(
    session: Connection, queue: str, table: str, role: str, open_session: Connect
) -> None:
    capture(session, table, queue)
    session.execute(f"grant insert, update, delete, truncate, select on {table} to {role}".encode())
    writer = open_session()
    writer.execute(f"set role {role}".encode())
    writer.execute(f"insert into {table} values (1)".encode())
    writer.execute(f"update {table} set status = 'a'".encode())
    writer.execute(f"delete from {table}".encode())
    writer.execute(f"truncate {table}".encode())
    assert fetch(session, f"select count(*) from trunq_log.{queue}") == 4
    with refused("42501"):
        writer.execute(f"select * from trunq_log.{queue}".encode())
    # Nobody puts the function on a table of his own, whose types would run as its owner.
    function = fetch(
        session, "select tgfoid::regproc::text from pg_trigger where tgrelid = %s::regclass limit 1", table
    )
    assert function.startswith("trunq_data.capture_")
    ask(session, "grant_role", queue=queue, role="publisher", grantee=role)
    writer.execute("create temp table mine (id integer)")
    with refused("42501"):
        writer.execute(
            "create trigger t after insert on mine referencing new table as added"
            f" for each statement execute function {function}()".encode()
        )
    config = fetch(
        session, "select array_to_string(proconfig, ' ') from pg_proc where oid = %s::regproc", function
    )
    assert "search_path=pg_catalog, pg_temp" in config


def test_the_owner_of_trunq_captures_what_he_may_put_triggers_on(
    session: Connection, queue: str, table: str, role: str, open_session: Connect
) -> None:
    other = open_session()
    session.execute(f"grant trigger on {table} to {role}; grant usage on schema trunq to {role}".encode())
    session.execute(f"grant select on all tables in schema trunq to {role}".encode())
    other.execute(f"set role {role}".encode())
    with refused("42501", "the owner of trunq"):
        capture(other, table, queue)
    assert call(session, "list_captures", queue=queue) == []
    capture(session, table, queue)
    with refused("42501", "the owner of trunq"):
        ask(other, "uncapture", table=table)


def test_a_table_of_somebody_whom_the_owner_need_not_trust_is_refused(
    session: Connection, queue: str, table: str, role: str
) -> None:
    """A cast to json of a type of his would run with the rights of trunq's owner."""
    session.execute(f"alter table {table} owner to {role}".encode())
    with refused("42501", f'belongs to "{role}"', "types run code"):
        capture(session, table, queue)
    owner = fetch(session, "select nspowner::regrole::text from pg_namespace where nspname = 'trunq'")
    session.execute(f"grant {owner} to {role}".encode())
    assert capture(session, table, queue) is True
    assert call(session, "list_warnings", queue=queue) == []
    session.execute(f"revoke {owner} from {role}".encode())
    (warned,) = call(session, "list_warnings", queue=queue)
    assert f'belongs to "{role}" by now' in warned.warning
    session.execute(f"alter table {table} owner to current_user".encode())
    assert call(session, "list_warnings", queue=queue) == []


TYPES = {
    "enum": ("create type {0} as enum ('a')", "{0}"),
    "array": ("create type {0} as enum ('a')", "{0}[]"),
    "domain": ("create domain {0} as text", "{0}"),
    "domain of an array": ("create type {0} as enum ('a'); create domain {0}_2 as {0}[]", "{0}_2"),
    "composite": ("create type {0} as (a integer)", "{0}"),
    "inside a composite": ("create type {0} as enum ('a'); create type {0}_2 as (a integer, b {0})", "{0}_2"),
    "row of a table": ("create table {0} (a integer)", "{0}"),
    "range": ("create type {0} as range (subtype = integer, multirange_type_name = {0}_m)", "{0}"),
    "multirange": ("create type {0} as range (subtype = integer, multirange_type_name = {0}_m)", "{0}_m"),
    "range over a domain": (
        "create domain {0} as integer;"
        " create type {0}_2 as range (subtype = {0}, subtype_opclass = int4_ops)",
        "{0}_2",
    ),
}
"""What makes a type that runs code of its owner, and the type of a column."""


@pytest.mark.parametrize("way", TYPES)
def test_a_type_of_somebody_whom_the_owner_need_not_trust_is_refused(
    session: Connection, queue: str, table: str, role: str, way: str
) -> None:
    """Also one that lies inside another, which is the owner's own."""
    made, column = (text.format(f"public.odd_{role}") for text in TYPES[way])
    session.execute(made.encode())
    word = "table" if way == "row of a table" else "domain" if way.endswith("domain") else "type"
    session.execute(f"alter {word} public.odd_{role} owner to {role}".encode())
    session.execute(f"alter table {table} add column odd {column}".encode())
    with pytest.raises(
        psycopg.errors.InsufficientPrivilege, match=f'odd_{role}, which belongs to "{role}"'
    ) as caught:
        capture(session, table, queue)
    way_out = str(caught.value.diag.message_hint).split(": ", 1)[1]
    session.execute(way_out.encode())
    assert capture(session, table, queue) is True
    assert call(session, "list_warnings", queue=queue) == []
    session.execute(f"alter {word} public.odd_{role} owner to {role}".encode())
    (warned,) = call(session, "list_warnings", queue=queue)
    assert f'odd_{role} by now, whose owner "{role}" can run code' in warned.warning
    session.execute(warned.hint.split(", or ")[0].encode())
    assert call(session, "list_warnings", queue=queue) == []


def test_an_owner_without_the_right_on_the_table_is_told_how_to_get_it(
    connect: Connect, database: str
) -> None:
    """With an owner of trunq who is no superuser."""
    session = connect()
    owner, other = next(new_names("owner")), next(new_names("keeper"))
    session.execute(f"create role {owner}; create role {other} in role {owner}".encode())
    try:
        ask(session, "create_queue", queue="orders")
        for schema in ("trunq", "trunq_log", "trunq_queue", "trunq_data"):
            session.execute(f"alter schema {schema} owner to {owner}".encode())
            objects = session.execute(
                "select case when c.relkind = 'S' then 'sequence' else 'table' end, c.oid::regclass::text"
                " from pg_class c"
                " where c.relnamespace = %s::regnamespace and c.relkind in ('r', 'p', 'S', 'v')"
                " and not (c.relkind = 'S' and exists (select from pg_depend d where d.objid = c.oid"
                " and d.deptype = 'i'))",
                (schema,),
            ).fetchall()
            for kind, name in objects:
                session.execute(f"alter {kind} {name} owner to {owner}".encode())
        session.execute(f"create table things (id integer); alter table things owner to {other}".encode())
        session.execute(f"set role {owner}".encode())
        with refused("42501", f'"{owner}" may not capture table "public.things"', "grant trigger on"):
            capture(session, "things", "orders")
        session.execute(f"reset role; grant trigger on things to {owner}; set role {owner}".encode())
        assert capture(session, "things", "orders") is True
        session.execute(f"reset role; set role {other}".encode())
        session.execute("insert into public.things values (1)")
        assert ask(session, "uncapture", table="things") is True
        # A member of the owner makes what belongs to the owner.
        assert capture(session, "things", "orders") is True
        made = fetch(session, "select proowner::regrole::text from pg_proc where proname ~ '^capture_'")
        assert made == owner
        session.execute("insert into public.things values (2)")
        session.execute("reset role")
        assert fetch(session, "select count(*) from trunq_log.orders") == 2
    finally:
        session.execute("reset role")
        session.execute(f"reassign owned by {owner}, {other} to current_user".encode())
        session.execute(f"drop owned by {owner}, {other}; drop role {owner}, {other}".encode())


def test_kinds_that_the_queue_does_not_take_are_refused_at_once(
    session: Connection, queue: str, table: str
) -> None:
    ask(session, "set_publishing", queue=queue, kinds=["insert", "update"])
    with refused("TQ005", f'queue "{queue}" takes no message of kind "public.{table}.insert"', "p_kind"):
        capture(session, table, queue)
    with refused("TQ005", 'of kind "delete"'):
        capture(session, table, queue, kind="{op}")
    assert capture(session, table, queue, kind="{op}", deny=["delete", "truncate"]) is True
    # The gate counts for captured changes too, whenever it is put up.
    ask(session, "set_publishing", queue=queue, kinds=["update"])
    with refused("TQ005", 'takes no message of kind "insert"'):
        session.execute(f"insert into {table} values (1)".encode())


def test_a_gate_refuses_the_change_of_the_table(session: Connection, queue: str, table: str) -> None:
    capture(session, table, queue)
    ask(session, "set_publishing", queue=queue, max_per_transaction=2)
    with refused("TQ019", "at most 2 messages"):
        session.execute(f"insert into {table} select generate_series(1, 3)".encode())
    session.execute(f"insert into {table} select generate_series(1, 2)".encode())
    ask(session, "close_queue", queue=queue)
    with refused("TQ018", f'queue "{queue}" is closed'):
        session.execute(f"delete from {table}".encode())
    assert fetch(session, f"select count(*) from {table}") == 2


def test_a_row_that_is_too_large_is_refused_unless_its_column_is_left_out(
    session: Connection, queue: str, table: str
) -> None:
    capture(session, table, queue)
    large = f"insert into {table} values (1, repeat('x', 17000000))"
    for statement in (
        large,
        f"insert into {table} values (1, 'x'); update {table} set status = repeat('x', 17000000)",
        f"alter table {table} disable trigger user; {large}; alter table {table} enable trigger user;"
        f" delete from {table}",
    ):
        with refused("TQ006", f'change of table "public.{table}"', "16777216", "p_columns"):
            session.execute(statement.encode())
        assert fetch(session, f"select count(*) from {table}") == 0
    assert fetch(session, f"select count(*) from trunq_log.{queue}") == 0
    capture(session, table, queue, columns=["id"])
    session.execute(large.encode())
    assert fetch(session, f"select payload->'after' from trunq_log.{queue}") == {"id": 1}


def test_a_key_that_is_too_long_is_refused_unless_it_is_made_of_others(
    session: Connection, queue: str, table: str
) -> None:
    capture(session, table, queue, key=["status"])
    long = f"insert into {table} values (1, repeat('x', 1001))"
    with refused("TQ006", f'key of a change of table "public.{table}"', "1001 bytes", "p_key"):
        session.execute(long.encode())
    assert fetch(session, f"select count(*) from {table}") == 0
    capture(session, table, queue, key=[])
    session.execute(long.encode())
    assert fetch(session, f"select key from trunq_log.{queue}") is None
