"""Streams: parts of batches, failures by halves, retries, thresholds, and ticks that readers cut."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from calling import fetch, new_names, refused
from conftest import Connect
from engine import Engine
from streaming import LAKE, ids, named, put_batches, read, stream, take


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    """A queue that one stream reads."""
    work = Engine(session, next(new_names("stream")))
    work.create(retention="2000 days", default_subscription=False)
    work.ask("subscribe", **LAKE, mode="exclusive", max_attempts=3)
    return work


def open_batches(work: Engine) -> int:
    return int(stream(work).batches)


def test_a_reader_cuts_the_tick_it_needs(work: Engine) -> None:
    assert take(work) is None
    before = work.call("list_ticks")
    published = work.publish(3)
    assert take(work, cut=False) is None
    batch = take(work)
    assert ids(read(work, batch)) == published
    assert [tick.tick_id for tick in work.call("list_ticks")] == [*ids_of(before), batch.to_tick_id]
    assert work.ask("finish_batch", **named(batch))
    for _ in range(3):
        assert take(work) is None
    assert len(work.call("list_ticks")) == len(before) + 1, "nothing new, nothing written"


def ids_of(ticks: Collection[Any]) -> list[int]:
    return [tick.tick_id for tick in ticks]


def test_a_reader_whose_tick_another_cuts_just_now_comes_back(work: Engine, open_session: Connect) -> None:
    published = work.publish(2)
    cutting = work.on(open_session(autocommit=False))
    tick = cutting.ask("tick", force=True)
    assert take(work) is None, "it does not wait for a transaction that stays open"
    cutting.connection.commit()
    batch = take(work)
    assert (batch.to_tick_id, ids(read(work, batch))) == (tick, published)


def test_rolled_back_and_uncommitted_messages_cut_no_tick(work: Engine, open_session: Connect) -> None:
    late = work.on(open_session(autocommit=False))
    (id,) = late.publish()
    with work.connection.transaction(force_rollback=True):
        work.publish()
    assert take(work) is None
    late.connection.commit()
    assert ids(read(work, take(work))) == [id]


def test_an_idle_queue_gets_no_ticks_unless_it_is_to(work: Engine) -> None:
    ticks = len(work.call("list_ticks"))
    with work.clock("1 day"):
        assert work.ask("tick") is None
    work.ask("set_queue", tick_idle_period="1 min")
    with work.clock("1 day"):
        assert work.ask("tick") is not None
    assert len(work.call("list_ticks")) == ticks + 1
    work.ask("set_queue", tick_idle_period="0")
    with work.clock("2 days"):
        assert work.ask("tick") is None


def test_a_batch_is_read_in_pages(work: Engine) -> None:
    published = work.publish(5) + work.publish(5)
    batch = take(work)
    first = read(work, batch, limit=4)
    second = read(work, batch, limit=4, after_txid=first[-1].txid, after_id=first[-1].id)
    rest = read(work, batch, after_txid=second[-1].txid, after_id=second[-1].id)
    assert ids([*first, *second, *rest]) == published
    with refused("TQ005", "txid and the id"):
        read(work, batch, after_id=1)


def test_a_batch_is_read_in_pages_whatever_commits_late(work: Engine, open_session: Connect) -> None:
    """Late transactions lie before the rest of their window."""
    late = [work.on(open_session(autocommit=False)) for _ in range(2)]
    published = [each.publish(3) for each in late]
    work.ask("tick", force=True)
    assert work.ask("finish_batch", **named(take(work)))
    for each in late:
        each.connection.commit()
    everything = [*published[0], *published[1], *work.publish(3)]
    batch = take(work)
    found, after = [], {}
    while rows := read(work, batch, limit=2, **after):
        found += ids(rows)
        after = {"after_txid": rows[-1].txid, "after_id": rows[-1].id}
    assert found == everything == ids(read(work, batch))


def test_a_batch_is_read_by_a_filter(work: Engine) -> None:
    work.publish(2, kinds=["a"])
    wanted = work.publish(2, kinds=["b"])
    assert ids(read(work, take(work), filter={"kinds": ["b"]})) == wanted
    with refused("TQ005"):
        read(work, take(work), filter={"no_such": 1})


def test_a_batch_is_finished_up_to_a_message(work: Engine) -> None:
    published = work.publish(10)
    batch = take(work)
    rows = read(work, batch)
    assert work.ask("finish_batch", **named(batch), upto_txid=rows[3].txid, upto_id=rows[3].id)
    assert work.ask("position", **LAKE) == batch.from_tick_id, "the window is not used up"
    assert stream(work).pending == 6
    assert not work.ask("finish_batch", **named(batch)), "finished before"
    rest = take(work)
    assert (rest.from_tick_id, rest.to_tick_id, rest.is_part) == (batch.from_tick_id, batch.to_tick_id, True)
    assert ids(read(work, rest)) == published[4:]
    for wrong in (rows[3], rows[0]):
        with refused("TQ005", f"does not lie in batch {rest.batch_id}"):
            work.ask("finish_batch", **named(rest), upto_txid=wrong.txid, upto_id=wrong.id)
    assert work.ask("finish_batch", **named(rest), upto_txid=rows[9].txid, upto_id=rows[9].id)
    assert (open_batches(work), work.ask("position", **LAKE)) == (0, batch.to_tick_id), "that was all of it"
    assert take(work) is None


def test_effects_and_a_part_of_a_batch_commit_together(work: Engine) -> None:
    published = work.publish(4)
    batch = take(work)
    rows = read(work, batch)
    with work.connection.transaction(force_rollback=True):
        work.ask("finish_batch", **named(batch), upto_txid=rows[1].txid, upto_id=rows[1].id)
    again = take(work)
    assert (again.batch_id, ids(read(work, again))) == (batch.batch_id, published)


def drain(work: Engine, killers: Collection[int], fail: Callable[[Any], None]) -> tuple[list[int], int]:
    """Read to the end: what was done in order, and how many hand-outs it took."""
    done: list[int] = []
    for handed_out in range(1000):
        batch = take(work)
        if batch is None:
            return done, handed_out
        found = ids(read(work, batch))
        if set(found) & set(killers):
            fail(batch)
        else:
            done += found
            assert work.ask("finish_batch", **named(batch))
    raise AssertionError("the stream never comes to an end")


@pytest.mark.parametrize("way", ["says", "dies", "asks again"])
def test_one_killer_of_five_hundred_dies_alone_and_soon(work: Engine, way: str) -> None:
    published = work.publish(500)
    clock = iter(range(1, 1000))

    def fail(batch: Any) -> None:
        if way == "says":
            work.ask("fail_batch", **named(batch), error="too hot", after="0")
        elif way == "dies":
            work.connection.execute(f"set trunq.clock_offset = '{next(clock)} h'".encode())

    killer = published[346]
    done, handed_out = drain(work, {killer}, fail)
    work.connection.execute("reset trunq.clock_offset")
    assert done == [id for id in published if id != killer]
    assert handed_out <= 23
    ((dead,),) = (work.call("list_dead", **LAKE),)
    assert (dead.id, dead.reason) == (killer, "max_attempts")
    said = {"says": "too hot"}.get(way, "of worker ada was not finished")
    assert said in dead.errors[-1]["error"]
    assert (open_batches(work), take(work)) == (0, None)


def test_a_message_that_came_to_be_alone_may_fail_as_often_as_a_batch(work: Engine) -> None:
    """Its reader may have been restarted: that is not its fault."""
    published = work.publish(3)
    for _ in range(3 + 1):  # the whole batch, then two of it
        work.ask("fail_batch", **named(take(work)), after="0")
    for attempt in (1, 2, 3):
        batch = take(work)
        assert (ids(read(work, batch)), batch.attempt) == (published[:1], attempt)
        if attempt < 3:
            work.ask("fail_batch", **named(batch), after="0")
    assert work.ask("finish_batch", **named(batch))
    assert drain(work, (), lambda _: None)[0] == published[1:]
    assert work.call("list_dead", **LAKE) == []


@pytest.mark.parametrize(("count", "most"), [(3, 67), (20, 270)])
def test_many_killers_die_and_nobody_else(work: Engine, count: int, most: int) -> None:
    published = work.publish(500)
    killers = set(published[7 :: 500 // count][:count])
    done, handed_out = drain(
        work, killers, lambda batch: work.ask("fail_batch", **named(batch), error="e", after="0")
    )
    assert done == [id for id in published if id not in killers]
    assert handed_out <= most
    assert {row.id for row in work.call("list_dead", **LAKE)} == killers


def test_without_a_limit_of_attempts_a_batch_stays_whole(work: Engine) -> None:
    work.ask("subscribe", **LAKE, mode="exclusive", max_attempts=0)
    published = work.publish(3)
    for attempt in range(1, 30):
        batch = take(work)
        assert (batch.attempt, batch.is_part, ids(read(work, batch))) == (attempt, False, published)
        work.ask("fail_batch", **named(batch), after="0")


def test_a_message_that_may_fail_more_often_waits_and_the_stream_goes_on(work: Engine) -> None:
    (id,) = work.publish(options={"max_attempts": 50})
    for _ in range(3):
        work.ask("fail_batch", **named(take(work)), after="0")
    assert take(work) is None
    assert work.call("list_dead", **LAKE) == []
    with work.clock("1 day"):
        assert work.ask("promote") == 1
        (row,) = read(work, take(work))
        assert (row.id, row.attempt) == (id, 2)


def test_a_failed_batch_waits_for_its_back_off(work: Engine) -> None:
    work.ask("subscribe", **LAKE, mode="exclusive", backoff_base="1 h", jitter=0, lease_time="3 h")
    published = work.publish(2)
    batch = take(work)
    until = work.ask("fail_batch", **named(batch), error="no disk")
    assert timedelta(minutes=59) < until - work.fetch("select trunq.clock()") <= timedelta(hours=1)
    row = stream(work)
    assert (row.worker, row.attempt, row.error, row.expires_at) == (None, 2, "no disk", until)
    assert take(work) is None
    with refused("TQ003"):
        work.ask("finish_batch", **named(batch))
    work.ask("subscribe", **LAKE, mode="exclusive", lease_time="1 min")
    with work.clock("2 h"):
        again = take(work)
        assert (again.attempt, ids(read(work, again))) == (2, published)
        until = work.ask("fail_batch", **named(again))
        assert until <= work.fetch("select trunq.clock()") + timedelta(minutes=1), (
            "what is behind it waits too"
        )
    with work.clock("3 h"):
        assert work.ask("finish_batch", **named(take(work)))


def test_messages_are_retried_for_one_subscription_only(work: Engine) -> None:
    work.ask("subscribe", subscription="other", mode="exclusive")
    published = work.publish(4)
    work.ask("tick", force=True)
    batch = take(work, max_ticks=9)
    one = {"ids": published[:1], "after": "0", "error": "later"}
    with work.connection.transaction():
        assert work.ask("retry_batch", **named(batch), **one) == 1
        assert work.ask("finish_batch", **named(batch))
    (row,) = read(work, take(work))
    assert (row.id, row.attempt) == (published[0], 2)
    (other,) = work.call("next_batch", subscription="other", worker="bob", max_ticks=9)
    found = work.call("read_batch", subscription="other", batch_id=other.batch_id)
    assert ids(found) == published


def test_a_whole_batch_is_retried_once_however_often_it_is_asked(work: Engine) -> None:
    published = work.publish(3)
    batch = take(work)
    assert work.ask("retry_batch", **named(batch), after="1 h") == 3
    assert work.ask("retry_batch", **named(batch), after="1 h") == 0
    with refused("TQ013", "message 999 is not in batch"):
        work.ask("retry_batch", **named(batch), ids=[published[0], 999])
    assert work.ask("finish_batch", **named(batch))
    with refused("TQ003"):
        work.ask("retry_batch", **named(batch))
    with work.clock("2 h"):
        assert work.ask("promote") == 3
        assert sorted(ids(read(work, take(work)))) == published


def test_what_does_not_wait_is_given_back_once_however_often_it_is_asked(work: Engine) -> None:
    """It is in the log again at once, or dead: the batch knows what it gave back."""
    published = work.publish(2)
    for attempt in (1, 2, 3):
        batch = take(work)
        assert [(row.id, row.attempt) for row in read(work, batch)] == [(id, attempt) for id in published]
        one = {**named(batch), "after": "0"}
        counts = [
            work.ask("retry_batch", **one, ids=ids) for ids in (published[:1], published[:1], None, None)
        ]
        assert counts == [1, 0, 1, 0]
        assert work.ask("finish_batch", **named(batch))
    assert take(work) is None
    assert sorted(row.id for row in work.call("list_dead", **LAKE)) == published


def test_a_batch_of_another_subscription_is_refused_by_name(work: Engine) -> None:
    work.publish(2)
    batch = take(work)
    work.ask("subscribe", subscription="other", mode="exclusive", start="earliest")
    other = {**named(batch), "subscription": "other"}
    words = f'batch {batch.batch_id} of queue "{work.queue}" is of subscription "lake", not of "other"'
    for function in ("finish_batch", "fail_batch", "retry_batch"):
        with refused("TQ003", words, "nothing was changed"):
            work.ask(function, **other)
    with refused("TQ003", words):
        work.call("extend", subscription="other", lease_id=batch.batch_id, token=batch.token)
    for function in ("read_batch", "show_batch"):
        with refused("TQ012", f'subscription "other" of queue "{work.queue}" has no batch {batch.batch_id}'):
            work.call(function, subscription="other", batch_id=batch.batch_id)
    assert work.ask("finish_batch", **named(batch)), "nothing was half done"


def test_a_message_of_a_batch_dies_when_its_attempts_are_used_up(work: Engine) -> None:
    (id,) = work.publish()
    for attempt in (1, 2, 3):
        batch = take(work)
        assert [row.attempt for row in read(work, batch)] == [attempt]
        work.ask("retry_batch", **named(batch), after="0")
        work.ask("finish_batch", **named(batch))
    assert take(work) is None
    assert [row.id for row in work.call("list_dead", **LAKE)] == [id]


def test_a_batch_is_as_large_as_it_is_to_be(work: Engine) -> None:
    batches = put_batches(work, 4)
    assert take(work, min_count=1000, cut=False) is None
    batch = take(work, min_count=1, max_ticks=2)
    assert ids(read(work, batch)) == batches[0] + batches[1]
    work.ask("finish_batch", **named(batch))
    assert take(work, min_interval="1 h", cut=False) is None
    with work.clock("2 h"):
        tick = work.ask("tick", force=True)
    batch = take(work, min_interval="1 h", cut=False)
    assert batch.to_tick_id == tick


def test_a_reader_stays_behind_as_far_as_it_asks(work: Engine) -> None:
    batches = put_batches(work, 2)
    assert take(work, min_lag="1 h", cut=False) is None
    with work.clock("2 h"):
        last = put_batches(work, 1)
        batch = take(work, min_lag="1 h", max_ticks=9, cut=False)
        assert ids(read(work, batch)) == batches[0] + batches[1]
        assert work.ask("finish_batch", **named(batch))
        assert take(work, min_lag="1 h", cut=False) is None
        assert ids(read(work, take(work))) == last[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"worker": ""},
        {"max_ticks": 0},
        {"max_ticks": None},
        {"min_count": -1},
        {"min_lag": "-1 s"},
        {"min_interval": "-1 s"},
    ],
)
def test_a_batch_that_cannot_be_is_refused(work: Engine, wrong: dict[str, Any]) -> None:
    with refused("TQ005"):
        take(work, **wrong)


def test_a_batch_says_how_it_stands(work: Engine) -> None:
    work.publish(4)
    batch = take(work)

    def state() -> Any:
        return work.call("show_batch", **LAKE, batch_id=batch.batch_id)[0]

    assert (state().state, state().worker, state().messages) == ("open", "ada", 4)
    with work.clock("1 h"):
        assert state().state == "overdue"
        newer = take(work, worker="bob")
        assert (newer.attempt, state().state) == (2, "ended")
    batch = newer
    work.ask("finish_batch", **named(batch))
    assert state().state == "finished"
    assert state().finished_at is not None
    with refused("TQ012", "has no batch 999"):
        work.call("show_batch", **LAKE, batch_id=999)


def test_a_stream_says_where_it_stands(work: Engine) -> None:
    assert (stream(work).pending, stream(work).lag, stream(work).seen_at) == (0, timedelta(0), None)
    work.publish(4)
    row = stream(work)
    assert (row.pending, row.batch_id, row.batches) == (4, None, 0)
    assert row.lag > timedelta(0)
    batch = take(work)
    row = stream(work)
    assert (row.pending, row.batch_id, row.worker, row.batches) == (4, batch.batch_id, "ada", 1)
    assert (row.position_tick_id, row.to_tick_id) == (batch.from_tick_id, batch.to_tick_id)
    work.ask("finish_batch", **named(batch))
    row = stream(work)
    assert (row.pending, row.position_tick_id, row.newest_tick_id) == (0, batch.to_tick_id, batch.to_tick_id)
    assert row.seen_at is not None


def test_parts_that_wait_hold_their_messages_against_rotation(work: Engine) -> None:
    published = work.publish(8)
    batch = take(work)
    for _ in range(3):
        work.ask("fail_batch", **named(batch), after="0")
        batch = take(work)
    assert open_batches(work) == 2
    for _ in range(2):
        assert work.rotate("3000 days") == 0
    assert ids(read(work, batch)) == published[:4]
    assert work.ask("finish_batch", **named(batch))
    assert work.rotate("3000 days") == 0, "the other half is open"
    rest = take(work)
    assert ids(read(work, rest)) == published[4:]
    assert work.ask("finish_batch", **named(rest))
    put_batches(work, 2)
    assert work.ask("finish_batch", **named(take(work, max_ticks=9)))
    work.ask("seek", **LAKE, start="latest")
    work.ask("seek", **LAKE, start="latest")
    assert work.rotate("3000 days") > 0
    assert work.is_empty("log")
    assert work.ask("position", **LAKE) == stream(work).newest_tick_id


def test_a_cursor_that_is_carried_keeps_the_parts_that_wait(work: Engine) -> None:
    """The newest lease says which are open: its copy in another segment does too."""
    published = work.publish(8)
    batch = take(work)
    for _ in range(3):
        work.ask("fail_batch", **named(batch), after="0")
        batch = take(work)
    # The half that waits was opened long ago, in a segment of its own.
    work.run("update {lease} set segment = mod(segment + 1, 4) where worker is null")
    assert work.ask("finish_batch", **named(batch))
    with work.clock("3000 days"):
        work.run(
            "select trunq._carry_cursors(q, l.segment::integer, array[l.subscription_id])"
            " from trunq.queue q, {lease} l where q.name = '{queue}' and l.lease_id = " + str(batch.batch_id)
        )
    assert work.fetch("select worker from {lease} order by lease_id desc limit 1") == "rotate"
    assert open_batches(work) == 1
    rest = take(work)
    assert ids(read(work, rest)) == published[4:]


def test_a_batch_in_the_hand_of_a_late_reader_is_fenced_in_every_call(work: Engine) -> None:
    work.publish(4)
    late = take(work)
    with work.clock("1 h"):
        taken = take(work, worker="bob")
    for function, more in {
        "finish_batch": {},
        "fail_batch": {},
        "retry_batch": {},
    }.items():
        with refused("TQ003"):
            work.ask(function, **named(late), **more)
    with refused("TQ003"):
        work.call("extend", **LAKE, lease_id=late.batch_id, token=late.token)
    assert work.call("extend", **LAKE, lease_id=taken.batch_id, token=taken.token)
    assert work.ask("finish_batch", **named(taken))


def test_ids_come_from_the_sequence_that_the_queue_names(work: Engine) -> None:
    """Another system's API may bring its own."""
    work.run("alter sequence trunq_data.{queue}_message_id rename to {queue}_own_id")
    work.run("update trunq.queue set id_sequence = 'trunq_data.{queue}_own_id' where name = '{queue}'")
    work.run("select trunq._define_queue(q) from trunq.queue q where q.name = '{queue}'")
    before = work.publish(2) + work.publish(1, due_at="2999-01-01") + work.ask("draw_ids", count=2)
    assert len(set(before)) == 5
    assert work.ask("tick", force=True)
    work.ask("drop_queue", force=True)
    left = "select count(*) from pg_class where relname like %s"
    assert fetch(work.connection, left, work.queue + "%") == 0
