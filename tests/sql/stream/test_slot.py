"""Groups by key: slots, each of which is a stream of its own."""

from __future__ import annotations

from collections import Counter
from hashlib import md5
from typing import Any

import psycopg
import pytest

from calling import new_names, refused
from engine import Engine
from streaming import ids

CREW = {"subscription": "crew"}
GROUP = {"group": "crew"}
SLOTS = 4


def slot_of(key: str) -> int:
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:2]) & (SLOTS - 1)


KEYS = [next(f"k{n}" for n in range(999) if slot_of(f"k{n}") == slot) for slot in range(SLOTS)]
"""A key of each slot."""


@pytest.fixture
def work(session: psycopg.Connection[Any]) -> Engine:
    """A queue that one group reads by key."""
    work = Engine(session, next(new_names("slot")))
    work.create(retention="2000 days", default_subscription=False)
    assert work.ask("create_group", **GROUP, slots=SLOTS)
    return work


def take(work: Engine, member: str = "ada", **more: Any) -> Any:
    rows = work.call("next_batch", **CREW, worker=member, **more)
    return rows[0] if rows else None


def named(batch: Any) -> dict[str, Any]:
    return {**CREW, "batch_id": batch.batch_id, "token": batch.token}


def finish(work: Engine, batch: Any) -> Any:
    return work.ask("finish_batch", **named(batch))


def read(work: Engine, batch: Any, **more: Any) -> list[Any]:
    return work.call("read_batch", **CREW, batch_id=batch.batch_id, **more)


def put(work: Engine, *slots: int) -> list[int]:
    return [id for slot in slots for id in work.publish(keys=[KEYS[slot]])]


def members(work: Engine) -> dict[str, Any]:
    return {row.member: row for row in work.call("list_members", **GROUP)}


def test_a_key_is_in_the_slot_of_its_hash_and_a_message_without_one_in_that_of_its_id(work: Engine) -> None:
    put(work, 0, 1, 2, 3, 1)
    (loose,) = work.publish()
    found: dict[int, list[Any]] = {}
    for member in "abcd":
        batch = take(work, member)
        found[members(work)[member].slot] = read(work, batch)
    assert {slot: [row.key for row in rows if row.key] for slot, rows in found.items()} == {
        slot: [KEYS[slot]] * (2 if slot == 1 else 1) for slot in range(SLOTS)
    }
    assert loose in ids(found[loose & (SLOTS - 1)])


def test_a_slot_in_hand_is_passed_over_and_its_key_waits(work: Engine) -> None:
    first = put(work, 1, 1)
    ada = take(work)
    assert ids(read(work, ada)) == first
    later = put(work, 1, 2)
    bob = take(work, "bob")
    assert ids(read(work, bob)) == later[1:], "the other slot"
    assert take(work, "cat") is None, "the key of ada's batch is in order"
    assert finish(work, ada)
    cat = take(work, "cat")
    assert ids(read(work, cat)) == later[:1]
    assert take(work, "cat").batch_id == cat.batch_id, "its own once more"


def test_slots_without_messages_write_nothing_and_are_taken_along(work: Engine) -> None:
    for _ in range(3):
        put(work, 1)
        assert finish(work, take(work))
    assert work.fetch("select count(*) from {lease}") == 3
    rows = {row.subscription: row for row in work.call("_streams")}
    assert len({row.position_tick_id for row in rows.values()}) == 2, "the others stand where they were made"
    with work.clock("2 min"):
        put(work, 1)
        assert finish(work, take(work))
        assert take(work) is None
        ticks = {row.position_tick_id for row in work.call("_streams")}
        assert ticks == {max(ticks)}
    assert all(row.seen_at is None for row in work.call("_streams") if row.subscription != "crew#1")


def test_a_batch_goes_to_where_its_slot_has_messages(work: Engine) -> None:
    first = work.ask("position", **CREW)
    for slot in (0, 0, 0, 2, 0):
        put(work, slot)
        work.ask("tick", force=True)
    ada, bob = take(work, cut=False), take(work, "bob", cut=False)
    assert (ada.from_tick_id, ada.to_tick_id, ada.is_part) == (first, first + 1, False)
    assert (bob.from_tick_id, bob.to_tick_id) == (first, first + 4)
    assert len(read(work, bob)) == 1
    assert finish(work, ada)
    assert work.ask("position", **CREW) == first, "of the slot furthest behind"
    ada = take(work, max_ticks=9, cut=False)
    assert len(read(work, ada)) == 3
    assert take(work, "cat", cut=False) is None


def test_a_minimum_of_lag_lets_a_slot_come_to_its_first_message(work: Engine) -> None:
    """Though the first tick behind its position has nothing for it."""
    for slot in (0, 0, 2):
        put(work, slot)
        work.ask("tick", force=True)
    with work.clock("1 min"):
        ada, bob = (take(work, name, min_lag="30 s", cut=False) for name in ("ada", "bob"))
        assert (len(read(work, ada)), len(read(work, bob))) == (1, 1)
        put(work, 3)
        work.ask("tick", force=True)
        assert take(work, "cat", min_lag="30 s", cut=False) is None, "its first message is too young"


def test_a_group_by_key_is_one_row(work: Engine) -> None:
    put(work, 0, 1, 1, 2)
    ada = take(work)
    (stream,) = work.call("list_streams")
    assert (stream.subscription, stream.pending, stream.batches, stream.worker) == ("crew", 4, 1, "ada")
    assert stream.batch_id == ada.batch_id
    (row,) = work.call("list_groups")
    assert (row.group_name, row.slots, row.members, row.alive, row.pending) == ("crew", SLOTS, 1, 1, 4)
    status = work.status("crew")
    assert (status.mode, status.ready, status.workers, status.delayed) == ("exclusive", 4, 1, 0)
    (subscription,) = work.call("list_subscriptions")
    assert (subscription.subscription, subscription.filter) == ("crew", None)
    assert members(work)["ada"].batch_id == ada.batch_id
    (batch,) = work.call("show_batch", **CREW, batch_id=ada.batch_id)
    assert (batch.state, batch.messages) == ("open", 1)
    work.ask("subscribe", subscription="more", mode="exclusive")
    assert work.fetch("select subscriptions from trunq.list_queues() where queue = '{queue}'") == 2


def test_what_fails_comes_by_halves_in_its_slot_alone(work: Engine) -> None:
    work.ask("subscribe", **CREW, mode="exclusive", max_attempts=2)
    bad = put(work, 1, 1)
    good = put(work, 2)
    bob = None
    for _ in range(20):
        batch = take(work)
        if batch is None:
            break
        if ids(read(work, batch)) == good:
            finish(work, batch)
            bob = batch
        else:
            work.ask("fail_batch", **named(batch), after="0", error="boom")
    assert bob is not None
    assert sorted(row.id for row in work.call("list_dead")) == bad
    assert work.call("list_streams")[0].pending == 0


def test_a_message_is_retried_in_its_slot(work: Engine) -> None:
    (id,) = put(work, 3)
    batch = take(work)
    assert work.ask("retry_batch", **named(batch), after="0") == 1
    assert finish(work, batch)
    work.ask("promote")
    again = take(work, "bob")
    assert [(row.id, row.attempt) for row in read(work, again)] == [(id, 2)]
    assert finish(work, again)
    assert all(take(work, member) is None for member in ("ada", "bob"))


def test_a_batch_that_ran_out_is_taken_over_and_the_late_one_refused(work: Engine) -> None:
    (id,) = put(work, 3)
    ada = take(work)
    with work.clock("2 min"):
        bob = take(work, "bob")
        assert (ids(read(work, bob)), bob.attempt) == ([id], 2)
        with refused("TQ003"):
            finish(work, ada)
        assert not members(work)["ada"].is_alive
        assert work.ask("extend", subscription="crew", lease_id=bob.batch_id, token=bob.token)
        assert finish(work, bob)
        assert finish(work, bob) is False


def test_leaving_seek_pause_and_filter_go_for_all_slots(work: Engine) -> None:
    first = work.ask("position", **CREW)
    published = put(work, 0, 1, 2)
    held = [take(work, member) for member in ("ada", "bob")]
    with refused("TQ027", 'member "ada"'):
        work.ask("leave_group", **GROUP, member="ada")
    assert work.ask("leave_group", **GROUP, member="ada", batch="give_back")
    work.ask("pause_subscription", **CREW)
    assert take(work, "cat") is None
    assert work.status("crew").paused
    assert work.ask("resume_subscription", **CREW)
    assert ids(read(work, take(work, "cat"))) == published[:1]
    assert work.ask("seek", **CREW, tick_id=first) == first
    for batch in held:
        with refused("TQ003"):
            finish(work, batch)
    work.ask("subscribe", **CREW, mode="exclusive", filter={"keys": [KEYS[2]]})
    batch = take(work, "dan")
    assert ids(read(work, batch)) == published[2:]
    assert work.call("list_subscriptions")[0].filter == {"keys": [KEYS[2]]}
    assert finish(work, batch)
    assert take(work, "dan") is None
    newest = max(row.tick_id for row in work.call("list_ticks"))
    assert work.ask("advance", **CREW, tick_id=newest) == newest
    work.ask("reset", **CREW, start="earliest")
    assert ids(read(work, take(work, "dan"))) == published[2:]


def test_rotation_empties_what_no_slot_needs(work: Engine) -> None:
    put(work, 1)
    held = take(work, lease_time="20000 days")
    with work.clock("3000 days"):
        put(work, 2)
        assert work.rotate("3000 days") == 0
        assert len(read(work, held)) == 1
    assert finish(work, held)
    for days in (4000, 5000, 6000):
        with work.clock(f"{days} days"):
            while batch := take(work, "bob"):
                finish(work, batch)
            work.ask("tick", force=True)
    assert work.rotate("7000 days") >= 1
    assert work.is_empty("log"), "slots with no messages were taken along"


@pytest.mark.parametrize("slots", [0, -1, 3, 12, 1025, 2048])
def test_slots_that_cannot_be(work: Engine, slots: int) -> None:
    with refused("TQ005", "a power of two", str(slots)):
        work.ask("create_group", group="bad", slots=slots)


def test_names_and_ways_that_cannot_be(work: Engine) -> None:
    assert work.ask("create_group", **GROUP, slots=SLOTS) is False
    for slots in (8, None):
        with refused("TQ011", "by key over 4 slots"):
            work.ask("create_group", **GROUP, slots=slots)
    with refused("TQ011"):
        work.ask("subscribe", **CREW)
    with refused("TQ005", "no rate"):
        work.ask("subscribe", **CREW, mode="exclusive", rate=3)
    with refused("TQ005", '"crew#1"', "drop_group"):
        work.ask("unsubscribe", subscription="crew#1")
    work.ask("subscribe", subscription="solo", mode="exclusive")
    with refused("TQ011", "solo"):
        work.ask("create_group", group="solo", slots=SLOTS)
    for function in ("finish_batch", "read_batch"):
        more = {} if function == "read_batch" else {"token": 1}
        with refused("TQ012" if function == "read_batch" else "TQ003"):
            work.call(function, **CREW, batch_id=999, **more)
    with refused("TQ011", "crew#0"):
        work.call("lease", **CREW, worker="w", max_messages=1)
    assert work.ask("unsubscribe", **CREW) is True
    assert [row.subscription for row in work.call("list_subscriptions")] == ["solo"]


def test_many_slots_share_out_evenly(work: Engine) -> None:
    found = Counter(slot_of(f"customer {n}") for n in range(4000))
    assert max(found.values()) < 1.2 * min(found.values())
    counted = work.fetch(
        "select array_agg(n order by slot) from (select trunq._slot('customer ' || k, 1, 4) slot, count(*) n"
        " from generate_series(0, 3999) k group by 1) c"
    )
    assert counted == [found[slot] for slot in range(SLOTS)]


def test_all_slots_of_a_group_start_afresh_at_one_tick(work: Engine) -> None:
    put(work, 0, 1, 2, 3)
    work.ask("reset", subscription="crew#0")
    work.ask("reset", **CREW)
    assert take(work) is None
    started = "select count(distinct start_tick_id) from trunq.subscription where queue_id = {id}"
    assert work.fetch(started) == 1
    # Whoever takes the locks of all takes them in one order, also when a slot has a new id.
    work.ask("reset", subscription="crew#1")
    locked = (
        "select array(select trunq._slots('{queue}', 'crew')) = array_agg(s.name order by s.subscription_id)"
    )
    assert work.fetch(locked + " from trunq.subscription s where s.queue_id = {id}")


def noted(work: Engine, member: str = "ada") -> None:
    """All is read, and the member has noted so."""
    while batch := take(work, member):
        finish(work, batch)
    note = (
        "select m.done from trunq.member m join trunq.subscription_group g using (group_id)"
        " where g.queue_id = {id} and m.name = %s"
    )
    assert work.fetch(note, member) is not None


def test_who_noted_that_all_is_done_finds_what_commits_late(work: Engine, open_session: Any) -> None:
    late = work.on(open_session(autocommit=False))
    (before,) = put(late, 1)
    put(work, 2)
    noted(work)
    late.connection.commit()
    batch = take(work)
    assert ids(read(work, batch)) == [before]


@pytest.mark.parametrize("way", ["seek all", "seek one", "copy a position", "reset all", "reset one"])
def test_who_noted_that_all_is_done_finds_what_somebody_moved_back(work: Engine, way: str) -> None:
    first = work.ask("position", **CREW)
    published = put(work, 3)
    if way == "copy a position":
        work.ask("subscribe", subscription="solo", mode="exclusive", tick_id=first)
    noted(work)
    if way.startswith("seek"):
        work.ask("seek", subscription="crew" if way == "seek all" else "crew#3", tick_id=first)
    elif way == "copy a position":
        work.ask("copy_position", subscription="crew#3", like="solo")
    else:
        work.ask("reset", subscription="crew" if way == "reset all" else "crew#3", start="earliest")
    assert ids(read(work, take(work))) == published


def test_a_move_back_that_commits_after_the_look_is_found_too(work: Engine, open_session: Any) -> None:
    other = work.on(open_session(autocommit=False))
    first = work.ask("position", **CREW)
    published = put(work, 3)
    finish(work, take(work))
    other.ask("seek", **CREW, tick_id=first)
    noted(work)  # as it stands without what is not committed
    other.connection.commit()
    assert ids(read(work, take(work))) == published


def test_who_noted_that_all_is_done_takes_over_given_back_and_retried_batches(work: Engine) -> None:
    noted(work)
    (id,) = put(work, 3)
    bob = take(work, "bob")
    assert take(work) is None
    with work.clock("50 s"):
        assert take(work) is None, "bob has it still"
        assert work.ask("leave_group", **GROUP, member="bob", batch="give_back")
        again = take(work)
        assert (ids(read(work, again)), again.batch_id > bob.batch_id) == ([id], True)
        assert work.ask("retry_batch", **named(again), after="0") == 1
        assert finish(work, again)
        assert ids(read(work, take(work))) == [id]


def test_a_note_that_is_wrong_holds_for_a_minute_at_most(work: Engine) -> None:
    """Whatever nobody thought of: here, a row that was visible all along."""
    noted(work)
    published = put(work, 1)
    work.run("update trunq.member set done = trunq.snapshot()")
    assert take(work) is None
    with work.clock("61 s"):
        assert ids(read(work, take(work))) == published
