"""Plain INSERT and COPY with due_at: sql/specimen/queue/delayed.sql."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from calling import ask, come_back, drain, fetch, publish, refused, state
from conftest import Connect

Connection = psycopg.Connection[Any]

AT = (datetime.now(UTC) + timedelta(days=1)).isoformat()


def insert(connection: Connection, queue: str, rows: str) -> list[int]:
    """Insert rows of (payload, due_at); gives their ids."""
    statement = f"insert into trunq_log.{queue} (payload, due_at) values {rows} returning id"
    return [row[0] for row in connection.execute(statement.encode())]


def in_log(connection: Connection, queue: str) -> int:
    """How many rows the log has."""
    return int(fetch(connection, f"select count(*) from trunq_log.{queue}"))


def test_an_inserted_message_with_a_time_waits_for_it_and_comes_as_it_was(
    session: Connection, queue: str
) -> None:
    now, later = insert(session, queue, f"('1', null), ('{{\"a\": 2}}', '{AT}')")
    assert in_log(session, queue) == 1
    told = state(session, queue, later)
    assert (told.state, told.payload, told.due_at.isoformat()) == (
        "scheduled",
        {"a": 2},
        AT,
    )
    assert drain(session, queue) == [now]
    come_back(session, queue)
    assert drain(session, queue) == [later]
    assert state(session, queue, later).payload == {"a": 2}


def test_copied_messages_with_a_time_wait_for_it(session: Connection, queue: str) -> None:
    with (
        session.cursor() as cursor,
        cursor.copy(f"copy trunq_log.{queue} (payload, kind, key, due_at) from stdin".encode()) as copy,
    ):
        for number in range(100):
            copy.write_row((str(number), "mail", "k", AT if number % 2 else None))
    assert in_log(session, queue) == 50
    assert len(drain(session, queue)) == 50
    waiting = "select array_agg(payload order by id) from trunq.delayed where queue_id = %s and kind = 'mail'"
    queue_id = fetch(session, "select queue_id from trunq.queue where name = %s", queue)
    assert fetch(session, waiting, queue_id) == list(range(1, 100, 2))


def test_a_time_that_is_past_is_now(session: Connection, queue: str) -> None:
    (id,) = insert(session, queue, "('1', '2001-01-01')")
    ask(session, "promote", queue=queue)
    assert drain(session, queue) == [id]


@pytest.mark.parametrize("due_at", ["infinity", "-infinity", "12000-01-01"])
def test_a_time_that_cannot_be_is_refused_whole(session: Connection, queue: str, due_at: str) -> None:
    with refused("TQ005", "cannot be due at"):
        insert(session, queue, f"('1', null), ('2', '{due_at}')")
    assert in_log(session, queue) == 0


def test_a_negative_delay_is_refused_as_it_was_meant(session: Connection, queue: str) -> None:
    with refused("TQ005", "cannot be due at now + -00:00:01"):
        session.execute("select trunq.publish(%s, '1', p_delay => '-1 days +23:59:59')", (queue,))


def test_a_rolled_back_insert_leaves_nothing(open_session: Connect, session: Connection, queue: str) -> None:
    other = open_session()
    other.execute("begin")
    (id,) = insert(other, queue, f"('1', '{AT}')")
    other.rollback()
    assert fetch(session, "select count(*) from trunq.delayed where id = %s and payload = '1'", id) == 0
    assert in_log(session, queue) == 0


def test_columns_of_the_user_come_with_it(session: Connection, queue: str) -> None:
    session.execute(f"alter table trunq_log.{queue} add tenant text, add price numeric".encode())
    (row,) = session.execute(
        f"insert into trunq_log.{queue} (payload, due_at, tenant, price)"
        f" values ('1', '{AT}', 'acme', 1.50) returning id".encode()
    )
    come_back(session, queue)
    found = session.execute(f"select id, tenant, price::text, due_at from trunq_log.{queue}".encode())
    assert found.fetchall() == [(row[0], "acme", "1.50", None)]


def test_columns_of_the_user_come_with_every_digit(
    session: Connection, queue: str, open_session: Connect
) -> None:
    session.execute(f"alter table trunq_log.{queue} add weight float8".encode())
    other = open_session()
    other.execute("set extra_float_digits = -10")
    other.execute(f"insert into trunq_log.{queue} (due_at, weight) values ('{AT}', 1::float8 / 3)".encode())
    come_back(session, queue)
    assert fetch(session, f"select weight from trunq_log.{queue}") == 1 / 3


def test_a_publisher_who_may_only_insert_may_give_a_time(
    session: Connection, queue: str, open_session: Connect
) -> None:
    role = f"clerk_{queue}"
    session.execute(sql.SQL("create role {}").format(sql.Identifier(role)))
    try:
        ask(session, "grant_role", queue=queue, role="publisher", grantee=role)
        clerk = open_session()
        clerk.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
        (id,) = insert(clerk, queue, f"('1', '{AT}')")
        assert state(session, queue, id).state == "scheduled"
    finally:
        session.execute(
            sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(role)).as_string().encode()
        )


def test_what_is_published_beside_it_is_leased_once(session: Connection, queue: str) -> None:
    ids = publish(session, queue, 3)
    insert(session, queue, f"('1', '{AT}')")
    ids += publish(session, queue, 3)
    assert drain(session, queue) == ids


def test_a_publisher_who_may_only_insert_may_publish_with_a_delay(
    session: Connection, queue: str, open_session: Connect
) -> None:
    role = f"agent_{queue}"
    session.execute(sql.SQL("create role {}").format(sql.Identifier(role)))
    try:
        ask(session, "grant_role", queue=queue, role="publisher", grantee=role)
        agent = open_session()
        agent.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
        one = ask(agent, "publish", queue=queue, payload={"a": 1}, kind="mail", delay="1 hour")
        many = ask(
            agent, "publish_many", queue=queue, payloads=[{"a": 2}, {"a": 3}], kinds=["mail"], delay="1 hour"
        )
        told = [state(session, queue, id) for id in (one, *many)]
        assert [(row.state, row.kind, row.payload["a"]) for row in told] == [
            ("scheduled", "mail", 1),
            ("scheduled", "mail", 2),
            ("scheduled", "mail", 3),
        ]
    finally:
        session.execute(
            sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(role)).as_string().encode()
        )
