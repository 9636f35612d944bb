"""Messages of a kind that a worker has no handler for."""

from __future__ import annotations

import asyncio
import logging

import pytest

from calling import come_back
from serving import PATIENCE, Queue, drain, running
from trunq.client.message import Message
from trunq.worker import Worker
from waiting import async_wait_until

STORM = 10_000


def of_parcels(queue: Queue) -> Worker:
    """A worker that carries parcels only."""
    worker = queue.worker()

    @worker.handler("parcel")
    async def carry(message: Message) -> None: ...

    return worker


def of_letters(queue: Queue, seen: list[tuple[int, int]]) -> Worker:
    """A worker that notes letters, and in which attempt each came."""
    worker = queue.worker()

    @worker.handler("letter")
    async def deliver(message: Message) -> None:
        seen.append((message.id, message.attempt))

    return worker


def delayed(queue: Queue) -> int:
    row = queue.connection.execute("select count(*) from trunq.delayed").fetchone()
    assert row is not None
    return int(row[0])


async def test_what_was_published_before_its_worker_was_deployed_waits_and_loses_no_attempt(
    queue: Queue,
) -> None:
    queue.policy(max_attempts=1)
    ids = queue.publish("letter", count=3)
    early = of_parcels(queue)
    async with running(early):
        for round in (1, 2, 3):
            await async_wait_until(lambda: early.statistics.put_off == 3 * round)  # noqa: B023
            await async_wait_until(lambda: queue.states() == {"retrying": 3})
            come_back(queue.connection, "q")
    assert queue.dead() == []
    seen: list[tuple[int, int]] = []
    async with running(of_letters(queue, seen)):
        await async_wait_until(
            lambda: bool(come_back(queue.connection, "q")) or queue.states() == {"done": 3}
        )
    assert sorted(seen) == [(id, 1) for id in ids]


async def test_history_and_warnings_name_kind_and_worker(queue: Queue) -> None:
    (id,) = queue.publish("letter")
    (bare,) = queue.publish(None)
    worker = of_parcels(queue)
    worker.name = "ada"
    async with running(worker):
        await async_wait_until(lambda: queue.states() == {"retrying": 2})
    why = "no handler for kind letter at worker ada, which has: parcel"
    told = queue.message(id)
    assert (told.state, told.attempt, told.error) == ("retrying", 1, why)
    assert [(each["outcome"], each["error"]) for each in told.attempts] == [("released", why)]
    assert queue.message(bare).error.startswith("no handler for messages without a kind at worker ada")
    rows = queue.connection.execute("select warning from trunq.list_warnings('q')").fetchall()
    assert sorted(warning.partition(" in ")[0] for (warning,) in rows) == [
        "no handler for kind letter",
        "no handler for messages without a kind",
    ]


async def test_another_worker_of_the_subscription_that_knows_the_kind_gets_it(queue: Queue) -> None:
    letters, parcels = queue.publish("letter", count=20), queue.publish("parcel", count=20)
    seen: list[tuple[int, int]] = []
    carrier, postman = of_parcels(queue), of_letters(queue, seen)
    async with running(carrier, postman):
        async with asyncio.timeout(PATIENCE):
            while queue.states() != {"done": 40}:
                come_back(queue.connection, "q")
                await asyncio.sleep(0)
    assert sorted(seen) == [(id, 1) for id in letters]
    assert carrier.statistics.handled == len(parcels)


async def test_a_storm_of_an_unknown_kind_is_put_off_once_each_and_starves_nobody(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.publish("letter", count=STORM)
    queue.publish("parcel", count=10)
    worker = of_parcels(queue)
    with caplog.at_level(logging.INFO, "trunq.worker"):
        async with running(worker):
            await async_wait_until(lambda: worker.statistics.handled == 10, 120)
            await async_wait_until(lambda: delayed(queue) == STORM, 120)
            # Once more it looks, in vain, and then it sleeps.
            looks = worker.statistics.empty_looks
            queue.publish("parcel")
            await async_wait_until(lambda: worker.statistics.handled == 11)
            assert worker.statistics.empty_looks <= looks + 3
    assert (worker.statistics.put_off, worker.statistics.leased) == (STORM, STORM + 11)
    lines = [record for record in caplog.records if "letter" in record.getMessage()]
    assert len(lines) <= 6, "one, and a count every ten seconds"
    assert f"{STORM - 1:,} more of kind letter" in caplog.text


async def test_unknown_kinds_can_be_rejected(queue: Queue) -> None:
    (id,) = queue.publish("letter")
    worker = of_parcels(queue)
    worker.unknown_kinds = "reject"
    await drain(worker)
    (dead,) = queue.dead()
    assert (dead.id, dead.reason) == (id, "rejected")
    assert dead.errors[-1]["error"].startswith("no handler for kind letter at worker")
    assert (worker.statistics.put_off, worker.statistics.dead) == (0, 1)


async def test_until_empty_ends_when_the_rest_waits_for_a_handler(queue: Queue) -> None:
    queue.publish("letter", count=2)
    queue.publish("parcel")
    worker = of_parcels(queue)
    await drain(worker)
    assert queue.states() == {"retrying": 2, "done": 1}
    assert worker.statistics.unhandled == 2


async def test_until_empty_ends_when_an_earlier_worker_put_the_rest_off(queue: Queue) -> None:
    queue.publish("letter", count=2)
    await drain(of_parcels(queue))
    later = of_parcels(queue)
    await drain(later)
    assert (later.statistics.put_off, later.statistics.unhandled) == (0, 2)


async def test_until_idle_waits_for_what_was_put_off_and_has_a_handler_now_and_says_so(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trunq.worker")
    (id,) = queue.publish("letter")
    await drain(of_parcels(queue))
    worker = queue.worker(lead=True)

    @worker.handler("letter")
    async def carry(message: Message) -> None: ...

    await drain(worker)
    assert queue.message(id).state == "done"
    said = [record.getMessage() for record in caplog.records if "what is delayed" in record.getMessage()]
    assert said == ["waits until what is delayed is due: 1 of q"]


async def test_until_idle_waits_for_what_is_delayed_beside_what_has_no_handler(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trunq.worker")
    queue.publish("letter")
    queue.connection.execute("select trunq.publish('q', p_kind => 'parcel', p_delay => '1 hour')")
    worker = of_parcels(queue)
    worker.until_idle = True
    async with running(worker) as (task,):
        await async_wait_until(lambda: worker.statistics.put_off == 1)
        looks = worker.statistics.looks
        await async_wait_until(lambda: worker.statistics.looks >= looks + 3)
        await async_wait_until(lambda: "what is delayed" in caplog.text)
        assert not task.done()
        queue.connection.execute("delete from trunq.delayed where kind = 'parcel'")
        async with asyncio.timeout(PATIENCE):
            await task
    assert worker.statistics.unhandled == 1
    assert "waits until what is delayed is due: 1 of q" in caplog.text, "without the letter"


async def test_until_empty_tells_what_has_no_handler_beside_what_is_delayed(queue: Queue) -> None:
    queue.publish("letter")
    queue.connection.execute("select trunq.publish('q', p_kind => 'parcel', p_delay => '1 hour')")
    worker = of_parcels(queue)
    worker.until_empty = True
    async with asyncio.timeout(PATIENCE):
        await worker.run_async()
    assert queue.states() == {"retrying": 1, "scheduled": 1}
    assert worker.statistics.unhandled == 1


async def test_an_unknown_policy_for_unknown_kinds_is_named(queue: Queue) -> None:
    worker = of_parcels(queue)
    worker.unknown_kinds = "drop"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="unknown_kinds is 'wait' or 'reject', not 'drop'"):
        await worker.run_async()
