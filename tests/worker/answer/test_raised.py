"""Answers that a handler raises."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from serving import Queue, drain, running, said
from trunq import Reject, Retry
from trunq.client.message import Message
from waiting import async_wait_until

COLOURS = pytest.mark.parametrize("colour", ["async", "sync", "async transaction", "sync transaction"])


def register(worker: Any, colour: str, answer: Any) -> None:
    """Have `answer` handle messages, in one of the ways in which handlers run."""

    async def handle(message: Message) -> Any:
        await asyncio.sleep(0)
        return answer(message)

    async def handle_in_transaction(message: Message, connection: Any) -> Any:
        await connection.execute("insert into effect values (%s)", (message.id,))
        return answer(message)

    def handle_sync_in_transaction(message: Message, connection: Any) -> Any:
        connection.execute("insert into effect values (%s)", (message.id,))
        return answer(message)

    ways = (handle, answer, handle_in_transaction, handle_sync_in_transaction)
    names = ("async", "sync", "async transaction", "sync transaction")
    worker.handler("work")(dict(zip(names, ways, strict=True))[colour])


@COLOURS
async def test_answers_that_are_raised_are_those_that_are_returned(queue: Queue, colour: str) -> None:
    queue.connection.execute("create table effect (id bigint)")
    ids = queue.publish(payload=["retry", "reject"])
    worker = queue.worker(lead=True)

    def answer(message: Message) -> None:
        if message.payload == "reject":
            raise Reject("no such customer")
        if message.attempt == 1:
            raise Retry(after=0.01, error="not yet")

    register(worker, colour, answer)
    await drain(worker)
    outcomes = [attempt["outcome"] for attempt in queue.message(ids[0]).attempts]
    assert (outcomes, said(queue.message(ids[0]).attempts[0]["error"])) == (["failed", "success"], "not yet")
    (dead,) = queue.dead()
    assert (dead.id, dead.reason, said(dead.errors[-1]["error"])) == (ids[1], "rejected", "no such customer")
    assert (worker.statistics.failed, worker.statistics.retried, worker.statistics.rejected) == (0, 1, 1)
    effects = queue.connection.execute("select id from effect").fetchall()
    assert effects == ([(ids[0],)] if "transaction" in colour else [])


async def test_a_retry_raised_from_an_error_keeps_what_that_said(queue: Queue) -> None:
    (id,) = queue.publish()
    worker = queue.worker(lead=True)

    @worker.handler("work")
    async def handle(message: Message) -> None:
        if message.attempt == 1:
            try:
                raise ConnectionError("the printer is off")
            except ConnectionError as error:
                raise Retry(after=0.01) from error

    await drain(worker)
    assert "ConnectionError: the printer is off" in queue.message(id).attempts[0]["error"]


async def test_one_answer_may_be_raised_again_and_again_and_keeps_no_frames(queue: Queue) -> None:
    queue.policy(max_attempts=1)
    queue.publish(count=50)
    worker, no = queue.worker(), Reject("no")

    @worker.handler("work")
    async def handle(message: Message) -> None:
        raise no

    await drain(worker)
    assert worker.statistics.rejected == 50
    assert no.__traceback__ is None


async def test_an_answer_of_a_class_without_what_an_answer_has_fails_its_message_alone(queue: Queue) -> None:
    class Broken(Reject):
        def __init__(self) -> None: ...

    queue.policy(max_attempts=1)
    queue.publish(payload=["broken", "fine"])
    worker = queue.worker(concurrency=1)

    @worker.handler("work")
    async def handle(message: Message) -> None:
        if message.payload == "broken":
            raise Broken

    async with running(worker) as (task,):
        await async_wait_until(queue.is_done)
        assert not task.done()
    assert (worker.statistics.handled, worker.statistics.failed) == (1, 1)
    assert "detail" in queue.dead()[0].errors[-1]["error"]
