"""A role that may create functions in a schema on somebody's search_path cannot have its own run by ours."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from calling import answer, ask, call, fetch, learn, lease, publish, refused
from conftest import Connect
from hostile import plant
from trunq import install

Connection = psycopg.Connection[Any]

FUNCTIONS = """
    select p.oid::regprocedure::text, p.prosrc, p.prosqlbody is not null
      or coalesce(array_to_string(p.proconfig, ' '), '') like '%search_path=pg_catalog, pg_temp%'
    from pg_proc p
    where p.pronamespace in (select n.oid from pg_namespace n where n.nspname ~ '^pgq|^trunq(_data)?$')
      or p.pronamespace = 'trunq_queue'::regnamespace and p.proname like '\\_specimen\\_%'
"""

KEYWORDS = set(
    re.findall(
        r"\w+",
        """
        coalesce greatest least nullif exists values in array row cast any all some extract bit as and or not
        filter on into using case when then else select from where if union with materialized lateral
        like limit is between interval rows over operator
        """,
    )
)


@pytest.fixture
def both(database: str, connect: Connect) -> Connection:
    """A session where PgQ's API is too, with a capture and a queue of PgQ's."""
    install.install(database, "pgq")
    session = connect()
    session.execute("select pgq.create_queue('events')")
    session.execute("create table orders (id integer primary key)")
    ask(session, "capture", table="orders", queue="events")
    return session


def test_each_function_pins_its_search_path_or_names_the_schema_of_all_it_calls(both: Connection) -> None:
    rows = both.execute(FUNCTIONS.encode()).fetchall()
    assert len(rows) > 200
    for signature, source, is_pinned in rows:
        if not is_pinned:
            text = re.sub(r"'[^']*'", "", re.sub(r"--.*|/\*.*?\*/", "", source))
            aliases = set(re.findall(r"\)\s+(?:as\s+)?(\w+)\(", text))
            called = {name for name in re.findall(r"(?<![\w.])(\w+)\(", text) if name.lower() not in KEYWORDS}
            assert called <= aliases, signature
            named = re.sub(r"operator\(pg_catalog\.[^)]+\)|=>|:=|::|-\s?\d", "", text)
            assert not re.search(r"[-+*/<>=~!@#%^&|?]", re.sub(r"\w\.\*|(select|^) \*", "", named)), signature


def test_whoever_reads_what_postgres_writes_of_a_function_has_it_written_in_one_way(
    session: Connection,
) -> None:
    """With quote_all_identifiers on, "search_path" would not be the setting search_path any more."""
    rows = session.execute(
        "select p.oid::regprocedure::text, coalesce(array_to_string(p.proconfig, ' '), '') from pg_proc p"
        " where p.pronamespace in ('trunq'::regnamespace, 'trunq_queue'::regnamespace)"
        r" and p.prosrc ~ 'pg_get_(functiondef|expr|function_)|::\s*regprocedure'"
    ).fetchall()
    assert len(rows) >= 6
    assert [name for name, settings in rows if "quote_all_identifiers=off" not in settings] == []


KINDS: dict[str, dict[str, str]] = {
    "plain": {},
    "laned": {"lanes": "key"},
    "refusing": {"unique": "refuse"},
    "replacing": {"unique": "replace"},
    "everything": {"lanes": "key", "unique": "replace"},
}
"""Queues that are made, by what create_queue is given."""

LANED = {"laned", "everything", "late"}


@pytest.mark.parametrize("path", ["public, pg_catalog", "public"])
def test_hostile_overloads_are_never_run(connect: Connect, path: str) -> None:
    """All of them raise, so anything that ran one would fail."""
    session = connect()
    learn(session)
    for queue, given in KINDS.items():
        ask(session, "create_queue", queue=queue, **given)
    plant(session, exact="pg_catalog" in path)
    session.execute(f"set search_path = {path}".encode())
    session.execute("set trunq.tenant = 'ada'")
    ask(session, "create_queue", queue="late", lanes="key")
    ask(session, "set_tenancy", queue="late", tenancy=True)
    session.execute(
        "create table public.orders (id integer primary key, status text, at timestamptz default now())"
    )
    ask(
        session,
        "capture",
        table="public.orders",
        queue="late",
        ignore=["at"],
        where={"in": {"status": ["a", "b"]}},
    )
    for queue in (*KINDS, "late"):
        go_round(session, queue)
    before = fetch(session, "select count(*) from trunq_log.late")
    session.execute("insert into public.orders values (1, 'a'), (2, 'c')")
    session.execute("update public.orders set status = 'b'")
    session.execute("delete from public.orders")
    session.execute("truncate public.orders")
    assert fetch(session, "select count(*) from trunq_log.late") == before + 6
    for function in ("perform_duties", "status"):
        assert call(session, function)
    listed = session.execute(ALL_LISTS.encode()).fetchall()
    for (function,) in listed:
        call(session, function)
    assert len(listed) > 10
    assert ask(session, "elect", name="me") == 1
    for queue in (*KINDS, "late"):
        ask(session, "drop_queue", queue=queue, force=True)


ALL_LISTS = r"""
    select p.proname from pg_catalog.pg_proc p
    where p.pronamespace operator(pg_catalog.=) 'trunq'::pg_catalog.regnamespace
      and p.proname operator(pg_catalog.~) '^list_' and p.pronargs operator(pg_catalog.=) p.pronargdefaults
"""


def go_round(session: Connection, queue: str) -> None:
    """A message of this queue meets each of its functions."""
    ask(session, "subscribe", queue=queue, subscription="batches", mode="exclusive")
    ask(
        session,
        "subscribe",
        queue=queue,
        subscription="ordered",
        in_order=queue in LANED,
        filter={"not_kinds": ["x"]},
    )
    id = fetch(session, f"select trunq_queue.{queue}_publish('{{\"a\": 1}}')")
    ids = publish(session, queue, 5)
    fetch(session, f"select trunq_queue.{queue}_publish_many(array['1', '2']::jsonb[], array['a', 'b'])")
    ask(session, "publish", queue=queue, delay="1 hour")
    ask(session, "publish", queue=queue, key="k", options={"awaited": 60})
    held = lease(session, queue, 4)
    assert len(held.ids) >= 3, queue
    answer(session, "ack", held, held.ids[:1])
    answer(session, "retry", held, held.ids[1:2], errors=["why"])
    answer(session, "reject", held, held.ids[2:3], errors=["why"])
    ask(session, "extend", **held.named, lease_time="0")
    ordered = lease(session, queue, 2, subscription="ordered")
    answer(session, "time_out", ordered, errors=["late"] * len(ordered.ids))
    ask(session, "tick", queue=queue, force=True)
    (batch,) = call(session, "next_batch", queue=queue, subscription="batches", worker="w")
    named = {"queue": queue, "subscription": "batches", "batch_id": batch.batch_id}
    assert len(call(session, "read_batch", **named)) >= 8
    ask(session, "finish_batch", **named, token=batch.token)
    assert call(session, "list_messages", queue=queue)
    assert call(session, "show_message", queue=queue, id=id)
    assert ask(session, "requeue", queue=queue) == 1
    assert call(session, "cancel", queue=queue, ids=ids[4:])


def test_what_runs_with_the_owners_rights_is_run_by_its_trigger_alone(
    session: Connection, queue: str
) -> None:
    """On a table of somebody else's, its types and their casts would run as the owner."""
    privileged = (
        "select count(*) from pg_proc p where p.prosecdef"
        " and p.pronamespace in ('trunq'::regnamespace, 'trunq_queue'::regnamespace)"
    )
    assert fetch(session, f"{privileged} and p.proname in ('_gate', '{queue}_put_off')") == 2
    # And what roles of a queue execute (tests/sql/operate/test_role.py): for whom grant_role names.
    others = f"{privileged} and p.prorettype <> 'trigger'::regtype"
    verbs = "publish_unique|unique_many|public_ids|lease|lease_ids|answer|extend|set_progress|next_batch"
    verbs += "|finish_batch|resume"
    doors = "work|read|read_payload|administer"
    assert fetch(session, f"{others} and p.proname !~ '_({verbs}|{doors})$'") == 0
    assert fetch(session, f"{privileged} and has_function_privilege('public', p.oid, 'execute')") == 0


def test_a_publisher_cannot_forge_or_delete_messages_of_another_queue(
    session: Connection, queue: str, open_session: Connect
) -> None:
    own = f"{queue}_own"
    ask(session, "create_queue", queue=own)
    ids = publish(session, queue, 2)
    role = f"forger_{queue}"
    session.execute(f"create role {role}".encode())
    try:
        ask(session, "grant_role", queue=own, role="publisher", grantee=role)
        forger = open_session()
        forger.execute(f"set role {role}".encode())
        forger.execute("create temp table mine (id bigint, txid xid8, segment smallint, due_at timestamptz)")
        for function in (
            f"trunq_queue.{queue}_put_off",
            "trunq_queue._specimen_put_off",
            "trunq._refuse_kind",
        ):
            with refused("42501"):
                trigger = f"create trigger t after insert on mine for each row execute function {function}()"
                forger.execute(trigger.encode())
    finally:
        session.execute(f"drop owned by {role}; drop role {role}".encode())
    assert lease(session, queue, 5).ids == ids


def test_a_publisher_writes_what_a_message_says_and_not_where_readers_find_it(
    session: Connection, queue: str, open_session: Connect
) -> None:
    """One with a transaction or a segment of its maker's choice would be read never, or twice."""
    role = f"forger_{queue}"
    session.execute(f"create role {role}".encode())
    columns = session.execute(
        "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 and not attisdropped",
        (f"trunq_log.{queue}",),
    ).fetchall()
    allowed = set()
    try:
        ask(session, "grant_role", queue=queue, role="publisher", grantee=role)
        forger = open_session()
        forger.execute(f"set role {role}".encode())
        for (column,) in columns:
            with suppress(psycopg.errors.InsufficientPrivilege):
                forger.execute(f"insert into trunq_log.{queue} ({column}) values (default)".encode())
                allowed.add(column)
    finally:
        session.execute(f"drop owned by {role}; drop role {role}".encode())
    assert {"txid", "segment", "id"} < {column for (column,) in columns}
    assert allowed == {"priority", "key", "kind", "payload", "body", "headers", "options", "due_at"}
