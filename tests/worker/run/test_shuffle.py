"""Random order: what is leased is mixed."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from serving import Queue, drain, running
from trunq.client.message import Message
from trunq.worker import Worker
from trunq.worker.run.leasing import Mixed
from waiting import async_wait_until

MESSAGES = 10_000
PARTS = 10
LARGEST_CHI_SQUARE = 190.0
"""Of 81 degrees of freedom; random orders exceed 183 once in a billion times."""


def chi_square(blocks: list[list[int]]) -> float:
    """How far the orders of blocks are from random ones: for tenths by number and tenths by place."""
    table = [[0.0] * PARTS for _ in range(PARTS)]
    expected = [[0.0] * PARTS for _ in range(PARTS)]
    for block in blocks:
        size = len(block)
        places = {id: place for place, id in enumerate(sorted(block))}
        for place, id in enumerate(block):
            table[places[id] * PARTS // size][place * PARTS // size] += 1
        tenths = [sum(number * PARTS // size == part for number in range(size)) for part in range(PARTS)]
        for row in range(PARTS):
            for column in range(PARTS):
                expected[row][column] += tenths[row] * tenths[column] / size
    return sum(
        (table[row][column] - expected[row][column]) ** 2 / expected[row][column]
        for row in range(PARTS)
        for column in range(PARTS)
    )


def collect(worker: Worker) -> list[Message]:
    """What a worker handles, in its order."""
    handled: list[Message] = []

    @worker.handler("work")
    async def handle(message: Message) -> None:
        handled.append(message)

    return handled


def by_lease(handled: list[Message]) -> list[list[int]]:
    leases: dict[int, list[int]] = {}
    for message in handled:
        leases.setdefault(message.lease_id, []).append(message.id)
    return list(leases.values())


async def test_the_next_thousand_come_in_random_order(queue: Queue) -> None:
    queue.publish(count=MESSAGES)
    worker = queue.worker(concurrency=1, shuffle=True)
    handled = collect(worker)
    await drain(worker)
    assert len(handled) == MESSAGES
    leases = by_lease(handled)
    # All of a thousand, but the last: none is in the way of another for long.
    assert min(map(len, leases[:-1])) >= 800
    assert chi_square(leases) < LARGEST_CHI_SQUARE
    places = {message.id: place for place, message in enumerate(handled)}
    far = max(abs(places[id] - number) for number, id in enumerate(sorted(places)))
    assert 500 < far < 5000


async def test_without_it_they_come_as_they_were_published(queue: Queue) -> None:
    queue.publish(count=2000)
    worker = queue.worker(concurrency=1)
    handled = collect(worker)
    await drain(worker)
    leases = [lease for lease in by_lease(handled) if len(lease) >= PARTS]
    assert all(one < other for one, other in pairwise(message.id for message in handled))
    assert chi_square(leases) > 10 * LARGEST_CHI_SQUARE


async def test_those_leased_later_are_mixed_with_those_that_wait(queue: Queue) -> None:
    """As with handlers in a transaction, whose leases are small."""
    queue.publish(count=400)
    worker = queue.worker(concurrency=1, shuffle=True, prefetch=200)
    handled: list[Message] = []

    @worker.handler("work")
    async def handle(message: Message, connection) -> None:  # type: ignore[no-untyped-def]
        handled.append(message)

    await drain(worker)
    assert len(handled) == 400
    leases = [message.lease_id for message in handled]
    assert leases != sorted(leases)


async def test_priorities_come_in_their_order_and_each_in_a_random_one(queue: Queue) -> None:
    name = "shuffled_priorities"
    queue.connection.execute("select trunq.create_queue(%s, p_lanes => 'priority')", (name,))
    queue.connection.execute("select trunq.set_lanes(%s, p_policy => 'priority')", (name,))
    rows = queue.connection.execute(
        "insert into trunq_log.shuffled_priorities (kind, priority)"
        " select 'work', 1 + (n <= 400)::integer from generate_series(1, 800) n returning id"
    ).fetchall()
    worker = Worker(name, dsn=queue.dsn, concurrency=1, shuffle=True, lead=False)
    handled = collect(worker)
    await drain(worker)
    found = [message.id for message in handled]
    # One lease in eight is of the lane that waited longest: no more than that is out of order.
    assert sum(each.priority == 1 for each in handled[:400]) > 300
    assert sorted(found) == sorted(id for (id,) in rows)
    first = [message.id for message in handled if message.priority == 1]
    assert first != sorted(first)


async def test_a_prefetch_says_how_many_are_mixed(queue: Queue) -> None:
    queue.publish(count=300)
    worker = queue.worker(concurrency=2, shuffle=True, prefetch=20)
    go_on = asyncio.Event()

    @worker.handler("work")
    async def handle(message: Message) -> None:
        await go_on.wait()

    async with running(worker):
        await async_wait_until(lambda: worker.statistics.leased == 22)
        go_on.set()
        await async_wait_until(lambda: worker.statistics.handled == 300)


@pytest.mark.parametrize("stated", [None, 64])
def test_slow_handlers_mix_fewer_and_quick_ones_more_again(stated: int | None) -> None:
    mixed, most = Mixed(stated, 10), stated or 1000
    assert mixed.count(0) == most
    mixed.is_barred = True  # some were given back
    assert (mixed.count(5), mixed.count(5)) == (0, 0)
    assert mixed.count(6) == most // 2
    mixed.is_barred = True
    assert (mixed.count(7), mixed.count(8)) == (0, most // 4)
    finished, seen = 8, []
    while mixed.count(finished) < most:
        seen.append(mixed.count(finished))
        finished += 1
        assert finished < 10 * most
    assert len(set(seen)) < 4
    assert mixed.count(finished + 10 * most) == most
