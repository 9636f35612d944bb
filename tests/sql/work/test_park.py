"""Messages that wait for the outside: functions/work/park.sql."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import Lease, ask, call, refused, set_policy
from engine import Engine
from keying import is_free, made, take
from laning import EVERY_QUEUE, make, make_any

Connection = psycopg.Connection[Any]
PAID = {"paid": True}
T = "t"


@pytest.fixture
def engine(session: Connection, queue: str) -> Engine:
    return Engine(session, queue)


def park(engine: Engine, held: Lease, *tokens: str, delay: str = "1 day", **more: Any) -> int:
    """Park all messages of a lease, or those of `ids`."""
    more.setdefault("ids", held.ids)
    delays = [delay] * len(more["ids"])
    return int(ask(engine.connection, "park", **held.named, tokens=list(tokens), delays=delays, **more))


def parked(engine: Engine, token: str = T, **options: Any) -> int:
    """The id of a message that is parked."""
    (id,) = engine.publish(**options)
    assert park(engine, engine.lease(), token) == 1
    return id


def resume(engine: Engine, token: str = T, value: Any = None) -> str:
    return str(engine.ask("resume", token=token, value=None if value is None else Jsonb(value)))


def tokens(engine: Engine) -> list[tuple[Any, bool]]:
    """The messages of tokens that are known, and whether they were resumed."""
    query = "select id, resumed_at is not null from trunq.parked where queue_id = {id} order by id, 2"
    return list(engine.run(query))


@pytest.mark.parametrize("sort", EVERY_QUEUE)
def test_a_parked_message_runs_again_when_it_is_resumed_and_no_attempt_counts(
    session: Connection, sort: str
) -> None:
    engine = make_any(session, sort)
    id = parked(engine)
    assert engine.state(id) == "parked"
    assert (engine.ask("promote"), engine.lease().ids) == (0, [])
    assert resume(engine, value=PAID) == "resumed"
    assert engine.state(id) == "retrying"
    assert engine.ask("promote") == 1
    held = engine.lease()
    assert (held.ids, held.messages[0].attempt, held.messages[0].options) == ([id], 1, {"checkpoint": True})
    assert engine.ask("show_resumed", id=id) == PAID
    engine.ack(held)
    assert engine.ask("show_resumed", id=id) is None
    assert [attempt["outcome"] for attempt in engine.message(id).attempts] == ["parked", "success"]
    assert tokens(engine) == [(id, True)], "remembered, for what is delivered twice"


def test_a_value_that_came_first_is_noted_and_park_finds_it(engine: Engine) -> None:
    assert resume(engine, value=PAID) == "noted"
    assert resume(engine, value="another") == "repeated"
    id = parked(engine)
    assert engine.state(id) == "retrying"
    engine.ask("promote")
    assert engine.lease().ids == [id]
    assert engine.ask("show_resumed", id=id) == PAID
    assert resume(engine) == "repeated"


def test_a_second_resume_changes_nothing(engine: Engine) -> None:
    id = parked(engine)
    assert [resume(engine, value=1), resume(engine, value=2)] == ["resumed", "repeated"]
    assert engine.ask("show_resumed", id=id) == 1
    engine.ask("promote")
    assert engine.lease().ids == [id]
    assert not engine.lease()


def test_without_a_value_it_was_resumed_all_the_same(engine: Engine) -> None:
    id = parked(engine)
    assert engine.ask("show_resumed", id=id) is None
    resume(engine)
    is_null = "select trunq.show_resumed(%s, %s) = 'null'"
    assert engine.fetch(is_null, engine.queue, id) is True


def test_what_it_was_resumed_with_stays_through_failures_death_and_requeue(engine: Engine) -> None:
    set_policy(engine.connection, engine.queue, max_attempts=2, backoff_base="0")
    id = parked(engine)
    resume(engine, value=PAID)
    engine.ask("promote")
    for attempt in (1, 2):
        held = engine.lease()
        assert (held.messages[0].attempt, held.messages[0].options) == (attempt, {"checkpoint": True})
        engine.answer("retry", held)
    assert engine.state(id) == "dead"
    assert engine.ask("forget") == 0
    engine.ask("requeue", ids=[id])
    assert engine.lease().messages[0].options == {"checkpoint": True}
    assert engine.ask("show_resumed", id=id) == PAID


def test_it_may_be_parked_again_and_the_newest_value_counts(engine: Engine) -> None:
    id = parked(engine, "one")
    resume(engine, "one", 1)
    engine.ask("promote")
    assert park(engine, engine.lease(), "two") == 1
    assert engine.state(id) == "parked"
    resume(engine, "two", 2)
    engine.ask("promote")
    assert (engine.lease().messages[0].attempt, engine.ask("show_resumed", id=id)) == (1, 2)


def test_past_its_time_it_has_failed_as_one_that_took_too_long(engine: Engine) -> None:
    set_policy(engine.connection, engine.queue, max_attempts=2, backoff_base="0")
    id = parked(engine)
    with engine.clock("1 day 1 minute"):
        assert engine.ask("promote") == 2, "failed, and in the log again"
        held = engine.lease()
        assert held.messages[0].attempt == 2
        assert "nobody resumed it until" in engine.message(id).error
        assert tokens(engine) == []
        assert park(engine, held, "t") == 1, "its token is free again"
    with engine.clock("2 days 2 minutes"):
        assert engine.ask("promote") == 1
        (row,) = engine.call("list_dead")
        assert (row.id, row.reason, len(row.errors)) == (id, "max_attempts", 2)
        assert resume(engine) == "noted"


def test_a_message_with_its_own_number_of_attempts_dies_after_them(engine: Engine) -> None:
    id = parked(engine, options=Jsonb({"max_attempts": 1, "awaited": True}))
    with engine.clock("25 hours"):
        engine.ask("promote")
        assert engine.state(id) == "dead"
        (reply,) = engine.call("list_replies", ids=[id])
        assert reply.outcome == "timed_out"


def test_many_are_failed_in_steps_and_others_that_are_due_are_not_held_up(engine: Engine) -> None:
    set_policy(engine.connection, engine.queue, backoff="constant", backoff_base="1 hour", jitter=0)
    ids = engine.publish(25)
    park(engine, engine.lease(25), *map(str, ids))
    (delayed,) = engine.publish()
    engine.answer("retry", engine.lease(), delays=["1 day 1 second"])
    with engine.clock("1 day 1 minute"):
        assert [engine.ask("promote", max=10) for _ in range(4)] == [11, 10, 5, 0]
        assert engine.lease().ids == [delayed]
        assert len(engine.listed(state="retrying")) == 25


def test_a_token_is_for_one_message_and_for_once(engine: Engine) -> None:
    parked(engine)
    engine.publish()
    held = engine.lease()
    with refused("TQ015", "has this token"), engine.connection.transaction():
        park(engine, held, "t")
    assert engine.ask("extend", **{k: v for k, v in held.named.items() if k != "queue"}, lease_time="1 hour")
    resume(engine)
    with refused("TQ015", "was resumed by this token"), engine.connection.transaction():
        park(engine, held, "t")
    assert park(engine, held, "another") == 1


def test_each_queue_has_tokens_of_its_own(session: Connection, engine: Engine) -> None:
    other = make_any(session, "plain")
    ids = parked(engine), parked(other)
    assert resume(other) == "resumed"
    assert (engine.state(ids[0]), other.state(ids[1])) == ("parked", "retrying")


def test_two_subscriptions_share_the_tokens_of_their_queue(engine: Engine) -> None:
    engine.ask("subscribe", subscription="second", mode="shared")
    (id,) = engine.publish()
    park(engine, engine.lease(), "t")
    second = engine.lease(subscription="second")
    with refused("TQ015"), engine.connection.transaction():
        park(engine, second, "t")
    park(engine, second, "u")
    resume(engine, "u", "second")
    assert (engine.state(id), engine.state(id, "second")) == ("parked", "retrying")
    assert engine.ask("show_resumed", id=id) is None


def test_parking_twice_changes_nothing(engine: Engine) -> None:
    (id,) = engine.publish()
    held = engine.lease()
    assert [park(engine, held, "t"), park(engine, held, "u")] == [1, 0]
    assert resume(engine, "u") == "noted"
    assert engine.state(id) == "parked"


def test_several_of_a_lease_are_parked_at_once_each_for_a_time(engine: Engine) -> None:
    ids = engine.publish(3)
    held = engine.lease(3)
    engine.ack(held, ids[:1])
    until = [None, None, "2999-01-01 00:00:00+00"]
    arguments = {**held.named, "ids": ids, "tokens": ["a", "b", "c"], "until": until}
    assert ask(engine.connection, "park", **arguments, delays=["1 day", "2 days", None]) == 2
    assert [engine.state(id) for id in ids] == ["done", "parked", "parked"]
    assert engine.message(ids[2]).due_at.year == 2999
    assert resume(engine, "a") == "noted", "done before: it was not parked"


def test_a_time_that_is_over_fails_it_at_once(engine: Engine) -> None:
    (id,) = engine.publish()
    park(engine, engine.lease(), "t", delay="-1 hour")
    assert engine.ask("promote") == 1
    assert engine.message(id).attempt == 2


def test_cancel_ends_it_and_frees_its_token(engine: Engine) -> None:
    id = parked(engine)
    ((_, said, state),) = engine.call("cancel", ids=[id])
    assert (said, state, engine.state(id), tokens(engine)) == (id, "parked", "dead", [])
    assert resume(engine) == "noted"


def test_one_that_was_cancelled_while_it_ran_is_dead_and_not_parked(engine: Engine) -> None:
    (id,) = engine.publish()
    held = engine.lease()
    engine.call("cancel", ids=[id])
    assert park(engine, held, "t") == 1
    assert (engine.state(id), tokens(engine)) == ("dead", [])


@pytest.mark.parametrize("how", ["delete", "empty_queue", "unsubscribe", "reset", "drop_queue"])
def test_whatever_takes_the_message_takes_its_token(engine: Engine, how: str) -> None:
    id, later = parked(engine), engine.publish()
    resume(engine, "early", PAID)
    queue_id = engine.queue_id
    match how:
        case "delete":
            assert engine.ask("delete", ids=[id]) == 1
        case "unsubscribe":
            engine.ask("unsubscribe", subscription="default")
        case "reset":
            engine.ask("reset", subscription="default")
        case "drop_queue":
            engine.ask("drop_queue", force=True)
        case _:
            engine.ask("empty_queue")
    rows = engine.connection.execute("select id from trunq.parked where queue_id = %s", (queue_id,))
    assert rows.fetchall() == ([] if how == "drop_queue" else [(None,)]), later


def test_delete_erases_what_it_was_resumed_with(engine: Engine) -> None:
    id = parked(engine)
    resume(engine, value=PAID)
    engine.ask("promote")
    engine.lease()
    engine.ask("delete", ids=[id])
    assert engine.fetch("select count(*) from trunq.progress where queue_id = {id}") == 0


def test_tokens_are_forgotten_after_a_week_unless_their_message_waits(engine: Engine) -> None:
    engine.publish(2)
    park(engine, engine.lease(), "waits", delay="30 days")
    park(engine, engine.lease(), "used", delay="30 days")
    resume(engine, "used")
    resume(engine, "early")
    with engine.clock("6 days 23 hours"):
        assert engine.ask("forget") == 0
    with engine.clock("7 days 1 hour"):
        assert engine.ask("forget") >= 2
    assert [is_used for _, is_used in tokens(engine)] == [False]


def test_it_is_seen_in_lists_counts_and_the_view(engine: Engine) -> None:
    id = parked(engine)
    (other,) = engine.publish()
    engine.answer("retry", engine.lease(), delays=["1 hour"])
    assert (engine.listed(state="parked"), engine.listed(state="retrying")) == ([id], [other])
    assert engine.listed() == [other, id]
    assert (engine.status().delayed, engine.status().parked) == (2, 1)
    view = engine.run("select state, due_at > now() from trunq_queue.{queue}_messages where id = %s", id)
    assert view.fetchall() == [("parked", True)]
    row = engine.message(id)
    assert (row.state, row.error, row.worker) == ("parked", None, "w")


def test_one_that_is_parked_for_more_than_a_week_is_warned_of(engine: Engine) -> None:
    engine.publish()
    park(engine, engine.lease(), "t", delay="100 days")
    about = "1 message is parked for longer than a week"
    assert not [row for row in engine.call("list_warnings") if about in row.warning]
    with engine.clock("7 days 1 hour"):
        assert [row.subscription for row in engine.call("list_warnings") if about in row.warning] == [
            "default"
        ]


def test_no_table_keeps_the_token(engine: Engine) -> None:
    parked(engine, "open sesame")
    resume(engine, "the other secret", 1)
    for table in ("trunq.parked", "trunq.delayed", "{receipt}", "{lease}"):
        assert engine.fetch(f"select count(*) from {table} t where t::text like '%%s%%cret%%'") == 0
        assert engine.fetch(f"select count(*) from {table} t where t::text like '%%sesame%%'") == 0


def test_in_order_it_holds_its_key(session: Connection) -> None:
    engine = make(session)
    engine.ask("subscribe", subscription="default", in_order=True, max_attempts=1)
    ids = engine.publish(3, keys=["a", "a", "b"])
    held = engine.lease(3)
    assert held.ids == [ids[0], ids[2]]
    park(engine, held, "t", ids=ids[:1])
    engine.ack(held, ids[2:])
    assert not engine.lease(3)
    resume(engine)
    engine.ask("promote")
    again = engine.lease(3)
    assert again.ids == ids[:1]
    park(engine, again, "u")
    with engine.clock("2 days"):
        engine.ask("promote")
        assert engine.state(ids[0]) == "dead"
        assert engine.lease(3).ids == ids[1:2], "its key goes on"


def test_it_takes_no_place_among_those_that_run(session: Connection) -> None:
    engine = make(session)
    engine.ask("set_lanes", max_running=1)
    ids = engine.publish(2, keys=["a"])
    park(engine, engine.lease(2), "t")
    assert engine.lease(2).ids == ids[1:]


@pytest.mark.parametrize("lanes", [None, "key"])
def test_it_keeps_its_unique_key_until_it_is_over(session: Connection, lanes: str | None) -> None:
    engines: Iterator[Engine] = made(session, "refuse", lanes)
    engine = next(engines)
    id, _ = take(engine)
    park(engine, engine.lease(), "t")
    assert not is_free(engine)
    engine.call("cancel", ids=[id])
    assert is_free(engine)
    take(engine)
    park(engine, engine.lease(), "u")
    set_policy(session, engine.queue, max_attempts=1)
    with engine.clock("2 days"):
        engine.ask("promote")
        assert is_free(engine)
    next(engines, None)


def test_columns_of_the_user_stay_with_it(engine: Engine) -> None:
    engine.run("alter table {log} add column source text")
    engine.run("insert into {log} (payload, source) values ('1', 'here')")
    park(engine, engine.lease(), "t")
    resume(engine)
    engine.ask("promote")
    engine.lease()
    assert (
        engine.fetch("select source from {log} where attempt = 1 and subscription_id is not null") == "here"
    )


def test_a_stream_reads_a_parked_message_once(engine: Engine) -> None:
    engine.ask("subscribe", subscription="ledger", mode="exclusive")
    parked(engine)
    resume(engine)
    engine.ask("promote")
    engine.ask("tick", force=True)
    ((batch, *_),) = engine.call("next_batch", subscription="ledger", worker="w")
    assert len(engine.call("read_batch", subscription="ledger", batch_id=batch)) == 1


def test_an_archive_has_the_attempt(engine: Engine) -> None:
    engine.ask("create_archive")
    id = parked(engine)
    engine.ask("archive")
    row = engine.run("select outcome, error from trunq_archive.{queue} where id = %s", id).fetchall()
    assert row == [("parked", None)]


def test_what_waited_for_a_handler_before_is_not_said_to_wait_for_one(engine: Engine) -> None:
    engine.publish(kinds=["mail"])
    engine.answer("release", engine.lease(), errors=["no handler"])
    with engine.clock("1 minute"):
        engine.ask("promote")
        park(engine, engine.lease(), "t")
    assert not [row for row in engine.call("list_warnings") if "no handler" in row.warning]


def test_what_cannot_be_parked_or_resumed_is_refused(engine: Engine) -> None:
    engine.publish()
    held = engine.lease()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"tokens": []}, "a token, and a time"),
        ({"tokens": [None]}, "a token, and a time"),
        ({"tokens": [""]}, "1 to 1,000 bytes"),
        ({"tokens": ["é" * 501]}, "1 to 1,000 bytes"),
        ({"delays": None}, "a time that ends"),
        ({"until": ["2999-01-01 00:00:00+00"]}, "one of the two"),
        ({"delays": None, "until": ["infinity"]}, "a time that ends"),
        ({"delays": ["1001 years"]}, "1000 years"),
    ]
    for given, words in wrong:
        arguments = {**held.named, "ids": held.ids, "tokens": ["t"], "delays": ["1 day"], **given}
        with refused("TQ005", words), engine.connection.transaction():
            call(engine.connection, "park", **arguments)
    with refused("TQ005", "under one token"), engine.connection.transaction():
        park(engine, held, "t", "t", ids=[held.ids[0], held.ids[0]])
    with refused("TQ005", "1 to 1,000 bytes"), engine.connection.transaction():
        resume(engine, "")
    with refused("TQ006", "1 MB"), engine.connection.transaction():
        resume(engine, value="x" * 1_048_577)
    engine.connection.execute("set session characteristics as transaction isolation level repeatable read")
    with refused("TQ007"):
        resume(engine)
    engine.connection.execute("set session characteristics as transaction isolation level read committed")
