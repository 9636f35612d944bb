"""What roles of PgQ's may do, and names and calls that are odd or hostile."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import sql

from calling import ask, fetch, refused
from conftest import Connect

Connection = psycopg.Connection[Any]

DENIED = "42501"


def as_role(open_pgq: Connect, role: str) -> Connection:
    session = open_pgq()
    session.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
    return session


@pytest.fixture
def batch(pgq: Connection, name: str) -> int:
    """An open batch with one event."""
    pgq.execute("select pgq.insert_event(%s, 'kind', 'secret')", (name,))
    pgq.execute("select pgq.ticker(%s)", (name,))
    found: int = fetch(pgq, "select pgq.next_batch(%s, 'reader')", name)
    return found


def test_a_writer_publishes_and_a_reader_reads_and_neither_does_more(
    pgq: Connection, open_pgq: Connect, name: str, batch: int
) -> None:
    writer, reader = as_role(open_pgq, "pgq_writer"), as_role(open_pgq, "pgq_reader")
    assert fetch(writer, "select pgq.insert_event(%s, 'kind', 'data')", name) == 2
    assert fetch(reader, "select ev_data from pgq.get_batch_events(%s)", batch) == "secret"
    assert fetch(reader, "select pgq.event_retry(%s, 1, 0)", batch) == 1
    assert fetch(reader, "select pgq.finish_batch(%s)", batch) == 1
    queue_id = fetch(pgq, "select queue_id from pgq.queue where queue_name = %s", name)
    events = f"select ev_data from pgq.event_{queue_id}"
    assert fetch(reader, events) == "secret"
    for session, statement in (
        (writer, f"select pgq.next_batch('{name}', 'reader')"),
        (writer, events),
        (reader, f"select pgq.insert_event('{name}', 'kind', 'data')"),
        (reader, f"select pgq.drop_queue('{name}', true)"),
        (reader, f"update pgq.queue set queue_disable_insert = true where queue_name = '{name}'"),
        (reader, "select * from pgq._queue"),
        (reader, f"select * from trunq_log.{name}"),
        (reader, f"select * from pgq._on_{name}_read(1, 1)"),
        (writer, "select pgq._define_insert()"),
    ):
        with refused(DENIED):
            session.execute(statement.encode())


def test_everybody_sees_names_and_positions_and_no_event(
    pgq: Connection, open_pgq: Connect, name: str, batch: int
) -> None:
    pgq.execute("do $$ begin create role onlooker; exception when duplicate_object then null; end $$")
    onlooker = as_role(open_pgq, "onlooker")
    assert fetch(onlooker, "select queue_name from pgq.get_queue_info(%s)", name) == name
    assert fetch(onlooker, "select sub_batch from pgq.subscription where sub_batch = %s", batch) == batch
    for statement in (
        "select * from pgq.get_batch_events(1)",
        "select * from pgq.retry_queue",
        "select pgq.ticker()",
    ):
        with refused(DENIED):
            onlooker.execute(statement.encode())
    # A queue of trunq's own is none of PgQ's, and nobody sees it here.
    ask(pgq, "create_queue", queue="hidden_" + name)
    queue_id = fetch(pgq, "select queue_id from trunq.queue where name = %s", "hidden_" + name)
    assert onlooker.execute("select * from pgq._open(%s, 1)", (queue_id,)).fetchall() == []
    assert fetch(onlooker, "select tick_id from pgq._stand(%s, 1)", queue_id) is None


def test_a_queue_of_trunq_s_own_is_given_pgq_s_names_by_the_owner_alone(
    pgq: Connection, open_pgq: Connect, name: str
) -> None:
    native = "native_" + name
    ask(pgq, "create_queue", queue=native)
    before = ask(pgq, "publish", queue=native, payload={"n": 1})
    admin = as_role(open_pgq, "pgq_admin")
    with refused("TQ004", "adopt_queue"):
        admin.execute("select pgq.create_queue(%s)", (native,))
    with refused(DENIED):
        admin.execute("select pgq.adopt_queue(%s)", (native,))
    assert fetch(pgq, "select pgq.adopt_queue(%s)", native) is True
    assert fetch(pgq, "select pgq.adopt_queue(%s)", native) is False
    assert fetch(admin, "select pgq.create_queue(%s)", native) == 0
    assert fetch(admin, "select pgq.insert_event(%s, 'kind', 'data')", native) > before
    assert ask(pgq, "publish", queue=native, payload={"n": 2}) > before


def test_a_cursor_s_condition_has_the_caller_s_rights(
    pgq: Connection, open_pgq: Connect, name: str, batch: int
) -> None:
    reader = as_role(open_pgq, "pgq_reader")
    statement = "select ev_data from pgq.get_batch_cursor(%s, 'c', 10, %s)"
    with reader.transaction():
        assert fetch(reader, statement, batch, "ev_data like 's%'") == "secret"
    with refused(DENIED), reader.transaction():
        reader.execute(statement, (batch, f"exists (select from trunq_log.{name})"))


@pytest.mark.parametrize(
    "odd",
    ["", " ", 'It\'s "a" queue', "Größe; drop schema pgq", "x" * 300, "pgq.event_1", "a%sb$$c\\d"]
    + ["a$f$; create table pgq.made(); --", "a$q$b"],
)
def test_names_may_be_any_text(pgq: Connection, odd: str) -> None:
    assert fetch(pgq, "select pgq.create_queue(%s)", odd) == 1
    pgq.execute("select pgq.register_consumer(%s, %s)", (odd, odd))
    pgq.execute(
        "update pgq.queue set queue_ticker_max_lag = '0', queue_per_tx_limit = 1 where queue_name = %s",
        (odd,),
    )
    assert fetch(pgq, "select pgq.insert_event(%s, %s, %s)", odd, odd, odd) == 1
    with refused("XX000", f"Queue '{odd}' allows max 1 events from one TX"), pgq.transaction():
        for _ in range(2):
            pgq.execute("select pgq.insert_event(%s, 'a', 'b')", (odd,))
    fetch(pgq, "select pgq.ticker(%s)", odd)
    batch = fetch(pgq, "select pgq.next_batch(%s, %s)", odd, odd)
    info = pgq.execute("select queue_name, consumer_name from pgq.get_batch_info(%s)", (batch,)).fetchone()
    assert info == (odd, odd)
    assert fetch(pgq, "select ev_data from pgq.get_batch_events(%s)", batch) == odd
    assert fetch(pgq, "select pgq.drop_queue(%s, true)", odd) == 1
    assert fetch(pgq, "select to_regclass('pgq.made')") is None


def test_many_queues_are_each_found_by_their_names(pgq: Connection, name: str) -> None:
    names = [f"{name} {letter}" for letter in "zyxwabcdäéZ~"]
    with pgq.transaction():
        for other in names:
            pgq.execute("select pgq.create_queue(%s)", (other,))
    for place, other in enumerate(names):
        for _ in range(place):
            pgq.execute("select pgq.insert_event(%s, 'a', 'b')", (other,))
    counts = {other: fetch(pgq, "select pgq.insert_event(%s, 'a', 'b')", other) for other in names}
    assert counts == {other: place + 1 for place, other in enumerate(names)}
    with refused("XX000", "No such queue"):
        pgq.execute("select pgq.insert_event(%s, 'a', 'b')", (name + " zz",))
