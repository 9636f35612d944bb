"""Batch handlers: a function takes messages together, and gives each its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import psycopg
import pytest

from serving import Queue, drain, running
from trunq.client.message import Message, Reject, Retry
from trunq.errors import InvalidArgument
from trunq.worker import Worker
from waiting import async_wait_until

SOON = 0.1


@dataclass
class Order:
    id: int


class Recorder:
    """A batch handler that keeps what it was given."""

    def __init__(self) -> None:
        self.batches: list[list[Message]] = []

    async def __call__(self, messages: list[Message]) -> None:
        self.batches.append(messages)

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self.batches]


@pytest.fixture
def effects(queue: Queue) -> Callable[[], list[int]]:
    """A table handlers write into; the fixture gives what was committed to it."""
    queue.connection.execute("create table effect (id bigint)")
    return lambda: [id for (id,) in queue.connection.execute("select id from effect order by id")]


def errors(queue: Queue) -> dict[int, tuple[str, str]]:
    return {row.id: (row.reason, row.errors[-1]["error"].partition("\n")[0]) for row in queue.dead()}


# Gathering


@pytest.mark.parametrize("concurrency", [1, 10])
async def test_a_batch_starts_when_it_is_full_or_has_waited(queue: Queue, concurrency: int) -> None:
    ids = queue.publish(count=250)
    worker, recorder = queue.worker(concurrency=concurrency, prefetch=0), Recorder()
    worker.batch("work", size=100, wait=2)(recorder)
    await drain(worker)
    assert recorder.sizes == [100, 100, 50]
    assert [message.id for batch in recorder.batches for message in batch] == ids
    assert queue.states() == {"done": 250}
    assert worker.statistics.handled == 250


async def test_a_lonely_message_waits_no_longer_than_stated(queue: Queue) -> None:
    worker, recorder = queue.worker(), Recorder()
    worker.batch("work", wait=SOON)(recorder)
    async with running(worker):
        queue.publish()
        await async_wait_until(queue.is_done)
        queue.publish()
        await async_wait_until(queue.is_done)
    assert recorder.sizes == [1, 1]


async def test_however_long_they_may_wait_they_start_before_their_lease_is_given_back(queue: Queue) -> None:
    queue.policy(lease_time="0.6 s")
    queue.publish(count=3)
    worker, recorder = queue.worker(), Recorder()
    worker.batch("work", wait=3600)(recorder)
    await drain(worker)
    assert recorder.sizes == [3]
    assert worker.statistics.released == 0


async def test_other_kinds_run_while_a_batch_is_gathered(queue: Queue) -> None:
    queue.publish("many", count=50)
    other = queue.publish("one")
    worker, recorder = queue.worker(concurrency=1), Recorder()
    worker.batch("many", wait=3600)(recorder)
    ran = asyncio.Event()

    @worker.handler("one")
    async def one(message: Message) -> None:
        ran.set()

    async with running(worker):
        await asyncio.wait_for(ran.wait(), 120)
        await async_wait_until(lambda: queue.message(other[0]).state == "done")
        assert recorder.batches == []
    assert queue.states() == {"done": 1, "ready": 50}, "a stop gives back what is gathered"
    assert worker.statistics.released == 50


async def test_queues_are_not_mixed_and_kinds_of_one_handler_are(queue: Queue) -> None:
    second = Queue(queue.dsn, queue.connection, "second")
    queue.publish("a", count=2)
    queue.publish("b", count=2)
    second.publish("a", count=3)
    worker, recorder = queue.worker("q", "second"), Recorder()
    worker.batch("a", "b", wait=SOON)(recorder)
    await drain(worker)
    assert sorted((batch[0].queue, len(batch)) for batch in recorder.batches) == [("q", 4), ("second", 3)]
    assert all(len({message.queue for message in batch}) == 1 for batch in recorder.batches)


async def test_concurrency_counts_batches_and_the_next_is_gathered_meanwhile(queue: Queue) -> None:
    queue.publish(count=60)
    worker = queue.worker(concurrency=5)
    sizes: list[int] = []
    go = asyncio.Event()

    @worker.batch("work", size=20, wait=SOON, concurrency=1)
    async def handle(messages: list[Message]) -> None:
        sizes.append(len(messages))
        await go.wait()

    async with running(worker):
        await async_wait_until(lambda: worker.statistics.leased >= 40)
        assert sizes == [20], "one at a time"
        go.set()
        await async_wait_until(queue.is_done)
    assert sizes == [20, 20, 20]


async def test_what_a_limit_holds_back_in_number_goes_back(queue: Queue) -> None:
    """A worker keeps a bounded number, and gets past the others to what it can start."""
    ids = queue.publish(count=300)
    other = queue.publish("other")
    worker = queue.worker(concurrency=5)
    go = asyncio.Event()

    @worker.batch("work", size=10, wait=0, concurrency=1)
    async def handle(messages: list[Message]) -> None:
        await go.wait()

    @worker.handler("other")
    async def single(message: Message) -> None: ...

    async with running(worker):
        await async_wait_until(lambda: queue.message(other[0]).state == "done")
        await async_wait_until(lambda: queue.states().get("retrying", 0) >= 250)
        go.set()
    assert queue.connection.execute("select count(*) from trunq.delayed where attempt > 1").fetchone() == (0,)
    assert queue.message(ids[0]).state == "done"


@pytest.mark.parametrize("limit", ["max_running", "rate"])
async def test_limits_of_the_subscription_hold(queue: Queue, limit: str) -> None:
    queue.publish(count=7)
    if limit == "max_running":
        queue.policy(max_running=3)
    else:
        queue.policy(rate=3, rate_interval="0.2 s", burst=3)
    worker, recorder = queue.worker(poll=SOON), Recorder()
    worker.batch("work", wait=0.02)(recorder)
    await drain(worker)
    assert max(recorder.sizes) <= 3
    assert sum(recorder.sizes) == 7


async def test_keys_in_order_stay_in_order(database: str, connection: psycopg.Connection[Any]) -> None:
    connection.execute("select trunq.create_queue('l', p_lanes => 'key')")
    connection.execute(
        "select trunq.subscribe('l', 'default', p_in_order => true, p_backoff => 'constant',"
        " p_backoff_base => '0 s')"
    )
    for number in range(4):
        for key in ("x", "y"):
            connection.execute(
                "select trunq.publish('l', to_jsonb(%s::int), p_kind => 'work', p_key => %s)", (number, key)
            )
    worker = Worker("l", dsn=database, lead=False)
    done: dict[str, list[int]] = {"x": [], "y": []}
    tries = count()

    @worker.batch("work", wait=0.02)
    async def handle(messages: list[Message]) -> list[Any]:
        assert len({message.key for message in messages}) == len(messages)
        outcomes: list[Any] = []
        for message in messages:
            if next(tries) % 3 == 0:
                outcomes.append(Retry())
            else:
                done[str(message.key)].append(message.payload)
                outcomes.append(None)
        return outcomes

    await drain(worker)
    assert done == {"x": [0, 1, 2, 3], "y": [0, 1, 2, 3]}


# Payloads


async def test_a_payload_that_does_not_fit_is_rejected_alone(queue: Queue) -> None:
    ids = queue.publish(payload=[{"id": 1}, {"id": "one"}, {"id": 3}])
    worker = queue.worker()
    seen: list[Any] = []

    @worker.batch("work", wait=SOON)
    async def handle(orders: list[Order]) -> list[Any]:
        seen.append(orders)
        return [order.id for order in orders]

    await drain(worker)
    assert seen == [[Order(1), Order(3)]]
    assert [queue.message(id).result for id in ids] == [1, None, 3]
    assert errors(queue)[ids[1]][1].startswith("the payload does not fit Order: id")


async def test_with_none_that_fits_the_handler_is_not_called(queue: Queue) -> None:
    queue.publish(payload=[{}, {}])
    worker = queue.worker()

    @worker.batch("work", wait=SOON)
    async def handle(messages: list[Message[Order]], connection: Any) -> None:
        raise AssertionError

    await drain(worker)
    assert [row.reason for row in queue.dead()] == ["rejected"] * 2


@pytest.mark.parametrize("transaction", [False, True])
async def test_a_retry_that_one_raised_has_the_text_of_its_cause(queue: Queue, transaction: bool) -> None:
    queue.policy(max_attempts=1)
    (id,) = queue.publish()
    worker = queue.worker()

    async def one(message: Message) -> None:
        raise Retry(after=0) from LookupError("not yet")

    async def handle(messages: list[Message]) -> Any:
        return await asyncio.gather(*map(one, messages), return_exceptions=True)

    async def write(messages: list[Message], connection: Any) -> Any:
        return await handle(messages)

    worker.batch("work", wait=SOON)(write if transaction else handle)
    await drain(worker)
    assert errors(queue) == {id: ("max_attempts", "LookupError: not yet")}


# Without a database


def test_a_test_handles_a_batch_here_and_now() -> None:
    worker = Worker("q")

    @worker.batch("order", size=2)
    def handle(orders: list[Message[Order]]) -> list[Any]:
        return [ValueError(f"order {each.payload.id}") if each.payload.id > 1 else (1, 2) for each in orders]

    @worker.upcast("order", from_=1)
    def upcast(payload: Any) -> Any:
        return {"id": payload["number"]}

    assert worker.handle_now({"number": 1}, kind="order") == [1, 2]
    with pytest.raises(ValueError, match="order 2"):
        worker.handle_now({"number": 2}, kind="order")
    first, second, third = worker.handle_batch_now(
        [{"number": 1}, {"number": "x"}, {"number": 3}], kind="order"
    )
    assert (first, type(second), str(third)) == ([1, 2], Reject, "order 3")
    assert worker.handle_batch_now([], kind="order") == []


def test_each_message_of_a_test_has_an_id_of_its_own() -> None:
    worker = Worker("q")

    @worker.batch("work")
    def handle(messages: list[Message]) -> list[int]:
        return [message.id for message in messages]

    assert worker.handle_batch_now(["a", "b", "c"], kind="work") == [1, 2, 3]


@pytest.mark.parametrize("colour", ["async", "sync"])
def test_a_handler_may_take_messages_out_of_its_list(colour: str) -> None:
    worker, taken = Worker("q"), []

    def handle(messages: list[Message]) -> None:
        while messages:
            taken.append(messages.pop(0).payload)

    async def handle_async(messages: list[Message]) -> None:
        handle(messages)

    worker.batch("work")(handle if colour == "sync" else handle_async)
    assert worker.handle_batch_now(["a", "b"], kind="work") == [None, None]
    assert taken == ["a", "b"]


async def test_a_test_handles_a_batch_in_its_event_loop() -> None:
    worker = Worker("q")

    @worker.batch("work")
    async def handle(messages: list[Message]) -> Any:
        raise Retry(after=30)

    @worker.handler("single")
    async def single(message: Message) -> None: ...

    assert await worker.handle_batch_now_async([1, 2], kind="work") == [Retry(30), Retry(30)]
    assert await worker.handle_now_async(1, kind="work") == Retry(30)
    with pytest.raises(InvalidArgument, match="'single' has no batch handler"):
        await worker.handle_batch_now_async([1], kind="single")


def test_handle_now_rolls_back_what_was_raised_and_keeps_what_was_answered(
    queue: Queue, effects: Callable[[], list[int]]
) -> None:
    worker = Worker("q")

    @worker.batch("work")
    def handle(messages: list[Message], connection: psycopg.Connection[Any]) -> list[Any]:
        connection.execute("insert into effect values (%s)", (messages[0].payload,))
        if messages[0].payload == 1:
            raise Retry
        return [Retry() for _ in messages]

    with psycopg.connect(queue.dsn) as connection:
        for number in (1, 2):
            assert worker.handle_batch_now([number], kind="work", connection=connection) == [Retry()]
    assert effects() == [2]


# Registration


def test_a_kind_has_one_handler_of_whichever_sort() -> None:
    worker = Worker("q")
    worker.batch("a")(Recorder())

    async def single(message: Message) -> None: ...

    with pytest.raises(ValueError, match="kind 'a' has a handler already"):
        worker.batch("a")(Recorder())
    with pytest.raises(ValueError, match="kind 'a' has a handler already"):
        worker.handler("a")(single)


def test_what_cannot_be_a_batch_handler_is_refused() -> None:
    worker = Worker("q")

    async def takes_one(message: Message) -> None: ...
    async def takes_orders(orders: list[Order]) -> None: ...

    with pytest.raises(TypeError, match="a batch handler takes a list"):
        worker.batch("a")(takes_one)
    with pytest.raises(TypeError, match=r"@worker.batch\('kind'\) registers one that takes a list"):
        worker.handler("a")(takes_orders)
    with pytest.raises(TypeError, match="name the kind"):
        worker.batch(Order)
    with pytest.raises(InvalidArgument, match="size is a whole number, 1 or more, not 0"):
        worker.batch("a", size=0)
    with pytest.raises(ValueError, match="wait is a time, 0 or more, not -1"):
        worker.batch("a", wait=-1)


async def test_each_message_of_a_batch_reports_for_itself(queue: Queue) -> None:
    """Also in the next attempt, which has what each of them left."""
    ids = queue.publish(payload=[{"n": n} for n in range(3)])
    worker = queue.worker()
    seen: list[Any] = []

    async def handle(messages: list[Message]) -> list[Any]:
        for message in messages:
            seen.append(message.checkpoint)
            if message.attempt == 1:
                await message.set_progress(50, checkpoint={"row": message.id})
        return [Retry(after=0) if message.attempt == 1 else None for message in messages]

    worker.batch("work", wait=SOON)(handle)
    await drain(worker)
    assert seen[:3] == [None] * 3
    assert sorted(each["row"] for each in seen[3:]) == ids
    assert queue.states() == {"done": 3}
