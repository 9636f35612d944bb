"""Groups: members who have a batch each of one stream."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import new_names, refused
from engine import Engine
from streaming import LAKE, ids, named, put_batches, read, stream, take

LAKE_GROUP = {"group": "lake"}
OLD = "3000 days"


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    """A queue that one group reads."""
    work = Engine(session, next(new_names("group")))
    work.create(retention="2000 days", default_subscription=False)
    work.ask("create_group", **LAKE_GROUP)
    work.ask("subscribe", **LAKE, mode="exclusive", max_attempts=3)
    return work


def finish(work: Engine, batch: Any, **more: Any) -> Any:
    return work.ask("finish_batch", **named(batch), **more)


def members(work: Engine) -> dict[str, Any]:
    return {row.member: row for row in work.call("list_members", **LAKE_GROUP)}


def leave(work: Engine, member: str, **more: Any) -> Any:
    return work.ask("leave_group", **LAKE_GROUP, member=member, **more)


def position(work: Engine) -> int:
    return int(work.ask("position", **LAKE))


def test_each_member_has_a_batch_of_its_own(work: Engine) -> None:
    published = put_batches(work, 3)
    ada, bob = take(work, cut=False), take(work, worker="bob", cut=False)
    assert [ids(read(work, each)) for each in (ada, bob)] == published[:2]
    again = take(work, cut=False)
    assert (again.batch_id, again.token == ada.token) == (ada.batch_id, False), "its own once more"
    assert stream(work).batches == 2
    assert stream(work).pending == 15
    assert finish(work, bob)
    assert position(work) == ada.from_tick_id, "what lies before it is finished"
    assert stream(work).pending == 10, "what bob finished behind ada's batch is not waiting"
    third = take(work, worker="bob", cut=False)
    assert ids(read(work, third)) == published[2]
    assert finish(work, again)
    assert finish(work, third)
    assert position(work) == third.to_tick_id
    assert take(work, cut=False) is None
    assert [row.state for row in work.call("show_batch", **LAKE, batch_id=bob.batch_id)] == ["finished"]


def test_an_older_window_that_is_taken_over_does_not_move_the_frontier_back(work: Engine) -> None:
    published = put_batches(work, 4)
    ada, bob = take(work, cut=False), take(work, worker="bob", cut=False)
    with work.clock("61 s"):
        cat = take(work, worker="cat", cut=False)
        assert (ids(read(work, cat)), cat.attempt) == (published[0], 2), "what ran out comes first"
        assert finish(work, cat)
        dan = take(work, worker="dan", cut=False)
        assert ids(read(work, dan)) == published[1]
        with refused("TQ003"):
            finish(work, ada)
        with refused("TQ003"):
            finish(work, bob)
        after = [ids(read(work, take(work, worker=worker, cut=False))) for worker in ("eve", "fay")]
        assert after == published[2:]
        assert take(work, worker="gus", cut=False) is None
        assert position(work) == dan.from_tick_id


def test_what_failed_in_an_older_window_comes_by_halves_beside_newer_ones(work: Engine) -> None:
    published = put_batches(work, 3)
    ada, bob = take(work, cut=False), take(work, worker="bob", cut=False)
    for _ in range(3):
        work.ask("fail_batch", **named(ada), after="0", error="boom")
        ada = take(work, cut=False)
    assert ids(read(work, ada)) == published[0][:3]
    assert finish(work, ada, upto_txid=read(work, ada)[0].txid, upto_id=published[0][0])
    rest = ids(read(work, take(work, cut=False)))
    assert rest == published[0][1:3]
    assert finish(work, bob)
    other_half = take(work, worker="bob", cut=False)
    assert ids(read(work, other_half)) == published[0][3:]
    assert ids(read(work, take(work, worker="cat", cut=False))) == published[2]
    work.ask("fail_batch", **named(other_half), after="0")
    while found := take(work, worker="bob", cut=False):
        work.ask("fail_batch", **named(found), after="0")
    assert sorted(row.id for row in work.call("list_dead")) == published[0][3:], "one that fails alone dies"
    (late,) = put_batches(work, 1)
    assert ids(read(work, take(work, worker="bob", cut=False))) == late, "the frontier stood where it was"


def test_a_member_that_finishes_in_part_leaves_the_batches_of_others_open(work: Engine) -> None:
    published = put_batches(work, 2)
    ada, bob = take(work, cut=False), take(work, worker="bob", cut=False)
    first = read(work, bob)[0]
    assert finish(work, bob, upto_txid=first.txid, upto_id=first.id)
    assert position(work) == ada.from_tick_id
    assert ids(read(work, take(work, worker="cat", cut=False))) == published[1][1:], "and nothing of ada's"
    assert finish(work, ada)


def test_rotation_keeps_what_a_member_has_in_hand(work: Engine) -> None:
    published = put_batches(work, 2)
    ada = take(work, lease_time="20000 days", cut=False)
    assert finish(work, take(work, worker="bob", cut=False))
    for days in (3000, 6000, 9000):
        with work.clock(f"{days} days"):
            work.rotate(f"{days} days")
            later = put_batches(work, 1)
            bob = take(work, worker="bob", cut=False)
            assert [ids(read(work, bob))] == later
            assert finish(work, bob)
    assert ids(read(work, ada)) == published[0]
    assert position(work) == ada.from_tick_id
    assert finish(work, ada), "its lease is there, and in the set"
    assert position(work) == stream(work).newest_tick_id
    with work.clock("9001 days"):
        for _ in range(2):
            work.ask("tick", force=True)
            assert finish(work, take(work, cut=False))
    assert sum(work.rotate(f"{days} days") for days in range(10000, 15000, 500)) >= 1
    assert work.is_empty("log")


def test_seek_and_advance_end_what_members_have(work: Engine) -> None:
    published = put_batches(work, 4)
    first = position(work)
    ada, bob, cat = (take(work, worker=worker, cut=False) for worker in ("ada", "bob", "cat"))
    assert finish(work, cat)
    assert work.ask("advance", **LAKE, tick_id=ada.to_tick_id) == ada.to_tick_id
    with refused("TQ003"):
        finish(work, ada)
    assert finish(work, bob), "behind the tick"
    assert position(work) == cat.to_tick_id
    dan = take(work, worker="dan", cut=False)
    assert ids(read(work, dan)) == published[3]
    work.ask("seek", **LAKE, tick_id=first)
    with refused("TQ003"):
        finish(work, dan)
    again = [take(work, worker=worker, cut=False) for worker in ("ada", "bob")]
    assert [ids(read(work, each)) for each in again] == published[:2]


def test_an_advance_into_a_window_leaves_its_rest(work: Engine) -> None:
    published = put_batches(work, 3)
    first = position(work)
    take(work, max_ticks=2, cut=False)
    bob = take(work, worker="bob", cut=False)
    assert work.ask("advance", **LAKE, tick_id=first + 1) == first + 1
    assert ids(read(work, take(work, cut=False))) == published[1]
    assert finish(work, bob)


def test_a_member_leaves_with_its_batch_or_gives_it_back(work: Engine) -> None:
    published = put_batches(work, 3)
    for worker in ("ada", "bob", "cat"):
        take(work, worker=worker, cut=False)
    assert {name: row.is_alive for name, row in members(work).items()} == {
        "ada": True,
        "bob": True,
        "cat": True,
    }
    with refused("TQ027", 'member "ada" has batch'):
        leave(work, "ada")
    assert leave(work, "ada", batch="give_back") is True
    assert leave(work, "ada") is False
    assert leave(work, "bob", batch="finish") is True
    dan = take(work, worker="dan", cut=False)
    assert (ids(read(work, dan)), dan.attempt) == (published[0], 1)
    assert take(work, worker="eve", cut=False) is None
    assert set(members(work)) == {"cat", "dan", "eve"}
    (group,) = work.call("list_groups")
    assert (group.group_name, group.slots, group.members) == ("lake", None, 3)
    assert (group.batches, group.pending) == (2, 10)


def test_a_name_is_one_members_while_it_lives(work: Engine) -> None:
    put_batches(work, 2)
    assert work.ask("join_group", **LAKE_GROUP, member="ada")
    with refused("TQ027", 'has a member "ada" that lives'):
        work.ask("join_group", **LAKE_GROUP, member="ada")
    take(work, lease_time="1 h", cut=False)
    with work.clock("10 min"), refused("TQ027"):
        work.ask("join_group", **LAKE_GROUP, member="ada")
    with work.clock("2 h"):
        assert not members(work)["ada"].is_alive
        assert work.ask("join_group", **LAKE_GROUP, member="ada")
        assert members(work)["ada"].is_alive
    with work.clock("3 days"):
        take(work, worker="bob", cut=False)
        assert set(members(work)) == {"bob"}, "nobody heard of ada for a day"


def test_a_member_that_looks_often_writes_its_row_every_ten_seconds(work: Engine) -> None:
    def version() -> Any:
        return work.fetch(
            "select m.xmin::text from trunq.member m join trunq.subscription_group g using (group_id)"
            " where g.queue_id = {id} and m.name = 'ada'"
        )

    take(work)
    before = version()
    for _ in range(3):
        take(work)
    assert version() == before
    with work.clock("11 s"):
        take(work)
        assert version() != before


def test_groups_that_cannot_be(work: Engine) -> None:
    assert work.ask("create_group", **LAKE_GROUP) is False
    for name in ("", "Bad", "a#1"):
        with refused("TQ004"):
            work.ask("create_group", group=name)
    work.ask("subscribe", subscription="pool")
    with refused("TQ011", "is shared"):
        work.ask("create_group", group="pool")
    for function in ("join_group", "leave_group"):
        with refused("TQ002", 'has no group "none"'):
            work.ask(function, group="none", member="ada")
        assert work.ask("drop_group", group="none") is False
    for name in ("", "a" * 201):
        with refused("TQ005"):
            work.ask("join_group", **LAKE_GROUP, member=name)
        with refused("TQ005"):
            take(work, worker=name)
    with refused("TQ005", "finish or give_back"):
        leave(work, "ada", batch="burn")
    assert members(work) == {}


def test_an_exclusive_subscription_becomes_a_group_where_it_stands(work: Engine) -> None:
    published = put_batches(work, 2)
    work.ask("subscribe", subscription="solo", mode="exclusive", start="earliest")
    held = take(work, subscription="solo", worker="ada", max_ticks=2, cut=False)
    assert work.ask("create_group", group="solo") is True
    second = put_batches(work, 1)
    bob = take(work, subscription="solo", worker="bob", cut=False)
    assert ids(work.call("read_batch", subscription="solo", batch_id=bob.batch_id)) in (published[1], *second)
    assert work.ask("finish_batch", subscription="solo", batch_id=held.batch_id, token=held.token)


def test_a_group_that_is_dropped_leaves_nothing(work: Engine) -> None:
    put_batches(work, 1)
    batch = take(work)
    assert work.ask("drop_group", **LAKE_GROUP) is True
    assert (work.call("list_groups"), work.call("list_subscriptions")) == ([], [])
    with refused("TQ002"):
        finish(work, batch)
    work.ask("create_group", **LAKE_GROUP)
    assert work.ask("unsubscribe", **LAKE) is True
    assert work.call("list_groups") == []


def test_a_member_s_batch_of_nothing_keeps_its_lease_though_the_newest_lies_elsewhere(work: Engine) -> None:
    for _ in range(2):
        work.ask("tick", force=True)
    ada, bob = take(work, cut=False), take(work, worker="bob", cut=False)
    # As if it had been opened three spans ago.
    work.run("update {lease} set segment = mod(segment + 1, 4) where lease_id = " + str(ada.batch_id))
    assert finish(work, bob)
    assert work.rotate() == 0
    assert position(work) == ada.from_tick_id
    assert finish(work, ada)
    assert work.rotate() > 0
    assert position(work) == bob.to_tick_id
