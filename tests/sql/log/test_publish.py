"""Publishing: functions/log/publish.sql, plain INSERT and COPY."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from calling import Lease, answer, ask, drain, fetch, lease, move_clock, publish, refused, state
from conftest import Connect

Connection = psycopg.Connection[Any]

LIMIT = 16 * 1024 * 1024


def count(session: Connection, queue: str) -> int:
    """Messages in the log and those that wait for their time."""
    logged = sql.SQL("select count(*) from trunq_log.{}").format(sql.Identifier(queue)).as_string()
    delayed = "select count(*) from trunq.delayed d join trunq.queue q using (queue_id) where q.name = %s"
    return int(fetch(session, logged) + fetch(session, delayed, queue))


def test_a_message_arrives_as_it_was_published(session: Connection, queue: str) -> None:
    given = {
        "payload": {"a": [1, None, "é"]},
        "kind": "mail",
        "key": "k",
        "headers": {"h": 1},
        "body": b"\0\xff",
    }
    id = ask(session, "publish", queue=queue, **given)
    (message,) = lease(session, queue).messages
    assert (message.id, message.attempt, message.max_attempts, message.priority) == (id, 1, 20, 0)
    assert {name: getattr(message, name) for name in given} == given
    assert abs(message.created_at - datetime.now(UTC)) < timedelta(minutes=1)


NEIGHBOURS = ["a", "aa", "a_", "a1", "b", "z", "z9", "mine", "min", "minee", "x" * 48]


@pytest.mark.parametrize("count", [1, 2, 3, 11, 70])
def test_it_arrives_in_its_own_queue_however_many_there_are(connect: Connect, count: int) -> None:
    """The names of 64 are written out in publish, lease and the answers, and halved; others are looked up."""
    session = connect()
    queues = (NEIGHBOURS + [f"more_{n}" for n in range(60)])[:count]
    for queue in queues:
        ask(session, "create_queue", queue=queue)
    ids = {queue: ask(session, "publish", queue=queue, kind=queue) for queue in queues}
    held = {queue: lease(session, queue, 2) for queue in queues}
    assert {queue: [(m.id, m.kind) for m in held[queue].messages] for queue in queues} == {
        queue: [(id, queue)] for queue, id in ids.items()
    }
    for queue in queues:
        verb = "retry" if queue == queues[-1] else "ack"
        assert answer(session, verb, held[queue]) == 1
        assert answer(session, verb, held[queue]) == 0
        with refused("TQ003", f'"{queue}"'):
            answer(session, verb, Lease(queue, "default", [held[queue].messages[0]._replace(token=0)]))
    assert [state(session, queue, ids[queue]).state for queue in queues] == [
        *["done"] * (count - 1),
        "retrying",
    ]
    for name in ("", "A", "0", "aaa", "more", "zz", "~"):
        with refused("TQ001", name):
            ask(session, "publish", queue=name)
        with refused("TQ001", name):
            lease(session, name)
    ask(session, "drop_queue", queue=queues[-1], force=True)
    with refused("TQ001", queues[-1]):
        ask(session, "publish", queue=queues[-1])
    ask(session, "create_queue", queue=queues[-1])
    assert lease(session, queues[-1]).ids == []
    id = ask(session, "publish", queue=queues[-1])
    assert lease(session, queues[-1]).ids == [id]


def test_a_message_may_be_empty(session: Connection, queue: str) -> None:
    ask(session, "publish", queue=queue)
    (message,) = lease(session, queue).messages
    assert (message.payload, message.body, message.kind, message.key, message.headers) == (None,) * 5


def test_commit_publishes_and_rollback_never_happened(
    session: Connection, open_session: Connect, queue: str
) -> None:
    other = open_session(autocommit=False)
    (kept,) = publish(other, queue)
    assert drain(session, queue) == []
    other.commit()
    publish(other, queue)
    other.rollback()
    assert drain(session, queue) == [kept]


def test_ids_of_many_come_in_the_order_of_the_input(session: Connection, queue: str) -> None:
    ids = publish(session, queue, 1000)
    assert ids == sorted(set(ids))
    messages = lease(session, queue, 1000).messages
    assert [(message.id, message.payload["n"]) for message in messages] == list(
        zip(ids, range(1000), strict=True)
    )


def test_each_of_many_has_what_stands_at_its_place(session: Connection, queue: str) -> None:
    given = {
        "payloads": [Jsonb(1), None, Jsonb(3)],
        "kinds": ["a", "b", None],
        "keys": [None, "y", "z"],
        "headers": [Jsonb({}), None, Jsonb({"x": 1})],
        "bodies": [b"1", b"2", None],
    }
    ask(session, "publish_many", queue=queue, **given)
    messages = lease(session, queue, 3).messages
    assert [message.payload for message in messages] == [1, None, 3]
    assert [message.kind for message in messages] == ["a", "b", None]
    assert [message.key for message in messages] == [None, "y", "z"]
    assert [message.headers for message in messages] == [{}, None, {"x": 1}]
    assert [message.body for message in messages] == [b"1", b"2", None]


@pytest.mark.parametrize("delay", [None, timedelta(0)])
def test_an_array_of_one_stands_for_all(session: Connection, queue: str, delay: timedelta | None) -> None:
    given: dict[str, Any] = {"kinds": ["k"], "keys": ["key"], "headers": [Jsonb({"h": 1})], "delay": delay}
    assert len(ask(session, "publish_many", queue=queue, payloads=[Jsonb(1), Jsonb(2)], **given)) == 2
    assert (
        len(ask(session, "publish_many", queue=queue, payloads=[Jsonb(0)], bodies=[b"1", b"2"], **given)) == 2
    )
    ask(session, "promote", queue=queue)
    messages = sorted(lease(session, queue, 9).messages, key=lambda message: message.id)
    assert [(m.kind, m.key, m.headers) for m in messages] == [("k", "key", {"h": 1})] * 4
    assert [(m.payload, m.body) for m in messages] == [(1, None), (2, None), (0, b"1"), (0, b"2")]


def test_none_of_none_is_published(session: Connection, queue: str) -> None:
    assert ask(session, "publish_many", queue=queue, payloads=[]) == []
    assert ask(session, "publish_many", queue=queue, payloads=None) == []
    assert ask(session, "publish_many", queue=queue, payloads=None, bodies=[b"only"]) == [1]
    assert count(session, queue) == 1


UNEQUAL: list[dict[str, Any]] = [
    {"payloads": [Jsonb(1)] * 3, "kinds": ["a", "b"]},
    {"payloads": [Jsonb(1)] * 3, "keys": ["a"] * 4},
    {"payloads": [Jsonb(1)] * 3, "headers": []},
    {"payloads": [Jsonb(1)] * 3, "bodies": [b""] * 2},
    {"payloads": [Jsonb(1)] * 2, "bodies": [b""] * 3},
    {"payloads": [], "bodies": [b""] * 3},
    {"payloads": [Jsonb(1)], "kinds": []},
]


def test_arrays_of_different_lengths_are_refused(session: Connection, queue: str) -> None:
    for delay in (None, timedelta(minutes=1)):
        for arrays in UNEQUAL:
            with refused("TQ005", "differ in length"):
                ask(session, "publish_many", queue=queue, delay=delay, **arrays)
    assert count(session, queue) == 0


def test_plain_inserts_and_copies_are_publishing_too(session: Connection, queue: str) -> None:
    table = sql.Identifier("trunq_log", queue)
    rows = session.execute(
        sql.SQL(
            "insert into {} (kind, payload) select 'k', to_jsonb(n) from generate_series(1, 3) n returning id"
        ).format(table)
    ).fetchall()
    with (
        session.cursor() as cursor,
        cursor.copy(sql.SQL("copy {} (key, body) from stdin").format(table)) as copy,
    ):
        copy.write_row(("k", b"4"))
        copy.write_row(("k", b"5"))
    messages = lease(session, queue, 9).messages
    assert [message.id for message in messages][:3] == [id for (id,) in rows]
    assert [message.payload or message.body for message in messages] == [1, 2, 3, b"4", b"5"]
    assert {message.attempt for message in messages} == {1}


def test_a_delayed_message_comes_when_it_is_due(session: Connection, queue: str) -> None:
    later = ask(session, "publish", queue=queue, payload={}, kind="k", delay=timedelta(minutes=10))
    at = datetime.now(UTC) + timedelta(minutes=5)
    (sooner,) = ask(session, "publish_many", queue=queue, payloads=[Jsonb(1)], due_at=at)
    assert state(session, queue, sooner).state == "scheduled"
    assert state(session, queue, sooner).due_at == at
    assert ask(session, "promote", queue=queue) == 0
    assert drain(session, queue) == []
    move_clock(session, "6 minutes")
    assert ask(session, "promote", queue=queue) == 1
    assert drain(session, queue) == [sooner]
    move_clock(session, "11 minutes")
    assert ask(session, "promote", queue=queue) == 1
    (message,) = lease(session, queue).messages
    assert (message.id, message.attempt, message.kind) == (later, 1, "k")


def test_a_delayed_message_is_for_every_subscription(session: Connection, queue: str) -> None:
    ask(session, "subscribe", queue=queue, subscription="other")
    id = ask(session, "publish", queue=queue, delay=timedelta(minutes=1))
    move_clock(session, "2 minutes")
    ask(session, "promote", queue=queue)
    assert drain(session, queue) == drain(session, queue, "other") == [id]


def test_a_time_that_is_over_is_no_delay_once_promoted(session: Connection, queue: str) -> None:
    ids = [
        ask(session, "publish", queue=queue, due_at=datetime(2001, 1, 1, tzinfo=UTC)),
        ask(session, "publish", queue=queue, delay=timedelta(0)),
    ]
    assert ask(session, "promote", queue=queue) == 2
    assert sorted(drain(session, queue)) == ids


def test_a_delay_and_a_time_at_once_are_refused(session: Connection, queue: str) -> None:
    both = {"delay": timedelta(seconds=1), "due_at": datetime.now(UTC)}
    with refused("TQ005", "not both"):
        ask(session, "publish", queue=queue, **both)
    with refused("TQ005", "not both"):
        ask(session, "publish_many", queue=queue, payloads=[Jsonb(1)], **both)
    assert count(session, queue) == 0


def test_a_plain_queue_has_no_priorities(session: Connection, queue: str) -> None:
    for priority in (1, -1, None):
        with refused("TQ005", "no priorities"):
            ask(session, "publish", queue=queue, priority=priority)
    with refused("23514", "plain_queue_has_no_priority"):
        session.execute(
            sql.SQL("insert into {} (priority) values (1)").format(sql.Identifier("trunq_log", queue))
        )
    assert count(session, queue) == 0


class TestTheLimit:
    """16 MB of payload, or of body, or of headers."""

    LARGE = b"\x01" * (LIMIT + 1)

    def test_just_below_it_a_message_passes(self, session: Connection, queue: str) -> None:
        body = self.LARGE[: LIMIT - 100]
        ask(session, "publish", queue=queue, body=body)
        (message,) = lease(session, queue).messages
        assert message.body == body

    @pytest.mark.parametrize("part", ["payload", "headers", "body"])
    def test_above_it_a_message_is_refused(self, session: Connection, queue: str, part: str) -> None:
        value = self.LARGE if part == "body" else Jsonb({"x": "x" * LIMIT})
        for delay in (None, timedelta(seconds=1)):
            with refused("TQ006", "too large", "16777216"):
                ask(session, "publish", queue=queue, delay=delay, **{part: value})
        assert count(session, queue) == 0

    @pytest.mark.parametrize("part", ["payloads", "headers", "bodies"])
    def test_above_it_one_of_many_refuses_all(self, session: Connection, queue: str, part: str) -> None:
        value: Any = [b"", self.LARGE] if part == "bodies" else [Jsonb({}), Jsonb({"x": "x" * LIMIT})]
        given = {"payloads": [Jsonb(1)] * 2, part: value}
        for delay in (None, timedelta(seconds=1)):
            with refused("TQ006", "too large", "16777216"):
                ask(session, "publish_many", queue=queue, delay=delay, **given)
        assert count(session, queue) == 0

    def test_many_that_pass_it_together_are_fine(self, session: Connection, queue: str) -> None:
        bodies = [self.LARGE[: LIMIT // 3]] * 4
        assert len(ask(session, "publish_many", queue=queue, payloads=None, bodies=bodies)) == 4

    @pytest.mark.parametrize("part", ["payload", "body", "headers"])
    def test_a_plain_insert_above_it_is_refused_by_the_table(
        self, session: Connection, queue: str, part: str
    ) -> None:
        value = self.LARGE if part == "body" else Jsonb({"x": "x" * LIMIT})
        insert = sql.SQL("insert into {} ({}) values (%s)").format(
            sql.Identifier("trunq_log", queue), sql.Identifier(part)
        )
        with refused("23514", f"{part}_at_most_16_mb"):
            session.execute(insert, (value,))


def test_text_that_is_no_json_is_refused(session: Connection, queue: str) -> None:
    with refused("22P02", "json"):
        session.execute("select trunq.publish(%s, '{oops')", (queue,))
    assert count(session, queue) == 0


@pytest.mark.parametrize("name", ["nowhere", "", None, 'x"; drop table', "Q"])
def test_an_unknown_queue_is_refused_with_the_way_to_make_it(session: Connection, name: str | None) -> None:
    with refused("TQ001", f'"{name or ""}"', "create_queue"):
        ask(session, "publish", queue=name)
    with refused("TQ001", "create_queue"):
        ask(session, "publish_many", queue=name, payloads=[Jsonb(1)])


def test_ids_are_drawn_for_messages_put_there_with_them(session: Connection, queue: str) -> None:
    before = ask(session, "publish", queue=queue)
    ids = ask(session, "draw_ids", queue=queue, count=100)
    assert len(set(ids)) == 100
    assert ids == sorted(ids)
    assert ids[0] > before
    into = sql.SQL("insert into trunq_log.{} (id, payload) values (%s, %s)").format(sql.Identifier(queue))
    session.execute(into, (ids[3], Jsonb(3)))
    assert ask(session, "publish", queue=queue) > ids[-1]
    assert {m.id: m.payload for m in lease(session, queue, 10).messages}[ids[3]] == 3
    assert state(session, queue, ids[3]).state == "leased"


def test_no_number_of_ids_is_refused_but_none(session: Connection, queue: str) -> None:
    assert ask(session, "draw_ids", queue=queue, count=0) == []
    for number in (None, -1):
        with refused("TQ005", "is not a number of messages"):
            ask(session, "draw_ids", queue=queue, count=number)
    with refused("TQ001", "nowhere"):
        ask(session, "draw_ids", queue="nowhere", count=1)
