"""Leasing messages by their ids: functions/work/ahead.sql."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import come_back, new_names, refused
from engine import THREE_SPANS, Engine
from keying import is_free, take

Connection = psycopg.Connection[Any]


@pytest.fixture
def engine(session: Connection, queue: str) -> Engine:
    return Engine(session, queue)


def others(engine: Engine, *ids: int, **more: Any) -> dict[int, tuple[str | None, str | None]]:
    """What messages are that are not to be had."""
    held, rest = engine.lease_ids(*ids, **more)
    assert not held
    return {id: (row.state, row.reason) for id, row in rest.items()}


def test_a_message_is_taken_ahead_of_those_that_wait_before_it(engine: Engine) -> None:
    ids = engine.publish(5, kinds=["letter"])
    held, rest = engine.lease_ids(ids[3], ids[1], worker="w1", lease_time="10 minutes")
    assert (held.ids, rest) == ([ids[3], ids[1]], {})
    (row, _) = held.messages
    assert (row.state, row.reason, row.worker, row.attempt, row.kind) == ("leased", None, "w1", 1, "letter")
    assert row.payload == {"n": 3}
    assert len({(each.lease_id, each.token, each.expires_at) for each in held.messages}) == 1
    assert engine.state(ids[3]) == "leased"
    assert engine.status().ready == 3
    assert engine.status().leased == 2
    assert engine.ack(held) == 2
    assert engine.drain() == [ids[0], ids[2], ids[4]]
    assert {engine.state(id) for id in ids} == {"done"}


@pytest.mark.parametrize("count", [1, 2, 100])
@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_no_plain_lease_gets_it_again_wherever_the_position_is(
    engine: Engine, before: int, count: int
) -> None:
    early = engine.publish(4)
    found = engine.lease(before).ids if before else []
    late = engine.publish(4)
    taken = engine.take(early[3], late[0], late[2])
    assert engine.listed(state="ready") == sorted({*early, *late} - {*taken.ids, *found}, reverse=True)
    while held := engine.lease(count):
        found += held.ids
        engine.ack(held)
    assert sorted(found) == sorted({*early, *late} - {*taken.ids})
    assert len(found) == len(set(found))
    assert engine.ack(taken) == 3
    assert engine.message(late[0]).attempts[0]["outcome"] == "success"


def test_who_comes_late_learns_who_has_it(engine: Engine) -> None:
    (id,) = engine.publish()
    held = engine.take(id, worker="first")
    _, rest = engine.lease_ids(id, worker="second")
    assert (rest[id].state, rest[id].worker) == ("leased", "first")
    assert rest[id].expires_at == held.messages[0].expires_at
    engine.ack(held)
    assert others(engine, id) == {id: ("done", None)}


def test_what_a_plain_lease_has_is_not_to_be_had(engine: Engine) -> None:
    first, second = engine.publish(2)
    engine.lease(worker="plain")
    held, rest = engine.lease_ids(first, second)
    assert held.ids == [second]
    assert (rest[first].state, rest[first].worker) == ("leased", "plain")


def test_each_id_is_told_what_it_is(engine: Engine) -> None:
    done, dead, again, waits = engine.publish(4)
    gone = engine.publish()[0]
    (scheduled,) = engine.publish(delay="1 hour")
    engine.ack(engine.take(done))
    engine.answer("reject", engine.take(dead), errors=["no"])
    engine.answer("retry", engine.take(again), delays=["1 hour"])
    engine.call("cancel", ids=[gone])
    nowhere = gone + 1000000
    held, rest = engine.lease_ids(done, dead, again, waits, gone, scheduled, nowhere, waits)
    assert held.ids == [waits]
    assert {id: (row.state, row.reason) for id, row in rest.items()} == {
        done: ("done", None),
        dead: ("dead", "rejected"),
        again: ("retrying", None),
        gone: ("ready", "cancelled"),
        scheduled: ("scheduled", None),
        nowhere: (None, None),
    }
    assert rest[again].due_at is not None
    assert rest[scheduled].due_at is not None
    assert not engine.lease(10)
    assert others(engine, gone) == {gone: ("dead", "cancelled")}


def test_one_that_expired_is_left_to_die(engine: Engine) -> None:
    (id,) = engine.publish(options={"expires_at": "2020-01-01T00:00:00Z"})
    assert others(engine, id) == {id: ("ready", "expired")}
    assert not engine.lease()
    assert others(engine, id) == {id: ("dead", "expired")}


@pytest.mark.parametrize("end", ["retry", "release", "reap"])
@pytest.mark.parametrize("how", ["plain", "ids"])
def test_whatever_comes_back_is_handed_out_once_more(engine: Engine, end: str, how: str) -> None:
    ids = engine.publish(3)
    held = engine.take(ids[1], lease_time="1 second")
    if end == "reap":
        with engine.clock("10 seconds"):
            assert engine.ask("reap") == 1
        come_back(engine.connection, engine.queue)
    else:
        engine.answer(end, held, delays=["0"])
    assert engine.state(ids[1]) == "ready"
    if how == "ids":
        again = engine.take(ids[1])
        assert again.messages[0].attempt == (1 if end == "release" else 2)
        engine.ack(again)
        assert engine.drain() == [ids[0], ids[2]]
    else:
        assert engine.drain() == [ids[0], ids[2], ids[1]]
    outcomes = [each["outcome"] for each in engine.message(ids[1]).attempts]
    assert outcomes == [{"retry": "failed", "release": "released", "reap": "lease_expired"}[end], "success"]
    assert {engine.state(id) for id in ids} == {"done"}


def test_one_of_a_transaction_that_is_not_visible_is_nowhere_and_comes_by_itself(
    engine: Engine, open_session: Any
) -> None:
    writer = open_session(autocommit=False)
    (late,) = engine.on(writer).publish()
    (seen,) = engine.publish()
    taken, rest = engine.lease_ids(late, seen)
    assert taken.ids == [seen]
    assert rest[late].state is None
    writer.commit()
    assert engine.drain() == [late]
    engine.ack(taken)
    assert not engine.lease()


def test_a_late_one_may_be_taken_too(engine: Engine, open_session: Any) -> None:
    writer = open_session(autocommit=False)
    late = engine.on(writer).publish(3)
    early = engine.publish(2)
    assert engine.drain() == early
    writer.commit()
    taken = engine.take(late[1])
    assert engine.drain() == [late[0], late[2]]
    engine.ack(taken)
    assert {engine.state(id) for id in late + early} == {"done"}


def test_other_subscriptions_read_it_all_the_same(engine: Engine) -> None:
    engine.ask("subscribe", subscription="other")
    ids = engine.publish(3)
    engine.ack(engine.take(ids[2]))
    assert engine.drain("other") == ids
    assert engine.drain() == ids[:2]


def test_a_filter_says_what_there_is(engine: Engine) -> None:
    engine.ask("subscribe", subscription="letters", filter={"kinds": ["letter"]})
    letter, parcel = engine.publish(2, kinds=["letter", "parcel"])
    held, rest = engine.lease_ids(letter, parcel, subscription="letters")
    assert held.ids == [letter]
    assert rest[parcel].state is None


def test_a_pause_holds_and_limits_hold(engine: Engine) -> None:
    ids = engine.publish(5)
    engine.ask("pause_subscription", subscription="default")
    assert others(engine, ids[0]) == {ids[0]: ("ready", "paused")}
    engine.ask("resume_subscription", subscription="default")
    engine.ask("subscribe", subscription="default", max_running=2)
    held, rest = engine.lease_ids(*ids)
    assert held.ids == ids[:2]
    assert {(row.state, row.reason) for row in rest.values()} == {("ready", "limit")}
    assert not engine.lease()
    engine.ack(held)
    assert engine.lease(10).ids == ids[2:4]


def test_a_rate_counts_it(engine: Engine) -> None:
    engine.ask("subscribe", subscription="default", rate=2, rate_interval="1 day", burst=2)
    ids = engine.publish(3)
    engine.take(ids[2])
    assert engine.lease(10).ids == ids[:1]
    assert not engine.lease()


def test_a_suspect_is_named_by_itself(engine: Engine) -> None:
    ids = engine.publish(3)
    for attempt in range(2):
        engine.take(ids[1], lease_time="1 second")
        with engine.clock(f"{10 * (attempt + 1)} seconds"):
            assert engine.ask("reap") == 1
        come_back(engine.connection, engine.queue)
    held, rest = engine.lease_ids(*ids)
    assert sorted(held.ids) == [ids[0], ids[2]]
    assert (rest[ids[1]].state, rest[ids[1]].reason) == ("ready", "alone")
    assert engine.take(ids[1])
    assert engine.fetch("select count(*) from {lease} where is_suspect") == 1


def test_one_lease_has_no_more_bytes_than_any(engine: Engine) -> None:
    many = engine.publish(bodies=[b"x" * 10_000_000])
    more = engine.publish(bodies=[b"x" * 10_000_000])
    held, rest = engine.lease_ids(*many, *more)
    assert held.ids == many
    assert rest[more[0]].reason == "bytes"
    assert engine.take(*more)


@pytest.mark.parametrize("when", ["before", "after"])
def test_rotation_keeps_what_was_taken_and_empties_the_rest(engine: Engine, when: str) -> None:
    ids = engine.publish(4)
    held = engine.take(ids[2], lease_time="100 days")
    if when == "before":
        assert engine.drain() == [ids[0], ids[1], ids[3]]
    engine.rotate(THREE_SPANS)
    assert not engine.is_empty("log")
    assert engine.fetch("select count(*) from trunq.ahead where queue_id = {id}") == 1
    engine.answer("retry", held, delays=["0"])
    assert engine.drain() == ([ids[2]] if when == "before" else [ids[0], ids[1], ids[3], ids[2]])
    engine.rotate(THREE_SPANS)
    assert engine.is_empty("log")
    assert engine.fetch("select count(*) from {lease} where ids is not null") == 0
    engine.ask("forget")
    assert engine.fetch("select count(*) from trunq.ahead where queue_id = {id}") == 0


def test_a_reader_that_takes_by_ids_alone_lets_the_log_go(engine: Engine) -> None:
    for _ in range(3):
        ids = engine.publish(300)
        engine.ack(engine.take(*ids[:150]))
        engine.ack(engine.take(*ids[150:]))
    position = engine.fetch(
        "select last_txid >= pg_snapshot_xmax(hi) from {lease} order by lease_id desc limit 1"
    )
    assert position is True
    assert engine.status().ready == 0
    engine.rotate(THREE_SPANS)
    assert engine.is_empty("log")


def test_a_position_that_is_behind_all_of_them_looks_for_none(engine: Engine) -> None:
    ids = engine.publish(3)
    engine.ack(engine.take(ids[1]))
    newest = "select ahead from {lease} order by lease_id desc limit 1"
    assert engine.fetch(newest) is not None
    engine.drain()
    engine.publish(2)
    engine.drain()
    engine.publish(2)
    engine.drain()
    assert engine.fetch(newest) is None
    assert engine.state(ids[1]) == "done"


def test_a_cursor_that_rotation_carries_still_passes_over_it(engine: Engine) -> None:
    ids = engine.publish(3)
    engine.take(ids[1], lease_time="100 days")
    engine.run("update {lease} set segment = segment where true")
    row = "(select q from trunq.queue q where q.queue_id = {id})"
    engine.run(
        f"select trunq._carry_cursor({row}, s.subscription_id, 0::smallint, p.lo, p.hi, p.last_txid,"
        " p.last_id) from trunq.subscription s cross join lateral"
        f" trunq._position({row}, s.subscription_id) p where s.queue_id = {{id}}"
    )
    assert engine.drain() == [ids[0], ids[2]]


def test_done_ones_are_listed_though_the_position_is_before_them(engine: Engine) -> None:
    ids = engine.publish(10)
    engine.ack(engine.take(ids[3], ids[8]))
    assert engine.listed(state="done") == [ids[8], ids[3]]
    assert engine.listed(state="ready") == sorted({*ids} - {ids[3], ids[8]}, reverse=True)
    view = "select array_agg(id order by id) from trunq_queue.{queue}_messages where state = %s"
    assert engine.fetch(view, "done") == [ids[3], ids[8]]
    assert engine.fetch(view, "ready") == sorted({*ids} - {ids[3], ids[8]})


def test_its_unique_keys_are_freed_as_by_any_lease(session: Connection) -> None:
    engine = Engine(session, next(new_names("ahead_unique"))).create(unique="refuse")
    freed, _ = take(engine, "leased", unique_until="leased")
    kept, _ = take(engine, "done", unique_until="done")
    held = engine.take(freed, kept)
    assert is_free(engine, "leased")
    assert not is_free(engine, "done")
    engine.ack(held)
    assert is_free(engine, "done")


def test_a_newer_one_that_stands_for_it_is_told(session: Connection) -> None:
    engine = Engine(session, next(new_names("ahead_replace"))).create(unique="replace")
    old, _ = take(engine)
    new, _ = take(engine)
    held, rest = engine.lease_ids(old, new)
    assert held.ids == [new]
    assert rest[old].state == "replaced"
    assert not engine.lease()


@pytest.mark.parametrize("lanes", ["key", "priority"])
def test_lanes_say_themselves_what_comes_next(session: Connection, lanes: str) -> None:
    engine = Engine(session, next(new_names("ahead_lanes"))).create(lanes=lanes)
    (id,) = engine.publish()
    with refused("TQ005", "has lanes", "set_lane"):
        engine.lease_ids(id)


def test_streams_hand_out_batches(engine: Engine) -> None:
    engine.ask("subscribe", subscription="stream", mode="exclusive")
    with refused("TQ011"):
        engine.lease_ids(1, subscription="stream")


@pytest.mark.parametrize("ids", ["null", "array[1, null]", "array(select generate_series(1, 10001))"])
def test_what_is_no_list_of_ids_is_refused(engine: Engine, ids: str) -> None:
    with refused("TQ005"):
        engine.run(f"select * from trunq.lease_ids('{engine.queue}', 'default', 'w', {ids})")


@pytest.mark.parametrize("taker", ["default", "other"])
def test_a_row_of_another_reader_at_the_same_place_takes_none_along(engine: Engine, taker: str) -> None:
    """One message that both retry is promoted for both in one transaction: two rows with one txid and id."""
    engine.ask("subscribe", subscription="other")
    (id,) = engine.publish()
    for subscription in ("default", "other"):
        held = engine.lease(subscription=subscription)
        engine.answer("retry", held, delays=["1 microsecond"])
    assert engine.ask("promote") == 2
    for _ in range(2):
        # The first one ends the window, the second begins that of the two rows.
        engine.ack(engine.take(*engine.publish(), subscription=taker))
    assert engine.state(id, taker) == "ready"
    assert engine.drain(taker) == [id]


def test_no_ids_are_nothing(engine: Engine) -> None:
    assert not engine.lease_ids()[0]
    assert engine.fetch("select count(*) from {lease}") == 0


def test_dropping_and_emptying_forgets_it(engine: Engine) -> None:
    count = "select count(*) from trunq.ahead where queue_id = {id}"
    engine.ask("subscribe", subscription="other")
    ids = engine.publish(3)
    engine.take(ids[2])
    engine.take(ids[2], subscription="other")
    engine.ask("unsubscribe", subscription="other")
    assert engine.fetch(count) == 1
    engine.ask("empty_queue")
    assert engine.fetch(count) == 0
    more = engine.publish(2)
    assert engine.drain() == more


def test_what_is_too_old_for_the_subscription_is_told_and_passed_over(engine: Engine) -> None:
    engine.call("subscribe", subscription="default", max_age="10 minutes")
    (old,) = engine.publish(1)
    with engine.clock("11 minutes"):
        assert others(engine, old) == {old: ("ready", "outdated")}
        assert engine.drain() == []
        assert engine.state(old) == "outdated"
        assert others(engine, old) == {old: ("outdated", None)}


def test_a_message_of_this_transaction_goes_back_and_comes_again(engine: Engine) -> None:
    with engine.connection.transaction():
        (id,) = engine.publish()
        engine.answer("release", engine.take(id))
    come_back(engine.connection, engine.queue)
    assert engine.lease().ids == [id]


def test_what_falls_due_goes_back_in_the_same_transaction_and_comes_again(engine: Engine) -> None:
    engine.ask("subscribe", subscription="default", due_first=True)
    (id,) = engine.publish(delay="1 microsecond")
    with engine.connection.transaction():
        assert engine.ask("promote") == 1
        engine.answer("release", engine.lease())
    come_back(engine.connection, engine.queue)
    engine.ack(engine.lease())
    assert engine.state(id) == "done"
