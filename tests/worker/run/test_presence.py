"""What a worker says of itself while it runs, and at its end."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest

import trunq.worker.run
from calling import call, fetch
from serving import Queue, running
from trunq.client.message import Message
from waiting import async_wait_until


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trunq.worker.run, "_ATTEND_EVERY", 0.1)


def report(queue: Queue) -> Any:
    (row,) = call(queue.connection, "list_reports", queue=queue.name)
    return row


async def test_it_tells_what_its_slots_handle_and_that_it_drained(queue: Queue) -> None:
    (id,) = queue.publish()
    worker = queue.worker(concurrency=2, name="ada")
    go = asyncio.Event()

    @worker.handler("work")
    async def handle(message: Message) -> None:
        await go.wait()

    task = asyncio.create_task(worker.run_async())
    await async_wait_until(
        lambda: (
            bool(call(queue.connection, "list_reports", queue=queue.name)) and bool(report(queue).handling)
        )
    )
    row = report(queue)
    assert (row.worker, row.state, row.pid, row.slots) == ("ada", "running", os.getpid(), 2)
    assert [(each["id"], each["kind"]) for each in row.handling] == [(id, "work")]
    ahead = fetch(queue.connection, "select ahead from trunq.worker_report order by at desc limit 1")
    assert abs(ahead) < 10, "the clock is that of this machine"
    go.set()
    await async_wait_until(lambda: report(queue).handling == [])
    worker.stop()
    await task
    assert (report(queue).state, report(queue).handling) == ("drained", [])


async def test_one_that_is_ended_at_once_says_what_it_had(queue: Queue) -> None:
    queue.publish()
    worker = queue.worker(concurrency=1)
    entered = asyncio.Event()

    @worker.handler("work")
    async def handle(message: Message) -> None:
        entered.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(worker.run_async())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert report(queue).state == "killed"


async def test_one_that_drains_goes_on_saying_so_until_its_last_handler_has_ended(queue: Queue) -> None:
    queue.publish()
    worker = queue.worker(concurrency=1)
    entered, go = asyncio.Event(), asyncio.Event()

    @worker.handler("work")
    async def handle(message: Message) -> None:
        entered.set()
        await go.wait()

    task = asyncio.create_task(worker.run_async())
    await entered.wait()
    worker.stop()
    said = "select count(*) from trunq.worker_report where last_word is null"
    before = fetch(queue.connection, said)
    await async_wait_until(lambda: fetch(queue.connection, said) > before + 3)
    assert (report(queue).state, len(report(queue).handling)) == ("running", 1)
    go.set()
    await task
    assert (report(queue).state, report(queue).handling) == ("drained", [])


async def test_long_kinds_make_no_report_too_long_which_would_end_the_worker(queue: Queue) -> None:
    # In JSON each of these characters takes six.
    kind = "\x01" * 1000
    ids = queue.publish(kind, count=40)
    worker = queue.worker(concurrency=40)
    go = asyncio.Event()

    @worker.handler("*")
    async def handle(message: Message) -> None:
        await go.wait()

    async with running(worker):
        await async_wait_until(
            lambda: any(
                len(row.handling) == 40 for row in call(queue.connection, "list_reports", queue=queue.name)
            )
        )
        told = report(queue).handling
        assert {each["id"] for each in told} == {*ids}
        assert {each["kind"] for each in told} == {kind[:100]}
        go.set()
