"""Handlers that do not end when they are told to."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from serving import PATIENCE, Queue, running, take_away
from trunq.client.message import Message
from waiting import async_wait_until, wait_until


async def test_a_handler_that_swallows_its_cancellation_does_not_end_the_worker_later(queue: Queue) -> None:
    queue.policy(max_attempts=2)
    (id,) = queue.publish()
    worker = queue.worker(concurrency=1, lease_time=0.3)
    inside, swallowed = asyncio.Event(), asyncio.Event()

    @worker.handler("work")
    async def swallow(message: Message) -> None:
        inside.set()
        if message.attempt == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed.set()

    @worker.handler("fail")
    async def fail(message: Message) -> None:
        raise ValueError("an ordinary one")

    async with running(worker) as (task,):
        await inside.wait()
        take_away(queue, id)
        await swallowed.wait()
        await async_wait_until(queue.is_done)
        (failing,) = queue.publish("fail")
        await async_wait_until(queue.is_done)
        assert not task.done()
    assert queue.message(failing).state == "dead"
    assert queue.message(id).state == "done"


async def test_a_sync_handler_that_hangs_past_its_reserve_fails_and_its_slot_goes_on(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.policy(max_attempts=1)
    (hanging,) = queue.publish("hang")
    ids = queue.publish(count=3)
    worker = queue.worker(concurrency=1, lease_time=1.0, reserve=0.8)
    end = threading.Event()

    @worker.handler("hang")
    def hang(message: Message) -> None:
        end.wait(PATIENCE)

    @worker.handler("work")
    def work(message: Message) -> None: ...

    try:
        async with running(worker):
            await async_wait_until(queue.is_done)
    finally:
        end.set()
    assert [queue.message(id).state for id in ids] == ["done"] * 3
    (dead,) = queue.dead()
    assert dead.id == hanging
    assert dead.errors[-1]["error"].startswith("TimedOut: the handler ran longer than")
    assert f"message {hanging} of q hangs: its handler does not end" in caplog.text


async def test_a_slot_whose_handlers_always_hang_is_said_to_be_lost(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.policy(max_attempts=1)
    queue.publish(count=5)
    worker = queue.worker(concurrency=1, prefetch=0, lease_time=0.4, reserve=0.35)
    end = threading.Event()

    @worker.handler("work")
    def hang(message: Message) -> None:
        end.wait(PATIENCE)

    async with running(worker):
        await async_wait_until(lambda: "hangs, and its slot waits: 3 others" in caplog.text)
        assert len(queue.dead()) == 3
        end.set()
        await async_wait_until(queue.is_done)


PROGRAM = """
import asyncio, os, sys, threading, time
from trunq.process import signals
from trunq.worker import Worker
from trunq.worker.run import grace, parts
# The grace alone bounds the end.
signals._STUBBORN = grace.STUBBORN = parts.STUBBORN = 600
worker = Worker("q", dsn=sys.argv[1], concurrency=1, lead=False, grace=float(sys.argv[2]))

@worker.handler("sync")
def hang(message):
    os.write(1, b"started\\n")
    threading.Event().wait()

@worker.handler("async")
async def hang_async(message):
    os.write(1, b"started\\n")
    await asyncio.Event().wait()

@worker.handler("stubborn")
async def hang_on(message):
    os.write(1, b"started\\n")
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

@worker.handler("blocking")
async def block(message):
    os.write(1, b"started\\n")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        threading.Event().wait()

worker.run()
print("over", flush=True)
"""


@pytest.mark.parametrize(("kind", "code"), [("sync", 0), ("async", 0), ("stubborn", 70), ("blocking", 70)])
def test_a_worker_ends_within_its_grace_whatever_hangs(
    queue: Queue, tmp_path: Path, kind: str, code: int
) -> None:
    (id,) = queue.publish(kind)
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    # The answer of a handler that can be ended is within the grace, also of a busy machine.
    grace = "1" if code else "8"
    with subprocess.Popen(
        [sys.executable, str(script), queue.dsn, grace],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == code, output
    if code == 0:
        # It was answered for: it comes back by the policy, not when its lease ends.
        assert output.splitlines()[-1] == "over"
        message = queue.message(id)
        assert message.state in {"ready", "retrying"}
        assert message.attempts[-1]["error"].startswith("TimeoutError: its worker was stopped")
    else:
        assert "the 1 s of grace are over" in output


class Large:
    """Something that memory is short of."""


async def test_a_handler_that_ran_out_of_memory_fails_and_its_thread_keeps_nothing(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    # A log that keeps its records keeps their errors.
    caplog.set_level(logging.CRITICAL, "trunq.worker")
    queue.policy(max_attempts=1)
    kept: list[weakref.ref[Large]] = []
    worker = queue.worker(concurrency=1)

    @worker.handler("work")
    def allocate(message: Message) -> None:
        large = Large()
        kept.append(weakref.ref(large))
        raise MemoryError

    async with running(worker):
        queue.publish()
        await async_wait_until(queue.is_done)
        # Again and again: the slot may still be at it.
        await async_wait_until(lambda: gc.collect() >= 0 and kept[0]() is None)
    (dead,) = queue.dead()
    assert dead.errors[-1]["error"].startswith("MemoryError")


async def test_an_error_of_fifty_megabytes_is_cut_in_log_and_history(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.policy(max_attempts=1)
    worker = queue.worker()

    @worker.handler("long")
    async def long(message: Message) -> None:
        try:
            raise KeyError("x" * 50_000_000)
        except KeyError as error:
            raise ValueError("y" * 50_000_000) from error

    @worker.handler("mute")
    async def mute(message: Message) -> None:
        class Mute(Exception):
            def __str__(self) -> str:
                raise ZeroDivisionError

        raise Mute

    with caplog.at_level(logging.INFO):
        async with running(worker):
            queue.publish("long")
            queue.publish("mute")
            await async_wait_until(queue.is_done)
    assert "KeyError" in caplog.text
    assert len(caplog.text) < 30_000
    errors = sorted(dead.errors[-1]["error"] for dead in queue.dead())
    assert errors[0].startswith("Mute: (no text: its __str__ raised ZeroDivisionError)")
    assert errors[1].startswith("ValueError: yyy")
    assert len(errors[1]) < 3000


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_handler_that_ends_its_own_transaction_fails(queue: Queue, colour: str) -> None:
    queue.policy(max_attempts=1)
    queue.publish()
    worker = queue.worker()
    if colour == "async":

        @worker.handler("work")
        async def commit(message: Message, connection: Any) -> None:
            await connection.execute("commit")
    else:

        @worker.handler("work")
        def commit_sync(message: Message, connection: Any) -> None:
            connection.execute("commit")

    async with running(worker):
        await async_wait_until(queue.is_done)
    (dead,) = queue.dead()
    assert dead.errors[-1]["error"].startswith("TransactionEnded: the transaction ended before its block did")


async def test_a_worker_opens_no_more_connections_than_it_says(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    ids = queue.publish("async", count=30) + queue.publish("sync", count=30)
    worker = queue.worker(concurrency=10, max_connections=11, lead=True)
    seen: list[int] = []

    def count(connections: Any) -> None:
        seen.append(connections[0])

    of_workers = "select count(*) from pg_stat_activity where application_name ~ '^trunq (worker|leader)'"

    @worker.handler("async")
    async def look(message: Message, connection: Any) -> None:
        count(await (await connection.execute(of_workers)).fetchone())

    @worker.handler("sync")
    def look_sync(message: Message, connection: Any) -> None:
        count(connection.execute(of_workers).fetchone())

    with caplog.at_level(logging.INFO, "trunq.worker"):
        async with running(worker):
            await async_wait_until(queue.is_done)
    assert "with 11 connections at most" in caplog.text
    assert len(seen) == len(ids)
    assert max(seen) <= 11
    worker.max_connections = 7
    with pytest.raises(ValueError, match="at least 9 connections, not 7"):
        await worker.run_async()


async def test_run_in_a_running_loop_says_what_to_do(queue: Queue) -> None:
    worker = queue.worker()

    @worker.handler("work")
    async def work(message: Message) -> None: ...

    with pytest.raises(RuntimeError, match=r"await worker.run_async\(\)"):
        worker.run()


async def test_a_retry_that_is_no_length_of_time_fails_its_message_alone(queue: Queue) -> None:
    from trunq.client.message import Retry  # noqa: PLC0415

    queue.policy(max_attempts=1)
    queue.publish(payload=["nan", "inf", "-1", "1e300"])
    worker = queue.worker()

    @worker.handler("work")
    async def work(message: Message) -> Retry:
        return Retry(after=float(message.payload))

    async with running(worker) as (task,):
        await async_wait_until(queue.is_done)
        assert not task.done()
    assert [dead.errors[-1]["error"].partition(":")[0] for dead in queue.dead()] == ["InvalidArgument"] * 4
    wait_until(queue.is_done)
