"""Columns of the user's own: added, known, renamed and dropped; what is refused."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import sql

from calling import OUTDATED, ask, call, fetch, move_clock, new_names, refused
from conftest import Connect
from engine import Engine
from trunq import install
from widening import GIVEN, put, told, widen

Connection = psycopg.Connection[Any]


@pytest.fixture
def plain(connect: Connect) -> Engine:
    session = connect()
    ask(session, "create_queue", queue="wide")
    return Engine(session, "wide")


def test_a_column_that_is_there_is_no_news_and_another_type_is_refused(plain: Engine) -> None:
    assert plain.ask("add_column", column="total", type="numeric(12,2)", default="1") is True
    assert plain.ask("add_column", column="total", type="numeric(12,2)") is False
    with refused("TQ005", '"total"', "numeric(12,2) already, not text"):
        plain.ask("add_column", column="total", type="text")
    assert plain.call("list_columns") == [("total", "numeric(12,2)", "'1'::numeric")]


NAMES = [
    "id",
    "txid",
    "payload",
    "columns",
    "unique_key",
    "state",
    "error",
    "trunq_columns",
    "g",
    "told",
    "hold",
    "extra",
    "is_next",
    "v_all",
    "p_ids",
    "",
    "n" * 64,
]


def test_names_of_ours_are_refused(plain: Engine) -> None:
    for name in NAMES:
        with refused("TQ005", name[:40]):
            plain.ask("add_column", column=name, type="text")
    with refused("TQ005"):
        plain.ask("add_column", column=None, type="text")


def test_what_is_no_type_is_refused(plain: Engine) -> None:
    for type in ("tekst", "text; drop table x", "", "anyelement", "text)", "serial", "25", None):
        with refused("TQ005", "type", "public.mood"):
            plain.ask("add_column", column="customer", type=type)
    assert plain.call("list_columns") == []


def test_a_comment_behind_the_type_hides_nothing(plain: Engine) -> None:
    plain.ask("add_column", column="total", type="integer -- more", default="3")
    assert plain.call("list_columns") == [("total", "integer", "3")]


def test_a_default_that_is_none_of_the_type_is_refused(plain: Engine) -> None:
    with refused("TQ005", '"total"', "much"):
        plain.ask("add_column", column="total", type="integer", default="much")


def test_types_of_the_user_s_own(plain: Engine) -> None:
    plain.run("create type public.mood as enum ('glad', 'sad')")
    plain.ask("add_column", column="mood", type="public.mood", default="sad")
    put(plain.connection, "wide", {"mood": "glad"})
    with refused("TQ005", "cannot be read"):
        put(plain.connection, "wide", {"mood": "angry"})
    assert told(plain.lease().messages[0]) == {"mood": "glad"}


def test_a_hundred_columns(plain: Engine) -> None:
    names = [f"c{n}" for n in range(100)]
    plain.run("alter table {log} " + ", ".join(f"add column {name} integer" for name in names))
    plain.ask("add_column", column="c0", type="integer")
    put(plain.connection, "wide", {name: n for n, name in enumerate(names)})
    assert told(plain.lease().messages[0]) == {name: n for n, name in enumerate(names)}


def test_a_column_added_by_hand_is_known_after_the_repair_or_add_column(plain: Engine) -> None:
    plain.run("alter table {log} add column customer text default 'acme'")
    plain.publish()
    assert plain.lease().messages[0].options is None
    (defect,) = plain.call("list_defects")
    assert (defect.kind, defect.object) == ("column", "trunq_log.wide")
    plain.run(defect.repair)
    assert plain.call("list_defects") == []
    plain.publish()
    assert told(plain.lease().messages[0]) == {"customer": "acme"}
    plain.run("alter table {log} add column region text default 'eu'")
    assert plain.ask("add_column", column="region", type="text") is False
    plain.publish()
    assert told(plain.lease().messages[0]) == {"customer": "acme", "region": "eu"}


def test_a_column_renamed_by_hand_is_repaired(plain: Engine) -> None:
    plain.ask("add_column", column="customer", type="text")
    put(plain.connection, "wide", {"customer": "acme"})
    plain.run("alter table {log} rename customer to client")
    (defect,) = plain.call("list_defects")
    plain.run(defect.repair)
    assert plain.call("list_defects") == []
    assert told(plain.lease().messages[0]) == {"client": "acme"}
    assert plain.fetch("select client from trunq_queue.wide_messages") == "acme"


def test_an_upgrade_makes_columns_of_before_known(plain: Engine, database: str) -> None:
    plain.run("alter table {log} add column customer text default 'acme', add column state text default 's'")
    plain.publish()
    plain.run(OUTDATED)
    install.install(database)
    assert plain.call("list_defects") == []
    assert told(plain.lease().messages[0]) == {"customer": "acme", "state": "s"}
    # Its name is one of the view's.
    assert plain.run("select customer, state from trunq_queue.wide_messages").fetchall() == [
        ("acme", "leased")
    ]


def test_a_column_is_dropped_with_what_shows_it_and_whoever_might_read_may(plain: Engine, role: str) -> None:
    plain.ask("add_column", column="customer", type="text")
    plain.ask("add_column", column="region", type="text")
    plain.run(f"grant select on trunq_queue.wide_messages to {role}")
    put(plain.connection, "wide", {"customer": "acme", "region": "eu"})
    held = plain.lease()
    plain.answer("reject", held)
    plain.ask("drop_column", column="customer")
    assert plain.run("select region from trunq_queue.wide_messages").fetchall() == [("eu",)]
    assert plain.fetch(f"select has_table_privilege('{role}', 'trunq_queue.wide_messages', 'select')") is True
    assert plain.ask("requeue") == 1
    assert told(plain.lease().messages[0]) == {"region": "eu"}
    with refused("TQ005", '"customer"'):
        plain.ask("drop_column", column="customer")
    for ours in ("payload", "unique_key"):
        with refused("TQ005", ours):
            plain.ask("drop_column", column=ours)


@pytest.fixture
def role(plain: Engine) -> Any:
    session = plain.connection
    session.execute("create role column_reader")
    yield "column_reader"
    session.execute("reset role; drop owned by column_reader cascade; drop role column_reader")


def test_a_column_that_a_view_of_the_user_s_shows_stays(plain: Engine) -> None:
    plain.ask("add_column", column="customer", type="text")
    plain.run("create view public.mine as select customer from {log}")
    with refused("TQ009", '"customer"', "drop that first"):
        plain.ask("drop_column", column="customer")
    assert plain.run("select customer from trunq_queue.wide_messages").fetchall() == []
    plain.run("drop view public.mine")
    plain.ask("drop_column", column="customer")


def test_an_open_transaction_holds_a_column_up(plain: Engine, connect: Connect) -> None:
    other = connect(autocommit=False)
    other.execute("select from trunq_log.wide")
    with refused("TQ009", '"wide"', "pg_stat_activity"):
        plain.ask("add_column", column="customer", type="text")
    other.commit()
    assert plain.ask("add_column", column="customer", type="text") is True


def test_a_session_that_leased_before_gets_the_column_at_its_next_lease(
    plain: Engine, connect: Connect
) -> None:
    """Its plans are kept, and made anew."""
    worker = plain.on(connect())
    for _ in range(7):
        plain.publish()
        assert worker.lease().messages[0].options is None
    plain.ask("add_column", column="customer", type="text", default="acme")
    plain.publish()
    assert told(worker.lease().messages[0]) == {"customer": "acme"}
    plain.ask("drop_column", column="customer")
    plain.publish()
    assert worker.lease().messages[0].options is None


def test_roles_publish_with_columns_and_see_no_more_than_before(plain: Engine, role: str) -> None:
    session = plain.connection
    plain.ask("grant_role", role="publisher", grantee=role)
    plain.ask("add_column", column="customer", type="text")
    session.execute(f"set role {role}".encode())
    put(session, "wide", {"customer": "acme"})
    session.execute("insert into trunq_log.wide (kind, customer) values ('k', 'acme')")
    assert [row.name for row in plain.call("list_columns")] == ["customer"]
    with refused("42501"):
        plain.ask("drop_column", column="customer")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        session.execute("insert into trunq_log.wide (kind, txid) values ('k', '5')")
    session.execute("reset role")
    plain.ask("revoke_role", role="publisher", grantee=role)
    plain.ask("grant_role", role="reader", grantee=role)
    session.execute(f"set role {role}".encode())
    assert len(session.execute("select id, state from trunq_queue.wide_messages").fetchall()) == 2
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        session.execute("select customer from trunq_queue.wide_messages")


@pytest.mark.parametrize(
    "to", [{"unique": "replace"}, {"lanes": "key"}, {"lanes": "priority", "unique": "refuse"}]
)
def test_a_queue_with_columns_is_converted(plain: Engine, to: dict[str, str]) -> None:
    widen(plain.connection, "wide")
    ids = [put(plain.connection, "wide"), put(plain.connection, "wide", delay="1 ms")]
    held = plain.lease()
    plain.answer("retry", held, delays=["1 ms"])
    assert plain.ask("convert_queue", **to) is True
    assert plain.call("list_defects") == []
    put(plain.connection, "wide")
    move_clock(plain.connection, "10 seconds")
    plain.ask("promote")
    messages = plain.lease(10).messages
    assert [told(each) for each in messages] == [GIVEN] * 3
    assert set(ids) < {each.id for each in messages}
    assert plain.run("select distinct customer, total::text from trunq_queue.wide_messages").fetchall() == [
        ("acme", "1.50")
    ]


def test_adding_a_column_keeps_what_was_changed_by_hand(plain: Engine) -> None:
    plain.run("alter function trunq_queue.wide_lease set statement_timeout = '7s'")
    plain.ask("add_column", column="customer", type="text")
    config = fetch(plain.connection, "select proconfig from pg_proc where proname = 'wide_lease'")
    assert "statement_timeout=7s" in config


def test_names_are_written_as_names(plain: Engine) -> None:
    odd = 'he said "x"; %s \' \\ $$'
    plain.ask("add_column", column=odd, type="text")
    put(plain.connection, "wide", {odd: "a"})
    assert told(plain.lease().messages[0]) == {odd: "a"}
    query = sql.SQL("select {} from trunq_queue.wide_messages").format(sql.Identifier(odd))
    assert plain.connection.execute(query).fetchall() == [("a",)]
    plain.ask("subscribe", subscription="some", filter={"columns": {odd: "a"}})
    put(plain.connection, "wide", {odd: "a"})
    assert len(call(plain.connection, "lease", queue="wide", subscription="some", worker="w")) == 1
    with refused("TQ005", '"some"'):
        plain.ask("drop_column", column=odd)


@pytest.mark.parametrize("name", ["n", "w", "late", "place", "turn"])
@pytest.mark.parametrize("lanes", [None, "key"])
def test_a_column_by_the_name_of_something_in_our_statements(
    session: Connection, name: str, lanes: str | None
) -> None:
    engine = Engine(session, next(new_names("named"))).create(**({"lanes": lanes} if lanes else {}))
    engine.ask("add_column", column=name, type="integer", default="7")
    ids = engine.publish(2)
    held = engine.lease()
    assert told(held.messages[0]) == {name: 7}
    engine.answer("release", held)
    engine.ask("promote")
    assert sorted(engine.drain()) == ids
