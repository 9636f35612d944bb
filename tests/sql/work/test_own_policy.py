"""A message's own policy, in its options: how long it waits, and where it goes when it dies."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from calling import ask, come_back, new_names, refused
from conftest import Connect
from engine import Engine
from laning import EVERY_QUEUE, make_any
from streaming import LAKE, named, take

Connection = psycopg.Connection[Any]

TEN = {"backoff": "constant", "backoff_base": 10, "jitter": 0}


@pytest.fixture(params=EVERY_QUEUE)
def work(session: Connection, request: pytest.FixtureRequest) -> Engine:
    work = make_any(session, request.param)
    work.ask(
        "subscribe", subscription="default", max_attempts=3, backoff="constant", backoff_base="5 s", jitter=0
    )
    return work


@pytest.fixture
def failures(work: Engine) -> Engine:
    return Engine(work.connection, f"{work.queue}_failures").create()


def waits(work: Engine, *ids: int) -> list[float]:
    """How long each was put off when its last attempt ended."""
    found = work.run(
        "select extract(epoch from d.due_at - max(r.finished_at))::float8"
        " from trunq.delayed d join {receipt} r on d.id = any(r.ids)"
        " where d.queue_id = {id} and d.id = any(%s) group by d.id, d.due_at"
        " order by array_position(%s, d.id)",
        [*ids],
        [*ids],
    )
    return [wait for (wait,) in found]


def warnings_of(connection: Connection) -> list[str]:
    said: list[str] = []
    connection.add_notice_handler(lambda notice: said.append(str(notice.message_primary)))
    return said


@pytest.mark.parametrize("verb", ["retry", "time_out"])
def test_its_own_back_off_goes_before_that_of_its_kind_and_its_subscription(work: Engine, verb: str) -> None:
    (plain,) = work.publish()
    (own,) = work.publish(options=TEN)
    (part,) = work.publish(options={"backoff_base": 20})
    (linear,) = work.publish(options={"backoff": "linear", "backoff_base": 30, "backoff_cap": 45})
    held = work.lease(4)
    assert work.answer(verb, held, backoff_cap="40 s") == 4
    assert waits(work, plain, own, part, linear) == [5, 10, 20, 30]
    come_back(work.connection, work.queue)
    assert work.answer(verb, work.lease(4)) == 4
    assert waits(work, plain, own, part, linear) == [5, 10, 20, 45]


def test_its_jitter_is_its_own(work: Engine) -> None:
    ids = work.publish(20, options={"backoff_base": 1000, "jitter": 1})
    work.answer("retry", work.lease(20))
    scattered = waits(work, *ids)
    assert min(scattered) < 900
    assert max(scattered) < 1000


def test_a_delay_that_its_handler_chose_goes_before_it(work: Engine) -> None:
    (id,) = work.publish(options=TEN)
    work.answer("retry", work.lease(), delays=["7 s"])
    assert waits(work, id) == [7]


def test_after_a_lease_that_ran_out_it_waits_as_it_says(work: Engine) -> None:
    plain, own = work.publish() + work.publish(options=TEN)
    for id in (plain, own):
        assert work.lease().ids == [id]
        with work.clock("10 minutes"):
            assert work.ask("reap") == 1
    assert waits(work, own) == [10]
    assert work.state(plain) == "ready"


def expire_twice(work: Engine) -> int:
    """Publish a message whose leases run out twice, so that it is a suspect."""
    for attempt in range(2):
        if attempt:
            come_back(work.connection, work.queue)
        held = work.lease(worker="dies")
        assert work.ask("reclaim", subscription="default", worker="dies") == 1
    return held.ids[0]


def test_a_suspect_that_waits_for_long_keeps_no_other_suspect_waiting(work: Engine) -> None:
    (slow,) = work.publish(options={"backoff_base": 3600, "jitter": 0})
    assert expire_twice(work) == slow
    assert waits(work, slow) == [3600]
    (quick,) = work.publish()
    held = work.lease(worker="dies")
    for again in (False, True):
        assert held.ids == [quick]
        work.ask("reclaim", subscription="default", worker="dies")
        if not again:
            held = work.lease(worker="dies")
    (wait,) = waits(work, quick)
    assert 0 < wait < 5


def test_what_was_released_or_spared_waits_for_nothing(work: Engine) -> None:
    (id,) = work.publish(options=TEN)
    work.answer("release", work.lease())
    assert work.lease().ids == [id]


def test_a_stream_s_messages_wait_as_they_say(session: Connection) -> None:
    work = Engine(session, next(new_names("own"))).create(default_subscription=False)
    work.ask("subscribe", **LAKE, mode="exclusive", jitter=0)
    own, plain = work.publish(options=TEN) + work.publish()
    assert work.ask("retry_batch", **named(take(work))) == 2
    rows = work.run("select id, due_at - trunq.clock() > '8 s' from trunq.delayed where queue_id = {id}")
    assert dict(rows.fetchall()) == {own: True, plain: False}


def die(work: Engine, **answer: Any) -> int:
    held = work.lease()
    work.answer("reject", held, errors=["boom"], **answer)
    return held.ids[0]


def test_what_names_a_queue_goes_there_when_it_dies(work: Engine, failures: Engine) -> None:
    (id,) = work.publish(kinds=["mail"], keys=["anna"], options={"dead_into": failures.queue})
    assert die(work) == id
    (message,) = failures.lease().messages
    assert (message.kind, message.key, message.options) == ("mail", "anna", None)
    (entry,) = message.headers["trunq_dead"]
    assert (entry["queue"], entry["id"], entry["reason"], entry["error"]) == (
        work.queue,
        id,
        "rejected",
        "boom",
    )
    assert work.state(id) == "dead"


def test_it_goes_after_its_last_attempt_and_its_last_lease_and_never_before(
    work: Engine, failures: Engine
) -> None:
    (id,) = work.publish(options={"dead_into": failures.queue, "backoff_base": 0, "max_attempts": 2})
    work.answer("retry", work.lease())
    assert not failures.lease()
    work.answer("time_out", work.lease())
    assert [message.headers["trunq_dead"][0]["reason"] for message in failures.lease().messages] == [
        "max_attempts"
    ]
    work.publish(options={"dead_into": failures.queue, "max_attempts": 1})
    work.lease()
    with work.clock("10 minutes"):
        work.ask("reap")
    assert [message.headers["trunq_dead"][0]["reason"] for message in failures.lease().messages] == [
        "lease_expired"
    ]
    work.publish(options={"dead_into": failures.queue}, max_age="1 minute")
    with work.clock("2 minutes"):
        assert not work.lease()
    assert not failures.lease(), "nobody waits for what expired"
    assert work.state(id) == "dead"


def test_its_queue_stands_in_for_that_of_its_subscription(work: Engine, failures: Engine) -> None:
    other = Engine(work.connection, f"{work.queue}_other").create()
    work.ask("set_dead", into=other.queue)
    work.publish(options={"dead_into": failures.queue})
    work.publish(options={"dead_into": ""})
    work.publish()
    ids = [die(work) for _ in range(3)]
    assert [m.headers["trunq_dead"][0]["id"] for m in failures.lease(9).messages] == ids[:1]
    assert [m.headers["trunq_dead"][0]["id"] for m in other.lease(9).messages] == ids[2:]


def test_a_queue_that_cannot_be_is_refused_when_it_is_published(work: Engine) -> None:
    for way in ({}, {"delay": "1 hour"}):
        with refused("TQ001", 'no queue "nowhere"'):
            work.ask("publish", options={"dead_into": "nowhere"}, **way)
        with refused("TQ001", 'no queue "nowhere"'):
            work.publish(2, options={"dead_into": "nowhere"}, **way)
        with refused("TQ005", "the same queue"):
            work.publish(2, options={"dead_into": work.queue}, **way)


def test_a_plain_insert_may_name_anything_and_fails_no_answer(work: Engine) -> None:
    said = warnings_of(work.connection)
    for into in ("nowhere", work.queue):
        work.run("insert into {log} (options) values (%s)", Jsonb({"dead_into": into}))
        die(work)
    assert ["which is gone" in said[0], "is not published into" in said[1]] == [True, True]
    assert work.status().dead == 2


def test_a_queue_that_was_dropped_since_is_told_of(work: Engine, failures: Engine) -> None:
    work.publish(options={"dead_into": failures.queue})
    failures.ask("drop_queue", force=True)
    said = warnings_of(work.connection)
    die(work)
    assert "which is gone" in said[0]


@pytest.fixture
def guest(work: Engine) -> Any:
    role = f"guest_{work.queue}"
    work.connection.execute(sql.SQL("create role {}").format(sql.Identifier(role)))
    ask(work.connection, "grant_role", queue=work.queue, role="publisher", grantee=role)
    yield role
    work.connection.execute(
        sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(role)).as_string().encode()
    )


def test_nobody_gets_into_a_queue_by_a_death_where_he_may_not_publish(
    work: Engine, failures: Engine, guest: str, open_session: Connect
) -> None:
    options = {"dead_into": failures.queue}
    stranger = open_session()
    stranger.execute(sql.SQL("set role {}").format(sql.Identifier(guest)))
    for way in ({}, {"delay": "1 hour"}):
        with refused("42501", "may not publish into queue"):
            ask(stranger, "publish", queue=work.queue, options=options, **way)
    # A column of a row is asked nothing when it comes, and finds a closed door when it dies.
    stranger.execute(f"insert into trunq_log.{work.queue} (options) values (%s)", (Jsonb(options),))
    said = warnings_of(work.connection)
    die(work)
    assert "its publishers may not publish there" in said[0]
    assert not failures.lease()
    ask(work.connection, "grant_role", queue=failures.queue, role="publisher", grantee=guest)
    ask(stranger, "publish", queue=work.queue, options=options)
    id = die(work)
    assert [m.headers["trunq_dead"][0]["id"] for m in failures.lease(9).messages] == [id]


def test_what_publishes_with_unique_keys_asks_the_same(session: Connection) -> None:
    work = Engine(session, next(new_names("keyed"))).create(unique="refuse")
    failures = Engine(session, f"{work.queue}_failures").create()
    role = f"guest_{work.queue}"
    session.execute(sql.SQL("create role {}").format(sql.Identifier(role)))
    try:
        options = {"dead_into": failures.queue}
        work.ask("publish_unique", payload={"n": 1}, options=options)
        assert die(work)
        assert len(failures.lease().messages) == 1
        ask(session, "grant_role", queue=work.queue, role="publisher", grantee=role)
        with refused("42501", "may not publish into queue"):
            work.ask("publish_unique", payload={"n": 2}, options=options)
        with refused("TQ001"):
            work.ask("publish_unique", payload={"n": 2}, options={"dead_into": "nowhere"})
    finally:
        session.execute(
            sql.SQL("drop owned by {0}; drop role {0}").format(sql.Identifier(role)).as_string().encode()
        )


def test_nobody_gets_to_another_tenant_by_a_death(work: Engine, failures: Engine, guest: str) -> None:
    ask(work.connection, "grant_role", queue=failures.queue, role="publisher", grantee=guest)
    failures.ask("set_tenancy")
    with refused("42501", "may not publish into queue"):
        work.publish(options={"dead_into": failures.queue})
    work.ask("set_tenancy")
    work.publish(options={"dead_into": failures.queue})


MISTAKES: list[Any] = [
    {"backoff": "random"},
    {"backoff": 1},
    {"backoff_base": -1},
    {"backoff_base": "soon"},
    {"backoff_base": 1e10},
    {"backoff_cap": "1 minute"},
    {"jitter": 2},
    {"jitter": -0.1},
    {"jitter": "x"},
    {"dead_into": "No Queue"},
    {"dead_into": True},
    {"dead_into": ["a"]},
]


@pytest.mark.parametrize("options", MISTAKES, ids=str)
def test_a_policy_that_cannot_be_is_refused_by_every_way_of_publishing(work: Engine, options: Any) -> None:
    with refused("TQ005", "options of a message cannot be read", "a policy is like"):
        work.ask("publish", options=options)
    with refused("TQ005", "options of a message cannot be read"):
        work.ask("publish", options=options, delay="1 hour")
    with refused("TQ005", "options of a message cannot be read"):
        work.publish(2, options=options)
    with pytest.raises(psycopg.errors.CheckViolation):
        work.run("insert into {log} (options) values (%s)", Jsonb(options))
    assert not work.lease()


def test_what_is_null_in_a_policy_says_nothing(work: Engine) -> None:
    (id,) = work.publish(
        options={
            "backoff": None,
            "backoff_base": None,
            "backoff_cap": None,
            "jitter": None,
            "dead_into": None,
        }
    )
    work.answer("retry", work.lease())
    assert waits(work, id) == [5]


def test_it_travels_through_delay_retry_death_and_requeue(work: Engine, failures: Engine) -> None:
    options = {**TEN, "dead_into": failures.queue}
    work.ask("publish", options=options, delay="1 hour")
    with work.clock("2 hours"):
        assert work.ask("promote") == 1
        die(work)
        assert work.ask("requeue") == 1
        held = work.lease()
        assert [message.options for message in held.messages] == [options]
        work.answer("retry", held)
        assert waits(work, *held.ids) == [10]


def test_a_death_does_not_wait_for_whoever_publishes_the_same(work: Engine, open_session: Any) -> None:
    into = Engine(work.connection, next(new_names("unique"))).create(unique="refuse", unique_on="content")
    (id,) = work.publish(options=Jsonb({"dead_into": into.queue}))
    held = work.lease()
    other = open_session()
    with other.transaction():
        same = f"insert into trunq_log.{into.queue} (payload) select payload from trunq_log.{work.queue}"
        other.execute(same.encode())
        work.connection.execute("set statement_timeout = '3s'")
        work.answer("reject", held, errors=["no"])
        work.connection.execute("reset statement_timeout")
    assert work.state(id) == "dead"
    assert work.connection.execute("show lock_timeout").fetchone() == ("0",)
