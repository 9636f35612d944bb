"""What a queue refuses to take: functions/log/gate.sql."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import sql

from calling import answer, ask, call, come_back, drain, fetch, lease, new_names, publish, refused, state
from conftest import Connect

Connection = psycopg.Connection[Any]

KIND, PAYLOADS = "mail", [{"a": 1}, {"a": 2}]


def by_publish(session: Connection, queue: str, kind: str | None = KIND) -> None:
    ask(session, "publish", queue=queue, kind=kind, payload={"a": 1})


def by_own_function(session: Connection, queue: str, kind: str | None = KIND) -> None:
    session.execute(f"select trunq_queue.{queue}_publish('1', p_kind => %s)".encode(), (kind,))


def by_publish_many(session: Connection, queue: str, kind: str | None = KIND) -> None:
    ask(session, "publish_many", queue=queue, payloads=PAYLOADS, kinds=[kind])


def by_insert(session: Connection, queue: str, kind: str | None = KIND) -> None:
    session.execute(f"insert into trunq_log.{queue} (kind, payload) values (%s, '1')".encode(), (kind,))


def by_copy(session: Connection, queue: str, kind: str | None = KIND) -> None:
    with (
        session.cursor() as cursor,
        cursor.copy(f"copy trunq_log.{queue} (kind) from stdin".encode()) as copy,
    ):
        copy.write_row((kind,))


def by_delay(session: Connection, queue: str, kind: str | None = KIND) -> None:
    ask(session, "publish", queue=queue, kind=kind, payload={"a": 1}, delay="1 hour")


def by_delayed_many(session: Connection, queue: str, kind: str | None = KIND) -> None:
    ask(session, "publish_many", queue=queue, payloads=PAYLOADS, kinds=[kind], delay="1 hour")


WAYS = [by_publish, by_own_function, by_publish_many, by_insert, by_copy, by_delay, by_delayed_many]
Way = Callable[..., None]
every_way = pytest.mark.parametrize("way", WAYS)


def kept(session: Connection, queue: str) -> int:
    """Messages in the log and those put off."""
    queue_id = fetch(session, "select queue_id from trunq.queue where name = %s", queue)
    delayed = fetch(session, "select count(*) from trunq.delayed where queue_id = %s", queue_id)
    return int(fetch(session, f"select count(*) from trunq_log.{queue}") + delayed)


@every_way
def test_a_closed_queue_takes_nothing_until_it_is_opened(session: Connection, queue: str, way: Way) -> None:
    ask(session, "close_queue", queue=queue)
    with refused("TQ018", f'queue "{queue}" is closed', "open_queue"):
        way(session, queue)
    assert kept(session, queue) == 0
    ask(session, "open_queue", queue=queue)
    way(session, queue)
    assert kept(session, queue) > 0


@every_way
def test_a_kind_that_is_not_the_queues_is_refused(session: Connection, queue: str, way: Way) -> None:
    ask(session, "set_publishing", queue=queue, kinds=["mail", "it's"])
    way(session, queue)
    before = kept(session, queue)
    with refused("TQ005", f'queue "{queue}" takes no message of kind "post"', "mail, it's"):
        way(session, queue, "post")
    with refused("TQ005", "takes no message without a kind"):
        way(session, queue, None)
    assert kept(session, queue) == before
    ask(session, "set_publishing", queue=queue, kinds=[])
    way(session, queue, "post")


def test_a_refusal_names_no_more_kinds_than_somebody_reads(session: Connection, queue: str) -> None:
    ask(session, "set_publishing", queue=queue, kinds=[f"kind{number}" for number in range(1000)])
    with refused("TQ005", "it takes: kind0, kind1,", "kind19, and others;"):
        by_insert(session, queue, "post")
    by_insert(session, queue, "kind999")


def test_a_queue_is_made_with_its_kinds(session: Connection) -> None:
    queue = next(new_names("queue"))
    ask(session, "create_queue", queue=queue, kinds=["mail"])
    with refused("TQ005", "takes no message of kind"):
        by_insert(session, queue, "post")
    by_insert(session, queue)


@every_way
def test_a_transaction_publishes_no_more_than_its_queue_allows(
    open_session: Connect, session: Connection, queue: str, way: Way
) -> None:
    ask(session, "set_publishing", queue=queue, max_per_transaction=4)
    other = open_session()
    with other.transaction():
        way(other, queue)
        with refused("TQ019", "at most 4 messages"), other.transaction():
            for _ in range(4):
                way(other, queue)
        # What a savepoint took back does not count.
        way(other, queue)
    with other.transaction():
        way(other, queue)
    ask(session, "set_publishing", queue=queue, max_per_transaction=-1)
    with other.transaction():
        for _ in range(5):
            way(other, queue)


@every_way
def test_a_queue_that_allows_a_transaction_none_takes_nothing_and_without_a_limit_anything(
    session: Connection, queue: str, way: Way
) -> None:
    def limit() -> int | None:
        (row,) = (row for row in call(session, "list_queues") if row.queue == queue)
        return row.max_per_transaction

    assert limit() is None
    (earlier,) = publish(session, queue)
    ask(session, "set_publishing", queue=queue, max_per_transaction=0)
    assert limit() == 0
    with refused("TQ019", f'queue "{queue}" takes nothing', "-1 for no limit"):
        way(session, queue)
    # Another rule leaves it alone; an INSERT without rows publishes nothing; what was let in goes on.
    ask(session, "set_publishing", queue=queue, kinds=[])
    session.execute(f"insert into trunq_log.{queue} (kind) select 'mail' where false".encode())
    assert answer(session, "retry", lease(session, queue), delays=["0"]) == 1
    assert drain(session, queue) == [earlier]
    with refused("TQ019"):
        way(session, queue)
    ask(session, "set_publishing", queue=queue, max_per_transaction=-1)
    assert limit() is None
    way(session, queue)


@every_way
def test_a_full_queue_refuses_until_its_workers_caught_up(
    open_session: Connect, session: Connection, queue: str, way: Way
) -> None:
    publish(session, queue, 10)
    ask(session, "set_publishing", queue=queue, max_waiting=10)
    with refused("TQ014", f'queue "{queue}" is full', "10 messages wait, at most 10 may"):
        way(open_session(), queue)
    held = lease(session, queue, 5)
    way(open_session(), queue)
    # What comes back was let in before.
    assert answer(session, "retry", held, delays=["0"] * 5) == 5
    with refused("TQ014"):
        way(open_session(), queue)


def test_a_queue_that_nobody_shares_is_never_full(session: Connection, queue: str) -> None:
    ask(session, "set_publishing", queue=queue, max_waiting=1)
    ask(session, "unsubscribe", queue=queue, subscription="default")
    publish(session, queue, 10)


def test_what_was_let_in_passes_a_gate_that_closed_behind_it(session: Connection, queue: str) -> None:
    retried, requeued = publish(session, queue, 2, kinds=["mail"])
    delayed = ask(session, "publish", queue=queue, payload={"a": 1}, kind="mail", delay="1 hour")
    held = lease(session, queue, 2)
    answer(session, "reject", held, [requeued])
    ask(session, "set_publishing", queue=queue, kinds=["post"], max_per_transaction=1, max_waiting=1)
    ask(session, "close_queue", queue=queue)
    assert answer(session, "retry", held, [retried], delays=["0"]) == 1
    assert ask(session, "requeue", queue=queue) == 1
    come_back(session, queue)
    assert sorted(drain(session, queue)) == sorted([retried, requeued, delayed])


def test_what_passes_one_gate_opens_no_other(session: Connection, queue: str) -> None:
    other = f"{queue}_other"
    ask(session, "create_queue", queue=other, kinds=["mail"])
    publish(session, queue)
    session.execute(
        f"create function public.{queue}_forward() returns trigger language plpgsql as $$ begin"
        f" insert into trunq_log.{other} (kind) values ('post'); return null; end $$;"
        f"create trigger forward after insert on trunq_log.{queue}"
        f" for each row execute function public.{queue}_forward()".encode()
    )
    with refused("TQ005", f'queue "{other}" takes no message of kind "post"'):
        answer(session, "retry", lease(session, queue), delays=["0"])
    assert kept(session, other) == 0


def test_a_publisher_without_rights_meets_the_same_gate(
    session: Connection, queue: str, open_session: Connect
) -> None:
    role = f"guest_{queue}"
    session.execute(sql.SQL("create role {}").format(sql.Identifier(role)))
    try:
        ask(session, "grant_role", queue=queue, role="publisher", grantee=role)
        ask(session, "set_publishing", queue=queue, kinds=["mail"], max_per_transaction=2, max_waiting=5)
        guest = open_session()
        guest.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
        for way in (by_publish, by_insert, by_copy, by_delay):
            way(guest, queue)
            with refused("TQ005", "takes no message"):
                way(guest, queue, "post")
    finally:
        session.execute(
            sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(role)).as_string().encode()
        )


def test_a_queue_without_rules_has_no_gate(session: Connection, queue: str) -> None:
    log = f"'trunq_log.{queue}'::regclass"
    names = f"select array_agg(tgname::text order by tgname) from pg_trigger where tgrelid = {log}"
    plain = fetch(session, names)
    rules = {"kinds": ["mail"], "max_waiting": 5, "max_per_transaction": 5, "announce": True}
    ask(session, "set_publishing", queue=queue, **rules)
    ask(session, "close_queue", queue=queue)
    added = set(fetch(session, names)) - set(plain)
    assert added == {"gate", "gate_announce", "gate_kinds", "gate_transaction"}
    ask(
        session,
        "set_publishing",
        queue=queue,
        kinds=[],
        max_waiting=0,
        max_per_transaction=-1,
        announce=False,
    )
    ask(session, "open_queue", queue=queue)
    assert fetch(session, names) == plain


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kinds": ["mail", None]}, "must be a list of texts"),
        ({"kinds": [["mail"], ["post"]]}, "must be a list of texts"),
        ({"max_waiting": -1}, "cannot be -1"),
        ({"max_per_transaction": -5}, "cannot be -5"),
    ],
)
def test_rules_that_cannot_be_are_refused(
    session: Connection, queue: str, given: dict[str, Any], words: str
) -> None:
    with refused("TQ005", words):
        ask(session, "set_publishing", queue=queue, **given)


def test_an_open_publisher_makes_a_new_rule_wait_and_is_named(
    session: Connection, queue: str, open_session: Connect
) -> None:
    publisher = open_session()
    with publisher.transaction():
        publish(publisher, queue)
        with refused("TQ009", "in use by an open transaction"):
            ask(session, "close_queue", queue=queue)
        # Others publish meanwhile.
        publish(open_session(), queue)
    ask(session, "close_queue", queue=queue)


def test_a_queue_announces_the_ids_of_each_statement(
    session: Connection, queue: str, open_session: Connect
) -> None:
    ask(session, "set_publishing", queue=queue, announce=True)
    channel = ask(session, "announcement_channel", queue=queue)
    listener = open_session()
    listener.execute(f'listen "{channel}"'.encode())
    ids = publish(session, queue, 3)
    (one,) = publish(session, queue)
    delayed = ask(session, "publish", queue=queue, payload={"a": 1}, delay="1 hour")
    answer(session, "retry", lease(session, queue), delays=["0"])
    come_back(session, queue)
    (last,) = publish(session, queue)
    heard: list[str] = []
    for notification in listener.notifies(timeout=120):
        heard.append(notification.payload)
        if notification.payload == f"{last}-{last}":
            break
    assert heard == [f"{ids[0]}-{ids[-1]}", f"{one}-{one}", f"{delayed}-{delayed}", f"{last}-{last}"]
    assert state(session, queue, delayed).state == "ready"


def test_a_snapshot_of_before_the_rule_publishes_all_the_same(
    session: Connection, queue: str, open_session: Connect
) -> None:
    publisher = open_session()
    publisher.execute("begin isolation level repeatable read")
    publisher.execute("select 1")
    ask(session, "set_publishing", queue=queue, announce=True)
    (id,) = publish(publisher, queue)
    publisher.execute("commit")
    assert drain(session, queue) == [id]
