"""A worker whose connections go silent: a proxy that was stopped, and keeps them open."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection

from freezing import Proxy, freezing
from serving import PATIENCE, Queue, running
from trunq.client.message import Message
from trunq.connection.silence import limit
from trunq.leader import Leader
from waiting import async_wait_until, wait_until

GRACE = 12.0

PROGRAM = """
import asyncio, logging
from trunq import Worker
logging.basicConfig(level=logging.INFO)
worker = Worker("q", concurrency=4, grace=12)

@worker.handler("work")
async def work(message):
    await asyncio.sleep(0.05)

worker.run()
"""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A second of silence is enough to ask."""
    monkeypatch.setenv("TRUNQ_SILENCE", "1")
    limit.cache_clear()
    yield
    limit.cache_clear()


@pytest.fixture
def proxy(queue: Queue) -> Iterator[Proxy]:
    with freezing(queue.dsn) as proxy:
        yield proxy


async def test_a_worker_goes_on_after_a_silence_and_answers_count_once(
    queue: Queue, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    queue.policy(lease_time="5 s")
    queue.connection.execute("create table ledger (id bigint)")
    worker = queue.worker(dsn=proxy.dsn, concurrency=4, lead=True)
    runs: Counter[int] = Counter()

    @worker.handler("work")
    async def plain(message: Message) -> None:
        runs[message.id] += 1
        await asyncio.sleep(0)

    @worker.handler("write")
    async def write(message: Message, connection: AsyncConnection[Any]) -> None:
        await connection.execute("insert into ledger values (%s)", (message.id,))

    @worker.handler("write sync")
    def write_sync(message: Message, connection: psycopg.Connection[Any]) -> None:
        connection.execute("insert into ledger values (%s)", (message.id,))

    with caplog.at_level(logging.WARNING, "trunq.link"):
        async with running(worker) as (task,):
            ids: list[int] = []
            for enough in (5, 35):
                for kind in ("work", "write", "write sync"):
                    ids += queue.publish(kind, count=10)
                await async_wait_until(
                    lambda enough=enough: worker.statistics.handled >= enough or task.done()
                )
                proxy.silence()
            await async_wait_until(lambda: queue.is_done() or task.done())
            assert not task.done()
    assert queue.states() == {"done": len(ids)}
    written = queue.connection.execute("select count(*), count(distinct id) from ledger").fetchone()
    assert written == (40, 40)
    assert "closed a silent connection (trunq worker" in caplog.text


async def test_a_worker_that_merely_listens_notices_too(queue: Queue, proxy: Proxy) -> None:
    """It holds the bell, and nobody would reach it: the next poll is an hour away."""
    worker = queue.worker(dsn=proxy.dsn, poll=3600)

    @worker.handler("work")
    async def handle(message: Message) -> None: ...

    bell = "select count(*) from pg_locks where locktype = 'advisory' and classid = 1953656417"
    async with running(worker):
        await async_wait_until(lambda: queue.connection.execute(bell).fetchone() == (1,))
        proxy.silence()
        queue.publish()
        await async_wait_until(lambda: worker.statistics.handled == 1)
        # The session that held the bell is no more: the worker has it again, and hears.
        await async_wait_until(lambda: queue.connection.execute(bell).fetchone() == (1,))
        queue.publish()
        await async_wait_until(lambda: worker.statistics.handled == 2)


async def test_a_leader_goes_on_after_a_silence(queue: Queue, proxy: Proxy) -> None:
    leader = Leader(proxy.dsn, "lasting", lease_time=60.0)
    leading = asyncio.create_task(leader.run_async())
    await async_wait_until(lambda: leader.performed.calls.get("tick") or leading.done())
    proxy.silence()
    queue.connection.execute("select trunq.publish('q', p_delay => '1 ms')")
    await async_wait_until(lambda: queue.states() == {"ready": 1} or leading.done())
    leader.stop()
    async with asyncio.timeout(PATIENCE):
        await leading


@pytest.mark.parametrize("how", ["silence", "freeze"])
def test_a_signal_ends_a_worker_within_its_grace(
    queue: Queue, proxy: Proxy, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRUNQ_SILENCE", "3600")
    program = tmp_path / "worker.py"
    program.write_text(PROGRAM)
    with (tmp_path / "log").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(program)], env={**os.environ, "TRUNQ_DSN": proxy.dsn}, stdout=out, stderr=out
        )
    try:
        queue.publish()
        wait_until(queue.is_done)
        getattr(proxy, how)()
        queue.publish(count=10)
        process.send_signal(signal.SIGTERM)
        assert process.wait(GRACE + 5) == 0, (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait()
