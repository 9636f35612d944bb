"""A worker whose subscription lost messages says so, serves the others, and goes on when that is accepted."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from serving import Queue, drain, running
from trunq import MessagesLost, Worker
from trunq.client.message import Message
from waiting import async_wait_until


def lose(queue: Queue) -> None:
    """Leave one message behind for as long as the queue holds it."""
    queue.connection.execute("select trunq.set_queue(%s, p_hold_at_most => '1 day')", (queue.name,))
    queue.publish()
    with queue.connection.transaction():
        queue.connection.execute("set local trunq.clock_offset = '36 hours'")
        assert queue.connection.execute("select trunq.rotate(%s)", (queue.name,)).fetchone() == (1,)


def handling(worker: Worker) -> list[Any]:
    done: list[Any] = []

    @worker.handler("work")
    async def note(message: Message) -> None:
        done.append((message.queue, message.payload))

    return done


async def test_it_says_so_once_serves_the_others_and_goes_on(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    other = Queue(queue.dsn, queue.connection, "other")
    lose(queue)
    queue.publish(payload="kept")
    worker = queue.worker(queue.name, other.name, poll=0.05)
    done = handling(worker)
    async with running(worker):
        for n in range(3):
            other.publish(payload=n)
            await async_wait_until(lambda n=n: ("other", n) in done)
        told = [record.message for record in caplog.records if record.levelno == logging.ERROR]
        assert len(told) == 1
        assert "has lost messages: 1" in told[0]
        assert "trunq.accept_loss" in told[0]
        assert (queue.name, "kept") not in done
        queue.connection.execute("select trunq.accept_loss(%s, 'default')", (queue.name,))
        await async_wait_until(lambda: (queue.name, "kept") in done)


async def test_one_that_runs_until_its_queue_is_empty_ends_with_the_error(queue: Queue) -> None:
    lose(queue)
    worker = queue.worker()
    handling(worker)
    with pytest.raises(MessagesLost, match="has lost messages: 1"):
        await drain(worker)
