"""Leases that ask for a part of a subscription: functions/work/ask.sql."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import ask, come_back, new_names, refused
from conftest import Connect
from engine import THREE_SPANS, Engine

Connection = psycopg.Connection[Any]
MAIL, FAX, TEXT = {"kinds": ["mail"]}, {"kinds": ["fax"]}, {"kinds": ["text"]}


@pytest.fixture
def engine(session: Connection, queue: str) -> Engine:
    return Engine(session, queue)


def publish(engine: Engine, *kinds: str, **more: Any) -> list[int]:
    return engine.publish(len(kinds), kinds=list(kinds), **more)


def test_each_message_goes_to_one_lease_that_asks_for_it(engine: Engine) -> None:
    ids = publish(engine, "mail", "fax", "mail", "text", "fax", "mail")
    mail = engine.lease(10, asks=MAIL)
    assert mail.ids == [ids[0], ids[2], ids[5]]
    both = engine.lease(10, asks={"kinds": ["mail", "fax"]})
    assert both.ids == [ids[1], ids[4]]
    assert not engine.lease(10, asks=FAX).ids
    assert engine.status().ready == 1
    assert engine.lease(10).ids == [ids[3]]
    assert engine.status()[3:6] == (0, 6, 0)


def test_what_is_set_aside_waits_and_counts_no_attempt(engine: Engine) -> None:
    ids = publish(engine, "mail", "fax", "text")
    assert not engine.lease(asks={"kinds": ["none"]}).ids
    assert [engine.state(id) for id in ids] == ["ready"] * 3
    assert engine.listed(state="ready") == ids[::-1]
    assert engine.listed(state="retrying") == []
    assert engine.status()[3:6] == (3, 0, 0)
    assert engine.listed() == ids[::-1]
    held = engine.lease(asks=FAX)
    assert held.messages[0].attempt == 1
    assert engine.state(ids[1]) == "leased"
    engine.ack(held)
    message = engine.message(ids[1])
    assert message.state == "done"
    assert [each["outcome"] for each in message.attempts] == ["success"]
    assert engine.listed(state="done") == [ids[1]]
    assert engine.drain() == [ids[0], ids[2]]


@pytest.mark.parametrize(
    ("asks", "expected"),
    [
        ({"kinds": ["mail", "fax"]}, [0, 1, 2]),
        ({"not_kinds": ["mail"]}, [1, 3]),
        ({"key_prefix": "eu-"}, [0, 1]),
        ({"key_prefix": "%"}, [3]),
        ({"keys": ["us-1"]}, [2]),
        ({"headers": {"country": "CZ"}}, [0, 2]),
        ({"not_headers": {"country": "CZ"}}, [1, 3]),
        ({"kinds": ["mail"], "key_prefix": "us-", "headers": {"country": "CZ", "size": 2}}, [2]),
        ({}, [0, 1, 2, 3]),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_aside", [False, True], ids=["in the log", "set aside"])
def test_a_lease_asks_by_kind_key_and_header(
    engine: Engine, asks: dict[str, Any], expected: list[int], is_aside: bool
) -> None:
    headers = [{"country": "CZ", "size": 1}, {"country": "SK"}, {"country": "CZ", "size": 2}, None]
    ids = engine.publish(
        4,
        kinds=["mail", "fax", "mail", None],
        keys=["eu-1", "eu-2", "us-1", "%_"],
        headers=headers,
    )
    if is_aside:
        assert not engine.lease(asks={"kinds": ["none"]})
    assert engine.lease(10, asks=asks).ids == [ids[at] for at in expected]
    assert sorted(engine.drain()) == [id for at, id in enumerate(ids) if at not in expected]


def test_whoever_asks_for_everything_takes_what_is_set_aside_first(engine: Engine) -> None:
    early = publish(engine, "mail", "fax", "text")
    assert not engine.lease(asks={"kinds": ["none"]})
    late = publish(engine, "fax")
    assert engine.lease(2).ids == early[:2]
    assert engine.lease(2).ids == early[2:]
    assert engine.lease(2).ids == late
    assert not engine.lease()


def test_no_more_is_set_aside_than_lies_before_what_was_leased(engine: Engine) -> None:
    ids = publish(engine, "fax", "mail", "fax", "mail")
    assert engine.lease(asks=MAIL).ids == ids[1:2]
    assert engine.fetch("select array_agg(id) from trunq.delayed where queue_id = {id}") == ids[:1]
    assert engine.lease(asks=FAX).ids == ids[:1]
    assert engine.lease(asks=FAX).ids == ids[2:3]


def test_content_comes_back_as_it_was(engine: Engine) -> None:
    engine.run("alter table {log} add column source text, add column extra jsonb default '{{}}'")
    engine.run(
        "insert into {log} (kind, key, payload, body, headers, options, source)"
        " values ('fax', 'k', '[1]', 'bytes', '{{\"h\": 1}}', '{{\"max_attempts\": 3}}', 'here')"
    )
    assert not engine.lease(asks=MAIL)
    (row,) = engine.lease(asks=FAX).messages
    assert (row.kind, row.key, row.payload, row.body, row.headers) == ("fax", "k", [1], b"bytes", {"h": 1})
    assert (row.options, row.max_attempts, row.attempt) == ({"max_attempts": 3}, 3, 1)
    assert engine.run("select source, extra from {log} where subscription_id is not null").fetchall() == [
        ("here", {})
    ]


@pytest.mark.parametrize("end", ["retry", "release", "reap", "delayed retry"])
def test_what_comes_back_is_asked_for_again(engine: Engine, end: str) -> None:
    (id,) = publish(engine, "fax")
    assert not engine.lease(asks=MAIL)
    held = engine.lease(asks=FAX, lease_time="1 second")
    if end == "reap":
        with engine.clock("10 seconds"):
            assert engine.ask("reap") == 1
    else:
        delay = "1 hour" if end == "delayed retry" else "0"
        engine.answer(end.rpartition(" ")[2], held, delays=[delay])
    come_back(engine.connection, engine.queue)
    assert not engine.lease(asks=MAIL)
    assert engine.state(id) == "ready"
    again = engine.lease(asks=FAX)
    assert (again.ids, again.messages[0].attempt) == ([id], 1 if end == "release" else 2)
    engine.ack(again)
    outcome = {"release": "released", "reap": "lease_expired"}.get(end, "failed")
    assert [each["outcome"] for each in engine.message(id).attempts] == [outcome, "success"]


def test_what_commits_late_is_asked_for_too(engine: Engine, open_session: Connect) -> None:
    writer = open_session(autocommit=False)
    late = publish(engine.on(writer), "mail", "fax", "mail")
    early = publish(engine, "fax", "mail")
    assert engine.lease(5, asks=MAIL).ids == early[1:]
    publish(engine, "mail")
    writer.commit()
    assert engine.lease(5, asks=FAX).ids == early[:1]
    assert engine.lease(2, asks=MAIL).ids == [late[0], late[2]]
    assert engine.lease(5, asks=FAX).ids == [late[1]]
    assert len(engine.lease(5, asks=MAIL).ids) == 1
    assert not engine.lease(5)


def test_a_lease_that_is_rolled_back_has_set_nothing_aside(engine: Engine, open_session: Connect) -> None:
    other = engine.on(open_session(autocommit=False))
    ids = publish(engine, "fax", "mail")
    assert other.lease(asks=MAIL).ids == ids[1:]
    other.connection.rollback()
    assert engine.fetch("select count(*) from trunq.delayed where queue_id = {id}") == 0
    assert not engine.lease(asks=TEXT)
    assert other.lease(asks=FAX).ids == ids[:1]
    other.connection.rollback()
    assert engine.lease(2).ids == ids


@pytest.mark.parametrize("when", ["set aside", "leased", "done"])
def test_the_log_need_not_keep_what_is_set_aside(engine: Engine, when: str) -> None:
    (id,) = publish(engine, "fax")
    assert not engine.lease(asks=MAIL)
    held = None
    if when != "set aside":
        held = engine.lease(asks=FAX, lease_time="100 days")
    if when == "done" and held:
        engine.ack(held)
        assert not engine.lease(asks=FAX)
    engine.rotate(THREE_SPANS)
    assert engine.is_empty("log") == (when != "leased")
    with engine.clock(THREE_SPANS):
        if when == "set aside":
            assert engine.state(id) == "ready"
            engine.ack(engine.lease(asks=FAX))
        elif when == "leased" and held:
            engine.ack(held)
        assert not engine.lease()
    # A segment is old for one span in each round.
    for hours in range(80, 160, 12):
        engine.rotate(f"{hours} hours")
    assert engine.is_empty("log")
    engine.ask("forget")
    assert engine.fetch("select count(*) from trunq.ahead where queue_id = {id}") == 0


def test_it_is_cancelled_deleted_and_emptied_as_what_is_delayed(engine: Engine) -> None:
    cancelled, deleted, *others = publish(engine, "fax", "fax", "fax", "fax")
    assert not engine.lease(asks=MAIL)
    assert [(row.id, row.state) for row in engine.call("cancel", ids=[cancelled])] == [(cancelled, "ready")]
    assert engine.state(cancelled) == "dead"
    engine.call("delete", ids=[deleted])
    assert engine.listed(state="ready") == others[::-1]
    assert engine.ask("requeue", ids=[cancelled]) == 1
    assert not engine.lease(asks=MAIL)
    assert engine.lease(10, asks=FAX).ids == [*others, cancelled]
    publish(engine, "fax")
    assert not engine.lease(asks=MAIL)
    engine.ask("empty_queue")
    assert engine.status()[3:6] == (0, 0, 0)
    assert not engine.lease(asks=FAX)


def test_it_goes_with_its_subscription_and_its_queue(engine: Engine) -> None:
    publish(engine, "fax")
    engine.ask("subscribe", subscription="other", start="earliest")
    for subscription in ("default", "other"):
        assert not engine.lease(asks=MAIL, subscription=subscription)
    kept = (
        "select (select count(*) from trunq.delayed where queue_id = {id}), count(*)"
        " from trunq.ask join trunq.subscription using (subscription_id) where queue_id = {id}"
    )
    assert engine.run(kept).fetchone() == (2, 2)
    engine.ask("unsubscribe", subscription="other")
    assert engine.run(kept).fetchone() == (1, 1)
    engine.ask("reset", subscription="default")
    assert engine.run(kept).fetchone() == (0, 1)
    ids = publish(engine, "fax")
    assert not engine.lease(asks=MAIL)
    assert engine.lease(asks=FAX).ids == ids


def test_another_subscription_knows_nothing_of_it(engine: Engine) -> None:
    engine.ask("subscribe", subscription="other")
    ids = publish(engine, "fax", "mail")
    assert engine.lease(asks=MAIL).ids == ids[1:]
    assert engine.drain("other") == ids
    assert engine.status("other").ready == 0


def test_a_pause_and_limits_hold(engine: Engine) -> None:
    ids = publish(engine, "fax", "fax", "mail", "fax")
    engine.ask("pause_subscription", subscription="default")
    assert not engine.lease(asks=MAIL)
    assert engine.fetch("select count(*) from trunq.delayed where queue_id = {id}") == 0
    engine.ask("resume_subscription", subscription="default")
    assert not engine.lease(asks=TEXT)
    engine.ask("pause_subscription", subscription="default")
    assert not engine.lease(asks=FAX)
    engine.ask("resume_subscription", subscription="default")
    engine.ask("subscribe", subscription="default", max_running=2)
    held = engine.lease(10, asks=FAX)
    assert held.ids == ids[:2]
    assert not engine.lease(asks=MAIL)
    engine.ack(held)
    assert engine.lease(asks=MAIL).ids == ids[2:3]
    engine.ask("subscribe", subscription="default", max_running=0, rate=1, rate_interval="1 day", burst=1)
    assert engine.lease(10, asks=FAX).ids == ids[3:]
    publish(engine, "fax")
    assert not engine.lease(10, asks=FAX)


def test_what_is_for_nobody_any_more_is_sorted_out_by_whoever_takes_it(engine: Engine) -> None:
    engine.ask("subscribe", subscription="default", max_age="1 day")
    (old,) = publish(engine, "fax")
    (expired,) = publish(engine, "fax", max_age="1 hour")
    assert not engine.lease(asks=MAIL)
    (lying,) = publish(engine, "text", max_age="1 hour")
    with engine.clock("10 days"):
        # What comes next is for nobody, whoever asks; what is set aside waits for who does.
        assert not engine.lease(10, asks=MAIL)
        assert engine.state(lying) == "dead"
        assert engine.state(expired) == "ready"
        assert not engine.lease(10, asks=FAX)
    assert (engine.state(old), engine.state(expired)) == ("outdated", "dead")
    assert engine.status()[3:6] == (0, 0, 0)


def test_a_lease_has_no_more_bytes_than_it_may(engine: Engine) -> None:
    ids = engine.publish(4, bodies=[b"x" * 1000], kinds=["fax"])
    assert engine.lease(10, asks=FAX, max_bytes=2500).ids == ids[:2]
    assert not engine.lease(asks=MAIL)
    assert engine.lease(10, asks=FAX, max_bytes=1500).ids == ids[2:3]
    assert engine.lease(10, asks=FAX, max_bytes=1).ids == ids[3:]


@pytest.mark.parametrize("is_aside", [False, True], ids=["in the log", "set aside"])
def test_a_suspect_is_leased_alone(engine: Engine, is_aside: bool) -> None:
    ids = publish(engine, "fax", "fax", "fax")
    for attempt in range(2):
        engine.take(ids[1], lease_time="1 second")
        with engine.clock(f"{10 * (attempt + 1)} seconds"):
            assert engine.ask("reap") == 1
        come_back(engine.connection, engine.queue)
    (last,) = publish(engine, "fax")
    if is_aside:
        assert not engine.lease(asks=MAIL)
    assert engine.lease(10, asks=FAX).ids == [ids[0], ids[2]]
    assert engine.lease(10, asks=FAX).ids == [ids[1]]
    assert engine.fetch("select count(*) from {lease} where is_suspect") == 1
    assert engine.lease(10, asks=FAX).ids == [last]


def test_it_is_leased_by_its_id_too(engine: Engine) -> None:
    ids = publish(engine, "fax", "fax")
    assert not engine.lease(asks=MAIL)
    engine.ack(engine.take(ids[1]))
    assert engine.lease(10, asks=FAX).ids == ids[:1]
    assert engine.state(ids[1]) == "done"
    assert not engine.lease()


def test_retries_are_forwarded_without_what_is_set_aside(engine: Engine) -> None:
    away = Engine(engine.connection, next(new_names("asked_away"))).create()
    _, waits = publish(engine, "mail", "fax")
    engine.answer("retry", engine.lease(asks=MAIL), delays=["1 hour"])
    assert not engine.lease(asks=TEXT)
    engine.ask("forward_retries", subscription="default", into=away.queue)
    assert engine.state(waits) == "ready"
    assert engine.lease(asks=FAX).ids == [waits]


@pytest.mark.parametrize("verb", ["release", "retry", "reject"])
def test_what_goes_back_in_the_transaction_that_took_it_comes_again(engine: Engine, verb: str) -> None:
    """Its row is of this transaction: another one of the same would pass for the one that was taken."""
    (id,) = publish(engine, "fax")
    assert not engine.lease(asks=MAIL)
    with engine.connection.transaction():
        held = engine.lease(asks=FAX)
        engine.answer(verb, held, **({"delays": ["0"]} if verb == "retry" else {}))
        if verb == "reject":
            assert engine.ask("requeue") == 1
        engine.ask("promote")
        assert engine.state(id) == "retrying"
    come_back(engine.connection, engine.queue)
    engine.ack(engine.lease(asks=FAX))
    assert engine.state(id) == "done"


@pytest.mark.parametrize("asks", [FAX, None], ids=["asks", "everything"])
def test_what_the_log_refuses_waits_and_the_others_are_leased(
    engine: Engine, asks: dict[str, Any] | None
) -> None:
    ids = publish(engine, *["fax"] * 4)
    assert not engine.lease(asks=MAIL)
    engine.run(f"alter table {{log}} add constraint refuses check (id not in ({ids[0]}, {ids[2]})) not valid")
    more = {} if asks is None else {"asks": asks}
    assert engine.lease(10, **more).ids == [ids[1], ids[3]]
    assert [engine.state(id) for id in ids] == ["retrying", "leased", "retrying", "leased"]
    (next_one,) = publish(engine, "fax")
    assert engine.lease(10, **more).ids == [next_one]
    engine.run("alter table {log} drop constraint refuses")
    come_back(engine.connection, engine.queue)
    assert engine.lease(10, **more).ids == [ids[0], ids[2]]


def test_a_lease_goes_on_behind_what_the_log_refuses_of_all_that_is_set_aside(engine: Engine) -> None:
    publish(engine, *["fax"] * 120)
    assert not engine.lease(asks=MAIL)
    engine.run("alter table {log} add constraint refuses check (subscription_id is null) not valid")
    (next_one,) = publish(engine, "fax")
    assert engine.lease(200, asks=FAX).ids == [next_one]
    assert engine.status()[3:6] == (0, 1, 120)


def test_of_those_named_what_the_log_refuses_is_told_as_it_is(engine: Engine) -> None:
    ids = publish(engine, "fax", "fax")
    assert not engine.lease(asks=MAIL)
    engine.run(f"alter table {{log}} add constraint refuses check (id <> {ids[0]}) not valid")
    held, others = engine.lease_ids(*ids)
    assert held.ids == ids[1:]
    assert others[ids[0]].state == "retrying"
    assert others[ids[0]].due_at is not None


def test_what_was_answered_before_is_not_forwarded_from_where_it_is_set_aside(
    engine: Engine,
) -> None:
    away = Engine(engine.connection, next(new_names("asked_away"))).create()
    (id,) = publish(engine, "fax")
    held = engine.lease()
    engine.answer("release", held)
    assert not engine.lease(asks=MAIL)
    assert ask(engine.connection, "forward", **held.named, ids=[id], into=away.queue) == [None]
    assert engine.lease(asks=FAX).ids == [id]


def test_a_lease_asks_by_columns_that_there_are(engine: Engine) -> None:
    with refused("TQ005", '"customer"', "add_column"):
        engine.lease(asks={"columns": {"customer": "acme"}})
    engine.ask("add_column", column="customer", type="text")
    ids = publish(engine, "fax", "fax")
    engine.run("insert into {log} (kind, customer) values ('fax', 'acme')")
    assert not engine.lease(asks=MAIL)
    (held,) = engine.lease(10, asks={"columns": {"customer": "acme"}}).messages
    assert held.options == {"columns": {"customer": "acme"}}
    assert engine.lease(10, asks={"not_columns": {"customer": "acme"}}).ids == ids


def test_a_delayed_message_is_waited_for_by_whom_asks_for_its_columns(engine: Engine) -> None:
    engine.ask("add_column", column="customer", type="text")
    engine.run("insert into {log} (kind, customer, due_at) values ('fax', 'acme', now() + interval '1 hour')")
    for customer, waits in (("acme", True), ("ada", False)):
        asks = {"columns": {"customer": customer}}
        assert engine.ask("_has_delayed", subscription="default", asks=asks) is waits


def test_what_is_named_and_not_had_is_told_to_those_who_sleep(engine: Engine, open_session: Connect) -> None:
    ids = publish(engine, "fax", "fax")
    assert not engine.lease(asks=MAIL)
    engine.ask("subscribe", subscription="default", max_running=1)
    sleeper = open_session()
    sleeper.execute(f"listen trunq_{engine.queue_id}".encode())
    held, others = engine.lease_ids(*ids)
    assert (held.ids, others[ids[1]].reason) == (ids[:1], "limit")
    assert [each.payload for each in sleeper.notifies(timeout=5, stop_after=1)] == ["look"]
