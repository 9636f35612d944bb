"""Messages that are cancelled while a worker holds them."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import psycopg
import pytest

from serving import PATIENCE, Queue, drain, running
from trunq.client.message import Message, Reject, Retry
from trunq.worker import Worker
from waiting import async_wait_until


def cancel(queue: Queue, *ids: int) -> list[str]:
    rows = queue.connection.execute("select state from trunq.cancel(%s, %s)", (queue.name, list(ids)))
    return [state for (state,) in rows.fetchall()]


def fates(queue: Queue) -> dict[int, str]:
    return {row.id: row.reason for row in queue.dead()}


async def over(queue: Queue) -> None:
    await async_wait_until(queue.is_done)


@pytest.mark.parametrize("notify", [None, False])
async def test_an_async_handler_is_cancelled(queue: Queue, notify: bool | None) -> None:
    started, ended = asyncio.Event(), []
    # By NOTIFY at once, long before a heartbeat; without it at the next heartbeat.
    worker = queue.worker(notify=notify, lease_time=None if notify is None else 1)

    @worker.handler("work")
    async def handle(message: Message) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append((message.id, message.is_cancelled))

    (id,) = queue.publish()
    async with running(worker):
        await asyncio.wait_for(started.wait(), PATIENCE)
        assert cancel(queue, id) == ["leased"]
        await over(queue)
    assert ended == [(id, True)]
    assert fates(queue) == {id: "cancelled"}
    assert worker.statistics.cancelled == 1
    assert (worker.statistics.failed, worker.statistics.dead) == (0, 0)
    (dead,) = queue.dead()
    assert dead.errors[0]["error"] == "cancelled while it ran"


async def test_the_log_says_so_and_not_as_an_error(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trunq.worker")
    started = asyncio.Event()
    worker = queue.worker()

    @worker.handler("work")
    async def handle(_message: Message) -> None:
        started.set()
        await asyncio.Event().wait()

    (id,) = queue.publish()
    async with running(worker):
        await asyncio.wait_for(started.wait(), PATIENCE)
        cancel(queue, id)
        await over(queue)
    said = [record.getMessage() for record in caplog.records]
    assert any(f"message {id} of q was cancelled, and its handler is told" in line for line in said)
    assert any(f"message {id} of q is cancelled" in line for line in said)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_thread_is_told_by_its_event(queue: Queue) -> None:
    started, loop = asyncio.Event(), asyncio.get_running_loop()
    worker = queue.worker()

    @worker.handler("work")
    def handle(message: Message, stop: threading.Event) -> None:
        loop.call_soon_threadsafe(started.set)
        assert stop.wait(PATIENCE)
        assert message.is_cancelled
        raise RuntimeError("stopped in the middle")

    (id,) = queue.publish()
    async with running(worker):
        await asyncio.wait_for(started.wait(), PATIENCE)
        cancel(queue, id)
        await over(queue)
    (dead,) = queue.dead()
    assert dead.reason == "cancelled"
    assert dead.errors[0]["error"].startswith("cancelled while it ran: RuntimeError: stopped in the middle")


@pytest.mark.parametrize("ending", ["return", "swallow", "retry", "raise retry", "reject"])
async def test_who_ends_well_has_won_and_who_does_not_is_not_retried(queue: Queue, ending: str) -> None:
    started, runs = asyncio.Event(), 0
    worker = queue.worker()

    @worker.handler("work")
    async def handle(message: Message) -> Any:
        nonlocal runs
        runs += 1
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert message.is_cancelled
            match ending:
                case "retry":
                    return Retry(after=0)
                case "raise retry":
                    raise Retry(after=0) from None
                case "reject":
                    return Reject("of no use")
        return "all the same"

    (id,) = queue.publish()
    async with running(worker):
        await asyncio.wait_for(started.wait(), PATIENCE)
        cancel(queue, id)
        await over(queue)
    assert runs == 1
    if ending in ("return", "swallow"):
        assert (queue.message(id).state, queue.message(id).result) == ("done", "all the same")
        assert worker.statistics.handled == 1
    else:
        assert fates(queue) == {id: "rejected" if ending == "reject" else "cancelled"}


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_transactional_handler_wrote_is_rolled_back(queue: Queue, is_async: bool) -> None:
    queue.connection.execute("create table effect (id bigint)")
    started, loop = asyncio.Event(), asyncio.get_running_loop()
    worker = queue.worker()
    insert = "insert into effect values (%s)"
    if is_async:

        @worker.handler("work")
        async def handle(message: Message, connection: psycopg.AsyncConnection[Any]) -> None:
            await connection.execute(insert, (message.id,))
            started.set()
            await asyncio.Event().wait()
    else:

        @worker.handler("work")
        def handle_in_thread(
            message: Message, connection: psycopg.Connection[Any], stop: threading.Event
        ) -> None:
            connection.execute(insert, (message.id,))
            loop.call_soon_threadsafe(started.set)
            assert stop.wait(PATIENCE)
            raise RuntimeError("told to stop")

    (id,) = queue.publish()
    async with running(worker):
        await asyncio.wait_for(started.wait(), PATIENCE)
        cancel(queue, id)
        await over(queue)
    assert fates(queue) == {id: "cancelled"}
    assert queue.connection.execute("select count(*) from effect").fetchone() == (0,)


async def test_while_the_worker_drains(queue: Queue) -> None:
    started = asyncio.Event()
    worker = queue.worker()

    @worker.handler("work")
    async def handle(_message: Message) -> None:
        started.set()
        await asyncio.Event().wait()

    (id,) = queue.publish()
    async with running(worker) as (task,):
        await asyncio.wait_for(started.wait(), PATIENCE)
        worker.stop()
        cancel(queue, id)
        await asyncio.wait_for(task, PATIENCE)
    assert fates(queue) == {id: "cancelled"}


async def test_of_what_waits_for_a_slot_it_does_not_start(queue: Queue) -> None:
    started, go, handled = asyncio.Event(), asyncio.Event(), []
    worker = queue.worker(concurrency=1, prefetch=10)

    @worker.handler("work")
    async def handle(message: Message) -> None:
        handled.append(message.id)
        started.set()
        await go.wait()

    ids = queue.publish(count=4)
    async with running(worker):
        await asyncio.wait_for(started.wait(), PATIENCE)
        assert cancel(queue, *ids[1:3]) == ["leased", "leased"]
        await async_wait_until(lambda: set(fates(queue)) == set(ids[1:3]))
        assert worker.statistics.cancelled == 2
        go.set()
        await over(queue)
    assert handled == [ids[0], ids[3]]
    assert fates(queue) == dict.fromkeys(ids[1:3], "cancelled")


async def test_many_at_once_are_told_without_their_ids(queue: Queue) -> None:
    worker = queue.worker(concurrency=120)

    @worker.handler("work")
    async def handle(_message: Message) -> None:
        await asyncio.Event().wait()

    ids = queue.publish(count=120)
    async with running(worker):
        await async_wait_until(lambda: queue.states() == {"leased": 120})
        cancel(queue, *ids)
        await over(queue)
    assert worker.statistics.cancelled == 120
    assert queue.states() == {"dead": 120}


async def test_a_slot_goes_on_after_it(queue: Queue) -> None:
    started = asyncio.Event()
    worker = queue.worker(concurrency=1)

    @worker.handler("work")
    async def handle(message: Message) -> None:
        if message.payload == "long":
            started.set()
            await asyncio.Event().wait()

    (long,) = queue.publish(payload="long")
    others = queue.publish(count=3)
    async with running(worker):
        await asyncio.wait_for(started.wait(), PATIENCE)
        cancel(queue, long)
        await over(queue)
    assert {queue.message(id).state for id in others} == {"done"}
    assert fates(queue) == {long: "cancelled"}


async def test_an_announcement_that_is_not_trunqs_disturbs_nobody(queue: Queue) -> None:
    started, go = asyncio.Event(), asyncio.Event()
    worker = queue.worker()

    @worker.handler("work")
    async def handle(_message: Message) -> None:
        started.set()
        await go.wait()

    (id,) = queue.publish()
    (channel,) = queue.connection.execute("select trunq.queue_channel('q')").fetchone() or ("",)
    async with running(worker):
        await asyncio.wait_for(started.wait(), PATIENCE)
        for payload in (
            f"cancel {id}",
            "cancel",
            "cancel x; drop table",
            "cancel -1 99999999999999999999",
            "cancel " + "9" * 5000,
            "cancel ² ٣",
        ):
            queue.connection.execute("select pg_notify(%s, %s)", (channel, payload))
        # It asks, hears that nobody cancelled anything, and goes on.
        (other,) = queue.publish()
        go.set()
        await over(queue)
    assert {queue.message(id).state, queue.message(other).state} == {"done"}


async def test_what_is_cancelled_before_a_worker_comes_never_runs(queue: Queue) -> None:
    ids = queue.publish(count=3)
    cancel(queue, ids[1])
    handled = []
    worker = queue.worker()

    @worker.handler("work")
    async def handle(message: Message) -> None:
        handled.append(message.id)

    await drain(worker)
    assert sorted(handled) == [ids[0], ids[2]]
    assert fates(queue) == {ids[1]: "cancelled"}


def test_a_handler_called_for_a_test_is_not_cancelled() -> None:
    worker = Worker("q")

    @worker.handler("work")
    def handle(message: Message) -> Any:
        return [message.is_cancelled, message.time_left, message.time_out]

    assert worker.handle_now(kind="work") == [False, None, None]
