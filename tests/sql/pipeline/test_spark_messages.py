"""A queue as a sink of Spark, without Spark: columns, limits, gate, unique keys, rights."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from calling import new_names
from landing import AT, Job
from trunq.errors import (
    InvalidArgument,
    MessageTooLarge,
    QueueClosed,
    QueueNotFound,
    TransactionTooLarge,
    TrunqError,
)
from trunq.spark.errors import SinkRefused

_names = new_names("told")


@pytest.fixture
def dsn(shared_database: str) -> str:
    return shared_database


def messages(connection: psycopg.Connection[Any], queue: str, columns: str) -> list[Any]:
    return connection.execute(f"select {columns} from trunq_log.{queue} order by id").fetchall()


@pytest.mark.parametrize("protocol", ["staged", "partition", "direct"])
@pytest.mark.parametrize("engine", ["adbc", "psycopg"])
def test_messages_of_columns_by_their_names(
    dsn: str, session: psycopg.Connection[Any], queue: str, protocol: str, engine: str
) -> None:
    ddl = "kind string, key bigint, headers map, payload string, body binary"
    rows = [("k", 5, [("h", "1")], '{"a": 1}', b"x"), (None, None, None, None, b"y")]
    Job(dsn, ddl, queue=queue, commitProtocol=protocol, engine=engine).run(rows)
    assert messages(session, queue, "kind, key, headers, payload, body") == [
        ("k", "5", {"h": "1"}, {"a": 1}, b"x"),
        (None, None, None, None, b"y"),
    ]


@pytest.mark.parametrize("protocol", ["staged", "direct"])
def test_the_payload_of_all_columns(
    dsn: str, session: psycopg.Connection[Any], queue: str, protocol: str
) -> None:
    ddl = "id bigint, price decimal(9,2), at timestamp, day date, tags strings, word string, ok boolean"
    rows = [(1, Decimal("9.90"), AT, AT.date(), ["a"], 'ü"\\\n\x01', True), (2, *[None] * 6)]
    given = {"payloadColumn": "*", "keyColumn": "id", "kind": "price"}
    Job(dsn, ddl, queue=queue, commitProtocol=protocol, **given).run(rows)
    first, second = messages(session, queue, "kind, key, payload")
    assert first == (
        "price",
        "1",
        {
            "id": 1,
            "price": 9.90,
            "at": "2026-01-02T03:04:05.000006+00:00",
            "day": "2026-01-02",
            "tags": ["a"],
            "word": 'ü"\\\n\x01',
            "ok": True,
        },
    )
    assert second[2]["id"] == 2
    assert set(second[2].values()) == {2, None}


def test_a_payload_of_a_struct(dsn: str, session: psycopg.Connection[Any], queue: str) -> None:
    Job(dsn, "payload struct", queue=queue).run([({"a": 1, "b": "x"},), (None,)])
    assert messages(session, queue, "payload") == [({"a": 1, "b": "x"},), (None,)]


@pytest.mark.parametrize(
    ("ddl", "given", "said"),
    [
        ("payload string, created_at timestamp", {}, 'a message has no column "created_at"'),
        ("key string", {}, "would say nothing"),
        ("payload int", {}, 'column "payload" is int32, and is to be the payload'),
        ("payload string", {"keyColumn": "nr"}, 'there is no column "nr" in the rows'),
        ("payload string, unique_key string", {}, "has no unique keys"),
        ("payload string, delay int", {"commitProtocol": "direct"}, "a delay counts from the commit"),
    ],
)
def test_columns_that_no_message_has(
    dsn: str, queue: str, ddl: str, given: dict[str, str], said: str
) -> None:
    with pytest.raises(TrunqError, match=said):
        Job(dsn, ddl, queue=queue, **given)


def test_what_is_put_off(dsn: str, session: psycopg.Connection[Any], queue: str) -> None:
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    Job(dsn, "payload string, delay int, due_at timestamp", queue=queue).run(
        [("1", 60, None), ("2", None, soon), ("3", None, None)]
    )
    Job(dsn, "payload string, due_at timestamp", queue=queue, commitProtocol="direct").run([("4", soon)])
    assert messages(session, queue, "payload") == [(3,)]
    found = session.execute(
        "select payload, due_at from trunq.delayed d join trunq.queue q using (queue_id)"
        " where q.name = %s order by payload",
        (queue,),
    ).fetchall()
    assert [row[0] for row in found] == [1, 2, 4]
    assert found[1][1] == soon


@pytest.mark.parametrize("protocol", ["staged", "direct"])
def test_limits_of_messages(dsn: str, session: psycopg.Connection[Any], queue: str, protocol: str) -> None:
    for engine in ("adbc", "psycopg"):
        job = Job(dsn, "kind string", queue=queue, commitProtocol=protocol, engine=engine)
        with pytest.raises(MessageTooLarge, match="1000 for kind and key"):
            job.task([("x" * 1001,)])
        job = Job(dsn, "kind string, priority int", queue=queue, commitProtocol=protocol, engine=engine)
        with pytest.raises(InvalidArgument, match="a plain queue has no priorities"):
            job.run([("x", 5)])
    assert messages(session, queue, "id") == []


def test_what_a_gate_refuses(dsn: str, session: psycopg.Connection[Any], queue: str) -> None:
    with pytest.raises(QueueNotFound, match='there is no queue "nobody"'):
        Job(dsn, "payload string", queue="nobody")
    session.execute("select trunq.set_publishing(%s, p_max_per_transaction => 2, p_kinds => '{a}')", (queue,))
    with pytest.raises(TransactionTooLarge):
        Job(dsn, "payload string", queue=queue, kind="a").run([("1",)] * 3)
    with pytest.raises(InvalidArgument, match='takes no message of kind "b"'):
        Job(dsn, "payload string", queue=queue, kind="b").run([("1",)])
    waiting = Job(dsn, "payload string", queue=queue, kind="a")
    written = waiting.task([("1",)])
    session.execute("select trunq.close_queue(%s)", (queue,))
    with pytest.raises(QueueClosed):
        Job(dsn, "payload string", queue=queue)
    with pytest.raises(QueueClosed):
        waiting.commit(written)
    session.execute("select trunq.open_queue(%s)", (queue,))
    waiting.commit(written)
    assert messages(session, queue, "payload") == [(1,)]


def test_unique_keys_that_others_hold_are_left_out(
    dsn: str, session: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    queue = next(_names)
    session.execute("select trunq.create_queue(%s, p_unique => 'refuse')", (queue,))
    session.execute(f"insert into trunq_log.{queue} (unique_key, payload) values ('b', '0')")
    with caplog.at_level("INFO"):
        Job(dsn, "payload string, unique_key string", queue=queue).run(
            [("1", "c"), ("2", "b")], [("3", None)]
        )
    assert messages(session, queue, "payload")[0] == (0,)
    assert sorted(row[0] for row in messages(session, queue, "payload")) == [0, 1, 3]
    assert "1 messages were left out" in caplog.text
    with pytest.raises(InvalidArgument, match="wait for each other's unique keys"):
        Job(dsn, "payload string, unique_key string", queue=queue, commitProtocol="partition")


def test_a_queue_with_priorities(dsn: str, session: psycopg.Connection[Any]) -> None:
    queue = next(_names)
    session.execute("select trunq.create_queue(%s, p_lanes => 'priority')", (queue,))
    for protocol in ("staged", "partition"):
        given = {"queue": queue, "commitProtocol": protocol}
        Job(dsn, "payload string, priority int", **given).run([("1", 5)])
    assert messages(session, queue, "payload, priority") == [(1, 5), (1, 5)]


@pytest.fixture
def publisher(dsn: str, session: psycopg.Connection[Any], queue: str) -> Iterator[Callable[[], str]]:
    """The address of a role that may publish, and no more."""
    role = next(_names)
    session.execute(f"create role {role} login")
    session.execute("select trunq.grant_role(%s, 'publisher', %s)", (queue, role))
    yield lambda: make_conninfo(dsn, user=role)
    session.execute("select trunq.revoke_role(%s, 'publisher', %s)", (queue, role))
    session.execute(f"drop owned by {role}")
    session.execute(f"drop role {role}")


def test_a_role_that_may_only_publish(
    dsn: str, session: psycopg.Connection[Any], queue: str, publisher: Callable[[], str]
) -> None:
    own = publisher()
    role = psycopg.conninfo.conninfo_to_dict(own)["user"]
    Job(dsn, "payload string", queue=queue).run([("1",)])
    Job(own, "payload string, kind string", queue=queue, commitProtocol="direct").run([("2", "k")])
    with pytest.raises(SinkRefused, match="cannot stage rows and keep marks in schema trunq_sink"):
        Job(own, "payload string", queue=queue)
    session.execute(f"create schema {role} authorization {role}")
    for protocol in ("staged", "partition"):
        job = Job(own, "payload string", queue=queue, stageSchema=str(role), commitProtocol=protocol)
        assert job.run([("3",)])
    assert messages(session, queue, "payload") == [(1,), (2,), (3,), (3,)]
    session.execute("select trunq.create_queue(%s)", (other := next(_names),))
    with pytest.raises(SinkRefused, match="permission denied"):
        Job(own, "payload string", queue=other, commitProtocol="direct")
