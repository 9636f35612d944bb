"""Lanes: whose turn it is, what a lane may, and that rotation, history and status know what lanes hold."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pytest

from calling import ask, come_back, fetch, lease, new_names, refused
from conftest import Connect
from engine import Engine

Connection = psycopg.Connection[Any]

LATER = "9 days 12 hours"
"""When the segment that is written to now is old, and no other."""


@pytest.fixture
def session(open_session: Connect) -> Connection:
    return open_session()


def make(session: Connection, lanes: str = "key", **options: Any) -> Engine:
    return Engine(session, next(new_names("laned"))).create(lanes=lanes, **options)


def keys(held: Any) -> list[str]:
    return [message.key for message in held.messages]


def priorities(held: Any) -> list[int]:
    return [message.priority for message in held.messages]


def tables(session: Connection, queue: str) -> set[str]:
    rows = session.execute(
        "select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname like 'trunq%%' and c.relname like %s and c.relkind in ('p', 'r', 'S', 'i')",
        (queue.replace("_", r"\_") + "%",),
    )
    return {name for (name,) in rows}


# Made with a queue


def test_a_plain_queue_has_neither_tables_nor_functions_of_lanes(session: Connection) -> None:
    plain, laned = Engine(session, next(new_names("plain"))).create(), make(session)
    assert f"{laned.queue}_turn" in tables(session, laned.queue)
    assert f"{plain.queue}_turn" not in tables(session, plain.queue)
    body = "select prosrc from pg_proc where oid = 'trunq_queue.%s_lease'::regproc"
    assert "_turn" in fetch(session, body % laned.queue)
    assert "_turn" not in fetch(session, body % plain.queue)
    columns = "select count(*) from pg_attribute where attrelid = 'trunq_data.%s_lease'::regclass"
    assert fetch(session, columns % plain.queue) < fetch(session, columns % laned.queue)


def test_dropped_with_everything(session: Connection) -> None:
    laned = make(session, "priority,kind")
    laned.ask("drop_queue", force=True)
    assert tables(session, laned.queue) == set()
    functions = "select count(*) from pg_proc where proname like %s"
    assert fetch(session, functions, laned.queue.replace("_", r"\_") + r"\_%") == 0


@pytest.mark.parametrize("lanes", ["priority", "key", "kind", "priority,key", "priority,kind"])
def test_every_lane_gets_its_share(session: Connection, lanes: str) -> None:
    laned = make(session, lanes)
    counts = {"a": 20, "b": 5, "c": 1}
    names = [name for name, count in counts.items() for _ in range(count)]
    by_priority = {"a": 1, "b": 2, "c": 3}
    more: dict[str, Any] = {}
    if "priority" in lanes:
        more["priorities"] = [by_priority[name] for name in names]
    laned.publish(len(names), keys=names, kinds=names, **more)
    held = laned.lease(6)
    assert Counter(keys(held)) == {"a": 3, "b": 2, "c": 1} or Counter(keys(held)) == {"a": 2, "b": 2, "c": 1}
    laned.ack(held)
    assert Counter(keys(held)) + Counter(key_of(laned, id) for id in laned.drain()) == Counter(names)


def key_of(laned: Engine, id: int) -> str:
    return str(laned.fetch("select key from {log} where id = %s", id))


def test_messages_without_a_key_are_a_lane(session: Connection) -> None:
    laned = make(session)
    laned.publish(3)
    laned.publish(3, keys=["a"])
    assert Counter(keys(laned.lease(2))) == {None: 1, "a": 1}


def test_an_idle_queue_hands_out_what_is_new_without_a_turn(session: Connection) -> None:
    laned = make(session)
    laned.publish(4, keys=["a", "a", "b", "b"])
    assert len(laned.lease(10).ids) == 4
    assert laned.is_empty("turn")


def test_what_is_plain_goes_into_lanes_by_insert_and_copy(session: Connection) -> None:
    laned = make(session, "priority,key")
    laned.run("insert into {log} (key, priority, payload) values ('a', 7, '1')")
    with session.cursor().copy(f"copy trunq_log.{laned.queue} (key, priority) from stdin") as copy:
        copy.write_row(("b", 3))
        copy.write_row((None, 0))
    assert sorted(priorities(laned.lease(10))) == [0, 3, 7]


def test_priority_and_key_stay_with_a_message(session: Connection) -> None:
    laned = make(session, "priority,key")
    laned.ask("subscribe", subscription="default", max_attempts=2, backoff_base="1 hour", jitter=0)
    laned.publish(1, keys=["a"], priorities=[7], delay="1 hour")
    come_back(session, laned.queue)
    for verb in ("release", "retry"):
        held = laned.lease()
        assert (keys(held), priorities(held)) == (["a"], [7])
        laned.answer(verb, held)
    come_back(session, laned.queue)
    held = laned.lease()
    assert (keys(held), priorities(held)) == (["a"], [7])
    laned.answer("reject", held)
    laned.ask("requeue")
    held = laned.lease()
    assert (keys(held), priorities(held)) == (["a"], [7])
    assert fetch(
        session,
        "select trunq.publish(%s, '1', p_priority => 5::smallint, p_delay => interval '1 hour')",
        laned.queue,
    )
    come_back(session, laned.queue)
    assert priorities(laned.lease()) == [5]


def test_a_retry_of_another_subscription_makes_no_turn(session: Connection) -> None:
    laned = make(session)
    laned.ask("subscribe", subscription="other")
    laned.publish(2, keys=["a"])
    laned.answer("retry", laned.lease(2), delays=["0", "0"])
    assert len(laned.drain("other")) == 2
    assert len(laned.drain()) == 2
    assert laned.drain("other") == []


def test_a_lane_goes_on_with_what_comes_while_it_is_worked_off(session: Connection) -> None:
    laned = make(session)
    ids = laned.publish(5, keys=["a"])
    seen = laned.lease(2).ids
    ids += laned.publish(5, keys=["a"]) + laned.publish(1, keys=["b"])
    while held := laned.lease(2):
        seen += held.ids
    assert sorted(seen) == ids
    assert [id for id in seen if key_of(laned, id) == "a"] == ids[:-1]


def test_what_commits_late_comes_too(session: Connection, open_session: Connect) -> None:
    laned, writer = make(session), open_session(autocommit=False)
    laned.publish(6, keys=["a", "a", "a", "b", "b", "b"])
    late = laned.on(writer).publish(4, keys=["a", "b", "a", "b"])
    first = laned.lease(2).ids
    laned.publish(2, keys=["a", "c"])
    second = laned.lease(2).ids
    writer.commit()
    rest = laned.drain()
    assert set(late) <= set(rest)
    assert len(first + second + rest) == len({*first, *second, *rest}) == 12


def test_a_million_of_one_do_not_hide_another(session: Connection) -> None:
    """A window of more rows than discovery reads: it jumps."""
    laned = make(session)
    laned.run("insert into {log} (key) select 'big' from generate_series(1, 16000)")
    laned.run("insert into {log} (key) select 'small ' || n from generate_series(1, 700) n")
    laned.run("insert into {log} (key) values ('big')")
    seen = Counter(keys(laned.lease(1000)))
    for _ in range(9):
        seen += Counter(keys(laned.lease(1000)))
    assert sum(count for key, count in seen.items() if key != "big") == 700
    assert len(laned.drain()) == 16001 - seen["big"]


# In which order


def test_the_smallest_priority_comes_first(session: Connection) -> None:
    laned = make(session, "priority")
    laned.ask("set_lanes", policy="priority")
    laned.publish(6, priorities=[5, 5, -2, 0, 9, 0])
    assert [priorities(laned.lease())[0] for _ in range(6)] == [-2, 0, 0, 5, 5, 9]


def test_what_is_urgent_comes_before_all_that_waits(session: Connection) -> None:
    laned = make(session, "priority")
    laned.ask("set_lanes", policy="priority")
    laned.publish(100, priorities=[5])
    laned.lease(10)
    (urgent,) = laned.publish(1, priorities=[1])
    assert urgent in laned.lease(10).ids + laned.lease(10).ids


@pytest.mark.parametrize("older", [0, 3])
def test_a_turn_behind_r_older_ones_is_reached_within_8_times_r_plus_1_leases(
    session: Connection, older: int
) -> None:
    laned = make(session, "priority,key")
    laned.ask("set_lanes", policy="priority")
    for n in range(older):
        laned.publish(50, keys=[f"older {n}"], priorities=[9])
    waiting = set(laned.publish(50, keys=["waiting"], priorities=[9]))
    leases = 1
    while True:
        laned.publish(20, keys=["urgent"], priorities=[0])
        if waiting & set(laned.lease(10).ids):
            break
        leases += 1
        assert leases <= 8 * (older + 1)
    assert leases > 1


def test_weights(session: Connection) -> None:
    laned = make(session)
    laned.ask("set_lane", lane="a", weight=3)
    laned.publish(200, keys=["a", "b"] * 100)
    assert Counter(keys(laned.lease(40))) == {"a": 30, "b": 10}


def test_the_priority_of_a_kind_is_the_subscription_s(session: Connection) -> None:
    laned = make(session, "kind")
    laned.ask("subscribe", subscription="other")
    laned.publish(40, kinds=["slow", "quick"] * 20)
    laned.lease(2)
    laned.lease(2, subscription="other")
    laned.ask("set_lane", lane="quick", rank=-1)
    assert {message.kind for message in laned.lease(5).messages} == {"quick"}
    assert {message.kind for message in laned.lease(6, subscription="other").messages} == {"quick", "slow"}
    laned.ask("set_lane", lane="quick", rank=1)
    assert {message.kind for message in laned.lease(5).messages} == {"slow"}


def test_the_order_follows_the_ranks_as_they_change(session: Connection) -> None:
    laned = make(session)
    laned.publish(90, keys=["a", "b", "c"] * 30)
    laned.lease(3)
    for first in ("b", "c", "a"):
        ranks = [0 if lane == first else 1 for lane in "abc"]
        assert laned.ask("set_ranks", subscription="default", lanes=list("abc"), ranks=ranks) > 0
        assert laned.ask("set_ranks", subscription="default", lanes=list("abc"), ranks=ranks) == 0
        assert set(keys(laned.lease(5))) == {first}
    seen = len(laned.drain())
    assert seen == 90 - 3 - 15


def test_a_change_of_the_policy_reorders_what_waits(session: Connection) -> None:
    laned = make(session, "priority")
    laned.publish(30, priorities=[5, 1, 9] * 10)
    laned.lease(3)
    laned.ask("set_lanes", policy="priority")
    assert set(priorities(laned.lease(9))) == {1}
    laned.ask("set_lanes", policy="fair")
    held = laned.lease(8)
    assert set(priorities(held)) == {5, 9}
    assert len(laned.drain()) == 30 - 3 - 9 - len(held.ids)


# Cut


def test_a_lease_cut_by_bytes_records_what_it_handed_out(session: Connection) -> None:
    laned = make(session)
    laned.ask("set_lanes", max_running=10)
    payload = {"x": "y" * 3000}
    for _ in range(4):
        ask(session, "publish_many", queue=laned.queue, payloads=[payload] * 3, keys=["a", "b", "c"])
    seen: list[int] = []
    while held := laned.lease(10, max_bytes=10000):
        assert len(held.ids) == 3
        assert laned.fetch("select ids from {lease} where lease_id = %s", held.lease_id) == held.ids
        seen += held.ids
    assert len(seen) == len(set(seen)) == 12


def test_a_suspect_is_leased_alone(session: Connection) -> None:
    laned = make(session)
    (suspect,) = laned.publish(1, keys=["a"])
    for n in range(2):
        laned.lease(worker=f"w{n}")
        laned.ask("reclaim", subscription="default", worker=f"w{n}")
        come_back(session, laned.queue)
    laned.publish(3, keys=["a", "b", "c"])
    sizes = {}
    while held := laned.lease(10):
        sizes.update(dict.fromkeys(held.ids, len(held.ids)))
    assert sizes[suspect] == 1
    assert len(sizes) == 4


# Limits


def test_no_more_run_than_a_lane_may(session: Connection) -> None:
    laned = make(session)
    laned.ask("set_lanes", max_running=2)
    laned.ask("set_lane", lane="b", max_running=5)
    laned.publish(20, keys=["a", "b"] * 10)
    held = laned.lease(20)
    assert Counter(keys(held)) == {"a": 2, "b": 5}
    assert not laned.lease(20)
    of_a = [message.id for message in held.messages if message.key == "a"]
    laned.ack(held, of_a[:1])
    assert keys(laned.lease(20)) == ["a"]
    laned.answer("retry", held, of_a[1:], delays=["0"])
    assert keys(laned.lease(20)) == ["a"]
    assert not laned.lease(20)


def test_what_a_dead_worker_held_runs_no_more_when_it_is_reaped(session: Connection) -> None:
    laned = make(session)
    laned.ask("set_lanes", max_running=1)
    laned.publish(2, keys=["a"])
    laned.lease(2, lease_time="1 minute")
    assert not laned.lease()
    with laned.clock("2 minutes"):
        assert not laned.lease()
        laned.ask("reap")
        assert keys(laned.lease()) == ["a"]


def test_an_answer_that_is_not_committed_frees_nothing(session: Connection, open_session: Connect) -> None:
    laned, other = make(session), open_session(autocommit=False)
    laned.ask("set_lanes", max_running=1)
    laned.publish(2, keys=["a"])
    held = laned.lease()
    laned.on(other).ack(held)
    assert not laned.lease()
    other.commit()
    assert keys(laned.lease()) == ["a"]


def test_a_lane_is_paused_and_resumed(session: Connection) -> None:
    laned = make(session)
    laned.publish(6, keys=["a", "a", "a", "b", "b", "b"])
    laned.lease(2)
    laned.ask("pause_lane", lane="a")
    assert set(keys(laned.lease(10))) == {"b"}
    assert laned.ask("resume_lane", lane="a")
    assert not laned.ask("resume_lane", lane="a")
    assert set(keys(laned.lease(10))) == {"a"}


def test_a_lane_resumes_by_itself(session: Connection) -> None:
    laned = make(session)
    until = fetch(session, "select trunq.clock() + interval '1 hour'")
    laned.ask("pause_lane", lane="a", until=until)
    laned.publish(2, keys=["a"])
    assert not laned.lease(10)
    with laned.clock("61 minutes"):
        assert keys(laned.lease(10)) == ["a", "a"]


def test_a_rate(session: Connection) -> None:
    laned = make(session)
    laned.ask("set_lanes", rate=2, burst=3)
    laned.publish(20, keys=["a"])
    assert len(laned.lease(20).ids) == 3
    assert not laned.lease(20)
    with laned.clock("1 second"):
        assert len(laned.lease(20).ids) == 2
        assert not laned.lease(20)
    with laned.clock("1 hour"):
        assert len(laned.lease(20).ids) == 3


# Rotation, history, status


def test_rotation_empties_no_segment_that_holds_what_was_found_and_not_handed_out(
    session: Connection,
) -> None:
    laned = make(session)
    laned.publish(30, keys=["a", "b", "c"] * 10)
    seen = laned.lease(3).ids
    laned.ack(laned.lease(3))
    laned.rotate(LATER)
    assert not laned.is_empty("log")
    laned.run("update {lease} set expires_at = expires_at")
    for offset in (LATER, "11 days 12 hours"):
        with laned.clock(offset):
            laned.ask("reap")
        laned.rotate(offset)
    assert not laned.is_empty("log")
    with laned.clock("11 days 12 hours"):
        come_back(session, laned.queue)
        rest = laned.drain()
    assert len(rest) == 30 - 3
    assert set(seen) <= set(rest)


@pytest.mark.parametrize("state", ["blocked", "paused"])
def test_nor_one_that_holds_what_a_lane_may_not_hand_out(session: Connection, state: str) -> None:
    laned = make(session)
    laned.ask("set_lanes", max_running=1)
    laned.publish(3, keys=["a"])
    held = laned.lease()
    if state == "paused":
        laned.ask("pause_lane", lane="a")
        laned.ack(held)
    assert not laned.lease()
    laned.rotate(LATER)
    if state == "paused":
        laned.ask("resume_lane", lane="a")
    else:
        laned.ack(held)
    with laned.clock(LATER):
        assert len(laned.drain()) == 2


def test_when_all_is_answered_the_segment_of_every_table_is_emptied(session: Connection) -> None:
    laned = make(session)
    laned.ask("set_lanes", max_running=3)
    laned.publish(30, keys=["a", "b", "c"] * 10)
    segment = laned.fetch("select min(segment) from {log}")
    for _ in range(10):
        laned.drain()
    sizes = " + ".join(
        f"pg_relation_size('trunq_data.{laned.queue}_{table}_{segment}')"
        for table in ("log", "lease", "receipt", "turn", "wake")
    )
    assert fetch(session, f"select {sizes}") > 0
    laned.rotate(LATER)
    assert fetch(session, f"select {sizes}") == 0


def age_turns(laned: Engine) -> str:
    """As if the turns were of the span before this one; returns when their segment is old."""
    laned.run("update {turn} set segment = mod(segment + 3, 4)")
    return "1 day"


def test_lanes_outlive_the_segment_of_their_turns(session: Connection) -> None:
    laned = make(session)
    laned.publish(40, keys=["a", "b", "c", "d"] * 10)
    laned.ack(laned.lease(4))
    later = age_turns(laned)
    before = laned.fetch("select min(segment) from {turn}")
    assert laned.rotate(later) > 1
    assert laned.fetch("select count(*) from {turn} where segment = %s", before) == 0
    rest: list[int] = []
    while more := laned.lease(4):
        rest += more.ids
    assert len(rest) == len(set(rest)) == 36


def test_turns_that_were_copied_are_not_taken_twice(session: Connection) -> None:
    laned = make(session)
    laned.publish(40, keys=["a", "b", "c", "d"] * 10)
    laned.ack(laned.lease(4))
    with laned.clock(age_turns(laned)):
        assert laned.ask("rotate") == 1
    # The old ones are still there.
    assert laned.fetch("select count(distinct segment) from {turn}") == 2
    rest: list[int] = []
    while more := laned.lease(4):
        rest += more.ids
    assert len(rest) == len(set(rest)) == 36
    assert laned.fetch("select carried_to from {lease} order by lease_id desc limit 1") is None


def test_a_lane_that_runs_keeps_its_count_when_its_turn_is_copied(session: Connection) -> None:
    laned = make(session)
    laned.ask("set_lanes", max_running=2)
    laned.publish(2, keys=["a"])
    laned.lease(2)
    with laned.clock(age_turns(laned)):
        while laned.ask("rotate") == 1:
            pass
    laned.publish(2, keys=["a"])
    assert not laned.lease(2)


def test_history_finds_the_lease_of_every_message(session: Connection) -> None:
    laned = make(session)
    holders: dict[int, int] = {}
    for round in range(12):
        # By turns when much waits, straight through when little does.
        laned.publish(7 if round % 3 else 40, keys=list("abcdefg") if round % 3 else list("abcde") * 8)
        for size in (3, 5) if round % 4 else (200,):
            held = laned.lease(size)
            holders.update(dict.fromkeys(held.ids, held.lease_id))
            if round % 2:
                laned.ack(held)
    found = {
        row.id: row.state
        for row in laned.call("list_messages", limit=1000)
        if row.state in ("leased", "done")
    }
    assert set(found) == set(holders)
    for id, lease_id in holders.items():
        txid = laned.fetch("select txid from {log} where id = %s", id)
        holder = fetch(
            session,
            "select h.lease_id from trunq._holders((select q from trunq.queue q where name = %s),"
            " (select subscription_id from trunq.subscription where queue_id = %s and name = 'default'),"
            " array[%s]::xid8[], array[%s]::bigint[]) h",
            laned.queue,
            laned.queue_id,
            str(txid),
            id,
        )
        assert holder == lease_id
        assert [attempt["worker"] for attempt in laned.message(id).attempts] == ["w"]


def test_status_counts_what_lanes_hold(session: Connection) -> None:
    laned = make(session)
    laned.publish(30, keys=["a", "b", "c"] * 10)
    assert laned.status().ready == 30
    laned.lease(6)
    assert (laned.status().ready, laned.status().leased) == (24, 6)
    laned.publish(5, keys=["a", "b", "c", "d", "e"])
    assert laned.status().ready == 29
    assert len(laned.listed(state="ready", limit=100)) == 29
    while laned.lease(4):
        pass
    assert (laned.status().ready, laned.status().leased) == (0, 35)


def test_an_emptied_queue_starts_anew(session: Connection) -> None:
    laned = make(session)
    laned.publish(30, keys=["a", "b", "c"] * 10)
    laned.lease(6)
    laned.ask("empty_queue")
    assert not laned.lease(6)
    laned.publish(9, keys=["a", "b", "c"] * 3)
    assert keys(laned.lease(3)) == ["a", "b", "c"]


# Refused


def test_what_lanes_cannot_be_is_said(session: Connection) -> None:
    laned, plain = make(session, "priority,key"), Engine(session, next(new_names("plain"))).create()
    keyed, prioritized = make(session, "key"), make(session, "priority")
    with refused("TQ005", "customer", "priority,key"):
        make(session, "customer")
    with refused("TQ005", plain.queue, "has no lanes", "when a queue is made"):
        plain.create(lanes="key")
    with refused("TQ005", 'by "priority,key"', 'not by "key"'):
        laned.create(lanes="key")
    assert laned.create(lanes="priority,key")
    for function in ("set_lanes", "set_lane", "pause_lane", "resume_lane"):
        with refused("TQ005", plain.queue, "plain queue", "create_queue"):
            plain.ask(function)
    with refused("TQ005", "loud", "fair"):
        laned.ask("set_lanes", policy="loud")
    for function in ("set_lanes", "set_lane"):
        for limit in (0, -1, 10000):
            with refused("TQ005", f"not {limit}", "pause_lane"):
                laned.ask(function, max_running=limit)
        with refused("TQ005", "not -1"):
            laned.ask(function, rate=-1)
        with refused("TQ005", "burst"):
            laned.ask(function, burst=3)
    with refused("TQ005", "weight", "0"):
        laned.ask("set_lane", lane="a", weight=0)
    with refused("TQ005", "rank", "1000"):
        laned.ask("set_lane", lane="a", rank=1000)
    with refused("TQ005", "differ in length"):
        laned.ask("set_ranks", subscription="default", lanes=["a", "b"], ranks=[1])
    with refused("TQ005", "by key alone"):
        keyed.ask("set_lane", lane="a", priority=3)
    with refused("TQ005", "its priorities", "a"):
        prioritized.ask("set_lane", lane="a")
    with refused("TQ005", "plain queue", "priorities"):
        plain.publish(1, priorities=[1])
    with refused("TQ005", "by key alone", "priorities"):
        keyed.publish(1, priorities=[1])
    with refused("TQ005", "2 priorities", "3 messages"):
        laned.publish(3, priorities=[1, 2])
    with refused("TQ005", "plain queue"):
        ask(session, "publish", queue=plain.queue, priority=1)
    with refused("TQ005", "by key alone"):
        ask(session, "publish", queue=keyed.queue, priority=1)
    assert lease(session, plain.queue).ids == []
