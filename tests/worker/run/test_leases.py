"""How much a worker leases, and how it keeps what it leased."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from serving import Queue, drain, running, take_away
from trunq.client.message import Message
from trunq.worker import Worker, run
from waiting import async_wait_until


class Gate:
    """A handler that waits until it is let through."""

    def __init__(self, worker: Worker, kind: str = "work") -> None:
        self.inside: list[int] = []
        self.passed: list[int] = []
        self.cancelled: list[int] = []
        self.is_open = asyncio.Event()
        worker.handler(kind)(self.handle)

    async def handle(self, message: Message) -> None:
        self.inside.append(message.id)
        try:
            await self.is_open.wait()
        except asyncio.CancelledError:
            self.cancelled.append(message.id)
            raise
        self.passed.append(message.id)


@pytest.mark.parametrize(("concurrency", "prefetch"), [(2, 3), (1, 0), (5, 0), (3, 40)])
async def test_no_more_is_leased_than_slots_and_stated_prefetch(
    queue: Queue, concurrency: int, prefetch: int
) -> None:
    queue.publish(count=100)
    worker = queue.worker(concurrency=concurrency, prefetch=prefetch)
    gate = Gate(worker)
    most = concurrency + prefetch
    async with running(worker):
        await async_wait_until(lambda: worker.statistics.leased >= most)
        await async_wait_until(lambda: len(gate.inside) == concurrency)
        assert queue.states() == {"leased": most, "ready": 100 - most}
        gate.is_open.set()
        await async_wait_until(queue.is_done)
    assert worker.statistics.handled == 100


async def test_without_a_stated_prefetch_slow_handlers_sit_on_nothing(queue: Queue) -> None:
    queue.publish(count=20)
    worker = queue.worker(concurrency=3)
    gate = Gate(worker)
    async with running(worker):
        await async_wait_until(lambda: len(gate.inside) == 3)
        assert queue.states() == {"leased": 3, "ready": 17}
        gate.is_open.set()


async def test_without_a_stated_prefetch_fast_handlers_get_large_leases(queue: Queue) -> None:
    queue.publish(count=10_000)
    worker = queue.worker(concurrency=2)

    @worker.handler("work")
    async def fast(message: Message) -> None: ...

    await drain(worker)
    assert worker.statistics.handled == 10_000
    assert worker.statistics.looks < 1000


async def test_several_queues_are_served_in_turn(queue: Queue) -> None:
    other = Queue(queue.dsn, queue.connection, "other")
    queue.publish(count=50, payload=["q"] * 50)
    other.publish(count=50, payload=["other"] * 50)
    worker = queue.worker("q", "other", concurrency=1, prefetch=0)
    seen: list[Any] = []

    @worker.handler("work")
    async def note(message: Message) -> None:
        assert message.queue == message.payload
        seen.append(message.payload)

    await drain(worker)
    assert sorted(seen) == ["other"] * 50 + ["q"] * 50
    # Neither waits for the other to be empty.
    assert "q" in seen[:4]
    assert "other" in seen[:4]


async def test_a_handler_longer_than_its_lease_keeps_it(queue: Queue) -> None:
    (id,) = queue.publish()
    worker = queue.worker(lease_time=0.3, lead=True)
    gate = Gate(worker)
    async with running(worker):
        await async_wait_until(lambda: gate.inside)
        first_end = queue.message(id).expires_at
        # The leader reaps beside it; had the lease not been extended, the message would be handed out again.
        await async_wait_until(
            lambda: (
                queue.connection.execute(
                    "select trunq.clock() > %s + interval '0.6 s' and trunq.reap('q') = 0", (first_end,)
                ).fetchone()
                == (True,)
            )
        )
        gate.is_open.set()
        await async_wait_until(queue.is_done)
    assert gate.inside == [id]
    assert queue.message(id).attempt == 1


async def test_a_sync_handler_longer_than_its_lease_keeps_it(queue: Queue) -> None:
    (id,) = queue.publish()
    worker = queue.worker(lease_time=0.3)
    entered, proceed = threading.Event(), threading.Event()

    @worker.handler("work")
    def wait(message: Message) -> None:
        entered.set()
        proceed.wait(120)

    async with running(worker):
        await async_wait_until(entered.is_set)
        first_end = queue.message(id).expires_at
        await async_wait_until(
            lambda: (
                queue.connection.execute(
                    "select trunq.clock() > %s + interval '0.2 s' and trunq.reap('q') = 0", (first_end,)
                ).fetchone()
                == (True,)
            )
        )
        proceed.set()
        await async_wait_until(queue.is_done)
    assert queue.message(id).attempt == 1


async def test_what_does_not_get_to_start_is_given_back_to_others(queue: Queue) -> None:
    ids = queue.publish(count=4)
    slow = queue.worker(name="slow", concurrency=1, prefetch=3, lease_time=0.5)
    gate = Gate(slow)
    async with running(slow):
        await async_wait_until(lambda: slow.statistics.leased == 4)
        quick = queue.worker(name="quick")
        quick_gate = Gate(quick)
        quick_gate.is_open.set()
        async with running(quick):
            await async_wait_until(lambda: len(quick_gate.passed) == 3)
            gate.is_open.set()
            await async_wait_until(queue.is_done)
    assert gate.passed == ids[:1]
    assert sorted(quick_gate.passed) == ids[1:]
    # It was no attempt.
    assert [queue.message(id).attempt for id in ids] == [1, 1, 1, 1]
    assert slow.statistics.released == 3


async def test_what_waits_is_kept_for_the_first_half_of_a_lease(queue: Queue) -> None:
    """The first extension gives nothing back: a slot may be free any moment."""
    ids = queue.publish(count=4)
    worker = queue.worker(concurrency=1, prefetch=3, lease_time=3.0)
    gate = Gate(worker)
    async with running(worker):
        await async_wait_until(lambda: gate.inside)
        end = queue.message(ids[0]).expires_at
        await async_wait_until(lambda: queue.message(ids[0]).expires_at > end)
        assert worker.statistics.released == 0
        gate.is_open.set()
        await async_wait_until(queue.is_done)
    assert gate.passed == ids


async def test_what_was_given_back_is_not_leased_again_before_something_finishes(queue: Queue) -> None:
    """Else it would go to and fro between the database and a worker that cannot start it."""
    ids = queue.publish(count=4)
    worker = queue.worker(concurrency=1, prefetch=3, lease_time=0.3, poll=0.02, notify=False)
    gate = Gate(worker)
    async with running(worker):
        await async_wait_until(lambda: worker.statistics.released == 3)
        end = queue.message(ids[0]).expires_at
        # Two extensions later, while it polls all the time.
        await async_wait_until(lambda: (queue.message(ids[0]).expires_at - end).total_seconds() > 0.2)
        assert worker.statistics.leased == 4
        gate.is_open.set()
        await async_wait_until(queue.is_done)
    assert gate.passed == ids


async def test_an_async_handler_whose_lease_is_lost_is_cancelled(queue: Queue) -> None:
    (id,) = queue.publish()
    worker = queue.worker(concurrency=1, lease_time=0.3)
    gate = Gate(worker)
    async with running(worker):
        await async_wait_until(lambda: gate.inside == [id])
        take_away(queue, id)
        await async_wait_until(lambda: gate.cancelled == [id])
        gate.is_open.set()
        await async_wait_until(queue.is_done)
    assert gate.passed == [id]
    assert (worker.statistics.lost, worker.statistics.handled) == (1, 1)
    assert [attempt["outcome"] for attempt in queue.message(id).attempts] == ["lease_expired", "success"]


async def test_a_lost_lease_takes_nothing_of_another_lease_with_it(queue: Queue) -> None:
    worker = queue.worker(concurrency=2, prefetch=2, lease_time=0.4)
    gate = Gate(worker)
    async with running(worker):
        (lost,) = queue.publish()
        await async_wait_until(lambda: gate.inside == [lost])
        (kept,) = queue.publish()
        await async_wait_until(lambda: gate.inside == [lost, kept])
        waiting = queue.publish(count=2)
        await async_wait_until(lambda: worker.statistics.leased == 4)
        take_away(queue, lost)
        await async_wait_until(lambda: gate.cancelled)
        gate.is_open.set()
        await async_wait_until(queue.is_done)
    assert gate.cancelled == [lost]
    assert [queue.message(id).attempt for id in (lost, kept, *waiting)] == [2, 1, 1, 1]
    assert worker.statistics.lost == 1


async def test_each_message_of_a_lost_lease_is_counted_as_lost_once(queue: Queue) -> None:
    """Handled or not, its answer on the way or still to be sent."""
    ids = queue.publish(count=300)
    worker = queue.worker(concurrency=1, prefetch=300)

    @worker.handler("work")
    async def handle(message: Message) -> None:
        if message.id == ids[0] and message.attempt == 1:
            take_away(queue, message.id)
        await asyncio.sleep(0)

    await drain(worker)
    assert queue.states() == {"done": 300}
    assert {queue.message(id).attempt for id in ids} == {2}
    assert worker.statistics.lost == 300


async def test_after_a_lost_lease_a_slot_tells_failures_and_time_limits_as_before(queue: Queue) -> None:
    """A task remembers that it was cancelled, until it is told to forget."""
    queue.policy(max_attempts=2)
    (id,) = queue.publish()
    worker = queue.worker(concurrency=1, lease_time=0.3, reserve=0.01)
    entered = asyncio.Event()

    @worker.handler("work")
    async def wait(message: Message) -> None:
        entered.set()
        if message.attempt == 1:
            await asyncio.Event().wait()

    @worker.handler("fail")
    async def fail(message: Message) -> None:
        raise ValueError("as usual")

    @worker.handler("late")
    async def late(message: Message) -> None:
        await asyncio.Event().wait()

    async with running(worker):
        await entered.wait()
        take_away(queue, id)
        others = queue.publish("fail") + queue.publish("late")
        await async_wait_until(queue.is_done)
    assert queue.message(id).state == "done"
    errors = {dead.id: dead.errors[-1]["error"].partition(":")[0] for dead in queue.dead()}
    assert errors == dict(zip(others, ["ValueError", "TimedOut"], strict=True))


async def test_a_sync_handler_whose_lease_is_lost_sees_its_event_and_its_answer_does_not_count(
    queue: Queue,
) -> None:
    (id,) = queue.publish()
    worker = queue.worker(concurrency=1, lease_time=0.3)
    entered = threading.Event()
    told: list[int] = []

    @worker.handler("work")
    def wait(message: Message, lost: threading.Event) -> int:
        entered.set()
        if message.attempt == 1 and lost.wait(120):
            told.append(message.attempt)
        return message.attempt

    async with running(worker):
        await async_wait_until(entered.is_set)
        take_away(queue, id)
        await async_wait_until(queue.is_done)
    assert told == [1]
    assert queue.message(id).result == 2
    assert (worker.statistics.lost, worker.statistics.handled) == (1, 1)


async def test_what_waits_under_a_lost_lease_is_not_started(queue: Queue) -> None:
    ids = queue.publish(count=4)
    worker = queue.worker(concurrency=1, prefetch=3, lease_time=0.3)
    gate = Gate(worker)
    async with running(worker):
        await async_wait_until(lambda: worker.statistics.leased == 4)
        take_away(queue, ids[0])
        await async_wait_until(lambda: gate.cancelled)
        gate.is_open.set()
        await async_wait_until(queue.is_done)
    # All four were handed out again, and ran once to their end.
    assert sorted(gate.passed) == ids
    assert [queue.message(id).attempt for id in ids] == [2, 2, 2, 2]


async def test_a_late_answer_of_a_quick_handler_is_refused_and_counted(queue: Queue) -> None:
    (id,) = queue.publish()
    worker = queue.worker(concurrency=1)

    @worker.handler("work")
    async def lose_first(message: Message) -> int:
        if message.attempt == 1:
            take_away(queue, id)
        return message.attempt

    await drain(worker)
    assert queue.message(id).result == 2
    assert worker.statistics.lost == 1


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_with_a_reserve_a_handler_gets_no_longer_than_its_lease(queue: Queue, colour: str) -> None:
    queue.policy(max_attempts=1)
    queue.publish()
    worker = queue.worker(lease_time=0.5, reserve=0.4)

    if colour == "async":

        @worker.handler("work")
        async def hang(message: Message) -> None:
            await asyncio.Event().wait()
    else:

        @worker.handler("work")
        def hang_sync(message: Message, lost: threading.Event) -> str:
            assert lost.wait(120)
            return "too late"

    await drain(worker)
    (dead,) = queue.dead()
    assert dead.errors[-1]["error"].startswith("TimedOut: the handler ran longer than the 0.1 seconds")


async def test_the_subscription_says_how_long_a_lease_is(queue: Queue) -> None:
    queue.policy(lease_time="7 min")
    (id,) = queue.publish()
    worker = queue.worker()
    gate = Gate(worker)
    async with running(worker):
        await async_wait_until(lambda: gate.inside)
        message = queue.message(id)
        gate.is_open.set()
    assert 419 < (message.expires_at - message.leased_at).total_seconds() < 421


async def test_a_worker_follows_a_policy_that_changes_while_it_runs(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_POLICY_EVERY", 0.02)
    worker = queue.worker(poll=0.02, notify=False)
    gate = Gate(worker)
    gate.is_open.set()
    async with running(worker):
        await async_wait_until(lambda: worker.statistics.looks)
        queue.policy(lease_time="7 min")

        async def is_followed() -> bool:
            (id,) = queue.publish()
            await async_wait_until(lambda: id in gate.passed)
            message = queue.message(id)
            return 419 < (message.expires_at - message.leased_at).total_seconds() < 421

        await async_wait_until(is_followed)
