"""A role that may create functions in a schema on somebody's search_path cannot have its own run by ours."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from calling import answer, ask, call, fetch, lease, publish, refused
from conftest import Connect

Connection = psycopg.Connection[Any]

FUNCTIONS = """
    select p.oid::regprocedure::text, p.prosrc,
      coalesce(array_to_string(p.proconfig, ' '), '') like '%search_path=pg_catalog, pg_temp%'
    from pg_proc p
    where p.pronamespace = 'trunq'::regnamespace or p.pronamespace = 'trunq_queue'::regnamespace
      and p.proname like '\\_specimen\\_%'
"""

KEYWORDS = set(
    re.findall(
        r"\w+",
        """
        coalesce greatest least nullif exists values in array row cast any all some extract bit as and or not
        filter on into using case when then else select from where if union with materialized lateral
        like limit is between interval rows over
        """,
    )
)

SIGNATURES = (
    "format(text, integer) returns text",
    "format(text, text) returns text",
    "concat(text, text) returns text",
    "nextval(text) returns bigint",
    "cardinality(jsonb[]) returns integer",
    "cardinality(bigint[]) returns integer",
    "unnest(bigint[]) returns setof bigint",
    "pg_column_size(jsonb) returns integer",
    "left(text, smallint) returns text",
    "substr(bytea, smallint) returns bytea",
    "pg_visible_in_snapshot(xid8, pg_snapshot) returns boolean",
    "is_more(integer, integer) returns boolean",
    "is_text(text, name) returns boolean",
)
BODY = "language plpgsql as $$ begin raise exception 'a function of somebody else was run'; end $$"
OPERATORS = (
    "create operator public.> (leftarg = integer, rightarg = integer, function = public.is_more)",
    "create operator public.= (leftarg = text, rightarg = name, function = public.is_text)",
)


def test_each_function_pins_its_search_path_or_names_the_schema_of_all_it_calls(session: Connection) -> None:
    rows = session.execute(FUNCTIONS.encode()).fetchall()
    assert len(rows) > 80
    for signature, source, is_pinned in rows:
        if not is_pinned:
            text = re.sub(r"'[^']*'", "", re.sub(r"--.*", "", source))
            aliases = set(re.findall(r"\)\s+(?:as\s+)?(\w+)\(", text))
            called = {name for name in re.findall(r"(?<![\w.])(\w+)\(", text) if name.lower() not in KEYWORDS}
            assert called <= aliases, signature


def test_whoever_reads_what_postgres_writes_of_a_function_has_it_written_in_one_way(
    session: Connection,
) -> None:
    """With quote_all_identifiers on, "search_path" would not be the setting search_path any more."""
    rows = session.execute(
        "select p.oid::regprocedure::text, coalesce(array_to_string(p.proconfig, ' '), '') from pg_proc p"
        " where p.pronamespace in ('trunq'::regnamespace, 'trunq_queue'::regnamespace)"
        r" and p.prosrc ~ 'pg_get_(functiondef|expr|function_)|regprocedure'"
    ).fetchall()
    assert len(rows) >= 6
    assert [name for name, settings in rows if "quote_all_identifiers=off" not in settings] == []


@pytest.mark.parametrize("path", ["public, pg_catalog", "public"])
def test_hostile_overloads_are_never_run(connect: Connect, path: str) -> None:
    """All of them raise, so anything that ran one would fail."""
    session = connect()
    for statement in (*(f"create function public.{each} {BODY}" for each in SIGNATURES), *OPERATORS):
        session.execute(statement.encode())
    session.execute(f"set search_path = {path}".encode())
    ask(session, "create_queue", queue="orders")
    ask(session, "subscribe", queue="orders", subscription="batches", mode="exclusive")
    id = fetch(session, "select trunq_queue.orders_publish('{\"a\": 1}')")
    ids = publish(session, "orders", 5)
    fetch(session, "select trunq_queue.orders_publish_many(array['1', '2']::jsonb[], array['a', 'b'])")
    ask(session, "publish", queue="orders", delay="1 hour")
    held = lease(session, "orders", 4)
    assert held.ids == [id, *ids[:3]]
    answer(session, "ack", held, held.ids[:1])
    answer(session, "retry", held, held.ids[1:2], errors=["why"])
    answer(session, "reject", held, held.ids[2:3], errors=["why"])
    ask(session, "extend", **held.named, lease_time="0")
    ask(session, "tick", queue="orders", force=True)
    (batch,) = call(session, "next_batch", queue="orders", subscription="batches", worker="w")
    assert (
        len(call(session, "read_batch", queue="orders", subscription="batches", batch_id=batch.batch_id)) == 8
    )
    ask(
        session,
        "finish_batch",
        queue="orders",
        subscription="batches",
        batch_id=batch.batch_id,
        token=batch.token,
    )
    for function in ("perform_duties", "status", "list_queues", "list_subscriptions"):
        assert call(session, function)
    assert call(session, "list_messages", queue="orders")
    assert ask(session, "requeue", queue="orders") == 1
    assert ask(session, "elect", name="me") == 1
    ask(session, "drop_queue", queue="orders", force=True)


def test_what_runs_with_the_owners_rights_is_run_by_its_trigger_alone(
    session: Connection, queue: str
) -> None:
    """On a table of somebody else's, its types and their casts would run as the owner."""
    privileged = (
        "select count(*) from pg_proc p where p.prosecdef"
        " and p.pronamespace in ('trunq'::regnamespace, 'trunq_queue'::regnamespace)"
    )
    assert fetch(session, f"{privileged} and p.proname in ('_gate', '{queue}_put_off')") == 2
    # And what roles of a queue execute (tests/sql/test_role.py): for whom grant_role names.
    others = f"{privileged} and p.prorettype <> 'trigger'::regtype"
    verbs = "publish_unique|unique_many|lease|answer|extend|set_progress|next_batch|finish_batch"
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
