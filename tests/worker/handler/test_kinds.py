"""Limits and policies of a kind: what one kind may not do takes nothing of the others."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from enum import Enum
from typing import Any

import psycopg
import pytest

from calling import come_back
from serving import Queue, drain, running, take_away
from trunq.client.message import Message, Retry
from trunq.wire.json import RawJson
from trunq.worker import Worker
from trunq.worker.slot.limit import Limit
from waiting import async_wait_until


class Gate:
    """A handler that waits until told to go on, and keeps count of itself."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.running = self.most = 0
        self.done: list[int] = []

    async def __call__(self, message: Message) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        await self.go.wait()
        self.running -= 1
        self.done.append(message.id)


async def test_another_kind_starts_while_one_at_its_limit_stands_ahead_of_it(queue: Queue) -> None:
    slow_ids = queue.publish("slow", count=40)
    queue.publish("quick", count=5)
    worker = queue.worker(concurrency=10, lead=True)
    slow, quick = Gate(), []
    worker.handler("slow", concurrency=8)(slow)

    @worker.handler("quick")
    async def fast(message: Message) -> None:
        quick.append(message.id)

    async with running(worker):
        # All of them, while no slow one has ended.
        await async_wait_until(lambda: len(quick) == 5)
        assert (slow.running, slow.done) == (8, [])
        slow.go.set()
        await async_wait_until(lambda: len(slow.done) == 40)
    assert slow.most == 8
    assert queue.is_done()
    assert {queue.message(id).attempt for id in slow_ids} == {1}


async def test_a_kind_gets_past_a_long_line_of_another_at_its_limit(queue: Queue) -> None:
    """What stands in line is leased once, in growing leases, and not again and again."""
    slow_ids = queue.publish("slow", count=3000)
    queue.publish("quick")
    worker = queue.worker(concurrency=10)
    slow, quick = Gate(), asyncio.Event()
    worker.handler("slow", concurrency=2)(slow)

    @worker.handler("quick")
    async def fast(message: Message) -> None:
        quick.set()

    async with running(worker):
        await asyncio.wait_for(quick.wait(), 120)
        assert (slow.running, slow.done) == (2, [])
        assert worker.statistics.leased == len(slow_ids) + 1
        assert worker.statistics.looks < 100
        await async_wait_until(lambda: queue.states().get("retrying", 0) > 2900)
        held = len(slow_ids) - queue.states()["retrying"]
        assert held <= 20, "a bounded number stays in the worker"
        slow.go.set()
    # Nothing lost an attempt, whether it ran or went back.
    assert queue.connection.execute("select count(*) from trunq.delayed where attempt > 1").fetchone() == (0,)


async def test_what_is_given_back_comes_again_in_its_order() -> None:
    limit = Limit(4)
    delays = [limit.delay(100.0) for _ in range(10_000)]
    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (1.0, 300.0)
    limit.running = 1
    limit.ended(0.004)
    limit.waiting.extend([None] * 900)  # type: ignore[list-item]
    assert not limit.is_full, "of a quick handler more may wait"
    limit.waiting.extend([None] * 100)  # type: ignore[list-item]
    assert limit.is_full


async def test_a_limit_is_of_the_handler_and_of_all_its_kinds(queue: Queue) -> None:
    queue.publish("a", count=4)
    queue.publish("b", count=4)
    worker = queue.worker()
    gate = Gate()
    worker.handler("a", "b", concurrency=3)(gate)
    async with running(worker):
        await async_wait_until(lambda: worker.statistics.leased >= 8 and gate.running == 3)
        gate.go.set()
        await async_wait_until(queue.is_done)
    assert gate.most == 3


async def test_a_stop_gives_back_what_waits_for_its_limit(queue: Queue) -> None:
    ids = queue.publish("slow", count=4)
    worker = queue.worker()
    slow = Gate()
    worker.handler("slow", concurrency=2)(slow)
    async with running(worker):
        await async_wait_until(lambda: worker.statistics.leased == 4)
        worker.stop()
        await async_wait_until(lambda: worker.statistics.released == 2)
        slow.go.set()
    assert sorted(slow.done) == ids[:2]
    assert queue.states() == {"done": 2, "ready": 2}


async def test_what_waits_for_its_limit_is_given_to_a_worker_that_has_a_place(queue: Queue) -> None:
    queue.policy(lease_time="1 s")
    (first, second) = queue.publish("slow", count=2)
    gates = [Gate(), Gate()]
    workers = [queue.worker(), queue.worker()]
    for worker, gate in zip(workers, gates, strict=True):
        worker.handler("slow", concurrency=1)(gate)
    async with running(workers[0]):
        await async_wait_until(lambda: workers[0].statistics.leased == 2)
        async with running(workers[1]):
            await async_wait_until(lambda: gates[1].running == 1)
            for gate in gates:
                gate.go.set()
            await async_wait_until(queue.is_done)
    assert sorted(gates[0].done + gates[1].done) == [first, second]
    assert {queue.message(id).attempt for id in (first, second)} == {1}


async def test_a_lease_that_is_lost_takes_along_what_waits_of_it_and_stops_nothing(queue: Queue) -> None:
    ids = queue.publish("slow", count=3)
    worker = queue.worker(lease_time=3.0)
    slow = Gate()
    worker.handler("slow", concurrency=1)(slow)
    async with running(worker):
        await async_wait_until(lambda: worker.statistics.leased >= 3)
        take_away(queue, ids[0])
        await async_wait_until(lambda: worker.statistics.lost >= 1)
        come_back(queue.connection, "q")
        slow.go.set()
        await async_wait_until(lambda: set(slow.done) == set(ids))
        await async_wait_until(queue.is_done)
    assert slow.most <= 2, "one that was told to give up, and one beside it"


async def test_a_limit_holds_for_sync_handlers_and_after_failures(queue: Queue) -> None:
    queue.publish("slow", count=12)
    worker = queue.worker(lead=True)
    lock, now, most = threading.Lock(), [0], [0]
    together = threading.Event()

    @worker.handler("slow", concurrency=2)
    def slow(message: Message) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
            if now[0] == 2:
                together.set()
        together.wait(5)
        with lock:
            now[0] -= 1
        if message.attempt == 1 and message.id % 2:
            raise RuntimeError("odd")

    async with running(worker):
        await async_wait_until(queue.is_done)
    assert most == [2]
    assert worker.statistics.handled == 12


# Policies


async def test_a_kind_has_its_own_attempts_and_says_so(queue: Queue) -> None:
    """A message's option goes before them, and they before the subscription's."""
    queue.policy(max_attempts=5)
    (twice,) = queue.publish("call")
    row = queue.connection.execute(
        "select trunq.publish('q', p_kind => 'call', p_options => '{\"max_attempts\": 3}')"
    ).fetchone()
    assert row is not None
    worker, seen = queue.worker(), {}

    @worker.handler("call", max_attempts=2)
    async def call(message: Message) -> None:
        seen[message.id, message.attempt] = (message.max_attempts, message.is_last_attempt)
        raise RuntimeError("engaged")

    await drain(worker)
    assert seen == {
        (twice, 1): (2, False),
        (twice, 2): (2, True),
        (row[0], 1): (3, False),
        (row[0], 2): (3, False),
        (row[0], 3): (3, True),
    }
    assert {(dead.id, dead.attempts, dead.reason) for dead in queue.dead()} == {
        (twice, 2, "max_attempts"),
        (row[0], 3, "max_attempts"),
    }


async def test_kinds_with_policies_of_their_own_in_one_lease(queue: Queue) -> None:
    queue.policy(backoff="constant", backoff_base="1 hour", jitter=0)
    ids = {kind: queue.publish(kind)[0] for kind in ("minutely", "doubled", "as subscribed", "given")}
    worker = queue.worker()

    async def fail(message: Message) -> None:
        raise RuntimeError("no")

    worker.handler("minutely", backoff_base=timedelta(minutes=1))(fail)
    worker.handler("doubled", backoff="exponential", backoff_base=120, backoff_cap=90)(fail)
    worker.handler("as subscribed")(fail)

    @worker.handler("given", backoff_base=60)
    async def given(message: Message) -> Retry:
        return Retry(after=30)

    async with running(worker):
        await async_wait_until(lambda: worker.statistics.failed + worker.statistics.retried == 4)
    assert {kind: wait(queue, id) for kind, id in ids.items()} == {
        "minutely": 60,
        "doubled": 90,
        "as subscribed": 3600,
        "given": 30,
    }


async def test_a_result_that_the_database_refuses_is_retried_by_the_kinds_policy(queue: Queue) -> None:
    queue.policy(keep_results=True)
    queue.publish("report")
    worker = queue.worker()

    @worker.handler("report", max_attempts=1)
    async def report(message: Message) -> Any:
        return RawJson("{")

    await drain(worker)
    assert [(dead.attempts, dead.reason) for dead in queue.dead()] == [(1, "max_attempts")]


async def test_a_crash_is_judged_by_the_subscription_and_the_next_failure_by_the_kind(queue: Queue) -> None:
    """The database knows no kinds: what its last attempt's worker died of runs once more, as its last."""
    (id,) = queue.publish("call")
    held = queue.connection.execute(
        "select lease_id, token from trunq.lease('q', 'default', 'dead')"
    ).fetchone()
    assert held is not None
    queue.connection.execute("select trunq.reclaim('q', 'default', 'dead')")
    come_back(queue.connection, "q")
    worker, seen = queue.worker(), []

    @worker.handler("call", max_attempts=1)
    async def call(message: Message) -> None:
        seen.append((message.attempt, message.max_attempts, message.is_last_attempt))
        raise RuntimeError("engaged")

    await drain(worker)
    assert seen == [(2, 1, True)]
    assert [(dead.id, dead.attempts, dead.reason) for dead in queue.dead()] == [(id, 2, "max_attempts")]


async def test_a_handler_in_a_transaction_has_its_kinds_limit_and_policy(queue: Queue) -> None:
    queue.publish("call", count=3)
    worker = queue.worker()

    @worker.handler("call", concurrency=1, max_attempts=1)
    async def call(message: Message, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute("select 1/0")

    await drain(worker)
    assert [dead.reason for dead in queue.dead()] == ["max_attempts"] * 3


def test_handle_now_gives_the_attempts_of_the_kind() -> None:
    worker = Worker("q")

    @worker.handler("call", max_attempts=2)
    def call(message: Message) -> int:
        return message.max_attempts

    assert worker.handle_now(kind="call") == 2
    assert worker.handle_now(kind="call", max_attempts=7) == 7


# What cannot be


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"concurrency": 0}, "concurrency is a whole number, 1 or more, not 0"),
        ({"concurrency": -3}, "concurrency is a whole number, 1 or more, not -3"),
        ({"max_attempts": -1}, r"max_attempts is a whole number, 0 \(for ever\) or more, not -1"),
        ({"backoff": "random"}, "backoff is 'constant', 'linear' or 'exponential', not 'random'"),
        ({"backoff": 30}, "backoff is 'constant', 'linear' or 'exponential', not 30"),
        ({"backoff_base": -1}, "backoff_base cannot be negative, not -1"),
        ({"backoff_cap": timedelta(seconds=-1)}, "backoff_cap cannot be negative"),
        ({"jitter": 1.5}, "jitter is a number from 0 to 1, not 1.5"),
    ],
)
def test_an_impossible_limit_or_policy_is_refused_when_registered(given: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Worker("q").handler("call", **given)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"concurrency": True}, "concurrency is a whole number, 1 or more, not bool"),
        ({"concurrency": 2.0}, "concurrency is a whole number, 1 or more, not float"),
        ({"max_attempts": "3"}, "max_attempts is a whole number"),
        (
            {"backoff_base": [1]},
            "backoff_base is a timedelta, a number of seconds or text such as .*, not list",
        ),
        ({"jitter": "a bit"}, "jitter is a number from 0 to 1, not str"),
    ],
)
def test_a_limit_or_policy_of_a_wrong_type_is_refused_when_registered(given: Any, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        Worker("q").handler("call", **given)


class Kind(Enum):
    CALL = "call"
    NESTED = 7


def test_a_kind_may_be_an_enum_as_in_publish() -> None:
    worker = Worker("q")

    @worker.handler(Kind.CALL, Kind.NESTED)
    def call(message: Message) -> str | None:
        return message.kind

    assert worker.kinds == ["7", "call"]
    assert worker.handle_now(kind=Kind.CALL) == "call"
    assert worker.handle_now(kind=7) == "7"


def wait(queue: Queue, id: int) -> float:
    """How long a message was put off when it was answered for."""
    row = queue.connection.execute(
        "select d.due_at - r.finished_at from trunq.delayed d"
        " join trunq_data.q_receipt r on d.id = any(r.ids) where d.id = %s",
        (id,),
    ).fetchone()
    assert row is not None
    return float(row[0].total_seconds())
