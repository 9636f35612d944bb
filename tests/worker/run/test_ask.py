"""Workers that ask for a part of their subscription. Polls are so rare that only a call explains a wake."""

from __future__ import annotations

import asyncio
from itertools import chain
from time import monotonic
from typing import Any

import pytest

from serving import PATIENCE, Queue, running
from trunq.client.message import Message
from trunq.errors import InvalidArgument
from trunq.worker import Worker
from trunq.worker.answer.lease import Source
from trunq.worker.run.bell import Bell
from waiting import async_wait_until

NEVER = 3600.0
Seen = dict[str, list[int]]


def worker(queue: Queue, name: str, seen: Seen, asks: dict[str, Any] | None, **more: Any) -> Worker:
    made = queue.worker(name=name, asks=asks, **{"poll": NEVER, **more})

    @made.handler
    async def note(message: Message) -> None:
        seen.setdefault(name, []).append(message.id)

    return made


async def test_each_message_has_one_taker_though_asks_overlap(queue: Queue) -> None:
    seen: Seen = {}
    workers = [
        worker(queue, "mail", seen, {"kinds": ["mail"]}),
        worker(queue, "both", seen, {"kinds": ["mail", "fax"]}),
        worker(queue, "fax", seen, {"kinds": ["fax"]}),
    ]
    ids = {kind: queue.publish(kind, count=200) for kind in ("mail", "fax")}
    async with running(*workers):
        for _ in range(5):
            for kind in ("mail", "fax"):
                ids[kind] += queue.publish(kind, count=20)
        await async_wait_until(queue.is_done)
    assert sorted(chain(*seen.values())) == sorted(ids["mail"] + ids["fax"])
    assert set(seen.get("mail", [])) <= set(ids["mail"])
    assert set(seen.get("fax", [])) <= set(ids["fax"])
    assert queue.states() == {"done": 600}


async def test_what_another_sets_aside_wakes_whoever_asks_for_it(queue: Queue) -> None:
    seen: Seen = {}
    workers = [worker(queue, name, seen, {"kinds": [name]}) for name in ("mail", "fax", "text")]
    async with running(*workers):
        # Who sleeps while another holds the bell has looked once.
        await async_wait_until(lambda: all(each.statistics.empty_looks > 0 for each in workers))
        for kind in ("text", "mail", "fax") * 3:
            ids = queue.publish(kind)
            await async_wait_until(lambda ids=ids, kind=kind: seen.get(kind, [])[-1:] == ids)


async def test_a_look_that_falls_due_while_it_asks_for_the_bell_is_made(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking: list[Bell] = []
    take = Bell.take

    async def late(bell: Bell, source: Source) -> str:
        asking.append(bell)
        due = source.next_look
        if due < monotonic() + NEVER / 2:
            await async_wait_until(lambda: monotonic() > due)
        return await take(bell, source)

    monkeypatch.setattr(Bell, "take", late)
    holder, sleeper = (worker(queue, name, {}, {"kinds": [name]}) for name in ("mail", "fax"))
    async with running(holder):
        await async_wait_until(lambda: holder.statistics.empty_looks > 1)
        async with running(sleeper):
            await async_wait_until(lambda: asking and asking[-1] is not asking[0])
            bell, looks = asking[-1], sleeper.statistics.looks
            (source,) = bell._sources
            await async_wait_until(lambda: source.next_look > monotonic() + NEVER / 2)
            source.next_look = monotonic() + 0.5
            queue.connection.execute("select pg_notify(trunq.queue_channel(%s), 'bell')", (queue.name,))
            await async_wait_until(lambda: sleeper.statistics.looks > looks)


async def test_a_worker_that_asks_for_everything_is_woken_too(queue: Queue) -> None:
    """Though it fell asleep before anybody asked for a part."""
    seen: Seen = {}
    everything, mail = worker(queue, "all", seen, None), worker(queue, "mail", seen, {"kinds": ["mail"]})
    async with running(everything):
        await async_wait_until(lambda: everything.statistics.empty_looks > 1)
        async with running(mail):
            await async_wait_until(lambda: mail.statistics.empty_looks > 1)
            for _ in range(5):
                ids = queue.publish("fax")
                await async_wait_until(lambda ids=ids: seen.get("all", [])[-1:] == ids)


@pytest.mark.parametrize("until", ["until_empty", "until_idle"])
async def test_it_ends_when_nothing_is_left_that_it_asks_for(queue: Queue, until: str) -> None:
    seen: Seen = {}
    queue.publish("fax", count=3)
    queue.connection.execute("select trunq.publish('q', p_kind => 'fax', p_delay => '1 hour')")
    queue.connection.execute("select trunq.lease('q', 'default', 'other')")
    ids = queue.publish("mail", count=2)
    async with asyncio.timeout(PATIENCE):
        await worker(queue, "mail", seen, {"kinds": ["mail"]}, **{until: True}).run_async()
    assert seen == {"mail": ids}
    assert queue.states() == {"done": 2, "ready": 2, "leased": 1, "scheduled": 1}


async def test_until_idle_waits_for_a_retry_that_it_asks_for(queue: Queue) -> None:
    tries: list[int] = []
    queue.publish("fax")
    queue.publish("mail")
    made = queue.worker(asks={"kinds": ["mail"]}, until_idle=True, lead=True)

    @made.handler
    async def fail_once(message: Message) -> None:
        tries.append(message.attempt)
        if message.attempt == 1:
            raise ValueError

    async with asyncio.timeout(PATIENCE):
        await made.run_async()
    assert tries == [1, 2]
    assert queue.states() == {"done": 1, "ready": 1}


async def test_what_it_cannot_ask_for_is_said_at_the_start(queue: Queue) -> None:
    made = worker(queue, "w", {}, {"kind": "mail"})
    with pytest.raises(InvalidArgument, match='has no "kind"'):
        await made.run_async()
