"""Queues: functions/operate/queue.sql."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from calling import answer, ask, burn, call, drain, fetch, lease, new_names, publish, refused
from conftest import Connect

Connection = psycopg.Connection[Any]


def test_a_queue_is_made_once(session: Connection) -> None:
    name = next(new_names("made"))
    assert ask(session, "create_queue", queue=name) is True
    assert ask(session, "create_queue", queue=name, retention=timedelta(days=9)) is False
    (row,) = [row for row in call(session, "list_queues") if row.queue == name]
    assert (row.retention, row.span, row.subscriptions) == (timedelta(days=1), timedelta(hours=12), 1)


def test_a_new_queue_has_the_shared_subscription_default(session: Connection, queue: str) -> None:
    (row,) = call(session, "list_subscriptions", queue=queue)
    assert (row.subscription, row.mode, row.max_attempts) == ("default", "shared", 20)
    assert (row.lease_time, row.backoff, row.backoff_base) == (
        timedelta(minutes=1),
        "exponential",
        timedelta(seconds=1),
    )
    assert (row.backoff_cap, row.keep_results) == (timedelta(hours=6), True)
    assert row.jitter == pytest.approx(0.1)


def test_what_is_published_before_the_first_worker_is_kept_for_it(session: Connection, queue: str) -> None:
    ids = publish(session, queue, 3)
    assert drain(session, queue) == ids


@pytest.mark.parametrize(
    ("retention", "span"),
    [("1 day", 43200), ("3 seconds", 2), ("1 second", 1), ("100 milliseconds", 1), ("1000 days", 43200000)],
)
def test_the_ring_is_never_shorter_than_the_retention(session: Connection, retention: str, span: int) -> None:
    name = next(new_names("ring"))
    ask(session, "create_queue", queue=name, retention=retention)
    (row,) = [row for row in call(session, "list_queues") if row.queue == name]
    assert row.span == timedelta(seconds=span)


def test_a_longer_retention_than_the_ring_is_refused_by_the_table_itself(
    session: Connection, queue: str
) -> None:
    with refused("23514", "ring_holds_the_retention"):
        session.execute("update trunq.queue set retention = '2 days' where name = %s", (queue,))


@pytest.mark.parametrize("name", ["a", "select", "a" * 48, "a_1__b_"])
def test_plain_names_up_to_48_characters_are_queues(sql: Connection, name: str) -> None:
    assert ask(sql, "create_queue", queue=name) is True
    assert publish(sql, name, 2) == [1, 2]
    ask(sql, "drop_queue", queue=name, force=True)
    assert name not in [row.queue for row in call(sql, "list_queues")]


BAD_NAMES = [
    *("", None, "a" * 49, "A", "1a", "_a", "a-b", "a b", " a", "a\n", "a;drop", 'a"b', "a'b", "a.b"),
    *("é", "aé", "%s", "a%I", "\U0001f600"),
]


def test_other_names_are_refused_for_queues_and_subscriptions(session: Connection, queue: str) -> None:
    for name in BAD_NAMES:
        with refused("TQ004", "a name is a lower-case letter"):
            ask(session, "create_queue", queue=name)
        with refused("TQ004", "subscription"):
            ask(session, "subscribe", queue=queue, subscription=name)
    assert len(call(session, "list_subscriptions", queue=queue)) == 1


def test_a_name_too_long_is_told_by_its_length(session: Connection) -> None:
    with refused("TQ004", "too long: 300 characters"):
        ask(session, "create_queue", queue="x" * 300)


@pytest.mark.parametrize(
    "wrong",
    [
        {"retention": "0"},
        {"retention": "-1 day"},
        {"retention": None},
        {"retention": "100000 years"},
        {"tick_max_count": -1},
        {"tick_max_count": None},
        {"tick_max_lag": None},
        {"tick_max_lag": "-1 s"},
        {"tick_idle_period": "-1 s"},
    ],
)
def test_impossible_settings_of_a_queue_are_refused(session: Connection, wrong: dict[str, Any]) -> None:
    with refused("TQ005", '"impossible"'):
        ask(session, "create_queue", queue="impossible", **wrong)
    assert "impossible" not in [row.queue for row in call(session, "list_queues")]


def test_an_endless_retention_is_refused(session: Connection) -> None:
    if session.info.server_version < 170000:
        pytest.skip("intervals are finite before Postgres 17")
    with refused("TQ005", "must be"):
        ask(session, "create_queue", queue="endless", retention="infinity")


def test_a_dropped_queue_leaves_nothing(session: Connection, queue: str) -> None:
    queue_id = fetch(session, "select queue_id from trunq.queue where name = %s", queue)
    ask(session, "subscribe", queue=queue, subscription="other")
    publish(session, queue, 3)
    answer(session, "retry", lease(session, queue), delays=[timedelta(hours=1)])
    answer(session, "reject", lease(session, queue))
    ask(session, "reap", queue=queue)
    ask(session, "promote", queue=queue)
    ask(session, "drop_queue", queue=queue, force=True)
    for table in ("queue", "subscription", "mark", "delayed", "dead", "tick"):
        assert fetch(session, f"select count(*) from trunq.{table} where queue_id = %s", queue_id) == 0
    left = session.execute(
        "select relname from pg_class where relname ~ ('^' || %(name)s || '(_|$)')"
        " union all select proname from pg_proc where proname ~ ('^' || %(name)s || '_')",
        {"name": queue},
    ).fetchall()
    assert left == []


def test_a_queue_in_use_is_not_dropped_unless_forced(session: Connection, queue: str) -> None:
    ask(session, "subscribe", queue=queue, subscription="audit")
    with refused("TQ009", "audit", "force"):
        ask(session, "drop_queue", queue=queue)
    ask(session, "unsubscribe", queue=queue, subscription="audit")
    publish(session, queue)
    with refused("TQ009", "unfinished"):
        ask(session, "drop_queue", queue=queue)
    held = lease(session, queue)
    with refused("TQ009", "unfinished"):
        ask(session, "drop_queue", queue=queue)
    answer(session, "retry", held, delays=[timedelta(hours=1)])
    with refused("TQ009", "unfinished"):
        ask(session, "drop_queue", queue=queue)
    ask(session, "drop_queue", queue=queue, force=True)
    with refused("TQ001", queue):
        ask(session, "drop_queue", queue=queue)


def test_a_queue_whose_messages_are_finished_is_dropped(session: Connection, queue: str) -> None:
    publish(session, queue, 2)
    answer(session, "reject", lease(session, queue))
    drain(session, queue)
    ask(session, "drop_queue", queue=queue)
    assert queue not in [row.queue for row in call(session, "list_queues")]


def test_dropping_a_queue_leaves_the_tables_of_all_others(session: Connection) -> None:
    # Numbers such as 2 and 12 end alike.
    tables = "select array_agg(oid order by oid) from pg_class where relnamespace >= 16384"
    before = fetch(session, tables)
    names = [next(new_names("near")) for _ in range(2)]
    for name in names:
        ask(session, "create_queue", queue=name)
    for name in names:
        ask(session, "drop_queue", queue=name)
    assert fetch(session, tables) == before


def test_drop_needs_read_committed(session: Connection, queue: str) -> None:
    with refused("TQ007", "READ COMMITTED", "default_transaction_isolation"), session.transaction():
        session.execute("set transaction isolation level repeatable read")
        ask(session, "drop_queue", queue=queue)


class TestPublisher:
    """A database role that is a publisher of the queue."""

    @pytest.fixture
    def role(self, session: Connection, queue: str) -> str:
        name = next(new_names(f"publisher_{session.info.dbname}"))
        session.execute(sql.SQL("create role {}").format(sql.Identifier(name)))
        ask(session, "grant_role", queue=queue, role="publisher", grantee=name)
        return name

    @pytest.fixture
    def publisher(self, open_session: Connect, session: Connection, role: str) -> Any:
        other = open_session()
        other.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
        yield other
        session.execute(sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(role)).as_string())

    def test_it_publishes_in_every_way(
        self, session: Connection, queue: str, publisher: Connection, role: str
    ) -> None:
        assert ask(publisher, "publish", queue=queue, payload={"n": 1}) == 1
        assert publish(publisher, queue, 2) == [2, 3]
        assert ask(publisher, "draw_ids", queue=queue, count=2) is None
        session.execute(
            sql.SQL("grant insert (id), select (id) on trunq_log.{} to {}").format(
                sql.Identifier(queue), sql.Identifier(role)
            )
        )
        # The right to a column is not enough for the lock.
        assert ask(publisher, "draw_ids", queue=queue, count=2) is None
        insert = sql.SQL(
            "insert into trunq_log.{} (kind, key, payload, body, headers)"
            " values ('k', 'k', '{{}}', 'b', '{{}}') returning id"
        )
        assert publisher.execute(insert.format(sql.Identifier(queue))).fetchone() == (4,)
        with publisher.cursor().copy(
            sql.SQL("copy trunq_log.{} (kind, payload) from stdin").format(sql.Identifier(queue))
        ) as copy:
            copy.write_row(("k", "{}"))
        assert ask(publisher, "publish", queue=queue, payload={}, delay=timedelta(hours=1)) == 6
        assert drain(session, queue) == [1, 2, 3, 4, 5]

    def test_it_cannot_forge_what_is_the_system_s(
        self, session: Connection, queue: str, publisher: Connection
    ) -> None:
        values = {"created_at": "2000-01-01", "errors": "[]"}
        for column in ("txid", "id", "attempt", "segment", "created_at", "subscription_id", "errors"):
            named = [sql.Identifier("trunq_log", queue), sql.Identifier(column)]
            insert = sql.SQL("insert into {} (payload, {}) values ('{{}}', {})")
            with refused("42501"):
                publisher.execute(insert.format(*named, sql.Literal(values.get(column, "1"))))
            copied = publisher.cursor().copy(sql.SQL("copy {} (payload, {}) from stdin").format(*named))
            with refused("42501"), copied:
                pass
        assert drain(session, queue) == []

    def test_it_can_neither_read_nor_lease_nor_answer(
        self, session: Connection, queue: str, publisher: Connection
    ) -> None:
        publish(session, queue)
        held = lease(session, queue)
        for attempt in (
            lambda: lease(publisher, queue),
            lambda: answer(publisher, "ack", held),
            lambda: ask(publisher, "reap", queue=queue),
            lambda: ask(publisher, "create_queue", queue="mine"),
            lambda: ask(publisher, "drop_queue", queue=queue, force=True),
            lambda: publisher.execute(
                sql.SQL("select payload from trunq_log.{}").format(sql.Identifier(queue))
            ),
            lambda: publisher.execute(sql.SQL("delete from trunq_log.{}").format(sql.Identifier(queue))),
        ):
            with refused("42501"):
                attempt()
        assert answer(session, "ack", held) == 1

    def test_granting_to_nobody_says_so(self, session: Connection, queue: str) -> None:
        with refused("TQ005", 'no database role "nobody_at_all"', "create role"):
            ask(session, "grant_role", queue=queue, role="publisher", grantee="nobody_at_all")
        with refused("TQ001", "no_queue"):
            ask(session, "grant_role", queue="no_queue", role="publisher", grantee="postgres")


def test_a_transaction_that_makes_a_queue_may_publish_at_once(
    session: Connection, open_session: Connect
) -> None:
    name = next(new_names("script"))
    with session.transaction():
        fetch(session, "select pg_current_xact_id()")
        with open_session() as other:
            burn(other, 2)
        ask(session, "create_queue", queue=name)
        ids = publish(session, name, 2)
    assert drain(session, name) == ids


def test_a_queue_is_changed_in_what_is_given(session: Connection, queue: str) -> None:
    def told() -> Any:
        return next(row for row in call(session, "list_queues") if row.queue == queue)

    ask(session, "set_queue", queue=queue, retention="1 hour", tick_max_count=7)
    assert (told().retention, told().tick_max_count) == (timedelta(hours=1), 7)
    ask(session, "set_queue", queue=queue, retention="1 day", tick_max_lag="5 s", tick_idle_period="1 h")
    assert (told().retention, told().tick_max_count) == (timedelta(days=1), 7)
    assert (told().tick_max_lag, told().tick_idle_period) == (timedelta(seconds=5), timedelta(hours=1))
    for given in (
        {"retention": "1 year"},
        {"retention": "-1 s"},
        {"tick_max_count": -1},
        {"tick_max_lag": "-1 s"},
        {"tick_idle_period": "-1 s"},
    ):
        with refused("TQ005", f'"{queue}"'):
            ask(session, "set_queue", queue=queue, **given)
    with refused("TQ001"):
        ask(session, "set_queue", queue="nosuch", tick_max_count=1)
