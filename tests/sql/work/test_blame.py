"""A message that kills its worker dies alone: work/reap.sql, and its lease: specimen/queue/lease.sql."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from calling import Lease, answer, ask, call, come_back, fetch, lease, move_clock, publish, set_policy, state

Connection = psycopg.Connection[Any]


def crash(session: Connection, queue: str, worker: str = "w") -> None:
    """The worker dies and starts again, under its name."""
    ask(session, "reclaim", queue=queue, subscription="default", worker=worker)


def lease_all(session: Connection, queue: str, worker: str = "w") -> list[Lease]:
    """Everything there is, as a worker with many slots holds it."""
    held = []
    while got := lease(session, queue, 100, worker=worker):
        held.append(got)
    return held


def make_suspects(session: Connection, queue: str, count: int) -> list[int]:
    """Messages whose lease ran out twice, in the log again."""
    ids = publish(session, queue, count)
    for _ in range(2):
        assert sum(len(held.ids) for held in lease_all(session, queue)) == count
        crash(session, queue)
        come_back(session, queue)
    return ids


def attempts(held: list[Lease]) -> dict[int, int]:
    return {message.id: message.attempt for each in held for message in each.messages}


def test_one_that_was_alone_comes_back_at_once(session: Connection, queue: str) -> None:
    (id,) = publish(session, queue)
    lease(session, queue)
    crash(session, queue)
    assert attempts(lease_all(session, queue)) == {id: 2}


@pytest.mark.parametrize("size", [1, 60], ids=["of one message each", "of all messages"])
def test_those_that_expired_together_come_back_scattered(session: Connection, queue: str, size: int) -> None:
    ids = publish(session, queue, 60)
    while lease(session, queue, size):
        pass
    crash(session, queue)
    assert not lease(session, queue, 60)
    due = "from trunq.delayed d join trunq.queue q using (queue_id) where q.name = %s"
    assert fetch(session, f"select count(distinct date_trunc('second', d.due_at)) {due}", queue) > 5
    assert fetch(session, f"select max(d.due_at) < trunq.clock() + interval '10 seconds' {due}", queue)
    come_back(session, queue)
    assert sorted(attempts(lease_all(session, queue))) == ids


def test_suspects_come_back_one_after_the_other(session: Connection, queue: str) -> None:
    publish(session, queue, 20)
    for _ in range(2):
        come_back(session, queue)
        lease(session, queue, 20)
        crash(session, queue)
    gaps = [
        seconds
        for (seconds,) in session.execute(
            "select extract(epoch from d.due_at - lag(d.due_at) over (order by d.due_at))::float8"
            " from trunq.delayed d join trunq.queue q using (queue_id) where q.name = %s offset 1",
            (queue,),
        )
    ]
    assert len(gaps) == 19
    assert sum(gaps) == pytest.approx(19, abs=2)


@pytest.mark.parametrize("size", [1, 5, 100])
def test_a_lease_ends_before_a_suspect(session: Connection, queue: str, size: int) -> None:
    (id,) = make_suspects(session, queue, 1)
    early = publish(session, queue, 3)
    # The suspect again, behind them.
    held = lease(session, queue, size)
    assert held.ids == [id]
    answer(session, "release", held)
    late = publish(session, queue, 3)
    ids = [each.ids for each in iter(lambda: lease(session, queue, size), Lease(queue, "default", []))]
    groups = {1: [[each] for each in (*early, id, *late)]}
    assert ids == groups.get(size, [early, [id], late])


def test_a_handler_that_fails_is_no_killer(session: Connection, queue: str) -> None:
    ids = make_suspects(session, queue, 2)
    for held in lease_all(session, queue):
        answer(session, "retry", held, delays=["0"])
    assert lease(session, queue, 9).ids == ids


def test_the_killer_dies_and_nobody_else(session: Connection, queue: str) -> None:
    """Every time all is leased at once: scattering and waiting in line do not help here."""
    set_policy(session, queue, max_attempts=5)
    publish(session, queue, 30)
    killer = publish(session, queue)[0]
    crashes = 0
    while ids := lease_all(session, queue):
        assert crashes < 20
        last = next((place for place, held in enumerate(ids) if killer in held.ids), None)
        if last is None:
            for held in ids:
                answer(session, "ack", held)
            continue
        crashes += 1
        if len(ids[last].ids) == 1:
            # A suspect kills at once: what came before it is done, but its answers were not sent.
            for held in ids[last + 1 :]:
                answer(session, "release", held)
        crash(session, queue)
        come_back(session, queue)
        publish(session, queue)
    dead = call(session, "list_dead", queue=queue)
    assert [(row.id, row.reason) for row in dead] == [(killer, "lease_expired")]


def test_the_newest_suspect_is_to_blame(session: Connection, queue: str) -> None:
    ids = make_suspects(session, queue, 3)
    held = lease_all(session, queue)
    assert [len(each.ids) for each in held] == [1, 1, 1]
    assert attempts(held) == dict.fromkeys(ids, 3)
    fresh = publish(session, queue)[0]
    lease(session, queue)
    crash(session, queue)
    come_back(session, queue)
    expected = {**dict.fromkeys(ids, 3), held[-1].ids[0]: 4, fresh: 1}
    assert attempts(lease_all(session, queue)) == expected


@pytest.mark.parametrize("beside", ["suspect", "fresh"])
def test_a_suspect_in_company_does_not_die_at_once(session: Connection, queue: str, beside: str) -> None:
    """Its lease may have been on its way when the killer struck, and a new killer is no suspect yet."""
    innocent, *others = make_suspects(session, queue, 2 if beside == "suspect" else 1)
    killer = others[0] if others else publish(session, queue)[0]
    held = lease_all(session, queue)
    assert sorted(attempts(held)) == sorted([innocent, killer])
    set_policy(session, queue, max_attempts=3)
    newest = next(each for each in reversed(held) if attempts([each])[each.ids[0]] == 3)
    assert attempts([newest]) == {newest.ids[0]: 3}
    crash(session, queue)
    assert not call(session, "list_dead", queue=queue)


def test_a_killer_always_in_company_dies_in_the_end(session: Connection, queue: str) -> None:
    set_policy(session, queue, max_attempts=3)
    (killer,) = make_suspects(session, queue, 1)
    crashes = 2
    while not call(session, "list_dead", queue=queue):
        publish(session, queue)
        assert killer in attempts(lease_all(session, queue))
        crash(session, queue)
        crashes += 1
        for held in lease_all(session, queue):
            answer(session, "ack", held)
        come_back(session, queue)
        for held in lease_all(session, queue):
            if killer not in held.ids:
                answer(session, "ack", held)
            else:
                answer(session, "release", held)
    assert crashes == 5
    dead = call(session, "list_dead", queue=queue)
    assert [(row.id, row.reason) for row in dead] == [(killer, "lease_expired")]


def test_reaped_one_after_the_other_the_blame_is_the_same(session: Connection, queue: str) -> None:
    ids = make_suspects(session, queue, 3)
    held = []
    for seconds in (0, 10, 20):
        move_clock(session, f"{seconds} seconds")
        held.append(lease(session, queue))
    for seconds in (65, 75, 85):
        move_clock(session, f"{seconds} seconds")
        assert ask(session, "reap", queue=queue) == 1
    come_back(session, queue)
    newest = held[-1].ids[0]
    assert attempts(lease_all(session, queue)) == {id: 4 if id == newest else 3 for id in ids}


def test_the_last_attempt_in_company_is_not_the_end(session: Connection, queue: str) -> None:
    set_policy(session, queue, max_attempts=2, backoff_base="0 s")
    failed, other = publish(session, queue, 2)
    answer(session, "retry", lease(session, queue), [failed], delays=["0"])
    assert attempts(lease_all(session, queue)) == {failed: 2, other: 1}
    crash(session, queue)
    come_back(session, queue)
    assert attempts(lease_all(session, queue)) == {failed: 2, other: 2}
    # Now each is alone.
    crash(session, queue)
    come_back(session, queue)
    assert attempts(lease_all(session, queue)) == {failed: 2, other: 2}
    assert not call(session, "list_dead", queue=queue)


def test_what_may_run_but_once_never_runs_again(session: Connection, queue: str) -> None:
    set_policy(session, queue, max_attempts=1)
    publish(session, queue, 5)
    lease(session, queue, 5)
    crash(session, queue)
    come_back(session, queue)
    assert not lease(session, queue)
    assert len(call(session, "list_dead", queue=queue)) == 5


def test_another_worker_has_nothing_to_do_with_it(session: Connection, queue: str) -> None:
    (id, other) = publish(session, queue, 2)
    lease(session, queue, worker="me")
    lease(session, queue, worker="them")
    crash(session, queue, "me")
    assert attempts([lease(session, queue, worker="me")]) == {id: 2}
    assert state(session, queue, other).state == "leased"


def test_nobody_waits_in_line_behind_one_that_has_no_handler(session: Connection, queue: str) -> None:
    unknown, suspect = make_suspects(session, queue, 2)
    for _ in range(9):
        (held,) = (each for each in lease_all(session, queue) if unknown in each.ids)
        answer(session, "release", held, errors=["no handler"])
        if state(session, queue, suspect).state == "leased":
            crash(session, queue)
        waits = "select due_at - trunq.clock() from trunq.delayed where id = %s and queue_id ="
        waits += " (select queue_id from trunq.queue where name = %s)"
        assert fetch(session, waits, suspect, queue) < timedelta(seconds=3)
        put_off = fetch(session, waits, unknown, queue)
        come_back(session, queue)
    assert put_off > timedelta(minutes=2)


def test_a_line_is_never_longer_than_ten_minutes(session: Connection, queue: str) -> None:
    publish(session, queue, 2000)
    for _ in range(2):
        come_back(session, queue)
        lease(session, queue, 2000)
        crash(session, queue)
    late = "select count(*) from trunq.delayed d join trunq.queue q using (queue_id) where q.name = %s"
    assert fetch(session, f"{late} and d.due_at > trunq.clock() + interval '11 minutes'", queue) == 0
    assert fetch(session, late, queue) == 2000
