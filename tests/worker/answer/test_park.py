"""Handlers that park their message: it waits for the outside, and no slot is held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from serving import PATIENCE, Queue, running
from trunq import AsyncClient, Message, Park, Worker
from trunq.client._sync import Client
from waiting import async_wait_until


def resume(queue: Queue, token: str, value: Any = None) -> str:
    with Client(queue.dsn) as client:
        return client.resume(queue.name, token, value)


def is_parked(queue: Queue, number: int = 1) -> Callable[[], bool]:
    return lambda: queue.states().get("parked") == number


async def ended(queue: Queue) -> None:
    async with asyncio.timeout(PATIENCE):
        await async_wait_until(queue.is_done)


@pytest.mark.parametrize("colour", ["async", "sync", "transaction", "sync transaction", "batch"])
async def test_the_next_attempt_gets_the_value_and_no_attempt_was_counted(  # noqa: C901  # a handler of each sort
    queue: Queue, colour: str
) -> None:
    queue.policy(keep_results=True)
    worker, seen = queue.worker(lead=True), []
    queue.connection.execute("create table effect (id bigint)")

    def step(message: Message) -> Any:
        seen.append((message.attempt, message.is_resumed, message.resumed))
        return message.resumed if message.is_resumed else Park("t", until="1 day")

    if colour == "async":

        @worker.handler("work")
        async def handle(message: Message) -> Any:
            return step(message)

    elif colour == "sync":

        @worker.handler("work")
        def handle_sync(message: Message) -> Any:
            return step(message)

    elif colour == "transaction":

        @worker.handler("work")
        async def handle_in(message: Message, connection: psycopg.AsyncConnection[Any]) -> Any:
            await connection.execute("insert into effect values (%s)", (message.id,))
            return step(message)

    elif colour == "sync transaction":

        @worker.handler("work")
        def handle_sync_in(message: Message, connection: psycopg.Connection[Any]) -> Any:
            connection.execute("insert into effect values (%s)", (message.id,))
            return step(message)

    else:

        @worker.batch("work", size=10, wait=0)
        async def handle_batch(messages: list[Message]) -> list[Any]:
            return [step(message) for message in messages]

    (id,) = queue.publish()
    async with running(worker):
        async with asyncio.timeout(PATIENCE):
            await async_wait_until(is_parked(queue))
        if "transaction" in colour:
            assert queue.connection.execute("select count(*) from effect").fetchone() == (1,)
        assert resume(queue, "t", {"paid": True}) == "resumed"
        await ended(queue)
    assert seen == [(1, False, None), (1, True, {"paid": True})]
    message = queue.message(id)
    assert (message.state, message.result) == ("done", {"paid": True})
    assert [attempt["outcome"] for attempt in message.attempts] == ["parked", "success"]
    assert (worker.statistics.parked, worker.statistics.handled) == (1, 1)


async def test_an_answer_that_comes_while_the_handler_still_runs_is_not_lost(queue: Queue) -> None:
    worker = queue.worker(lead=True)

    @worker.handler("work")
    async def handle(message: Message) -> Park | None:
        if message.is_resumed:
            return None
        # The outside is faster than this transaction.
        async with AsyncClient(queue.dsn) as client:
            assert await client.resume(queue.name, "t") == "noted"
        return Park("t", until=3600)

    (id,) = queue.publish()
    async with running(worker):
        await ended(queue)
    assert [attempt["outcome"] for attempt in queue.message(id).attempts] == ["parked", "success"]


async def test_a_parked_message_holds_no_slot(queue: Queue) -> None:
    worker = queue.worker(lead=True, concurrency=1)

    @worker.handler("work")
    async def handle(message: Message) -> Park | None:
        return Park(str(message.id), until="1 hour") if message.payload == "park" else None

    queue.publish(payload=["park"] * 20 + ["run"])
    async with running(worker):
        async with asyncio.timeout(PATIENCE):
            await async_wait_until(lambda: queue.states() == {"parked": 20, "done": 1})


async def test_a_token_that_another_message_has_fails_the_attempt_and_the_others_are_parked(
    queue: Queue,
) -> None:
    queue.policy(max_attempts=1)
    worker = queue.worker()

    @worker.handler("work")
    async def handle(message: Message) -> Park:
        return Park(message.payload, until="1 hour")

    queue.publish(payload=["one", "one", "two"])
    async with running(worker):
        async with asyncio.timeout(PATIENCE):
            await async_wait_until(lambda: queue.states() == {"parked": 2, "dead": 1})
    (dead,) = queue.dead()
    assert "the database refused the parking" in dead.errors[-1]["error"]
    assert worker.statistics.parked == 2


async def test_in_a_transaction_a_token_of_another_rolls_all_back(queue: Queue) -> None:
    queue.policy(max_attempts=1)
    queue.connection.execute("create table effect (id bigint)")
    worker = queue.worker()

    @worker.handler("work")
    async def handle(message: Message, connection: psycopg.AsyncConnection[Any]) -> Park:
        await connection.execute("insert into effect values (%s)", (message.id,))
        return Park("same", until="1 hour")

    queue.publish(count=2)
    async with running(worker):
        async with asyncio.timeout(PATIENCE):
            await async_wait_until(lambda: queue.states() == {"parked": 1, "dead": 1})
    assert queue.connection.execute("select count(*) from effect").fetchone() == (1,)


def wait_outside(message: Message) -> Any:
    return {"was": message.resumed} if message.is_resumed else Park(f"token {message.id}", until="1 hour")


async def test_a_handler_in_a_process_parks_too(queue: Queue) -> None:
    queue.policy(keep_results=True)
    worker = queue.worker(lead=True)
    worker.handler("work", process=True)(wait_outside)
    (id,) = queue.publish()
    async with running(worker):
        async with asyncio.timeout(PATIENCE):
            await async_wait_until(is_parked(queue))
        resume(queue, f"token {id}", 7)
        await ended(queue)
    assert queue.message(id).result == {"was": 7}


async def test_a_worker_that_is_told_now_returns_it(queue: Queue) -> None:
    worker = Worker("q", dsn=queue.dsn)

    @worker.handler("work")
    async def handle(_: Message) -> Park:
        return Park("t", until=60)

    async with AsyncClient(queue.dsn) as client:
        queue.publish()
        (message,) = await client.lease("q", "default", "me")
        assert await worker.handle_now_async(message) == Park("t", until=60)


@pytest.mark.parametrize("kind", ["work", "*"])
async def test_until_idle_does_not_wait_for_what_is_parked_by_an_earlier_run(queue: Queue, kind: str) -> None:
    with Client(queue.dsn) as client:
        queue.publish()
        (message,) = client.lease(queue.name, "default", "before", 1)
        client.park(message, "t", "7 days")
    worker = queue.worker(lead=True)
    worker.until_idle = True
    worker.handler(kind)(lambda _: None)
    async with running(worker) as (task,), asyncio.timeout(PATIENCE):
        await task
    assert queue.states() == {"parked": 1}
