"""How old a message may be for a subscription (max_age): an older one is passed over, and counted."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import ask, new_names, refused
from engine import Engine
from laning import EVERY_QUEUE, LATER, make_any

Connection = psycopg.Connection[Any]
HOUR = {"subscription": "default", "max_age": "1 hour"}


@pytest.fixture(params=EVERY_QUEUE)
def engine(session: Connection, request: pytest.FixtureRequest) -> Engine:
    made = make_any(session, request.param)
    made.ask("subscribe", **HOUR)
    return made


@pytest.fixture
def work(session: Connection) -> Engine:
    made = Engine(session, next(new_names("age"))).create(unique="refuse")
    made.ask("subscribe", **HOUR)
    return made


def old(work: Engine, count: int, age: str = "2 hours", **more: str) -> list[int]:
    """Messages of before: the clock of a test moves no default of a column."""
    columns, values = "".join(f", {name}" for name in more), ", %s" * len(more)
    rows = work.run(
        f"insert into {{log}} (payload, created_at{columns})"
        f" select '1', now() - %s::interval{values} from generate_series(1, %s) returning id",
        *(age, *more.values(), count),
    )
    return [id for (id,) in rows]


def counted(work: Engine, state: str = "outdated") -> list[int]:
    return sorted(work.listed(state=state))


def test_what_is_too_old_is_passed_over_counted_and_kept_nowhere(engine: Engine) -> None:
    ids = old(engine, 5)
    assert not engine.lease(10)
    late = old(engine, 2, "50 minutes")
    assert engine.drain() == late
    status = engine.status()
    assert (status.ready, status.leased, status.dead) == (0, 0, 0)
    assert {engine.state(id) for id in ids} == {"outdated"}
    assert [each["outcome"] for each in engine.message(ids[0]).attempts] == ["outdated"]
    assert counted(engine) == ids
    view = engine.run("select id from trunq_queue.{queue}_messages where state = 'outdated' order by id")
    assert [id for (id,) in view] == ids
    with engine.clock("4 hours"):
        while engine.ask("roll_up"):
            pass
        told = {row.outcome: row.messages for row in engine.call("statistics", last="1 day")}
    assert told == {"outdated": 5, "success": 2}


@pytest.mark.parametrize("count", [1, 3, 100])
def test_a_lease_of_any_size_finds_the_young_between_the_old(engine: Engine, count: int) -> None:
    first, young, second = old(engine, 3), engine.publish(2), old(engine, 3)
    found: list[int] = []
    while held := engine.lease(count):
        assert len(held.ids) <= count
        found += held.ids
        engine.ack(held)
    assert found == young
    assert counted(engine) == sorted(first + second)


def test_one_subscription_passes_over_what_another_reads(engine: Engine) -> None:
    engine.ask("subscribe", subscription="audit")
    ids = engine.publish(2)
    with engine.clock("2 hours"):
        assert not engine.lease(5)
        assert engine.drain("audit") == ids


def test_a_subscription_forgets_its_max_age(engine: Engine) -> None:
    ids = engine.publish(2)
    engine.ask("subscribe", subscription="default", max_age="0")
    with engine.clock("2 hours"):
        assert engine.drain() == ids


def test_a_retry_is_as_old_as_its_message(engine: Engine) -> None:
    ids = engine.publish(2)
    with engine.clock("50 minutes"):
        engine.answer("retry", engine.lease(2), delays=["0", "20 minutes"], errors=["no", "no"])
        held = engine.lease(2)
        assert held.ids == ids[:1]
        engine.answer("retry", held, delays=["20 minutes"])
    with engine.clock("80 minutes"):
        assert engine.ask("promote") == 2
        assert not engine.lease(2)
        (first, *_, last) = engine.message(ids[1]).attempts
    assert (first["outcome"], last["outcome"], engine.state(ids[1])) == ("failed", "outdated", "outdated")


def test_what_was_published_for_later_is_as_old_as_its_due_time(engine: Engine) -> None:
    (first,) = engine.publish(delay="3 hours")
    (second,) = engine.publish(delay="5 hours")
    with engine.clock("3 hours 30 minutes"):
        engine.ask("promote")
        assert engine.lease(5).ids == [first]
    with engine.clock("7 hours"):
        engine.ask("promote")
        assert not engine.lease(5)
    assert engine.state(second) == "outdated"


def test_what_somebody_requeues_is_young_again(engine: Engine) -> None:
    (id,) = engine.publish()
    engine.answer("reject", engine.lease())
    with engine.clock("5 hours"):
        assert engine.ask("requeue") == 1
        assert engine.lease().ids == [id]


def test_what_expired_or_was_cancelled_is_that_also_when_it_is_old(engine: Engine) -> None:
    (expired,) = engine.publish(max_age="30 minutes")
    (cancelled,) = engine.publish()
    engine.call("cancel", ids=[cancelled])
    with engine.clock("2 hours"):
        assert not engine.lease(5)
    assert {row.id: row.reason for row in engine.call("list_dead")} == {
        expired: "expired",
        cancelled: "cancelled",
    }


def test_what_is_too_old_counts_neither_against_a_rate_nor_a_running_limit(engine: Engine) -> None:
    old(engine, 5)
    ids = engine.publish(5)
    limits = {"rate": 1, "rate_interval": "1000 days", "burst": 3, "max_running": 2}
    engine.ask("subscribe", subscription="default", **limits)
    first = engine.lease(9)
    assert first.ids == ids[:2]
    engine.ack(first, ids[:1])
    assert engine.lease(9).ids == ids[2:3]


def test_a_key_in_order_goes_on_behind_what_is_too_old(session: Connection) -> None:
    work = Engine(session, next(new_names("age"))).create(lanes="key")
    work.ask("subscribe", **HOUR, in_order=True)
    ids = old(work, 3, "50 minutes", key="a")
    work.answer("retry", work.lease(5), delays=["20 minutes"])
    young = work.publish(2, keys=["a"])
    with work.clock("21 minutes"):
        work.ask("promote")
        found = []
        while held := work.lease(5):
            found += held.ids
            work.ack(held)
    assert found == young
    assert counted(work) == ids


def test_a_unique_key_is_free_once_its_message_was_passed_over(work: Engine) -> None:
    (first,) = work.call("publish_unique", unique_key="k")
    assert not work.call("publish_unique", unique_key="k")[0].is_new
    with work.clock("2 hours"):
        assert not work.lease()
        (second,) = work.call("publish_unique", unique_key="k")
    assert second.is_new
    assert work.lease().ids == [second.id] != [first.id]


def test_who_awaits_a_message_that_is_too_old_hears_of_it(work: Engine) -> None:
    (id,) = work.publish(options={"awaited": True})
    with work.clock("2 hours"):
        assert not work.lease()
        (reply,) = work.call("list_replies", ids=[id])
    assert (reply.id, reply.outcome, reply.result) == (id, "outdated", None)


def test_progress_of_an_attempt_before_goes_with_it(work: Engine) -> None:
    work.publish()
    held = work.lease()
    named = {key: value for key, value in held.named.items() if key != "queue"}
    work.ask("set_progress", **named, id=held.ids[0], percent=50)
    work.answer("retry", held, delays=["0"])
    with work.clock("2 hours"):
        work.ask("promote")
        assert not work.lease()
    assert work.fetch("select count(*) from trunq.progress where queue_id = {id}") == 0


def test_rotation_empties_what_was_passed_over(session: Connection) -> None:
    work = Engine(session, next(new_names("age"))).create()
    work.ask("subscribe", **HOUR)
    old(work, 3)
    assert not work.lease(5)
    work.rotate(LATER)
    assert work.is_empty("log")


def test_a_stream_and_a_group_have_no_max_age(session: Connection) -> None:
    work = Engine(session, next(new_names("age"))).create()
    with refused("TQ005", "exclusive", "give max_age to a shared subscription"):
        work.ask("subscribe", subscription="lake", mode="exclusive", max_age="1 hour")
    work.ask("create_group", group="crew", slots=2)
    with refused("TQ005", "max_age"):
        work.ask("subscribe", subscription="crew", mode="exclusive", max_age="1 hour")
    with refused("TQ005", "max_age"):
        work.ask("subscribe", subscription="default", max_age="-1 hour")


def test_an_option_that_says_when_a_message_was_due_is_readable(work: Engine) -> None:
    with refused("TQ005", "no option"):
        work.publish(options={"due_at": "2020-01-01T00:00:00Z"})
    with pytest.raises(psycopg.errors.CheckViolation):
        work.run("""insert into {log} (options) values ('{{"due_at": "soon"}}')""")


def test_one_that_was_parked_is_as_old_as_its_resumption(engine: Engine) -> None:
    (id,) = engine.publish()
    held = engine.lease()
    ask(engine.connection, "park", **held.named, ids=held.ids, tokens=["t"], delays=["1 day"])
    with engine.clock("5 hours"):
        assert engine.ask("resume", token="t", value=None) == "resumed"
        engine.ask("promote")
    with engine.clock("5 hours 50 minutes"):
        assert engine.lease(5).ids == [id]
    assert counted(engine) == []
