"""What the tables of a queue lack is named, with what puts it back; the user's own is no defect."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import ask, call, refused
from conftest import Connect

FORMS: dict[str, dict[str, Any]] = {
    "plain": {"kinds": ["a"]},
    "laned": {"lanes": "priority,kind", "unique": "refuse"},
    "held": {"lanes": "key", "hold_at_most": "20 days"},
    "grown": {},
}

DEFECTS = [
    ("drop index trunq_log.plain_txid_id_idx", "trunq_log.plain has no index USING btree (txid, id)"),
    (
        "drop index trunq_log.plain_id_idx",
        "trunq_log.plain has no index USING brin (id int8_minmax_multi_ops)",
    ),
    ("drop index trunq_data.plain_lease_subscription_id_lease_id_idx", "trunq_data.plain_lease has no index"),
    ("drop index trunq_log.laned_priority_coalesce_txid_id_idx", "trunq_log.laned has no index"),
    ("drop index trunq_log.held_priority_coalesce_txid_id_idx", "trunq_log.held has no index"),
    ("drop index trunq_data.laned_turn_subscription_id_class_seq_idx", "trunq_data.laned_turn has no index"),
    ("drop index trunq_data.laned_freed_id_idx", "trunq_data.laned_freed has no index USING btree (id)"),
    (
        "alter table trunq_data.laned_unique drop constraint laned_unique_pkey",
        "trunq_data.laned_unique has no unique index USING btree (unique_key, turn)",
    ),
    ("alter table trunq_archive.plain drop constraint plain_pkey", "trunq_archive.plain has no unique index"),
    ("alter table trunq_log.plain alter id drop default", "column id of trunq_log.plain has no default"),
    (
        "alter table trunq_data.held_lease alter segment set default 1",
        "column segment of trunq_data.held_lease has another default: 1",
    ),
    ("alter table trunq_log.plain alter txid drop not null", "column txid of trunq_log.plain may be null"),
    (
        "alter table trunq_data.plain_lease drop column keyed cascade",
        "trunq_data.plain_lease has no column keyed",
    ),
    ("drop trigger wake on trunq_log.plain", "trunq_log.plain has no trigger wake"),
    ("drop trigger take_key on trunq_log.laned", "trunq_log.laned has no trigger take_key"),
    (
        "drop trigger wake_lanes on trunq_data.held_receipt",
        "trunq_data.held_receipt has no trigger wake_lanes",
    ),
    ("drop trigger archive on trunq_data.plain_receipt", "trunq_data.plain_receipt has no trigger archive"),
    (
        "alter table trunq_data.plain_receipt disable trigger archive",
        "trigger archive of trunq_data.plain_receipt is disabled",
    ),
    (
        "alter table trunq_data.grown_lease alter epoch set default 0",
        "column epoch of trunq_data.grown_lease has another default: 0",
    ),
    (
        "drop trigger gate_transaction on trunq_log.held",
        "trunq_log.held has no trigger gate_transaction",
    ),
    ("drop trigger archive on trunq_data.held_receipt", "trunq_data.held_receipt has no trigger archive"),
    ("drop trigger gate_kinds on trunq_log.plain", "trunq_log.plain has no trigger gate_kinds"),
    ("alter table trunq_log.plain disable trigger put_off", "trigger put_off of trunq_log.plain is disabled"),
    (
        "alter table trunq_log.plain detach partition trunq_data.plain_log_2",
        "trunq_log.plain has no segment 2",
    ),
    ("drop table trunq_data.held_wake_3", "trunq_data.held_wake has no segment 3"),
    (
        "alter table trunq_data.plain_lease_0 replica identity default",
        "trunq_data.plain_lease_0 has no replica identity",
    ),
    ("alter table trunq_data.plain_log_1 set unlogged", "trunq_data.plain_log_1 is unlogged"),
]


@pytest.fixture
def session(connect: Connect) -> psycopg.Connection[Any]:
    """A database with queues of several forms: one has an archive, one got its lanes later."""
    opened = connect()
    for queue, options in FORMS.items():
        ask(opened, "create_queue", queue=queue, **options)
    ask(opened, "create_archive", queue="plain", at_once=True)
    ask(opened, "create_archive", queue="held", at_once=True)
    ask(opened, "set_publishing", queue="held", max_per_transaction=0)
    ask(opened, "convert_queue", queue="grown", lanes="key", unique="replace", retention="9 days")
    return opened


def test_each_defect_is_named_and_its_statement_puts_it_back(session: psycopg.Connection[Any]) -> None:
    assert call(session, "list_defects") == []
    for statement, told in DEFECTS:
        session.execute(statement.encode())
        (defect, *more) = call(session, "list_defects")
        assert told in defect.defect
        assert (more, defect.queue) == ([], defect.object.partition(".")[2].partition("_")[0]), statement
        session.execute(defect.repair.encode())
        assert call(session, "list_defects") == [], statement


def test_many_at_once_are_of_their_queue_alone(session: psycopg.Connection[Any]) -> None:
    for statement, _ in DEFECTS[::2]:
        session.execute(statement.encode())
    assert {row.queue for row in call(session, "list_defects")} == set(FORMS)
    assert {row.queue for row in call(session, "list_defects", queue="held")} == {"held"}
    with refused("TQ001", "nowhere"):
        call(session, "list_defects", queue="nowhere")


def test_what_the_user_adds_or_names_otherwise_is_no_defect(session: psycopg.Connection[Any]) -> None:
    session.execute(
        "alter table trunq_log.plain add column colour text default 'red';"
        "alter table trunq_log.plain alter kind set default 'a', alter key set not null;"
        "create index mine on trunq_log.plain (key);"
        "create function public.nothing() returns trigger language plpgsql as 'begin return null; end';"
        "create trigger mine after insert on trunq_log.plain execute function public.nothing();"
        "alter table trunq_log.plain add constraint mine check (colour <> 'blue');"
        'alter index trunq_log.plain_txid_id_idx rename to "an index, ON ONLY a USING b";'
        "alter table trunq_data.plain_log_0 set (autovacuum_enabled = on)"
    )
    # Handlers are to get the column.
    (unknown,) = call(session, "list_defects")
    assert (unknown.object, unknown.kind) == ("trunq_log.plain", "column")
    session.execute(unknown.repair.encode())
    assert call(session, "list_defects") == []


def test_an_index_that_is_not_on_each_segment_is_none(session: psycopg.Connection[Any]) -> None:
    session.execute("drop index trunq_log.plain_txid_id_idx")
    session.execute("create index whole on only trunq_log.plain (txid, id)")
    assert [row.kind for row in call(session, "list_defects")] == ["index"]


def test_a_queue_that_was_made_where_names_are_quoted_lacks_nothing(connect: Connect) -> None:
    session = connect(options="-c quote_all_identifiers=on")
    ask(session, "create_queue", queue="quoted", lanes="key", unique="refuse")
    for quoted in ("on", "off"):
        session.execute(f"set quote_all_identifiers = {quoted}".encode())
        assert call(session, "list_defects", queue="quoted") == []
