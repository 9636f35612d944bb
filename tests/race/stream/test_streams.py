"""Streams, where a reader meets another, a tick, or rotation."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import ask, move_clock, new_names, refused
from conftest import Connect
from engine import Engine
from streaming import LAKE, ids, named, read, take
from waiting import wait_until_blocked

OLD = "3000 days"


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    """A queue that one stream reads."""
    work = Engine(session, next(new_names("streams")))
    work.create(retention="2000 days", default_subscription=False)
    work.ask("subscribe", **LAKE, mode="exclusive", max_attempts=2)
    return work


@pytest.fixture
def other(work: Engine, open_session: Connect) -> Engine:
    """The same queue in a session whose transactions stay open."""
    return work.on(open_session(autocommit=False))


def test_what_commits_while_a_reader_cuts_its_tick_is_in_a_later_batch(work: Engine, other: Engine) -> None:
    work.ask("subscribe", subscription="second", mode="exclusive")
    while batch := take(work):
        work.ask("finish_batch", **named(batch))
    late = work.publish(2)
    (cut,) = other.call("next_batch", subscription="second", worker="bob", max_ticks=9)
    later = work.publish(2)
    assert take(work) is None, "the other's tick is not committed yet"
    other.connection.commit()
    batch = take(work)
    assert (batch.to_tick_id, ids(read(work, batch))) == (cut.to_tick_id, late)
    assert work.ask("finish_batch", **named(batch))
    assert ids(read(work, take(work))) == later


def test_of_a_finish_and_a_takeover_one_counts(work: Engine, other: Engine, meanwhile: Any) -> None:
    work.publish(2)
    batch = take(work)
    other.ask("finish_batch", **named(batch))
    with work.clock("1 h"):
        takeover = meanwhile(lambda _: take(work, worker="bob", cut=False), work.connection)
        wait_until_blocked(other.connection, work.connection)
        other.connection.commit()
        assert takeover.result() is None
    assert work.ask("position", **LAKE) == batch.to_tick_id


def test_a_finish_that_comes_behind_a_takeover_is_refused(
    work: Engine, other: Engine, meanwhile: Any
) -> None:
    published = work.publish(2)
    batch = take(work)
    move_clock(other.connection, "1 h")
    taken = take(other, worker="bob")
    finish = meanwhile(lambda _: work.ask("finish_batch", **named(batch)), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    with refused("TQ003"):
        finish.result()
    assert ids(read(other, taken)) == published


def test_of_two_that_give_a_batch_back_one_counts(work: Engine, other: Engine, meanwhile: Any) -> None:
    work.publish(4)
    batch = take(work)
    other.ask("fail_batch", **named(batch), after="0")
    second = meanwhile(lambda _: work.ask("fail_batch", **named(batch), after="0"), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    with refused("TQ003"):
        second.result()
    assert (take(work).attempt, work.call("list_streams")[0].batches) == (2, 1)


def test_rotation_waits_for_a_seek_that_is_under_way(work: Engine, other: Engine) -> None:
    """Backwards: what rotation asked before would not hold any more."""
    published = work.publish(3)
    first = work.ask("position", **LAKE)
    work.ask("finish_batch", **named(take(work)))
    for _ in range(2):
        work.ask("tick", force=True)
        work.ask("finish_batch", **named(take(work)))
    other.ask("seek", **LAKE, tick_id=first)
    with work.clock(OLD):
        assert work.ask("rotate") is None
        other.connection.commit()
        assert work.rotate() == 0, "its messages are to be read again"
    assert ids(read(work, take(work))) == published


def test_a_seek_behind_a_rotation_is_told_what_is_gone(work: Engine, other: Engine, meanwhile: Any) -> None:
    work.publish(3)
    first = work.ask("position", **LAKE)
    work.ask("finish_batch", **named(take(work)))
    for _ in range(2):
        work.ask("tick", force=True)
        work.ask("finish_batch", **named(take(work)))
    move_clock(other.connection, OLD)
    assert other.ask("rotate") == 1
    seek = meanwhile(lambda _: work.ask("seek", **LAKE, tick_id=first), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    with refused("TQ012", f"tick {first} of queue"):
        seek.result()
    assert work.is_empty("log")


def test_rotation_beside_a_batch_that_is_finished_in_part_keeps_the_rest(work: Engine, other: Engine) -> None:
    published = work.publish(4)
    batch = take(work)
    rows = read(work, batch)
    other.ask("finish_batch", **named(batch), upto_txid=rows[1].txid, upto_id=rows[1].id)
    assert work.rotate(OLD) == 0
    other.connection.commit()
    assert work.rotate(OLD) == 0
    assert ids(read(work, take(work))) == published[2:]


def test_two_that_ask_at_once_get_one_batch(work: Engine, other: Engine, meanwhile: Any) -> None:
    published = work.publish(2)
    batch = take(other, worker="bob")
    second = meanwhile(lambda _: take(work), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    assert second.result() is None
    assert ids(read(work, batch)) == published


def test_a_reader_that_cuts_holds_nobody_up_who_publishes_or_rotates(work: Engine, other: Engine) -> None:
    work.publish(2)
    assert take(other, worker="bob")
    assert work.publish(2)
    with work.clock(OLD):
        assert work.ask("rotate") in (None, 0)
    assert work.ask("tick") is None, "the leader has other queues to see to"


def test_what_commits_while_the_leader_cuts_its_tick_is_in_a_later_batch(work: Engine, other: Engine) -> None:
    early = work.publish(2)
    tick = other.ask("tick", force=True)
    late = work.publish(2)
    other.connection.commit()
    batch = take(work)
    assert (batch.to_tick_id, ids(read(work, batch))) == (tick, early)
    assert work.ask("finish_batch", **named(batch))
    assert ids(read(work, take(work))) == late


def test_the_leader_s_tick_waits_for_that_of_a_reader_and_sees_more(
    work: Engine, other: Engine, meanwhile: Any
) -> None:
    early = work.publish(2)
    batch = take(other)
    late = work.publish(2)
    ticking = meanwhile(lambda _: work.ask("tick", force=True), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    assert ticking.result() == batch.to_tick_id + 1
    assert ids(read(work, batch)) == early
    assert work.ask("finish_batch", **named(batch))
    assert ids(read(work, take(work, cut=False))) == late


def test_a_transaction_open_over_many_ticks_is_in_one_window_however_they_are_read(
    work: Engine, other: Engine, open_session: Connect
) -> None:
    """Its snapshot overlaps those of all ticks that were cut meanwhile."""
    work.ask("subscribe", subscription="at_once", mode="exclusive")
    overlap = work.on(open_session(autocommit=False))
    first = other.publish(2)
    expected = []
    for _ in range(3):
        expected.append(work.publish(2))
        work.ask("tick", force=True)
    second = overlap.publish(2)
    work.ask("tick", force=True)
    other.connection.commit()
    expected.append(first)
    work.ask("tick", force=True)
    overlap.connection.commit()
    expected.append(second)
    found = []
    while batch := take(work):
        found.append(ids(read(work, batch)))
        assert work.ask("finish_batch", **named(batch))
    assert [each for each in found if each] == expected
    (batch,) = work.call("next_batch", subscription="at_once", worker="bob", max_ticks=99)
    rows = work.call("read_batch", subscription="at_once", batch_id=batch.batch_id)
    assert sorted(ids(rows)) == sorted(id for each in expected for id in each)


def test_next_batch_behind_a_seek_goes_on_from_there(work: Engine, other: Engine, meanwhile: Any) -> None:
    published = work.publish(2)
    first = work.ask("position", **LAKE)
    assert work.ask("finish_batch", **named(take(work)))
    work.publish(2)
    other.ask("seek", **LAKE, tick_id=first)
    waiting = meanwhile(lambda _: take(work), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    batch = waiting.result()
    assert (batch.from_tick_id, ids(read(work, batch))) == (first, published)


def test_a_seek_behind_next_batch_ends_its_batch(work: Engine, other: Engine, meanwhile: Any) -> None:
    published = work.publish(2)
    first = work.ask("position", **LAKE)
    batch = take(other)
    seek = meanwhile(lambda _: work.ask("seek", **LAKE, tick_id=first), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    assert seek.result() == first
    with refused("TQ003"):
        work.ask("finish_batch", **named(batch))
    again = take(work)
    assert again.batch_id != batch.batch_id
    assert (again.attempt, ids(read(work, again))) == (1, published)


def test_a_finish_behind_a_seek_is_refused_with_its_effects(
    work: Engine, other: Engine, meanwhile: Any
) -> None:
    published = work.publish(2)
    first = work.ask("position", **LAKE)
    batch = take(work)
    other.ask("seek", **LAKE, tick_id=first)
    finish = meanwhile(lambda _: work.ask("finish_batch", **named(batch)), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    with refused("TQ003"):
        finish.result()
    assert ids(read(work, take(work, worker="bob"))) == published


def test_a_seek_behind_a_finish_has_the_last_word(work: Engine, other: Engine, meanwhile: Any) -> None:
    published = work.publish(2)
    first = work.ask("position", **LAKE)
    batch = take(work)
    assert other.ask("finish_batch", **named(batch))
    seek = meanwhile(lambda _: work.ask("seek", **LAKE, tick_id=first), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    assert seek.result() == first
    assert work.ask("position", **LAKE) == first
    assert not work.ask("finish_batch", **named(batch)), "it was finished, and says so"
    assert ids(read(work, take(work))) == published


def test_a_reset_and_a_seek_at_once_do_not_deadlock(work: Engine, other: Engine, meanwhile: Any) -> None:
    """Both need the lock of the queue's ticks and that of the subscription: in one order."""
    work.publish(2)
    first = work.ask("position", **LAKE)
    tick = other.ask("tick", force=True)
    reset = meanwhile(lambda _: work.ask("reset", **LAKE), work.connection)
    wait_until_blocked(other.connection, work.connection)
    assert other.ask("seek", **LAKE, tick_id=first) == first
    other.connection.commit()
    reset.result(10)
    assert work.ask("position", **LAKE) == tick + 1


def test_a_seek_behind_a_reset_has_the_last_word(work: Engine, other: Engine, meanwhile: Any) -> None:
    published = work.publish(2)
    first = work.ask("position", **LAKE)
    other.ask("reset", **LAKE)
    seek = meanwhile(lambda _: work.ask("seek", **LAKE, tick_id=first), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    assert seek.result(10) == first == work.ask("position", **LAKE)
    assert ids(read(work, take(work))) == published


def test_two_readers_of_one_name_at_once_can_finish_one(work: Engine, other: Engine, meanwhile: Any) -> None:
    published = work.publish(2)
    first = take(other)
    second = meanwhile(lambda _: take(work), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    batch = second.result()
    assert (batch.batch_id, batch.attempt) == (first.batch_id, 2)
    for function in ("finish_batch", "fail_batch", "retry_batch"):
        with refused("TQ003"):
            other.ask(function, **named(first))
        other.connection.rollback()
    assert ids(read(work, batch)) == published
    assert work.ask("finish_batch", **named(batch))


def test_a_queue_is_dropped_under_a_batch_that_is_read_and_its_reader_finds_none(
    work: Engine, other: Engine
) -> None:
    """A batch keeps no lock once it is read, also in the transaction of its effects."""
    published = work.publish(2)
    batch = take(work)
    assert ids(read(other, batch)) == published
    work.ask("drop_queue", force=True)
    for late in (lambda: read(other, batch), lambda: other.ask("finish_batch", **named(batch))):
        with refused("TQ001", work.queue):
            late()
        other.connection.rollback()


def test_a_reader_behind_a_drop_finds_no_queue(work: Engine, other: Engine, meanwhile: Any) -> None:
    work.publish(2)
    batch = take(work)
    other.ask("drop_queue", force=True)
    reading = meanwhile(lambda _: read(work, batch), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    with pytest.raises(psycopg.Error) as caught:
        reading.result(10)
    # Clients take either for QueueNotFound.
    assert caught.value.sqlstate in ("TQ001", "42P01", "42883"), caught.value


def test_retries_that_commit_late_come_once_and_with_nothing_else(work: Engine, other: Engine) -> None:
    """They are inserted again, under their old ids, by a transaction that ticks overlap."""
    published = work.publish(3)
    batch = take(work)
    assert other.ask("retry_batch", **named(batch), ids=published[:2], after="0") == 2
    assert other.ask("finish_batch", **named(batch))
    later = work.publish(1)
    work.ask("tick", force=True)
    other.connection.commit()
    work.ask("tick", force=True)
    found = []
    while batch := take(work):
        found += [(row.id, row.attempt) for row in read(work, batch)]
        assert work.ask("finish_batch", **named(batch))
    assert found == [(later[0], 1), (published[0], 2), (published[1], 2)]


def test_retries_that_are_rolled_back_come_with_their_batch_alone(work: Engine, other: Engine) -> None:
    published = work.publish(2)
    batch = take(work)
    other.ask("retry_batch", **named(batch), after="0")
    other.ask("finish_batch", **named(batch))
    other.connection.rollback()
    again = take(work)
    assert (again.batch_id, ids(read(work, again))) == (batch.batch_id, published)
    assert work.ask("finish_batch", **named(again))
    assert take(work) is None


def test_a_tick_that_was_cut_before_a_message_committed_is_out_of_reach_with_its_segment(
    work: Engine, other: Engine
) -> None:
    other.publish(1)
    work.publish(1)
    early = work.ask("tick", force=True)
    other.connection.commit()
    both = work.ask("tick", force=True)
    work.ask("unsubscribe", **LAKE)
    assert work.rotate(OLD) >= 1
    assert work.is_empty("log")
    reach = work.fetch("select reachable_tick_id from trunq.queue where name = '{queue}'")
    assert reach == both > early, "the first that sees all that went"


def test_a_position_is_not_copied_to_a_stream_that_is_reset_meanwhile(
    work: Engine, other: Engine, meanwhile: Any
) -> None:
    work.ask("subscribe", subscription="second", mode="exclusive")
    other.ask("reset", **LAKE)
    copying = meanwhile(lambda _: work.ask("copy_position", **LAKE, like="second"), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    with refused("TQ008", '"lake"', "try again"):
        copying.result()


def test_messages_that_come_while_a_segment_is_emptied_are_read_and_no_tick_is_lost(
    work: Engine, other: Engine, meanwhile: Any, open_session: Connect
) -> None:
    work.publish(2)
    work.ask("finish_batch", **named(take(work)))
    for _ in range(2):
        work.ask("tick", force=True)
        work.ask("finish_batch", **named(take(work)))
    reach = "select reachable_tick_id from trunq.queue where name = '{queue}'"
    before = work.fetch(reach)
    writer = work.on(open_session(autocommit=False))
    late = writer.publish(1)
    with work.clock(OLD):
        assert work.ask("rotate") is None, "somebody writes into it"
    assert work.fetch(reach) == before, "what was not emptied is in reach"
    writer.connection.commit()
    with work.clock(OLD):
        assert work.ask("rotate") == 0, "it is to be read"
    batch = take(work)
    assert ids(read(work, batch)) == late
    assert work.ask("finish_batch", **named(batch))
    work.ask("tick", force=True)
    work.ask("finish_batch", **named(take(work)))
    move_clock(other.connection, OLD)
    assert other.ask("rotate") == 1
    inserting = meanwhile(lambda _: work.publish(2), work.connection)
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    assert ids(read(work, take(work))) == inserting.result()


def test_of_two_movers_that_bring_a_batch_the_second_finds_that_it_is_here(
    work: Engine, other: Engine, meanwhile: Any
) -> None:
    work.publish(2)
    (move,) = work.call("begin_move", **named(take(work)))
    given = {"source": move.source, "subscription_id": move.subscription_id, "from": Jsonb(move.from_place)}
    assert ask(other.connection, "receive", **given, to=Jsonb(move.to_place))
    second = meanwhile(ask, work.connection, "receive", **given, to=Jsonb(move.to_place))
    wait_until_blocked(other.connection, work.connection)
    other.connection.commit()
    assert second.result() is False
