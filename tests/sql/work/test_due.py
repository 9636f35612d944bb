"""What fell due, before what waits: functions/work/due.sql."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import ask, new_names, refused
from engine import THREE_SPANS, Engine
from keying import is_free, take
from laning import LATER

Connection = psycopg.Connection[Any]
FIRST = {"subscription": "default", "due_first": True}


@pytest.fixture
def engine(session: Connection, queue: str) -> Engine:
    work = Engine(session, queue)
    work.ask("subscribe", **FIRST)
    return work


def delay(work: Engine, count: int = 1, **options: Any) -> list[int]:
    """Messages that are due by the next statement."""
    return work.publish(count, delay="1 microsecond", **options)


def fall_due(work: Engine, count: int = 1, **options: Any) -> list[int]:
    """Messages that were delayed, and are in the log by now."""
    ids = delay(work, count, **options)
    assert work.ask("promote") == count
    return ids


def entries(work: Engine) -> int:
    """How many rows the list of what fell due has."""
    return int(work.fetch("select count(*) from trunq.due where queue_id = {id}"))


def test_what_fell_due_comes_before_what_waits_the_oldest_first(engine: Engine) -> None:
    waiting = engine.publish(5)
    due = fall_due(engine, 3)
    assert engine.lease(2).ids == due[:2]
    assert engine.lease(2).ids == due[2:]
    assert engine.lease(3).ids == waiting[:3]
    (late,) = fall_due(engine)
    assert engine.lease(3).ids == [late]
    assert engine.drain() == waiting[3:]
    assert not engine.lease(100)


def test_it_comes_in_the_order_in_which_it_was_due(engine: Engine) -> None:
    engine.publish(2)
    ids = [engine.publish(delay=f"{minutes} minutes")[0] for minutes in (3, 1, 2)]
    with engine.clock("5 minutes"):
        engine.ask("promote")
        assert engine.lease(10).ids == [ids[1], ids[2], ids[0]]


def test_its_lease_is_like_any(engine: Engine) -> None:
    engine.publish(3)
    (id,) = fall_due(engine, kinds=["mail"], options={"max_attempts": 7})
    held = engine.lease(5, worker="ada", lease_time="10 minutes")
    (message,) = held.messages
    assert (message.id, message.kind, message.attempt, message.max_attempts) == (id, "mail", 1, 7)
    assert message.payload == {"n": 0}
    assert (engine.message(id).state, engine.message(id).worker) == ("leased", "ada")
    assert engine.ack(held) == 1
    assert engine.state(id) == "done"
    assert [each["outcome"] for each in engine.message(id).attempts] == ["success"]


def test_a_retry_comes_before_what_waits_with_its_attempt_counted(engine: Engine) -> None:
    first, *rest = engine.publish(4)
    for attempt in (1, 2, 3):
        held = engine.lease()
        assert (held.ids, held.messages[0].attempt) == ([first], attempt)
        engine.answer("retry", held, delays=["1 microsecond"], errors=["no"])
        engine.ask("promote")
    engine.ask("subscribe", subscription="default", max_attempts=4)
    engine.answer("retry", engine.lease(), delays=["1 microsecond"], errors=["no"])
    assert engine.state(first) == "dead"
    assert len(engine.call("list_dead")[0].errors) == 4
    assert engine.drain() == rest


@pytest.mark.parametrize("end", ["retry", "release", "reap"])
def test_what_runs_again_at_once_waited_for_no_time(engine: Engine, end: str) -> None:
    first, second = engine.publish(2)
    held = engine.lease(lease_time="1 second")
    if end == "reap":
        with engine.clock("1 minute"):
            assert engine.ask("reap") == 1
    else:
        engine.answer(end, held, delays=["0"])
    assert engine.drain() == [second, first]


def test_a_dead_one_that_is_requeued_waits_like_a_new_one(engine: Engine) -> None:
    (dead,) = fall_due(engine)
    engine.answer("reject", engine.lease(), errors=["no"])
    waiting = engine.publish(2)
    assert engine.ask("requeue") == 1
    assert engine.drain() == [*waiting, dead]


def test_other_subscriptions_read_in_the_order_of_the_log_and_write_nothing(engine: Engine) -> None:
    engine.ask("subscribe", subscription="other")
    waiting = engine.publish(2)
    due = fall_due(engine, 2)
    assert entries(engine) == 2, "a row for the one that asked"
    assert engine.drain("other") == waiting + due
    assert engine.drain() == due + waiting


def test_a_retry_of_another_subscription_is_not_listed(engine: Engine) -> None:
    engine.ask("subscribe", subscription="other")
    engine.publish(1)
    engine.answer("retry", engine.lease(subscription="other"), delays=["1 microsecond"])
    assert engine.ask("promote") == 1
    assert entries(engine) == 0


def test_without_it_nothing_is_listed(session: Connection, queue: str) -> None:
    work = Engine(session, queue)
    waiting = work.publish(2)
    due = fall_due(work, 2)
    assert entries(work) == 0
    assert work.drain() == waiting + due
    assert work.fetch("select count(*) from trunq.ahead where queue_id = {id}") == 0


def test_it_is_switched_on_and_off_for_what_falls_due_from_then_on(engine: Engine) -> None:
    def is_on() -> bool:
        (row,) = engine.call("list_subscriptions")
        return bool(row.due_first)

    waiting = engine.publish(2)
    before = fall_due(engine)
    assert is_on()
    engine.ask("subscribe", subscription="default", max_attempts=3)
    assert is_on(), "what is not given stays"
    engine.ask("subscribe", subscription="default", due_first=False)
    assert not is_on()
    assert engine.lease().ids == waiting[:1]
    between = fall_due(engine)
    engine.ask("forget")
    assert entries(engine) == 0
    engine.ask("subscribe", **FIRST)
    after = fall_due(engine)
    assert engine.drain() == after + waiting[1:] + before + between


def test_a_subscription_is_made_with_it(engine: Engine) -> None:
    assert engine.ask("subscribe", subscription="new", due_first=True) is True
    waiting, due = engine.publish(1), fall_due(engine)
    assert engine.drain("new") == due + waiting


def test_a_filter_holds_when_it_falls_due_and_when_it_is_handed_out(engine: Engine) -> None:
    engine.ask("subscribe", subscription="default", filter={"kinds": ["mail"]})
    engine.publish(2, kinds=["mail", "mail"])
    first, parcel = fall_due(engine, 2, kinds=["mail", "parcel"])
    assert entries(engine) == 1
    second, _ = fall_due(engine, 2, kinds=["mail", "mail"])
    assert engine.lease(1).ids == [first]
    engine.ask("subscribe", subscription="default", filter={"kinds": ["mail", "parcel"]})
    assert engine.lease(1).ids == [second]
    engine.ask("subscribe", subscription="default", filter={"kinds": ["parcel"]})
    assert engine.lease(10).ids == [parcel]
    assert not engine.lease(10)


def test_a_filter_does_not_hold_a_retry(engine: Engine) -> None:
    (id,) = engine.publish(kinds=["mail"])
    held = engine.lease()
    engine.ask("subscribe", subscription="default", filter={"not_kinds": ["mail"]})
    waiting = engine.publish(1, kinds=["parcel"])
    engine.answer("retry", held, delays=["1 microsecond"])
    engine.ask("promote")
    assert engine.drain() == [id, *waiting]


def test_limits_and_pauses_hold(engine: Engine) -> None:
    engine.ask("subscribe", subscription="default", max_running=2)
    waiting = engine.publish(2)
    due = fall_due(engine, 3)
    first = engine.lease(10)
    assert first.ids == due[:2]
    assert not engine.lease(10)
    engine.ack(first)
    engine.ask("pause_subscription", subscription="default")
    assert not engine.lease(10)
    engine.ask("resume_subscription", subscription="default")
    assert engine.lease(10).ids == due[2:]
    assert engine.lease(10).ids == waiting[:1]


def test_a_rate_counts_them(engine: Engine) -> None:
    engine.ask("subscribe", subscription="default", rate=3, rate_interval="1 day", burst=3)
    waiting, due = engine.publish(3), fall_due(engine, 2)
    assert engine.lease(10).ids == due
    assert engine.lease(10).ids == waiting[:1]
    assert not engine.lease(10)


def test_one_lease_has_no_more_bytes_than_asked_for(engine: Engine) -> None:
    waiting = engine.publish(1)
    due = fall_due(engine, 3, bodies=[b"x" * 1000] * 3)
    assert engine.lease(10, max_bytes=2500).ids == due[:2]
    assert engine.lease(10, max_bytes=1).ids == due[2:]
    assert engine.lease(10, max_bytes=1).ids == waiting


def test_one_lease_has_no_more_bytes_than_any(engine: Engine) -> None:
    due = fall_due(engine, 2, bodies=[b"x" * 10_000_000] * 2)
    assert engine.lease(10, max_bytes=10**9).ids == due[:1]
    assert engine.lease(10).ids == due[1:]


def test_a_suspect_is_alone_in_its_lease(engine: Engine) -> None:
    (id,) = fall_due(engine)
    for hours in (1, 2):
        with engine.clock(f"{3 * hours} hours"):
            assert engine.lease(lease_time="1 second").ids == [id]
        with engine.clock(f"{3 * hours + 1} hours"):
            assert engine.ask("reap") == 1
        with engine.clock(f"{3 * hours + 2} hours"):
            engine.ask("promote")
    waiting = engine.publish(1)
    more = fall_due(engine, 2)
    with engine.clock("10 hours"):
        assert engine.lease(10).ids == [id]
        assert engine.lease(10).ids == more
        assert engine.lease(10).ids == waiting


def over(work: Engine, why: str, ids: list[int]) -> None:
    if why == "cancelled":
        work.call("cancel", ids=ids)
    elif why == "expired":
        options = '{{"expires_at": "2020-01-01T00:00:00Z"}}'
        work.rewrite(f"update {{log}} set options = '{options}' where id = any (%s)", ids)
    elif why == "outdated":
        work.rewrite("update {log} set created_at = '2020-01-01', options = null where id = any (%s)", ids)
        work.ask("subscribe", subscription="default", max_age="1 day")


@pytest.mark.parametrize("why", ["cancelled", "expired", "outdated"])
def test_what_is_over_is_left_to_the_position(engine: Engine, why: str) -> None:
    waiting = engine.publish(2)
    due = fall_due(engine, 3)
    over(engine, why, due[:1])
    assert engine.lease(10).ids == due[1:]
    assert engine.state(due[0]) == "ready"
    assert engine.drain() == waiting
    assert engine.state(due[0]) == ("outdated" if why == "outdated" else "dead")


@pytest.mark.parametrize("why", ["cancelled", "expired", "outdated"])
def test_many_that_are_over_hold_up_nobody(engine: Engine, why: str) -> None:
    waiting = engine.publish(2)
    due = fall_due(engine, 500)
    over(engine, why, due[:-1])
    assert engine.lease(1).ids == due[-1:]
    assert engine.drain() == waiting
    assert engine.status().ready == 0


def test_what_expired_before_it_was_due_is_not_listed(engine: Engine) -> None:
    (id,) = engine.publish(delay="1 minute", options={"expires_at": "2020-01-01T00:00:00Z"})
    with engine.clock("2 minutes"):
        engine.ask("promote")
        assert entries(engine) == 0
        assert not engine.lease(10)
    assert engine.state(id) == "dead"


def test_a_retry_that_is_cancelled_while_it_waits_is_dead(engine: Engine) -> None:
    (id,) = engine.publish()
    engine.answer("retry", engine.lease(), delays=["1 microsecond"])
    engine.ask("promote")
    engine.call("cancel", ids=[id])
    assert not engine.lease(10)
    assert engine.state(id) == "dead"


def test_what_was_taken_by_its_id_is_passed_over(engine: Engine) -> None:
    waiting = engine.publish(2)
    due = fall_due(engine, 3)
    engine.ack(engine.take(due[0]))
    engine.ack(engine.take(waiting[1]))
    assert engine.lease(1).ids == due[1:2]
    taken, rest = engine.lease_ids(due[1], due[2])
    assert (taken.ids, rest[due[1]].state) == ([due[2]], "leased")
    assert engine.drain() == waiting[:1]


def test_a_window_that_was_opened_before_does_not_hold_them_back(engine: Engine) -> None:
    waiting = engine.publish(5)
    assert engine.lease(2).ids == waiting[:2]
    due = fall_due(engine, 2)
    assert engine.lease(1).ids == due[:1]
    assert engine.lease(1).ids == due[1:]
    assert engine.drain() == waiting[2:]
    more = engine.publish(2)
    assert engine.drain() == more
    assert {engine.state(id) for id in waiting[2:]} == {"done"}


def test_the_log_is_let_go_and_the_list_forgotten(engine: Engine) -> None:
    for _ in range(3):
        fall_due(engine, 300)
        engine.publish(50)
        engine.drain()
    assert entries(engine) == 900
    assert engine.ask("forget") == 900
    assert entries(engine) == 0
    fall_due(engine, 3)
    assert engine.drain()
    engine.rotate(THREE_SPANS)
    assert engine.is_empty("log")
    engine.ask("forget")
    assert engine.fetch("select count(*) from trunq.ahead where queue_id = {id}") == 0
    waiting, due = engine.publish(1), fall_due(engine, 2)
    assert engine.drain() == due + waiting


def test_entries_whose_messages_wait_are_kept(engine: Engine) -> None:
    due = fall_due(engine, 5)
    assert engine.lease(2).ids == due[:2]
    assert engine.ask("forget") == 2
    waiting = engine.publish(1)
    assert engine.drain() == due[2:] + waiting


def test_rotation_keeps_what_waits_on_the_list(engine: Engine) -> None:
    waiting, due = engine.publish(2), fall_due(engine, 2)
    assert engine.rotate(THREE_SPANS) == 0
    assert engine.lease(1).ids == due[:1]
    engine.rotate(THREE_SPANS)
    assert engine.drain() == due[1:] + waiting


def test_what_was_lost_is_on_no_list_any_more(session: Connection) -> None:
    work = Engine(session, next(new_names("due_loss"))).create(hold_at_most="1 day", retention="1 day")
    work.ask("subscribe", **FIRST)
    work.publish(2)
    fall_due(work, 3)
    work.rotate(LATER)
    assert work.is_empty("log")
    with work.clock(LATER):
        with refused("TQ026"):
            work.lease(10)
        assert work.ask("accept_loss", subscription="default") >= 1
        assert not work.lease(10)
    assert entries(work) == 0


def test_unique_keys_are_freed_as_by_any_lease(session: Connection) -> None:
    work = Engine(session, next(new_names("due_unique"))).create(unique="refuse")
    work.ask("subscribe", **FIRST)
    work.publish(1)
    freed, _ = take(work, "leased", unique_until="leased", delay="1 microsecond")
    kept, _ = take(work, "done", unique_until="done", delay="1 microsecond")
    work.ask("promote")
    held = work.lease(5)
    assert held.ids == [freed, kept]
    assert is_free(work, "leased")
    assert not is_free(work, "done")
    work.ack(held)
    assert is_free(work, "done")


def test_one_that_another_stands_for_is_passed_over(session: Connection) -> None:
    work = Engine(session, next(new_names("due_replace"))).create(unique="replace")
    work.ask("subscribe", **FIRST)
    old, _ = take(work, "k", delay="1 microsecond")
    work.ask("promote")
    new, _ = take(work)
    (due,) = fall_due(work)
    assert work.lease(5).ids == [due]
    assert work.drain() == [new]
    assert work.state(old) == "replaced"


def test_one_that_was_parked_comes_first_when_it_is_resumed(engine: Engine) -> None:
    (id,) = engine.publish()
    held = engine.lease()
    assert engine.answer("park", held, tokens=["secret"], delays=["1 day"]) == 1
    waiting = engine.publish(2)
    assert engine.ask("resume", token="secret") == "resumed"
    engine.ask("promote")
    assert engine.drain() == [id, *waiting]


@pytest.mark.parametrize("verb", ["empty_queue", "reset", "unsubscribe"])
def test_what_ends_a_subscription_or_its_messages_forgets_the_list(engine: Engine, verb: str) -> None:
    fall_due(engine, 3)
    engine.lease(1)
    fall_due(engine, 3)
    engine.ask(verb, **({} if verb == "empty_queue" else {"subscription": "default"}))
    assert entries(engine) == 0
    if verb == "unsubscribe":
        engine.ask("subscribe", **FIRST)
    waiting, due = engine.publish(2), fall_due(engine, 2)
    assert engine.drain() == due + waiting


def test_a_subscription_that_starts_at_the_earliest_reads_all_once(engine: Engine) -> None:
    waiting, due = engine.publish(2), fall_due(engine, 2)
    engine.drain()
    engine.ask("reset", subscription="default", start="earliest")
    assert sorted(engine.drain()) == sorted(waiting + due)


def test_what_a_promotion_left_to_a_subscription_that_ended_is_forgotten(engine: Engine) -> None:
    fall_due(engine, 1)
    engine.run("update trunq.due set subscription_id = 2000000000 where queue_id = {id}")
    assert engine.ask("forget") == 1
    assert entries(engine) == 0


def test_a_queue_that_is_dropped_leaves_no_row(session: Connection) -> None:
    work = Engine(session, next(new_names("due_drop"))).create()
    work.ask("subscribe", **FIRST)
    fall_due(work, 2)
    id = work.queue_id
    work.ask("drop_queue", force=True)
    assert session.execute("select from trunq.due where queue_id = %s", (id,)).rowcount == 0


def test_one_that_the_log_refuses_holds_up_no_other(engine: Engine) -> None:
    engine.run("alter table {log} add constraint small check (kind <> 'bad')")
    good, _ = delay(engine, 2, kinds=["good", "bad"])
    waiting = engine.publish(1, kinds=["good"])
    engine.ask("promote")
    assert entries(engine) == 1
    assert engine.drain() == [good, *waiting]


def test_columns_of_the_user_come_along(engine: Engine) -> None:
    engine.run("alter table {log} add column colour text")
    engine.publish(1)
    engine.run("insert into {log} (payload, colour, due_at) values ('1', 'red', now())")
    engine.ask("promote")
    (id,) = engine.lease(5).ids
    assert engine.fetch("select colour from {log} where id = %s", id) == "red"


def test_a_promotion_of_several_parts_keeps_the_order(engine: Engine) -> None:
    waiting = engine.publish(1)
    due = delay(engine, 50)
    assert [engine.ask("promote", max=20) for _ in range(3)] == [20, 20, 10]
    assert engine.drain() == due + waiting


@pytest.mark.parametrize("lanes", ["key", "priority", "kind"])
def test_lanes_say_themselves_what_comes_next(session: Connection, lanes: str) -> None:
    work = Engine(session, next(new_names("due_lanes"))).create(lanes=lanes)
    with refused("TQ005", "has lanes", "default", "priority or key"):
        work.ask("subscribe", **FIRST)
    work.ask("subscribe", subscription="default", due_first=False)
    waiting, due = work.publish(1), fall_due(work)
    assert sorted(work.drain()) == waiting + due


def test_no_lanes_for_a_queue_where_what_fell_due_comes_first(engine: Engine) -> None:
    due = fall_due(engine, 2)
    with refused("TQ005", "default", "p_due_first => false"):
        engine.ask("convert_queue", lanes="key")
    assert engine.ask("convert_queue", unique="refuse", retention="14 days") is True
    assert engine.lease(1).ids == due[:1]
    # As the hint says.
    ask(engine.connection, "subscribe", queue=engine.queue, subscription="default", due_first=False)
    assert engine.drain() == due[1:]
    engine.publish(1)
    engine.drain()
    assert engine.ask("convert_queue", lanes="key") is True
    more = fall_due(engine, 2)
    assert sorted(engine.drain()) == more


def test_streams_and_groups_have_their_order(engine: Engine) -> None:
    with refused("TQ005", "stream", "exclusive", "shared"):
        engine.ask("subscribe", subscription="stream", mode="exclusive", due_first=True)
    engine.ask("subscribe", subscription="stream", mode="exclusive", due_first=False)
    engine.ask("create_group", group="crew", slots=2)
    with refused("TQ005", "crew", "due_first"):
        engine.ask("subscribe", subscription="crew", mode="exclusive", due_first=True)
    engine.ask("subscribe", subscription="crew", mode="exclusive", due_first=False)
