"""Lanes: how a queue gets them, and whose turn it is."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pytest

from calling import ask, come_back, fetch, new_names
from conftest import Connect
from engine import Engine
from laning import key_of, keys, make, priorities

Connection = psycopg.Connection[Any]


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


def test_a_retry_of_another_subscription_is_not_handed_out(session: Connection) -> None:
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
