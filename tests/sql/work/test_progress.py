"""Progress and checkpoints: functions/work/progress.sql."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import Lease, ask, call, come_back, fetch, refused, set_policy
from conftest import Connect
from engine import Engine
from laning import EVERY_QUEUE, make_any
from waiting import wait_until_blocked

Connection = psycopg.Connection[Any]
NOW = timedelta(0)
Way = Callable[[Engine, Lease], object]


@pytest.fixture
def engine(session: Connection, queue: str) -> Engine:
    return Engine(session, queue)


def report(engine: Engine, held: Lease, id: int | None = None, **said: Any) -> bool:
    """Of the first message of a lease, or another."""
    if "checkpoint" in said:
        said["checkpoint"] = Jsonb(said["checkpoint"])
    which = held.ids[0] if id is None else id
    return bool(ask(engine.connection, "set_progress", **held.named, id=which, **said))


def listed(engine: Engine, **which: Any) -> list[Any]:
    return engine.call("list_progress", **which)


def flag(engine: Engine) -> bool:
    query = "select has_progress from trunq.subscription where queue_id = {id} and name = 'default'"
    return bool(engine.fetch(query))


def kept(engine: Engine) -> int:
    return int(engine.fetch("select count(*) from trunq.progress where queue_id = {id}"))


def reported(engine: Engine, **said: Any) -> Lease:
    """A message under a lease that reported."""
    engine.publish()
    held = engine.lease()
    report(engine, held, **(said or {"percent": 50, "checkpoint": {"at": 7}}))
    return held


def test_what_is_reported_is_listed_and_what_is_left_out_stays(engine: Engine) -> None:
    one, two = engine.publish(2)
    held = engine.lease(2, worker="ada")
    report(engine, held, one, percent=12.5, note="reading")
    report(engine, held, two, note="waiting")
    report(engine, held, one, percent=80)
    report(engine, held, one, checkpoint=["a", "b"])
    newest, other = listed(engine)
    assert newest[:7] == ("default", one, True, 80, "reading", len('["a", "b"]'), "ada")
    assert other[:7] == ("default", two, True, None, "waiting", None, "ada")
    assert newest.reported_at > other.reported_at
    assert [row.id for row in listed(engine, ids=[two], subscription="default")] == [two]
    assert [row.id for row in listed(engine, limit=1)] == [one]
    assert engine.ask("show_checkpoint", id=one) == ["a", "b"]
    assert engine.ask("show_checkpoint", id=two) is None


def expire(engine: Engine, held: Lease) -> None:
    ask(engine.connection, "extend", **held.named, lease_time="0")
    engine.ask("reap")
    come_back(engine.connection, engine.queue)


def die(engine: Engine, held: Lease) -> None:
    engine.answer("reject", held, held.ids[:1])
    assert engine.ask("requeue") == 1


def be_cancelled(engine: Engine, held: Lease) -> None:
    engine.ask("cancel", ids=held.ids[:1], subscription="default")
    engine.answer("retry", held, held.ids[:1])
    assert engine.ask("requeue", reason="cancelled") == 1


def wait_an_hour(engine: Engine, held: Lease) -> None:
    engine.answer("retry", held, held.ids[:1], delays=[timedelta(hours=1)])
    come_back(engine.connection, engine.queue)


def take_too_long(engine: Engine, held: Lease) -> None:
    engine.answer("time_out", held, held.ids[:1])
    come_back(engine.connection, engine.queue)


def start_again(engine: Engine, _held: Lease) -> None:
    engine.ask("reclaim", subscription="default", worker="w")
    come_back(engine.connection, engine.queue)


WAYS: dict[str, Way] = {
    "retry": lambda engine, held: engine.answer("retry", held, held.ids[:1], delays=[NOW]),
    "retry later": wait_an_hour,
    "time-out": take_too_long,
    "release": lambda engine, held: engine.answer("release", held, held.ids[:1]),
    "lease expired": expire,
    "worker back": start_again,
    "requeue": die,
    "cancel and requeue": be_cancelled,
}


@pytest.mark.parametrize("sort", EVERY_QUEUE)
def test_the_next_attempt_gets_the_checkpoint(session: Connection, sort: str) -> None:
    engine = make_any(session, sort)
    for way, go in WAYS.items():
        engine.publish(keys=["a"], options={"max_attempts": 5})
        plain = engine.publish(keys=["a"])
        first = engine.lease(2)
        id = first.ids[0]
        report(engine, first, percent=40, note="first", checkpoint={"at": 7})
        engine.ack(first, plain)
        go(engine, first)
        second = engine.lease()
        assert (second.ids, second.messages[0].options) == ([id], {"max_attempts": 5, "checkpoint": True}), (
            way
        )
        assert engine.ask("show_checkpoint", id=id) == {"at": 7}
        (row,) = listed(engine)
        assert (row.is_running, row.percent, row.note) == (False, 40, "first")
        # Of what the first attempt said only the checkpoint is the second one's too.
        report(engine, second, percent=3)
        (row,) = listed(engine)
        assert (row.is_running, row.percent, row.note, row.checkpoint_bytes) == (True, 3, None, 9)
        assert engine.ack(second) == 1
        assert listed(engine) == []


def test_a_message_without_a_checkpoint_goes_back_as_it_was(engine: Engine) -> None:
    engine.publish(2)
    held = engine.lease(2)
    report(engine, held, percent=1)
    engine.answer("retry", held, delays=[NOW, NOW])
    assert [message.options for message in engine.lease(2).messages] == [None, None]


def test_json_null_drops_the_checkpoint(engine: Engine) -> None:
    held = reported(engine)
    engine.connection.execute(
        "select trunq.set_progress(%s, 'default', %s, %s, %s, p_checkpoint => 'null')",
        (engine.queue, held.lease_id, held.token, held.ids[0]),
    )
    (row,) = listed(engine)
    assert (row.percent, row.checkpoint_bytes) == (50, None)
    engine.answer("retry", held, delays=[NOW])
    assert engine.lease().messages[0].options is None


REFUSED: list[tuple[dict[str, Any], str, list[str]]] = [
    ({}, "TQ005", ["nothing to say"]),
    ({"percent": -0.1}, "TQ005", ["0 to 100", "-0.1"]),
    ({"percent": 100.5}, "TQ005", ["0 to 100", "100.5"]),
    ({"percent": "NaN"}, "TQ005", ["0 to 100", "NaN"]),
    ({"note": "x" * 501}, "TQ005", ["500 characters", "501"]),
    ({"percent": 1, "checkpoint": "x" * 1_048_577}, "TQ006", ["1048576 bytes", "1048579"]),
]


def test_what_cannot_be_reported(engine: Engine) -> None:
    engine.publish()
    held = engine.lease()
    for said, sqlstate, words in REFUSED:
        with refused(sqlstate, *words):
            report(engine, held, **said)
    assert kept(engine) == 0
    assert not flag(engine)


def test_who_lost_the_lease_is_refused_and_changes_nothing(engine: Engine) -> None:
    held = reported(engine, note="mine")
    forged = Lease(held.queue, held.subscription, [held.messages[0]._replace(token=held.token + 1)])
    with refused("TQ003", "has ended"):
        report(engine, forged, note="not mine")
    expire(engine, held)
    again = engine.lease()
    with refused("TQ003", "has ended"):
        report(engine, held, note="late", checkpoint=1)
    report(engine, again, note="theirs")
    (row,) = listed(engine)
    assert (row.note, row.checkpoint_bytes) == ("theirs", None)


def test_what_is_answered_or_not_of_the_lease_is_refused(engine: Engine) -> None:
    one, two, three = engine.publish(3)
    held, other = engine.lease(2), engine.lease()
    assert other.ids == [three]
    engine.ack(held, [one])
    assert report(engine, held, one, percent=1) is False
    with refused("TQ013", f"message {three} does not belong"):
        report(engine, held, three, percent=1)
    assert report(engine, held, two, percent=1) is True
    assert [row.id for row in listed(engine)] == [two]


def test_batches_and_snapshots_have_no_progress(engine: Engine, open_session: Connect) -> None:
    held = reported(engine)
    engine.ask("subscribe", subscription="stream", mode="exclusive")
    with refused("TQ011"):
        engine.ask("set_progress", subscription="stream", lease_id=1, token=1, id=1, percent=1)
    above = open_session(autocommit=False)
    above.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with refused("TQ007"):
        report(engine.on(above), held, percent=1)


def test_a_publisher_does_not_say_that_there_is_a_checkpoint(engine: Engine) -> None:
    with refused("TQ005"):
        engine.publish(options={"checkpoint": True})
    with pytest.raises(psycopg.errors.CheckViolation):
        engine.run("insert into {log} (options) values ('{{\"checkpoint\": 5}}')")


def test_progress_goes_with_the_ack(engine: Engine) -> None:
    held = reported(engine)
    assert flag(engine)
    engine.ack(held)
    assert kept(engine) == 0
    engine.ask("forget")
    assert not flag(engine)


@pytest.mark.parametrize("end", ["purge", "empty_queue", "unsubscribe", "reset", "drop_queue"])
def test_progress_goes_with_what_it_is_about(engine: Engine, end: str) -> None:
    queue_id = engine.queue_id
    held = reported(engine)
    if end == "purge":
        engine.answer("reject", held)
    of_one = {"subscription": "default"} if end in ("unsubscribe", "reset") else {}
    engine.ask(end, **of_one, **({"force": True} if end == "drop_queue" else {}))
    query = "select count(*) from trunq.progress where queue_id = %s"
    assert fetch(engine.connection, query, queue_id) == 0


def test_the_duty_deletes_what_is_over_and_keeps_what_is_dead_or_runs(engine: Engine) -> None:
    ids = engine.publish(4)
    held = engine.lease(4)
    for id in ids:
        report(engine, held, id, checkpoint=1)
    done, dead, waits, runs = ids
    with engine.connection.transaction():
        # Its snapshot may be older than a report: it leaves the row to the duty, and never fails for it.
        engine.connection.execute("set transaction isolation level repeatable read")
        engine.ack(held, [done])
    engine.answer("reject", held, [dead])
    engine.answer("retry", held, [waits], delays=[timedelta(days=1)])
    assert kept(engine) == 4
    assert engine.ask("forget") == 0
    with engine.clock("2 minutes"):
        assert engine.ask("forget") == 1
    assert {row.id: row.is_running for row in listed(engine)} == {dead: False, waits: False, runs: True}
    assert flag(engine)


def test_a_report_after_the_snapshot_of_a_transaction_fails_no_answer_and_is_not_lost(
    engine: Engine, open_session: Connect
) -> None:
    engine.publish(2)
    held = engine.lease(2)
    one, two = held.ids
    other = open_session(autocommit=False)
    other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    fetch(other, "select count(*) from trunq.progress")
    for id in held.ids:
        report(engine, held, id, checkpoint=2)
    theirs = engine.on(other)
    assert theirs.ack(held, [one]) == 1
    assert theirs.answer("retry", held, [two], delays=[NOW]) == 1
    other.commit()
    assert [message.options for message in engine.lease(2).messages] == [{"checkpoint": True}]


@pytest.mark.parametrize("commits", [True, False])
def test_a_report_waits_for_an_open_answer(engine: Engine, open_session: Connect, commits: bool) -> None:
    engine.publish()
    held = engine.lease()
    other, third = open_session(autocommit=False), open_session()
    engine.on(other).ack(held)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(report, engine.on(third), held, percent=1)
        wait_until_blocked(engine.connection, third)
        if commits:
            other.commit()
            assert waiting.result() is False
        else:
            other.rollback()
            assert waiting.result() is True
    assert kept(engine) == (not commits)


def test_a_first_report_never_meets_the_flag_that_is_just_taken_away(
    engine: Engine, open_session: Connect
) -> None:
    engine.ack(reported(engine))
    engine.publish()
    held = engine.lease()
    duty, worker = open_session(autocommit=False), open_session()
    engine.on(duty).ask("forget")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(report, engine.on(worker), held, checkpoint=1)
        wait_until_blocked(engine.connection, worker)
        duty.commit()
        waiting.result()
    assert flag(engine)
    engine.answer("retry", held, delays=[NOW])
    assert engine.lease().messages[0].options == {"checkpoint": True}


def test_the_duty_leaves_out_a_subscription_of_an_open_first_report(
    engine: Engine, open_session: Connect
) -> None:
    engine.ack(reported(engine))
    engine.publish()
    held = engine.lease()
    worker = open_session(autocommit=False)
    report(engine.on(worker), held, checkpoint=1)
    engine.ask("forget")
    worker.commit()
    assert flag(engine)


@pytest.mark.parametrize("sort", EVERY_QUEUE)
def test_who_does_not_report_never_meets_the_table(session: Connection, sort: str) -> None:
    engine = make_any(session, sort)
    engine.publish(4, keys=["a"])
    with session.transaction():
        held = engine.lease(4)
        one, two, three, four = held.ids
        engine.ack(held, [one])
        engine.answer("retry", held, [two])
        engine.answer("reject", held, [three])
        engine.answer("release", held, [four])
        met = fetch(
            session,
            "select count(*) from pg_locks"
            " where pid = pg_backend_pid() and relation = 'trunq.progress'::regclass",
        )
    assert met == 0


def test_a_report_again_leaves_the_indexes_alone(session: Connection, engine: Engine) -> None:
    held = reported(engine)
    hot = "select pg_stat_get_xact_tuples_hot_updated('trunq.progress'::regclass)"
    with session.transaction():
        report(engine, held, percent=100)
        report(engine, held, note="done")
        assert fetch(session, hot) >= 1


def test_another_subscription_has_progress_of_its_own(engine: Engine) -> None:
    engine.ask("subscribe", subscription="audit")
    set_policy(engine.connection, engine.queue, "audit", backoff="constant", backoff_base="0")
    held = reported(engine)
    other = engine.lease(subscription="audit")
    report(engine, other, checkpoint={"by": "audit"})
    assert engine.ask("show_checkpoint", id=held.ids[0]) == {"at": 7}
    assert engine.ask("show_checkpoint", id=held.ids[0], subscription="audit") == {"by": "audit"}
    assert {row.subscription for row in call(engine.connection, "list_progress", queue=engine.queue)} == {
        "default",
        "audit",
    }
    engine.ack(held)
    assert [row.subscription for row in listed(engine)] == ["audit"]


def test_what_runs_keeps_its_checkpoint_when_a_filter_comes_that_it_does_not_pass(engine: Engine) -> None:
    held = reported(engine)
    engine.call(
        "extend", subscription="default", lease_id=held.lease_id, token=held.token, lease_time="1 day"
    )
    engine.ask("subscribe", subscription="default", filter=Jsonb({"kinds": ["other"]}))
    with engine.clock("2 minutes"):
        assert engine.ask("forget") == 0
    engine.answer("retry", held, delays=[NOW])
    (message,) = engine.lease().messages
    assert message.options == {"checkpoint": True}
    assert engine.ask("show_checkpoint", id=message.id) == {"at": 7}
