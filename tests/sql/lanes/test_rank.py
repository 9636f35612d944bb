"""Ranks that a function gives: who may, what is kept, what is refused; and the fleet it sees."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from calling import ask, call, fetch, refused
from engine import Engine
from laning import keys, make

Connection = psycopg.Connection[Any]


def ranked(session: Connection, lanes: str = "key") -> Engine:
    laned = make(session, lanes)
    laned.ask("set_lanes", policy="ranked", function="by_need")
    return laned


def start(laned: Engine, ranker: str, functions: str = "by_need", without: str = "{}") -> list[str]:
    rows = call(
        laned.connection, "_start_ranking", ranker=ranker, functions=f"{{{functions}}}", without=without
    )
    return [row.queue for row in rows if row.queue == laned.queue]


def rank(laned: Engine, ranker: str, ranks: dict[str, int | None], limits: list[int | None]) -> Any:
    return ask(
        laned.connection,
        "_apply_ranks",
        ranker=ranker,
        subscription_id=subscription_id(laned),
        function="by_need",
        lanes=list(ranks),
        ranks=list(ranks.values()),
        priorities=[0] * len(ranks),
        max_running=limits,
    )


def subscription_id(laned: Engine) -> int:
    return int(laned.fetch("select subscription_id from trunq.subscription where queue_id = {id}"))


def settings(laned: Engine) -> dict[str, tuple[int | None, int | None]]:
    rows = laned.run(
        "select z.lane, z.rank, z.max_running from trunq.lane z"
        " join trunq.subscription using (subscription_id) where queue_id = {id}"
    )
    return {lane: (rank, most) for lane, rank, most in rows}


def ranking(laned: Engine) -> Any:
    (row,) = laned.call("list_rankings")
    return row


def warnings(laned: Engine) -> str:
    return " ".join(row.warning for row in laned.call("list_warnings"))


def test_one_process_ranks_at_a_time_and_the_next_one_when_it_is_silent(session: Connection) -> None:
    laned = ranked(session)
    assert ranking(laned).ranker is None
    assert "no process ranks the lanes" in warnings(laned)
    assert start(laned, "one", functions="other") == []
    assert start(laned, "one") == [laned.queue]
    assert start(laned, "two") == []
    assert ranking(laned).ranker == "one"
    assert "ranks" not in warnings(laned)
    assert rank(laned, "two", {"a": 1}, [None]) is None
    assert settings(laned) == {}
    assert rank(laned, "one", {"a": 1}, [None]) == 1
    with laned.clock("4 seconds"):
        assert start(laned, "one") == [laned.queue]
    with laned.clock("8 seconds"):
        assert start(laned, "two") == []
    with laned.clock("9.5 seconds"):
        assert "no process ranks the lanes" in warnings(laned)
        assert start(laned, "two") == [laned.queue]
        assert start(laned, "one") == []
        # What the first one comes with now is too late.
        assert rank(laned, "one", {"a": 2}, [None]) is None
    assert settings(laned) == {"a": (1, None)}


def test_one_that_is_stuck_does_not_keep_its_right_and_one_that_ends_gives_it_back(
    session: Connection,
) -> None:
    laned = ranked(session)
    assert start(laned, "one")
    with laned.clock("5 seconds"):
        assert start(laned, "one", without=f"{{{subscription_id(laned)}}}") == []
        assert start(laned, "two")
        ask(session, "_end_ranking", ranker="one")
        assert start(laned, "one") == []
        ask(session, "_end_ranking", ranker="two")
        assert start(laned, "one")


def test_a_clock_that_went_back_makes_no_ranker_for_ever(session: Connection) -> None:
    laned = ranked(session)
    with laned.clock("1 hour"):
        assert start(laned, "one")
    assert start(laned, "two")


def test_what_a_function_leaves_out_has_no_rank_and_no_limit_and_what_is_the_same_writes_nothing(
    session: Connection,
) -> None:
    laned = ranked(session)
    laned.ask("set_lane", lane="c", weight=3)
    start(laned, "one")
    assert rank(laned, "one", {"a": -5, "b": 7, "c": 1}, [2, None, None]) == 3
    assert settings(laned) == {"a": (-5, 2), "b": (7, None), "c": (1, None)}
    wakes = "select count(*) from trunq_data.{queue}_wake"
    told = laned.fetch(wakes)
    assert rank(laned, "one", {"a": -5, "b": 7, "c": 1}, [2, None, None]) == 0
    assert laned.fetch(wakes) == told
    assert rank(laned, "one", {"b": 7}, [None]) == 2
    # A weight is of people, and stays.
    assert settings(laned) == {"b": (7, None), "c": (None, None)}


def test_the_next_lease_goes_by_the_ranks_and_the_limits(session: Connection) -> None:
    laned = ranked(session)
    laned.publish(6, keys=["a", "b", "c"] * 2)
    start(laned, "one")
    rank(laned, "one", {"c": -1, "a": 5, "b": 5}, [1, None, None])
    assert keys(laned.lease()) == ["c"]
    assert set(keys(laned.lease(10))) == {"a", "b"}
    rank(laned, "one", {"c": -1, "a": 5, "b": 5}, [None, None, None])
    assert keys(laned.lease(10)) == ["c"]


def test_why_a_function_failed_is_kept_until_it_ranks_again(session: Connection) -> None:
    laned = ranked(session)
    start(laned, "one")
    why = {"subscription_id": subscription_id(laned), "error": "ZeroDivisionError: division"}
    ask(session, "_fail_ranking", ranker="two", **why)
    assert ranking(laned).error is None
    ask(session, "_fail_ranking", ranker="one", **why)
    assert (ranking(laned).error, ranking(laned).failed_at is None) == (why["error"], False)
    assert "the function by_need failed to rank the lanes" in warnings(laned)
    rank(laned, "one", {}, [])
    assert (ranking(laned).error, ranking(laned).failed_at) == (None, None)


def test_with_another_policy_what_the_function_said_ends(session: Connection) -> None:
    laned = ranked(session)
    start(laned, "one")
    rank(laned, "one", {"a": -5}, [2])
    laned.ask("set_lanes", policy="ranked", function="other")
    assert settings(laned) == {"a": (-5, 2)}
    assert (ranking(laned).function, ranking(laned).ranker) == ("other", None)
    assert rank(laned, "one", {"a": 1}, [None]) is None
    laned.ask("set_lanes", policy="fair")
    assert settings(laned) == {"a": (None, None)}
    assert laned.call("list_rankings") == []


def test_what_cannot_be_is_refused(session: Connection) -> None:
    laned = make(session)
    with refused("TQ005", "needs the name of a function", "p_function"):
        laned.ask("set_lanes", policy="ranked")
    with refused("TQ005", "needs the name of a function"):
        laned.ask("set_lanes", policy="ranked", function="")
    with refused("TQ005", "the policy fair needs no function"):
        laned.ask("set_lanes", policy="fair", function="by_need")
    with refused("TQ005", "up to 200 characters"):
        laned.ask("set_lanes", policy="ranked", function="x" * 201)
    with refused("TQ005", 'no policy "random"'):
        laned.ask("set_lanes", policy="random")
    with refused("TQ001"):
        ask(session, "list_rankings", queue="nowhere")
    assert laned.call("list_rankings") == []
    for limits in ([0], [1001], [1, 1], []):
        with refused("TQ005"):
            laned.ask(
                "set_ranks",
                subscription="default",
                lanes=["a"],
                ranks=[1],
                priorities=[0],
                max_running=limits,
            )
    assert settings(laned) == {}


@pytest.mark.parametrize("name", ["'; drop table trunq.lane; --", "%s", '"x"', "$1"])
def test_a_name_is_nothing_but_a_name(session: Connection, name: str) -> None:
    laned = make(session)
    laned.ask("set_lanes", policy="ranked", function=name)
    assert ranking(laned).function == name
    start(laned, name, functions='"' + name.replace('"', '\\"') + '"')
    assert ranking(laned).ranker == name


def test_free_slots_are_those_for_which_their_worker_has_leased_nothing(session: Connection) -> None:
    queue, other = make(session), make(session)

    def attend(worker: str, slots: int, *queues: Engine) -> None:
        names = [each.queue for each in queues]
        ask(session, "_attend", worker=worker, queues=names, subscription="default", slots=slots)

    def fleet(of: Engine) -> tuple[int, int, int]:
        (row,) = of.call("fleet")
        return row.workers, row.slots, row.free_slots

    assert fleet(queue) == (0, 0, 0)
    attend("one", 4, queue)
    attend("two", 10, queue, other)
    assert (fleet(queue), fleet(other)) == ((2, 14, 14), (1, 10, 10))
    queue.publish(9)
    other.publish(3)
    held = queue.lease(6, worker="one")  # more than it has slots
    other.lease(3, worker="two")
    queue.lease(3, worker="nobody")
    assert (fleet(queue), fleet(other)) == ((2, 14, 7), (1, 10, 7))
    queue.ack(held)
    assert fleet(queue) == (2, 14, 11)
    with queue.clock("31 seconds"):
        attend("two", 10, queue, other)
        assert fleet(queue) == (1, 10, 7)
    ask(session, "_leave_worker", worker="two")
    assert fleet(other) == (0, 0, 0)
    with queue.clock("2 hours"):
        attend("three", 1, queue)
    assert fetch(session, "select count(*) from trunq.worker where name = 'one'") == 0
