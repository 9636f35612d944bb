"""Sleeping and being woken. Polls are set to be so rare that only a bell can explain what happens, or the
reverse.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import chain
from typing import Any

import psycopg
import pytest

from serving import Queue, running
from trunq.client.message import Message
from trunq.worker import Worker
from trunq.worker.run.leasing import LONGEST_APART, LOOKS_APART
from waiting import async_wait_until

NEVER = 3600.0

AsyncConnect = Callable[..., Awaitable[psycopg.AsyncConnection[Any]]]


def noting(worker: Worker, seen: list[int]) -> Worker:
    """Have a worker note the messages it handles."""

    @worker.handler("work")
    async def note(message: Message) -> None:
        seen.append(message.id)

    return worker


def bell_holders(queue: Queue) -> list[int]:
    """Backends that hold the bell of the queue."""
    rows = queue.connection.execute(
        "select l.pid from pg_locks l where l.locktype = 'advisory' and l.classid = 1953656417 and l.granted"
        " and l.mode = 'ExclusiveLock'"
        " and l.database = (select oid from pg_database where datname = current_database())"
    )
    return [pid for (pid,) in rows]


def looks(workers: list[Worker]) -> int:
    return sum(worker.statistics.looks for worker in workers)


async def asleep(queue: Queue, workers: list[Worker]) -> None:
    """Wait until all workers have looked in vain, one holds the bell, and nobody looks any more."""
    await async_wait_until(lambda: all(worker.statistics.empty_looks for worker in workers))
    await async_wait_until(lambda: len(bell_holders(queue)) == 1)
    # The holder looks once more after it took the bell.
    await async_wait_until(lambda: looks(workers) > len(workers))
    await async_wait_until(lambda: is_quiet(queue))


def is_quiet(queue: Queue) -> bool:
    """Whether no connection of a worker has run a statement for a tenth of a second."""
    row = queue.connection.execute(
        "select max(state_change) < clock_timestamp() - interval '0.1 s' and bool_and(state = 'idle')"
        " from pg_stat_activity where application_name like 'trunq worker%%' and datname = current_database()"
    ).fetchone()
    return row == (True,)


async def test_a_sleeping_worker_is_woken_by_a_publish(queue: Queue) -> None:
    seen: list[int] = []
    worker = noting(queue.worker(poll=NEVER), seen)
    async with running(worker):
        for _ in range(20):
            await asleep(queue, [worker])
            ids = queue.publish()
            await async_wait_until(lambda ids=ids: ids[0] in seen)
    assert worker.statistics.handled == 20


async def test_a_plain_insert_wakes_and_a_rolled_back_one_does_no_harm(
    queue: Queue, async_connect: AsyncConnect
) -> None:
    seen: list[int] = []
    worker = noting(queue.worker(poll=NEVER), seen)
    publisher = await async_connect(autocommit=False)
    async with running(worker):
        await asleep(queue, [worker])
        await publisher.execute("insert into trunq_log.q (kind) values ('work')")
        await publisher.rollback()
        await publisher.execute("savepoint s")
        await publisher.execute("insert into trunq_log.q (kind) values ('work')")
        await publisher.execute("rollback to s")
        await publisher.execute("insert into trunq_log.q (kind) values ('work')")
        await publisher.commit()
        await async_wait_until(lambda: len(seen) == 1)


async def test_a_publisher_open_while_the_worker_goes_to_sleep_is_met(
    queue: Queue, async_connect: AsyncConnect
) -> None:
    """Its transaction saw nobody asleep and will not notify; the worker may not rely on it."""
    seen: list[int] = []
    publisher = await async_connect(autocommit=False)
    await publisher.execute("insert into trunq_log.q (kind) values ('work')")
    worker = noting(queue.worker(poll=NEVER), seen)
    async with running(worker):
        await async_wait_until(lambda: worker.statistics.empty_looks > 3)
        assert bell_holders(queue) == []
        await publisher.commit()
        await async_wait_until(lambda: len(seen) == 1)
        await asleep(queue, [worker])


async def test_a_publisher_open_for_long_costs_ever_fewer_looks(
    queue: Queue, async_connect: AsyncConnect
) -> None:
    publisher = await async_connect(autocommit=False)
    await publisher.execute("insert into trunq_log.q (kind) values ('work')")
    seen: list[int] = []
    worker = noting(queue.worker(poll=5.0), seen)
    async with running(worker):
        begun = time.monotonic()
        await async_wait_until(lambda: worker.statistics.empty_looks >= 12)
        # At a look every 5 ms these would have taken 60 ms.
        assert time.monotonic() - begun > 0.1
        await publisher.commit()
        await async_wait_until(lambda: len(seen) == 1)


@pytest.mark.parametrize("count", [2, 30])
async def test_sleepers_share_one_bell_and_poll_about_once_an_interval(queue: Queue, count: int) -> None:
    """One session lock, many sleepers: those who cannot have it must neither poll without pause nor miss a
    message.
    """
    poll = 2.0
    seen: list[int] = []
    # With a leader among them: a duty that finds nothing to do must not ring.
    workers = [noting(queue.worker(poll=poll, concurrency=1, lead=True), seen) for _ in range(count)]
    async with running(*workers):
        await asleep(queue, workers)
        before, begun = looks(workers), time.monotonic()
        await async_wait_until(lambda: looks(workers) >= before + 2 * count, 120)
        # Each polls no sooner than nine tenths of the interval after its last look.
        assert time.monotonic() - begun > poll * 0.9


@pytest.mark.parametrize("count", [2, 30])
async def test_a_message_wakes_one_of_many_sleepers_and_none_waits_for_the_poll(
    queue: Queue, count: int
) -> None:
    seen: list[int] = []
    workers = [noting(queue.worker(poll=NEVER, concurrency=1), seen) for _ in range(count)]
    async with running(*workers):
        await asleep(queue, workers)
        before = looks(workers)
        for _ in range(10):
            ids = queue.publish()
            await async_wait_until(lambda ids=ids: ids[0] in seen)
            await asleep(queue, workers)
        # A herd would be 10 looks for each worker. It is: the one woken, two or three times, and the next to
        # hold the bell.
        assert looks(workers) - before <= 10 * 8


async def test_open_publishers_and_many_sleepers_no_message_waits_for_the_poll(
    queue: Queue, async_connect: AsyncConnect
) -> None:
    """Transactions of a few statements, some rolled back, against workers that go to sleep and get up all the
    time.
    """
    seen: list[int] = []
    workers = [noting(queue.worker(poll=NEVER, concurrency=1), seen) for _ in range(4)]

    async def publish(publisher: psycopg.AsyncConnection[Any], rounds: int) -> list[int]:
        committed = []
        for number in range(rounds):
            cursor = await publisher.execute(
                "insert into trunq_log.q (kind) values ('work'), ('work') returning id"
            )
            ids = [id for (id,) in await cursor.fetchall()]
            await publisher.execute("select 1")
            if number % 5 == 4:
                await publisher.rollback()
            else:
                await publisher.commit()
                committed += ids
                await async_wait_until(lambda ids=ids: set(ids) <= set(seen))
        return committed

    async with running(*workers):
        publishers = [await async_connect(autocommit=False) for _ in range(3)]
        committed = await asyncio.gather(*(publish(publisher, 25) for publisher in publishers))
    assert sorted(seen) == sorted(chain.from_iterable(committed))


async def test_when_the_holder_of_the_bell_dies_the_others_go_on(queue: Queue) -> None:
    seen: list[int] = []
    workers = [noting(queue.worker(poll=0.5, concurrency=1), seen) for _ in range(3)]
    async with running(*workers) as tasks:
        await asleep(queue, workers)
        (holder,) = bell_holders(queue)
        # All of its connections at once, and it with them, as far as the others can see.
        queue.connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name ="
            " (select application_name from pg_stat_activity where pid = %s)",
            (holder,),
        )
        ids = queue.publish()
        await async_wait_until(lambda: ids[0] in seen)
        await async_wait_until(lambda: len(bell_holders(queue)) == 1)
        assert not any(task.done() for task in tasks)


async def test_a_worker_with_full_hands_leaves_the_bell_to_others(queue: Queue) -> None:
    """It cannot take what it would be called for."""
    other = Queue(queue.dsn, queue.connection, "other")
    busy = Worker("q", "other", dsn=queue.dsn, concurrency=1, prefetch=0, poll=NEVER, lead=False)
    entered, go = asyncio.Event(), asyncio.Event()

    @busy.handler("long")
    async def long(message: Message) -> None:
        entered.set()
        await go.wait()

    seen: list[int] = []
    free = noting(Worker("q", dsn=queue.dsn, poll=NEVER, lead=False), seen)
    async with running(busy):
        await async_wait_until(lambda: len(bell_holders(queue)) == 2)
        async with running(free):
            await async_wait_until(lambda: free.statistics.empty_looks)
            other.publish("long")
            await entered.wait()
            ids = queue.publish()
            await async_wait_until(lambda: ids[0] in seen)
            go.set()


async def test_a_worker_that_caught_up_pauses_before_it_looks_again(
    queue: Queue, connect: Callable[..., psycopg.Connection[Any]]
) -> None:
    """The longer its look took, the longer, up to a limit. All times are the server's."""
    took = 0.5
    worker = noting(queue.worker(poll=0.3, notify=False), [])
    other = connect(autocommit=False)
    pauses = []
    async with running(worker):
        for _ in range(4):
            # The next look waits until the lease of another worker commits.
            other.execute("select trunq.lease('q', 'default', 'other')")
            await async_wait_until(lambda: seconds_waited(queue) > took)
            (id,) = queue.publish()
            looks = worker.statistics.looks
            other.rollback()
            await async_wait_until(lambda looks=looks: worker.statistics.looks >= looks + 2)
            pauses.append(seconds_until_newest_look(queue, id))
    assert min(pauses) > LONGEST_APART
    # Unlimited, each would be the factor times as long as its look.
    assert min(pauses) < took * LOOKS_APART


LOOK = (
    "from pg_stat_activity where datname = current_database()"
    " and application_name like 'trunq worker%%' and query like '%%lease(%%'"
)


def seconds_waited(queue: Queue) -> float:
    """For how long a worker's look has been waiting for a lock."""
    row = queue.connection.execute(
        f"select extract(epoch from clock_timestamp() - query_start)::float8 {LOOK}"
        " and wait_event_type = 'Lock'".encode()
    ).fetchone()
    return row[0] if row else 0.0


def seconds_until_newest_look(queue: Queue, id: int) -> float:
    """From the lease of a message to the start of the newest look."""
    row = queue.connection.execute(f"select query_start {LOOK}".encode()).fetchone()
    assert row is not None
    return float((row[0] - queue.message(id).leased_at).total_seconds())


async def test_polling_alone_is_enough(queue: Queue) -> None:
    seen: list[int] = []
    worker = noting(queue.worker(poll=0.05, notify=False), seen)
    async with running(worker):
        await async_wait_until(lambda: worker.statistics.empty_looks > 2)
        listeners = queue.connection.execute(
            "select count(*) from pg_stat_activity where application_name like 'trunq worker%%'"
            " and query ilike 'listen%%' and datname = current_database()"
        ).fetchone()
        assert listeners == (0,)
        assert bell_holders(queue) == []
        ids = queue.publish()
        await async_wait_until(lambda: ids[0] in seen)


async def test_with_notify_off_in_the_database_the_poll_is_enough(queue: Queue) -> None:
    queue.connection.execute("set trunq.notify = 'off'")
    seen: list[int] = []
    worker = noting(queue.worker(poll=0.2), seen)
    async with running(worker):
        await asleep(queue, [worker])
        ids = queue.publish()
        await async_wait_until(lambda: ids[0] in seen)


@pytest.mark.parametrize("what", ["queue", "subscription"])
async def test_resume_wakes_sleepers(queue: Queue, what: str) -> None:
    names = "'q', 'default'" if what == "subscription" else "'q'"
    seen: list[int] = []
    workers = [noting(queue.worker(poll=NEVER), seen) for _ in range(2)]
    queue.connection.execute(f"select trunq.pause_{what}({names})".encode())
    ids = queue.publish(count=3)
    async with running(*workers):
        await async_wait_until(lambda: all(worker.statistics.empty_looks for worker in workers))
        await async_wait_until(lambda: is_quiet(queue))
        assert seen == []
        assert bell_holders(queue) == [], "a publisher would wake it in vain"
        queue.connection.execute(f"select trunq.resume_{what}({names})".encode())
        await async_wait_until(lambda: sorted(seen) == ids)


async def test_at_the_end_of_its_rate_a_worker_sleeps_until_there_is_more(queue: Queue) -> None:
    seen: list[int] = []
    worker = noting(queue.worker(poll=NEVER), seen)
    queue.policy(rate=5, burst=1)
    ids = queue.publish(count=6)
    async with running(worker):
        await async_wait_until(lambda: sorted(seen) == ids)
    # Three looks a message: with it, in vain, and rarely a moment too early.
    assert worker.statistics.looks <= 25


async def test_a_changed_rate_wakes_sleepers(queue: Queue) -> None:
    seen: list[int] = []
    worker = noting(queue.worker(poll=NEVER), seen)
    queue.policy(rate=1, rate_interval="1 hour", burst=1)
    ids = queue.publish(count=6)
    async with running(worker):
        await async_wait_until(lambda: len(seen) == 1)
        await async_wait_until(lambda: is_quiet(queue))
        queue.policy(rate=0)
        await async_wait_until(lambda: sorted(seen) == ids)


async def test_an_answer_wakes_another_worker_that_waits_for_room(queue: Queue) -> None:
    queue.policy(max_running=1)
    waiting, go_on, seen = asyncio.Event(), asyncio.Event(), list[int]()
    slow, quick = queue.worker(poll=NEVER, concurrency=1), noting(queue.worker(poll=NEVER), seen)

    @slow.handler("work")
    async def wait(message: Message) -> None:
        waiting.set()
        await go_on.wait()
        slow.stop()

    first, second = queue.publish(count=2)
    async with running(slow):
        await waiting.wait()
        async with running(quick):
            await asleep(queue, [quick])
            assert seen == []
            go_on.set()
            await async_wait_until(lambda: seen == [second])
    assert queue.message(first).state == "done"
