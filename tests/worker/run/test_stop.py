"""How a worker ends, and begins again."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving import PATIENCE, Queue, drain, running
from trunq.client.message import Message, Retry
from waiting import async_wait_until, wait_until

PROGRAM = """
import os, sys, psycopg
from trunq.worker import Worker
worker = Worker("q", dsn=sys.argv[1], concurrency=2, prefetch=6, lead=False)

def say(word):
    # One system call: two threads do not get into each other's line.
    os.write(1, (word + os.linesep).encode())

@worker.handler("work")
def handle(message):
    say("started")
    # Until the test says so, by a row.
    with psycopg.connect(sys.argv[1], autocommit=True) as connection:
        connection.execute("listen proceed")
        if not connection.execute("select count(*) from proceed").fetchone()[0]:
            next(connection.notifies())
    say("finished")

worker.run()
say("over")
"""

STUCK = """
import os, sys, time
from trunq.worker import Worker
worker = Worker("q", dsn=sys.argv[1], lead=False, grace=1.0)

@worker.handler("work")
async def handle(message):
    os.write(1, b"started" + os.linesep.encode())
    time.sleep(3600)

worker.run()
"""

Program = Callable[[], subprocess.Popen[str]]


@pytest.fixture
def program(queue: Queue, tmp_path: Path) -> Iterator[Program]:
    """Start a worker as a process of its own, whose handlers wait for a row in `proceed`."""
    queue.connection.execute("create table proceed ()")
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-W", "error", str(script), queue.dsn],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def proceed(queue: Queue) -> None:
    queue.connection.execute("insert into proceed default values")
    queue.connection.execute("notify proceed")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_finishes_what_runs_and_gives_back_the_rest(
    queue: Queue, program: Program, number: signal.Signals
) -> None:
    ids = queue.publish(count=10)
    process = program()
    wait_until(lambda: queue.states().get("leased") == 8, 120)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["started\n"] * 2
    process.send_signal(number)
    wait_until(lambda: queue.states() == {"leased": 2, "ready": 8}, 120)
    proceed(queue)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    assert output.splitlines()[-1] == "over"
    assert queue.states() == {"done": 2, "ready": 8}
    assert {queue.message(id).attempt for id in ids[2:]} == {1}


def test_the_second_signal_ends_it_at_once(queue: Queue, program: Program) -> None:
    queue.publish(count=1)
    process = program()
    assert process.stdout is not None
    assert process.stdout.readline().startswith("started")
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: process.poll() is None and queue.states() == {"leased": 1}, 120)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + signal.SIGTERM, output
    assert "Traceback" not in output
    assert "over" not in output
    # Left to be reaped.
    assert queue.states() == {"leased": 1}


def test_the_grace_is_kept_though_a_handler_blocks_the_event_loop(queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    queue.publish()
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "stuck.py"), queue.dsn],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        wait_until(lambda: process.stdout is not None and process.stdout.readline().startswith("started"))
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 70, output
    finally:
        process.kill()
        process.wait()


async def test_stop_gives_back_and_finishes(queue: Queue) -> None:
    ids = queue.publish(count=10)
    worker = queue.worker(concurrency=1, prefetch=4)
    entered, go = asyncio.Event(), asyncio.Event()

    @worker.handler("work")
    async def wait(message: Message) -> None:
        entered.set()
        await go.wait()

    async with running(worker) as (task,):
        await entered.wait()
        await async_wait_until(lambda: worker.statistics.leased == 5)
        worker.stop()
        await async_wait_until(lambda: queue.states() == {"leased": 1, "ready": 9})
        assert not task.done()
        go.set()
    assert queue.states() == {"done": 1, "ready": 9}
    assert queue.message(ids[0]).state == "done"
    assert worker.statistics.released == 4


async def test_stop_may_be_called_from_another_thread_and_before_and_after(queue: Queue) -> None:
    worker = queue.worker()

    @worker.handler("work")
    def stop(message: Message) -> None:
        threading.Thread(target=worker.stop).start()

    worker.stop()
    queue.publish()
    async with asyncio.timeout(PATIENCE):
        await worker.run_async()
    worker.stop()
    assert queue.states() == {"done": 1}


async def test_cancelling_ends_it_at_once_and_leaves_no_task_behind(queue: Queue) -> None:
    queue.publish(count=3)
    worker = queue.worker()
    entered = asyncio.Event()

    @worker.handler("work")
    async def hang(message: Message) -> None:
        entered.set()
        await asyncio.Event().wait()

    before = asyncio.all_tasks()
    task = asyncio.create_task(worker.run_async())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == before
    assert queue.states() == {"leased": 3}


async def test_until_idle_waits_for_what_is_delayed_and_held_by_others(queue: Queue) -> None:
    queue.connection.execute("select trunq.publish('q', p_kind => 'work', p_delay => '0.2 s')")
    queue.publish()
    slow = queue.worker(concurrency=1, prefetch=0, name="slow")
    entered, go = asyncio.Event(), asyncio.Event()

    @slow.handler("work")
    async def wait(message: Message) -> None:
        entered.set()
        await go.wait()

    worker = queue.worker(until_idle=True, lead=True)

    @worker.handler("work")
    async def handle(message: Message) -> None: ...

    async with running(slow):
        await entered.wait()
        task = asyncio.create_task(worker.run_async())
        await async_wait_until(lambda: worker.statistics.handled == 1)
        assert not task.done()
        go.set()
        async with asyncio.timeout(PATIENCE):
            await task
    assert queue.states() == {"done": 2}


async def test_until_empty_leaves_what_is_delayed_and_waits_for_what_others_hold(queue: Queue) -> None:
    queue.connection.execute("select trunq.publish('q', p_kind => 'work', p_delay => '1 hour')")
    queue.connection.execute("select trunq.publish('q', p_kind => 'letter', p_delay => '1 hour')")
    queue.publish()
    slow = queue.worker(concurrency=1, prefetch=0, name="slow")
    entered, go = asyncio.Event(), asyncio.Event()

    @slow.handler("work")
    async def wait(message: Message) -> None:
        entered.set()
        await go.wait()

    worker = queue.worker(until_empty=True)
    tries: list[int] = []

    @worker.handler("work")
    async def handle(message: Message) -> Any:
        tries.append(message.attempt)
        return Retry(after=3600)

    async with running(slow):
        await entered.wait()
        queue.publish()
        task = asyncio.create_task(worker.run_async())
        await async_wait_until(lambda: worker.statistics.retried == 1)
        looks = worker.statistics.looks
        await async_wait_until(lambda: worker.statistics.looks >= looks + 3)
        assert not task.done()
        go.set()
        async with asyncio.timeout(PATIENCE):
            await task
    assert tries == [1]
    assert queue.states() == {"done": 1, "retrying": 1, "scheduled": 2}
    # A message that is due in an hour waits for its time, and not for a handler.
    assert worker.statistics.unhandled == 0


@pytest.mark.parametrize("until", ["until_empty", "until_idle"])
async def test_there_is_nothing_and_they_end_at_once(queue: Queue, until: str) -> None:
    worker = queue.worker(**{until: True})

    @worker.handler("work")
    async def handle(message: Message) -> None: ...

    async with asyncio.timeout(PATIENCE):
        await worker.run_async()
    assert worker.statistics.leased == 0


async def test_started_again_under_its_name_it_gets_its_own_back_at_once(queue: Queue) -> None:
    (id,) = queue.publish()
    entered = asyncio.Event()
    first = queue.worker(name="pod-0")

    @first.handler("work")
    async def hang(message: Message) -> None:
        entered.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(first.run_async())
    await entered.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert queue.message(id).state == "leased"

    second = queue.worker(name="pod-0")

    @second.handler("work")
    async def handle(message: Message) -> None: ...

    await drain(second)
    message = queue.message(id)
    assert (message.state, message.attempt) == ("done", 2)


async def test_a_worker_runs_once_at_a_time_and_again_after(queue: Queue) -> None:
    worker = queue.worker()

    @worker.handler("work")
    async def handle(message: Message) -> None: ...

    async with running(worker):
        await async_wait_until(lambda: worker.statistics.looks)
        with pytest.raises(RuntimeError, match="running already"):
            await worker.run_async()
    for _ in range(2):
        queue.publish()
        await drain(worker)
    assert worker.statistics.handled == 2
