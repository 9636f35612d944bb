"""Handlers that take too long, and leases that a handler makes longer or shorter."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from serving import PATIENCE, Queue, running
from trunq.client.message import Message
from trunq.errors import InvalidArgument
from trunq.worker import Worker
from waiting import async_wait_until

SHORT = 0.05


def publish(queue: Queue, **options: Any) -> int:
    query = "select trunq.publish(%s, p_kind => 'work', p_options => %s)"
    row = queue.connection.execute(query, (queue.name, Jsonb(options) if options else None)).fetchone()
    assert row is not None
    return int(row[0])


def ends(queue: Queue) -> datetime:
    """When the newest lease ends, by the database."""
    row = queue.connection.execute(
        "select expires_at from trunq_data.q_lease where expires_at is not null"
        " order by lease_id desc limit 1"
    ).fetchone()
    assert row is not None
    return row[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("said_by", ["message", "handler", "subscription"])
@pytest.mark.parametrize("colour", ["async", "thread"])
async def test_it_is_stopped_and_tried_again_by_the_policy(queue: Queue, said_by: str, colour: str) -> None:
    queue.policy(max_attempts=2, **({"time_out": f"{SHORT} s"} if said_by == "subscription" else {}))
    worker = queue.worker()
    limit = SHORT if said_by == "handler" else None
    stopped = []
    if colour == "async":

        @worker.handler("work", time_out=limit)
        async def handle(message: Message) -> None:
            assert message.time_left is not None
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                stopped.append(message.attempt)
                raise
    else:

        @worker.handler("work", time_out=limit)
        def handle_in_thread(message: Message, stop: threading.Event) -> None:
            assert stop.wait(PATIENCE)
            assert not message.is_cancelled
            stopped.append(message.attempt)

    id = publish(queue, **({"time_out": SHORT} if said_by == "message" else {}))
    async with running(worker):
        await async_wait_until(queue.dead)
    assert stopped == [1, 2]
    (dead,) = queue.dead()
    assert dead.reason == "max_attempts"
    assert "longer than the 0.05 seconds" in dead.errors[0]["error"]
    if colour == "async":
        assert "in handle: await asyncio.Event().wait()" in dead.errors[0]["error"], "where it was stopped"
        assert "slot.py" not in dead.errors[0]["error"]
    assert [attempt["outcome"] for attempt in queue.message(id).attempts] == ["timed_out", "timed_out"]
    assert worker.statistics.failed == 2


@pytest.mark.parametrize("colour", ["async", "thread"])
async def test_what_a_handler_raises_because_it_was_stopped_is_a_time_out(queue: Queue, colour: str) -> None:
    queue.policy(max_attempts=1)
    worker = queue.worker()
    if colour == "async":

        @worker.handler("work")
        async def handle(_message: Message) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise RuntimeError("stopped at page 7") from None
    else:

        @worker.handler("work")
        def handle_in_thread(_message: Message, stop: threading.Event) -> None:
            assert stop.wait(PATIENCE)
            raise RuntimeError("stopped at page 7")

    id = publish(queue, time_out=SHORT)
    async with running(worker):
        await async_wait_until(queue.dead)
    assert [attempt["outcome"] for attempt in queue.message(id).attempts] == ["timed_out"]
    (dead,) = queue.dead()
    assert "longer than the 0.05 seconds" in dead.errors[0]["error"]
    assert "RuntimeError: stopped at page 7" in dead.errors[0]["error"]


async def test_the_message_goes_before_the_handler_and_that_before_the_subscription(queue: Queue) -> None:
    queue.policy(time_out="1000 s", max_attempts=1)
    worker = queue.worker()
    left: dict[int, float | None] = {}

    @worker.handler("work", time_out=500)
    async def handle(message: Message) -> None:
        left[message.id] = message.time_left

    @worker.handler("other")
    def handle_other(message: Message) -> None:
        left[message.id] = message.time_left

    own, kinds = publish(queue, time_out=100), publish(queue)
    (subscriptions,) = queue.publish(kind="other")
    async with running(worker):
        await async_wait_until(queue.is_done)
    assert left[own] is not None
    assert [0 < (left[id] or 0) <= limit for id, limit in ((own, 100), (kinds, 500), (subscriptions, 1000))]
    assert (left[kinds] or 0) > 100
    assert (left[subscriptions] or 0) > 500


async def test_a_time_out_error_of_the_handler_s_own_is_an_ordinary_failure(queue: Queue) -> None:
    queue.policy(max_attempts=1, time_out="1000 s")
    worker = queue.worker()

    @worker.handler("work")
    async def handle(_message: Message) -> None:
        raise TimeoutError("the other end did not answer")

    id = publish(queue)
    async with running(worker):
        await async_wait_until(queue.is_done)
    assert [attempt["outcome"] for attempt in queue.message(id).attempts] == ["failed"]


async def test_a_thread_that_does_not_listen_is_left_and_the_slot_goes_on(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunq.worker.slot.caller._PATIENCE", SHORT)
    queue.policy(max_attempts=1)
    worker, go = queue.worker(concurrency=1), threading.Event()

    @worker.handler("work")
    def handle(message: Message) -> None:
        if message.time_out:
            go.wait(PATIENCE)

    hanging, other = publish(queue, time_out=SHORT), publish(queue)
    async with running(worker):
        await async_wait_until(queue.is_done)
        go.set()
    assert [attempt["outcome"] for attempt in queue.message(hanging).attempts] == ["timed_out"]
    assert queue.message(other).state == "done"


async def test_what_a_transactional_handler_wrote_is_rolled_back(queue: Queue) -> None:
    queue.connection.execute("create table effect (id bigint)")
    queue.policy(max_attempts=1)
    worker = queue.worker()

    @worker.handler("work", time_out=SHORT)
    async def handle(message: Message, connection: Any) -> None:
        await connection.execute("insert into effect values (%s)", (message.id,))
        await asyncio.Event().wait()

    id = publish(queue)
    async with running(worker):
        await async_wait_until(queue.is_done)
    assert [attempt["outcome"] for attempt in queue.message(id).attempts] == ["timed_out"]
    assert queue.connection.execute("select count(*) from effect").fetchone() == (0,)


async def test_the_heartbeat_does_not_extend_past_it(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunq.worker.run.heartbeat._FOR_ANSWER", 0.0)
    queue.policy(max_attempts=1, lease_time="0.6 s")
    worker, go = queue.worker(), threading.Event()
    began: list[datetime] = []

    @worker.handler("work", time_out=1.5)
    def handle(_message: Message) -> None:
        began.append(datetime.now(UTC))
        go.wait(PATIENCE)

    publish(queue)
    async with running(worker):
        await async_wait_until(lambda: bool(began))
        # Extended, and no more: the lease of a handler that hangs runs out.
        await async_wait_until(lambda: datetime.now(UTC) > ends(queue))
        go.set()
        assert timedelta(seconds=0.6) < ends(queue) - began[0] < timedelta(seconds=1.6)


async def test_a_handler_makes_its_lease_longer_and_shorter(queue: Queue) -> None:
    worker = queue.worker()
    seen: list[bool] = []

    @worker.handler("work")
    async def handle(message: Message) -> None:
        before = message.expires_at
        until = await message.extend(timedelta(hours=1))
        seen.append(until == message.expires_at == ends(queue) > before + timedelta(minutes=30))
        until = await message.extend(2)
        seen.append(until == message.expires_at == ends(queue) < before)

    @worker.handler("thread")
    def handle_in_thread(message: Message) -> None:
        until = message.extend_sync(3600)
        seen.append(until == message.expires_at == ends(queue))

    for kind in ("work", "thread"):
        queue.publish(kind=kind)
        async with running(worker):
            await async_wait_until(queue.is_done)
    assert seen == [True, True, True]
    assert queue.states() == {"done": 2}


async def test_a_shortened_lease_is_kept_by_the_heartbeat(queue: Queue) -> None:
    worker = queue.worker()

    @worker.handler("work")
    async def handle(message: Message) -> None:
        first = await message.extend(0.5)
        # Twice: it lasts only so long at a time, and the handler still runs.
        await async_wait_until(lambda: ends(queue) > first + timedelta(seconds=0.7))

    queue.publish()
    async with running(worker):
        await async_wait_until(queue.is_done)
    assert queue.states() == {"done": 1}


async def test_an_extension_changes_no_time_out(queue: Queue) -> None:
    queue.policy(max_attempts=1)
    worker = queue.worker()

    @worker.handler("work")
    async def handle(message: Message) -> None:
        while True:
            await message.extend(3600)

    id = publish(queue, time_out=0.3)
    async with running(worker):
        await async_wait_until(queue.is_done)
    assert [attempt["outcome"] for attempt in queue.message(id).attempts] == ["timed_out"]


async def test_an_extension_that_makes_no_sense_is_refused(queue: Queue) -> None:
    worker = queue.worker()
    kept: list[Message] = []

    @worker.handler("work")
    async def handle(message: Message) -> None:
        kept.append(message)
        for wrong in (0, -1, timedelta(seconds=-1), float("nan")):
            with pytest.raises(InvalidArgument, match="lease_time"):
                await message.extend(wrong)
        with pytest.raises(RuntimeError, match=r"await message\.extend"):
            message.extend_sync(5)

    queue.publish()
    async with running(worker):
        await async_wait_until(queue.is_done)
    assert queue.states() == {"done": 1}
    with pytest.raises(InvalidArgument, match="has ended"):
        await kept[0].extend(5)


def test_a_time_out_that_makes_no_sense_is_refused() -> None:
    worker = Worker("q")
    with pytest.raises(ValueError, match="time_out must be positive, not 0"):
        worker.handler("work", time_out=0)
    with pytest.raises(ValueError, match="time_out must be positive"):
        worker.handler("work", time_out=timedelta(seconds=-1))
