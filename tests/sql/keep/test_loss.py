"""What a queue holds no more for a subscription that stands still is written down: functions/keep/loss.sql.

The clock is moved instead of waiting: three spans on, the segment all is written to is behind the limit.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import call, new_names, refused
from engine import Engine
from streaming import LAKE, ids, named, read, take

RETENTION = "2000 days"
OLD = "3000 days"


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    return make(session)


def make(session: psycopg.Connection[Any], **options: Any) -> Engine:
    given = {"retention": RETENTION, "hold_at_most": RETENTION, **options}
    return Engine(session, next(new_names("space"))).create(**given)


def lose(work: Engine, offset: str = OLD) -> list[Any]:
    """Let the time of the log be over; what was lost by that."""
    work.rotate(offset)
    return work.call("list_losses")


def publish_later(work: Engine, count: int = 1, **columns: Any) -> list[int]:
    """Messages in the segment that is written to three spans from now."""
    segment = "(select trunq._segment_at(q, now() + q.span * 3) from trunq.queue q where q.queue_id = {id})"
    names = "".join(f", {name}" for name in columns)
    values = "".join(f", '{value}'" for value in columns.values())
    rows = work.run(
        f"insert into {{log}} (segment, payload{names}) select {segment}, '{{{{}}}}'{values}"
        f" from generate_series(1, {count}) returning id"
    )
    return [id for (id,) in rows.fetchall()]


def test_a_subscription_that_stands_still_loses_what_is_behind_the_limit_and_says_so(work: Engine) -> None:
    work.ask("subscribe", subscription="mail")
    before = work.publish(5)
    work.drain("mail")
    work.ack(work.lease(2))
    after = publish_later(work, 3)
    (loss,) = lose(work)
    assert (loss.subscription, loss.reason, loss.messages, loss.is_more) == ("default", "time", 3, False)
    assert loss.from_txid == loss.to_txid
    assert loss.accepted_at is None
    assert work.fetch("select array_agg(id order by id) from {log}") == after
    with refused("TQ026", "default", "messages: 3", "accept_loss"):
        work.lease(1)
    assert work.status().lost_at is not None
    assert (work.status("mail").lost_at, work.drain("mail")) == (None, after)
    assert work.ask("accept_loss", subscription="default") == 1
    assert work.ask("accept_loss", subscription="default") == 0
    assert work.drain() == after
    assert set(before).isdisjoint(after)
    (loss,) = work.call("list_losses")
    assert loss.accepted_at is not None
    assert work.status().lost_at is None
    assert lose(work) == [loss], "nothing more is lost"


def test_without_a_limit_nothing_is_lost(session: psycopg.Connection[Any]) -> None:
    work = make(session, hold_at_most=None)
    found = work.publish(5)
    assert lose(work) == []
    assert work.drain() == found


def test_a_segment_that_is_not_behind_the_limit_stays(session: psycopg.Connection[Any]) -> None:
    work = make(session, retention="1000 days", hold_at_most="3000 days")
    assert (
        work.fetch("select (segments, span)::text from trunq.queue where queue_id = {id}")
        == "(8,12000:00:00)"
    )
    found = work.publish(5)
    assert lose(work, "3000 days") == []
    assert [loss.messages for loss in lose(work, "3500 days")] == [5]
    work.ask("accept_loss", subscription="default")
    assert found
    assert work.drain() == []


def test_what_is_leased_goes_back_and_is_not_lost(work: Engine) -> None:
    found = work.publish(5)
    held = work.lease(3)
    (loss,) = lose(work)
    assert loss.messages == 2
    with refused("TQ003", "has ended", "list_losses"):
        work.ack(held)
    work.ask("accept_loss", subscription="default")
    with work.clock("3001 days"):
        work.ask("promote")
        assert sorted(work.drain()) == sorted(found[:3])


def test_a_lease_alone_is_ended_without_a_loss(work: Engine) -> None:
    found = work.publish(2)
    held = work.lease(2)
    assert lose(work) == []
    with refused("TQ003", "handed out again"):
        work.ack(held)
    with work.clock("3001 days"):
        work.ask("promote")
        assert sorted(work.drain()) == found


def test_a_filter_loses_what_passes_it(work: Engine) -> None:
    work.ask("subscribe", subscription="some", filter={"kinds": ["a"]})
    work.ask("subscribe", subscription="none", filter={"kinds": ["c"]})
    work.publish(4, kinds=["a", "b", "a", "b"])
    assert {loss.subscription: loss.messages for loss in lose(work)} == {"default": 4, "some": 2}
    assert not work.lease(subscription="none")


def test_a_stream_moves_to_the_first_tick_behind_what_is_lost(work: Engine) -> None:
    work.ask("subscribe", subscription="lake", mode="exclusive")
    work.ask("unsubscribe", subscription="default")
    work.publish(3)
    tick = work.ask("tick", force=True)
    batch = take(work)
    work.publish(2)
    behind = work.ask("tick", force=True)
    after = publish_later(work, 4)
    (loss,) = lose(work)
    assert (loss.messages, loss.from_tick_id, loss.to_tick_id) == (5, batch.from_tick_id, behind)
    for refusal in ("next", "read", "advance"):
        with refused("TQ026", "accept_loss"):
            match refusal:
                case "next":
                    take(work, worker="bob")
                case "read":
                    read(work, batch)
                case "advance":
                    work.ask("advance", **LAKE, tick_id=tick)
    with refused("TQ003", "has ended"):
        work.ask("finish_batch", **named(batch))
    work.ask("accept_loss", subscription="lake")
    with refused("TQ003", "has ended"):
        work.ask("finish_batch", **named(batch))
    assert work.ask("position", **LAKE) == behind
    batch = take(work)
    assert ids(read(work, batch)) == after
    assert work.ask("finish_batch", **named(batch))


def test_of_a_part_what_lies_behind_the_tick_stays(work: Engine) -> None:
    work.ask("subscribe", subscription="lake", mode="exclusive")
    work.ask("unsubscribe", subscription="default")
    work.publish(3)
    work.ask("tick", force=True)
    middle = work.ask("tick", force=True)
    after = publish_later(work, 4)
    work.ask("tick", force=True)
    batch = take(work, max_ticks=10)
    second, fifth = read(work, batch)[1], read(work, batch)[4]
    work.ask("finish_batch", **named(batch), upto_txid=second.txid, upto_id=second.id)
    assert [loss.messages for loss in lose(work)] == [1]
    work.ask("accept_loss", subscription="lake")
    batch = take(work)
    assert (ids(read(work, batch)), batch.from_tick_id) == (after, middle - 1)
    work.ask("finish_batch", **named(batch), upto_txid=fifth.txid, upto_id=fifth.id)
    assert ids(read(work, take(work))) == after[2:]


def test_members_lose_what_they_have_of_the_segment_and_keep_what_lies_behind(work: Engine) -> None:
    work.ask("unsubscribe", subscription="default")
    work.ask("create_group", group="lake")
    work.ask("subscribe", **LAKE, mode="exclusive", lease_time="9000 days")
    work.publish(3)
    middle = work.ask("tick", force=True)
    ada = take(work, cut=False)
    work.publish(2)
    publish_later(work, 1)
    work.ask("tick", force=True)
    bob = take(work, worker="bob", cut=False)
    publish_later(work, 2)
    work.ask("tick", force=True)
    cat = take(work, worker="cat", cut=False)
    last = publish_later(work, 1)
    work.ask("tick", force=True)
    (loss,) = lose(work)
    assert (loss.subscription, loss.messages, loss.from_tick_id) == ("lake", 6, ada.from_tick_id)
    assert loss.to_tick_id == bob.to_tick_id > middle, "the first that sees all of the segment"
    for batch in (ada, bob):
        with refused("TQ003", "has ended"):
            work.ask("finish_batch", **named(batch))
    with refused("TQ026", "lake", "messages: 6"):
        take(work, worker="dan", cut=False)
    assert work.ask("finish_batch", **named(cat)), "it lies behind"
    assert work.ask("accept_loss", subscription="lake") == 1
    rest = take(work, cut=False)
    assert ids(read(work, rest)) == last, "neither cat's batch again nor what was before"
    assert work.ask("finish_batch", **named(rest))
    assert take(work, cut=False) is None


def test_a_batch_of_a_member_over_the_end_of_what_is_lost_leaves_its_rest(work: Engine) -> None:
    work.ask("unsubscribe", subscription="default")
    work.ask("create_group", group="lake")
    work.publish(2)
    middle = work.ask("tick", force=True)
    kept = publish_later(work, 2)
    work.ask("tick", force=True)
    ada = take(work, max_ticks=9, lease_time="9000 days", cut=False)
    later = publish_later(work, 1)
    work.ask("tick", force=True)
    bob = take(work, worker="bob", lease_time="9000 days", cut=False)
    (loss,) = lose(work)
    assert (loss.messages, loss.to_tick_id) == (2, middle)
    work.ask("accept_loss", subscription="lake")
    with refused("TQ003", "has ended"):
        work.ask("finish_batch", **named(ada))
    assert ids(read(work, take(work, worker="cat", cut=False))) == kept
    assert ids(read(work, bob)) == later
    assert work.ask("finish_batch", **named(bob))


def test_a_group_by_key_hands_out_nothing_once_a_slot_has_lost_messages(work: Engine) -> None:
    work.ask("unsubscribe", subscription="default")
    work.ask("create_group", group="crew", slots=4)
    work.publish(keys=["k1"])
    work.ask("tick", force=True)
    later = [id for n in range(12) for id in publish_later(work, key=f"k{n}")]
    work.ask("tick", force=True)
    (loss,) = lose(work)
    assert (loss.subscription, loss.messages) == ("crew#3", 1), "the others come before it"
    for member in ("ada", "bob", "cat", "dan"):
        with refused("TQ026", '"crew"', "messages: 1"):
            take(work, subscription="crew", worker=member, cut=False)
    (warning,) = work.call("_warn_space")
    assert (warning.subscription, "has lost messages: 1" in warning.warning) == ("crew", True)
    assert work.ask("accept_loss", subscription="crew") == 1
    found: list[int] = []
    while (batch := take(work, subscription="crew", cut=False)) is not None:
        found += ids(work.call("read_batch", subscription="crew", batch_id=batch.batch_id))
        work.ask("finish_batch", subscription="crew", batch_id=batch.batch_id, token=batch.token)
    assert sorted(found) == later, "each of all slots"


def test_of_a_group_by_key_space_is_warned_of_once(work: Engine) -> None:
    work.ask("unsubscribe", subscription="default")
    work.ask("create_group", group="crew", slots=4)
    work.publish(keys=[f"k{n}" for n in range(12)], count=12)
    with work.clock("3000 days"):
        (warning,) = work.call("_warn_space")
    assert warning.subscription == "crew"
    assert "has used" in warning.warning


@pytest.mark.parametrize("in_order", [False, True], ids=["fair", "in order"])
def test_lanes_lose_what_they_hold_of_the_segment_and_go_on(
    session: psycopg.Connection[Any], in_order: bool
) -> None:
    work = make(session, lanes="key")
    work.ask("subscribe", subscription="default", in_order=in_order, max_attempts=0, lease_time="5000 days")
    work.publish(6, keys=["a", "a", "b", "b", "c", "c"])
    # One of a lane comes back and waits; another runs; the third has handed out nothing.
    held = work.lease(3)
    work.answer("release", held, held.ids[:1])
    after = {key: publish_later(work, 2, key=key) for key in "abc"}
    (loss,) = lose(work)
    assert (loss.messages, loss.is_more) == (4, False)
    with refused("TQ026"):
        work.lease()
    work.ask("accept_loss", subscription="default")
    with work.clock("3001 days"):
        work.ask("promote")
        assert sorted(work.drain()) == sorted([*held.ids[1:], *(id for ids in after.values() for id in ids)])


def test_what_lanes_alone_hold_is_lost_beside_one_that_has_read_nothing(
    session: psycopg.Connection[Any],
) -> None:
    work = make(session, lanes="key")
    work.ask("subscribe", subscription="mail")
    work.publish(4, keys=["a", "b", "a", "b"])
    work.ack(work.lease(1))
    assert {loss.subscription: loss.messages for loss in lose(work)} == {"default": 3, "mail": 4}


def test_the_archive_and_takers_have_all_before_anything_is_lost(work: Engine) -> None:
    work.ask("create_archive")
    work.publish(5)
    work.ack(work.lease(1))
    held = work.lease(2)
    assert lose(work) == []
    with work.clock(OLD):
        assert work.ask("archive") == 1
    (loss,) = lose(work)
    assert loss.messages == 2
    with work.clock(OLD):
        work.ask("archive")
        rows = work.run("select id, outcome, payload from trunq_archive.{queue} order by id").fetchall()
    assert rows == [(1, "success", {"n": 0}), *((id, "lease_expired", None) for id in held.ids)]


def test_the_oldest_go_first_by_size(session: psycopg.Connection[Any]) -> None:
    work = make(session, hold_at_most=None, hold_size=1)
    work.publish(3)
    assert lose(work, "0") == [], "what is written to stays, however large"
    after = publish_later(work, 2)
    (loss,) = lose(work)
    assert (loss.reason, loss.messages) == ("size", 3)
    work.ask("accept_loss", subscription="default")
    assert work.drain() == after
    work.ask("set_queue", hold_size=0)
    kept = work.publish(2)
    assert lose(work)[1:] == []
    assert work.drain() == kept


def test_what_all_have_read_is_kept_up_to_a_size(session: psycopg.Connection[Any]) -> None:
    work = make(session, hold_at_most=None, retain_size=1)
    work.publish(3)
    assert work.rotate("1000 days") == 0, "somebody has not read it"
    work.drain()
    assert work.rotate() == 0
    assert work.rotate("1000 days") == 1
    assert work.is_empty("log")
    assert not work.is_empty("lease"), "only the log is cut by size"


def test_it_is_warned_of_a_size_too(session: psycopg.Connection[Any]) -> None:
    work = make(session, hold_at_most=None, hold_size=1_000_000_000)
    work.publish(3)
    assert work.call("list_warnings") == []
    work.ask("set_queue", hold_size=work.status().held_bytes * 3 // 2)
    (row,) = work.call("list_warnings")
    assert "has used 50 % of the" in row.warning
    assert "kB" in row.warning


def test_warnings_come_at_50_80_and_95_percent(work: Engine) -> None:
    work.publish(1)
    ended = work.fetch(
        "select extract(epoch from -trunq._segment_age(q, trunq._span_number(q, now())))::bigint"
        " from trunq.queue q where q.queue_id = {id}"
    )
    told = []
    for share in (0.0, 0.49, 0.51, 0.79, 0.81, 0.94, 0.96):
        with work.clock(f"{ended + share * 2000 * 86400} s"):
            warnings = [row.warning for row in work.call("list_warnings") if "has used" in row.warning]
            told += [warning.partition(" has used ")[2].partition(" %")[0] for warning in warnings] or [""]
            held = work.status().held_for
    assert told == ["", "", "50", "50", "80", "80", "95"]
    assert held.days == 1920
    assert work.status().held_bytes > 8000
    lose(work)
    assert ["has lost messages: 1" in row.warning for row in work.call("list_warnings")] == [True]


def test_what_waits_for_longer_than_the_ring_lasts_is_held_for_that_time(work: Engine) -> None:
    """Rotation may be held up, by an open transaction, say: the segment of the oldest is written to again."""
    work.publish(1)
    ring = work.fetch(
        "select extract(epoch from segments * span)::bigint / 86400 from trunq.queue where queue_id = {id}"
    )
    for days in (ring + 1, 2 * ring + 1):
        with work.clock(f"{days} days"):
            work.ask("tick", force=True)
            assert (work.status().held_for.days, work.status().held_bytes > 8000) == (days, True)
            assert any("has used 95 %" in row.warning for row in work.call("list_warnings"))


def test_a_message_that_was_put_off_is_held_since_it_came_back(work: Engine) -> None:
    """Its row is younger than it is, as a tick of before tells."""
    work.publish(1, delay="30000 days")
    with work.clock("29999 days"):
        work.ask("tick", force=True)
    work.run("delete from trunq.tick t where t.queue_id = {id} and t.created_at < now() + interval '1 day'")
    with work.clock("30001 days"):
        assert work.ask("promote") == 1
        assert work.status().held_for.days < 2000


def test_a_reset_and_an_emptied_queue_have_lost_nothing(work: Engine) -> None:
    for again in ("reset", "empty_queue"):
        work.publish(1)
        assert lose(work)
        work.ask(again, **({"subscription": "default"} if again == "reset" else {}))
        assert work.status().lost_at is None
        assert not work.lease()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hold_at_most": "-1 day"}, "hold_at_most"),
        ({"hold_at_most": "1 day"}, "retains them for"),
        ({"hold_size": -1}, "hold_size"),
        ({"retain_size": -1}, "retain_size"),
        ({"tick_max_count": -1}, "tick_max_count"),
        ({"tick_max_lag": "-1 s"}, "tick_max_lag"),
    ],
)
def test_what_no_queue_can_hold_is_refused(work: Engine, options: dict[str, Any], words: str) -> None:
    with refused("TQ005", words):
        work.ask("set_queue", **options)
    with refused("TQ005", words):
        make(work.connection, **{"hold_at_most": None, **options})


def test_limits_change_and_go(work: Engine) -> None:
    with refused("TQ005", "was made to hold", "trunq.convert_queue"):
        work.ask("set_queue", hold_at_most="3000 days")
    with refused("TQ005", "retains them for"):
        work.ask("set_queue", hold_at_most="1000 days")
    work.ask("set_queue", retention="500 days", hold_at_most="1000 days", hold_size=1000, retain_size=100)
    (row,) = [row for row in call(work.connection, "list_queues") if row.queue == work.queue]
    assert (row.hold_at_most.days, row.hold_size, row.retain_size) == (1000, 1000, 100)
    work.ask("set_queue", hold_at_most="0", hold_size=0, retain_size=0)
    (row,) = [row for row in call(work.connection, "list_queues") if row.queue == work.queue]
    assert (row.hold_at_most, row.hold_size, row.retain_size) == (None, None, None)
