"""Limits and policies of a kind beside time-outs, cancelled messages, random order and keys in order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import psycopg
import pytest

from serving import PATIENCE, Queue, drain, running
from trunq.client.message import Message
from waiting import async_wait_until

SHORT = 0.05


def cancel(queue: Queue, *ids: int) -> None:
    queue.connection.execute("select trunq.cancel(%s, %s)", (queue.name, list(ids)))


def fates(queue: Queue) -> dict[int, str]:
    return {row.id: row.reason for row in queue.dead()}


async def test_what_takes_too_long_is_tried_again_by_the_policy_of_its_kind(queue: Queue) -> None:
    queue.policy(max_attempts=9, backoff="constant", backoff_base="1 hour", jitter=0)
    ids = {kind: queue.publish(kind)[0] for kind in ("once", "soon", "as subscribed")}
    worker = queue.worker()

    async def hang(_message: Message) -> None:
        await asyncio.Event().wait()

    worker.handler("once", time_out=SHORT, max_attempts=1)(hang)
    worker.handler("soon", time_out=SHORT, backoff_base=60)(hang)
    worker.handler("as subscribed", time_out=SHORT)(hang)
    async with running(worker):
        await async_wait_until(lambda: worker.statistics.failed == 3)
        await async_wait_until(lambda: queue.states() == {"dead": 1, "retrying": 2})
    waits = queue.connection.execute(
        "select d.id, extract(epoch from d.due_at - r.finished_at)::int from trunq.delayed d"
        " join trunq_data.q_receipt r on d.id = any(r.ids)"
    ).fetchall()
    assert dict(waits) == {ids["soon"]: 60, ids["as subscribed"]: 3600}
    assert fates(queue) == {ids["once"]: "max_attempts"}
    for id in ids.values():
        assert queue.message(id).attempts[0]["outcome"] == "timed_out"


@pytest.mark.parametrize("way", ["time-out", "cancel"])
async def test_what_is_stopped_gives_its_place_to_the_next_of_its_kind(queue: Queue, way: str) -> None:
    queue.policy(max_attempts=1)
    worker = queue.worker()
    running_now: list[int] = []
    started: list[int] = []

    @worker.handler("slow", concurrency=1, time_out=SHORT if way == "time-out" else None)
    async def slow(message: Message) -> None:
        running_now.append(message.id)
        started.append(message.id)
        assert running_now == [message.id]
        try:
            await asyncio.Event().wait()
        finally:
            running_now.clear()

    ids = queue.publish("slow", count=3)
    async with running(worker):
        for number, id in enumerate(ids, 1):
            await async_wait_until(lambda number=number: len(started) == number)  # type: ignore[misc]
            if way == "cancel":
                cancel(queue, id)
        await async_wait_until(queue.is_done)
    assert started == ids
    assert fates(queue) == dict.fromkeys(ids, "cancelled" if way == "cancel" else "max_attempts")


async def test_what_waits_with_a_limit_and_is_cancelled_does_not_start(queue: Queue) -> None:
    started, go, handled = asyncio.Event(), asyncio.Event(), []
    worker = queue.worker()

    @worker.handler("slow", concurrency=1)
    async def slow(message: Message) -> None:
        handled.append(message.id)
        started.set()
        await go.wait()

    ids = queue.publish("slow", count=3)
    async with running(worker):
        await asyncio.wait_for(started.wait(), PATIENCE)
        assert worker.statistics.leased == 3
        cancel(queue, ids[1])
        # At once, as of what waits for a slot: the lease is of a minute.
        await async_wait_until(lambda: set(fates(queue)) == {ids[1]})
        assert worker.statistics.cancelled == 1
        go.set()
        await async_wait_until(queue.is_done)
    assert handled == [ids[0], ids[2]]


async def test_a_limit_holds_in_random_order(queue: Queue) -> None:
    ids = queue.publish("slow", count=16) + queue.publish("quick", count=60)
    worker = queue.worker(shuffle=True, prefetch=200, lead=True)
    seen: list[int] = []
    now = most = 0

    @worker.handler("slow", concurrency=3)
    async def slow(message: Message) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(3):
            await asyncio.sleep(0)
        now -= 1
        seen.append(message.id)

    @worker.handler("quick")
    async def quick(message: Message) -> None:
        seen.append(message.id)

    await drain(worker)
    assert most == 3
    assert sorted(seen) == ids
    of_a_kind = [id for id in seen if id in set(ids[16:])]
    assert of_a_kind != sorted(of_a_kind)


async def test_what_a_limit_gives_back_keeps_the_order_of_its_key(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    """It comes again before all others of its key, though those are of a kind without a limit."""
    connection.execute("select trunq.create_queue('laned', p_lanes => 'key')")
    queue = Queue(database, connection, "laned", in_order=True)
    row = connection.execute(
        "select trunq.publish_many('laned', array_agg('{}'::jsonb order by n),"
        " array_agg(case when n % 16 < 8 then 'slow' else 'quick' end order by n),"
        " array_agg('key ' || n % 8 order by n)) from generate_series(0, 63) n"
    ).fetchone()
    assert row is not None
    ids = row[0]
    go, handled = asyncio.Event(), defaultdict(list)
    worker = queue.worker(lead=True)

    @worker.handler("slow", concurrency=1)
    async def slow(message: Message) -> None:
        await go.wait()
        handled[message.key].append(message.id)

    @worker.handler("quick")
    async def quick(message: Message) -> None:
        handled[message.key].append(message.id)

    async with running(worker):
        await async_wait_until(lambda: worker.statistics.released > 0)
        assert not handled, "what is slow stands first in every key"
        go.set()
        await async_wait_until(queue.is_done, 2 * PATIENCE)
    assert handled == {f"key {n}": ids[n::8] for n in range(8)}
