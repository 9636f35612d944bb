"""Batch handlers while they run and when they have: outcomes, transactions, leases, cancelling, time-outs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import psycopg
import pytest

from serving import Queue, drain, running, said, take_away
from trunq.client.message import Message, Reject, Retry
from waiting import async_wait_until

SOON = 0.1


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


# Outcomes


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_each_message_has_its_outcome(queue: Queue, colour: str) -> None:
    queue.policy(max_attempts=2)
    ids = queue.publish(payload=["result", "none", "retry", "reject", "raise", "not JSON"])
    worker = queue.worker()
    threads = set()

    def outcome(message: Message) -> Any:
        if message.payload == "result":
            return {"n": 1}
        if message.payload == "retry" and message.attempt == 1:
            return Retry(error="once more")
        if message.payload == "reject":
            return Reject("no good")
        if message.payload == "raise":
            return KeyError("broken")
        if message.payload == "not JSON":
            return object()
        return None

    async def handle(messages: list[Message]) -> list[Any]:
        return [outcome(message) for message in messages]

    def handle_sync(messages: list[Message]) -> list[Any]:
        threads.add(threading.current_thread())
        return [outcome(message) for message in messages]

    worker.batch("work", wait=SOON)(handle if colour == "async" else handle_sync)
    await drain(worker)
    assert queue.message(ids[0]).result == {"n": 1}
    assert queue.states() == {"done": 3, "dead": 3}
    found = errors(queue)
    assert found[ids[3]] == ("rejected", "no good")
    assert found[ids[4]] == ("max_attempts", "KeyError: 'broken'")
    assert found[ids[5]][1].startswith("TypeError: the handler returned what JSON cannot hold")
    assert said(queue.message(ids[2]).attempts[0]["error"]) == "once more"
    assert threading.current_thread() not in threads
    assert worker.statistics.dead == 3


@pytest.mark.parametrize("raised", [True, False])
@pytest.mark.parametrize("answer", [ValueError("all of it"), Retry(error="all of it"), Reject("all of it")])
async def test_what_is_raised_is_for_all(queue: Queue, answer: Exception, raised: bool) -> None:
    queue.policy(max_attempts=1)
    ids = queue.publish(count=3)
    worker = queue.worker()

    @worker.batch("work", wait=SOON)
    async def handle(messages: list[Message]) -> Any:
        if raised or isinstance(answer, ValueError):
            raise answer
        return answer

    await drain(worker)
    reason = "rejected" if isinstance(answer, Reject) else "max_attempts"
    assert {id: found[0] for id, found in errors(queue).items()} == dict.fromkeys(ids, reason)
    assert all(found[1].endswith("all of it") for found in errors(queue).values())


@pytest.mark.parametrize("transaction", [False, True])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([None], "gave 1 outcome for 3 messages"),
        ([None] * 4, "gave 4 outcomes for 3 messages"),
        ([], "gave 0 outcomes for 3 messages"),
        ({"id": 1}, "returned a dict"),
        ("abc", "returned a str"),
    ],
)
async def test_too_few_or_too_many_outcomes_fail_all(
    queue: Queue, effects: Callable[[], list[int]], given: Any, said: str, transaction: bool
) -> None:
    queue.policy(max_attempts=1)
    ids = queue.publish(count=3)
    worker = queue.worker()

    async def handle(messages: list[Message]) -> Any:
        return given

    async def write(messages: list[Message], connection: Any) -> Any:
        await connection.execute("insert into effect values (1)")
        return given

    worker.batch("work", wait=SOON)(write if transaction else handle)
    await drain(worker)
    found = errors(queue)
    assert sorted(found) == ids
    for reason, error in found.values():
        assert reason == "max_attempts"
        assert error.startswith(f"WrongOutcomes: the batch handler of kind work {said}")
    assert effects() == []


async def test_on_its_last_attempt_a_message_runs_alone(queue: Queue) -> None:
    """One that fails every batch it is in takes no other to its death."""
    queue.policy(max_attempts=3)
    ids = queue.publish(payload=[number == 7 for number in range(20)])
    worker = queue.worker()
    sizes: dict[int, set[int]] = {}

    @worker.batch("work", wait=SOON)
    async def handle(messages: list[Message]) -> None:
        sizes.setdefault(messages[0].attempt, set()).add(len(messages))
        if any(message.payload for message in messages):
            raise ValueError("poison")

    await drain(worker)
    assert [row.id for row in queue.dead()] == [ids[7]]
    assert queue.states() == {"done": 19, "dead": 1}
    assert sizes == {1: {20}, 2: {20}, 3: {1}}


async def test_one_whose_leases_ran_out_runs_alone(queue: Queue) -> None:
    """It may be what killed its workers."""
    queue.policy(max_attempts=9)
    (suspect,) = queue.publish()
    with psycopg.connect(queue.dsn, autocommit=True) as other:
        for attempt in (1, 2):
            other.execute("select from trunq.lease('q', 'default', 'crashed', 1)")
            take_away(queue, suspect, attempt)
    queue.publish(count=30)
    worker, recorder = queue.worker(), Recorder()
    worker.batch("work", wait=SOON)(recorder)
    await drain(worker)
    assert [[suspect]] == [
        [message.id for message in batch]
        for batch in recorder.batches
        if suspect in {message.id for message in batch}
    ]


# Transactions


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_effects_and_all_outcomes_commit_together(
    queue: Queue, effects: Callable[[], list[int]], colour: str
) -> None:
    queue.policy(max_attempts=2)
    ids = queue.publish(payload=["done", "retry", "reject", "raise", "done"])
    worker = queue.worker(concurrency=2, prefetch=0)

    def outcome(message: Message) -> Any:
        if message.payload == "retry" and message.attempt == 1:
            return Retry(error="once more")
        if message.payload == "raise":
            return ValueError("broken")
        return Reject("no good") if message.payload == "reject" else "written"

    insert = "insert into effect select unnest(%s::bigint[])"

    @worker.batch("work", size=5, wait=2) if colour == "async" else lambda function: function
    async def handle(messages: list[Message], connection: psycopg.AsyncConnection[Any]) -> list[Any]:
        await connection.execute(insert, ([message.id for message in messages],))
        return [outcome(message) for message in messages]

    @worker.batch("work", size=5, wait=2) if colour == "sync" else lambda function: function
    def handle_sync(messages: list[Message], connection: psycopg.Connection[Any]) -> list[Any]:
        connection.execute(insert, ([message.id for message in messages],))
        return [outcome(message) for message in messages]

    await drain(worker)
    assert effects() == sorted([*ids, ids[1], ids[3]])
    assert queue.states() == {"done": 3, "dead": 2}
    assert queue.message(ids[1]).result == "written"
    rows = queue.connection.execute(
        "select (select count(distinct xmin::text) from effect),"
        " (select array_agg(distinct xmin::text) from effect)"
        " @> (select array_agg(distinct xmin::text) from trunq_data.q_receipt)"
    ).fetchone()
    # Five together; then those two, each on its last attempt, alone.
    assert rows == (3, True)
    statistics = worker.statistics
    assert (statistics.handled, statistics.retried, statistics.rejected, statistics.dead) == (3, 3, 1, 2)


async def test_a_raise_rolls_the_whole_batch_back(queue: Queue, effects: Callable[[], list[int]]) -> None:
    ids = queue.publish(count=4)
    worker = queue.worker()
    tries = count(1)

    @worker.batch("work", wait=SOON)
    async def handle(messages: list[Message], connection: Any) -> None:
        for message in messages:
            await connection.execute("insert into effect values (%s)", (message.id,))
        if next(tries) == 1:
            raise ValueError("the last step")

    await drain(worker)
    assert effects() == ids
    assert {queue.message(id).attempt for id in ids} == {2}


async def test_transactions_that_meet_another_run_again_with_the_same_payloads(
    queue: Queue, effects: Callable[[], list[int]]
) -> None:
    ids = queue.publish(payload=[{"number": 1}, {"number": 2}])
    worker = queue.worker()
    tries = count(1)

    @worker.upcast("work", from_=1)
    def upcast(payload: Any) -> Any:
        return {"id": payload["number"]}

    @worker.batch("work", size=2, wait=5)
    async def handle(messages: list[Message], connection: Any) -> None:
        for message in messages:
            await connection.execute("insert into effect values (%s)", (message.payload.pop("id"),))
        if next(tries) == 1:
            raise psycopg.errors.SerializationFailure

    await drain(worker)
    assert effects() == [1, 2]
    assert [queue.message(id).attempt for id in ids] == [1, 1]


async def test_with_one_lease_lost_nothing_is_written_and_the_others_go_back_unharmed(
    queue: Queue, effects: Callable[[], list[int]]
) -> None:
    ids = queue.publish(count=2)
    # One message a lease.
    worker = queue.worker(concurrency=1, prefetch=0)
    is_first, go = [True], asyncio.Event()
    inside = asyncio.Event()

    @worker.batch("work", size=2, wait=0.5)
    async def handle(messages: list[Message], connection: Any) -> None:
        for message in messages:
            await connection.execute("insert into effect values (%s)", (message.id,))
        if is_first and is_first.pop():
            assert len({message.lease_id for message in messages}) == 2
            inside.set()
            await go.wait()

    async with running(worker):
        await asyncio.wait_for(inside.wait(), 120)
        await asyncio.to_thread(take_away, queue, ids[0])
        go.set()
        await async_wait_until(queue.is_done)
    assert effects() == ids
    assert [queue.message(id).attempt for id in ids] == [2, 1]


async def test_without_a_transaction_the_answers_under_other_leases_count(queue: Queue) -> None:
    ids = queue.publish(count=2)
    worker = queue.worker(concurrency=1, prefetch=0)
    batches: list[list[int]] = []
    inside, go = asyncio.Event(), asyncio.Event()

    @worker.batch("work", size=2, wait=SOON)
    async def handle(messages: list[Message]) -> None:
        batches.append([message.id for message in messages])
        inside.set()
        await go.wait()

    async with running(worker):
        await asyncio.wait_for(inside.wait(), 120)
        await asyncio.to_thread(take_away, queue, ids[0])
        go.set()
        await async_wait_until(queue.is_done)
    assert batches == [ids, [ids[0]]]
    assert [queue.message(id).attempt for id in ids] == [2, 1]


# Leases, cancelling, time-outs


async def test_the_leases_of_all_are_extended_while_it_runs(queue: Queue) -> None:
    queue.policy(lease_time="1 s")
    ids = queue.publish(count=3)
    worker = queue.worker(concurrency=1, prefetch=0, lead=True)

    @worker.batch("work", size=3, wait=5)
    async def handle(messages: list[Message]) -> list[int]:
        leases = [message.lease_id for message in messages]
        assert len(set(leases)) > 1

        def are_extended() -> bool:
            return queue.connection.execute(
                "select bool_and(expires_at > leased_at + interval '2.5 s') from trunq_data.q_lease"
                " where lease_id = any(%s)",
                (leases,),
            ).fetchone() == (True,)

        await async_wait_until(are_extended)
        return [len(messages)] * 3

    await drain(worker)
    assert {queue.message(id).attempt for id in ids} == {1}
    assert queue.message(ids[0]).result == 3


async def test_one_that_is_cancelled_is_told_and_the_others_go_on(queue: Queue) -> None:
    ids = queue.publish(count=3)
    worker = queue.worker()
    inside = asyncio.Event()

    @worker.batch("work", wait=SOON)
    async def handle(messages: list[Message]) -> list[Any]:
        inside.set()
        await async_wait_until(lambda: any(message.is_cancelled for message in messages))
        return [Retry() if message.is_cancelled else None for message in messages]

    async with running(worker):
        await asyncio.wait_for(inside.wait(), 120)
        queue.connection.execute("select trunq.cancel('q', %s)", ([ids[1]],))
        await async_wait_until(queue.is_done)
    assert {row.id: row.reason for row in queue.dead()} == {ids[1]: "cancelled"}
    assert queue.states() == {"done": 2, "cancelled": 1} or queue.states() == {"done": 2, "dead": 1}


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_when_all_are_cancelled_the_handler_is_stopped(queue: Queue, colour: str) -> None:
    ids = queue.publish(count=3)
    worker = queue.worker()
    inside = threading.Event()

    async def handle(messages: list[Message]) -> None:
        inside.set()
        await asyncio.Event().wait()

    def handle_sync(messages: list[Message], lost: threading.Event) -> None:
        inside.set()
        assert lost.wait(120)
        raise ValueError("stopped")

    worker.batch("work", wait=SOON)(handle if colour == "async" else handle_sync)
    async with running(worker):
        await async_wait_until(inside.is_set)
        queue.connection.execute("select trunq.cancel('q', %s)", (ids,))
        await async_wait_until(queue.is_done)
    assert {row.id: row.reason for row in queue.dead()} == dict.fromkeys(ids, "cancelled")


async def test_one_that_is_cancelled_while_it_is_gathered_is_left_out(queue: Queue) -> None:
    ids = queue.publish(count=3)
    worker, recorder = queue.worker(), Recorder()
    worker.batch("work", size=3, wait=3600)(recorder)

    @worker.handler("full")
    async def full(message: Message) -> None: ...

    worker.batch("later", size=4, wait=3600)(recorder)
    late = queue.publish("later", count=3)
    async with running(worker):
        await async_wait_until(lambda: queue.states().get("done") == 3)
        queue.connection.execute("select trunq.cancel('q', %s)", ([late[0]],))
        await async_wait_until(lambda: worker.statistics.cancelled == 1)
        late += queue.publish("later", count=2)
        await async_wait_until(queue.is_done)
    assert [[message.id for message in batch] for batch in recorder.batches] == [ids, late[1:]]


@pytest.mark.parametrize("transaction", [False, True])
async def test_the_shortest_time_out_stops_it(
    queue: Queue, effects: Callable[[], list[int]], transaction: bool
) -> None:
    queue.policy(max_attempts=1)
    ids = queue.publish(count=2)
    queue.connection.execute(
        "select trunq.publish('q', p_kind => 'work', p_options => '{\"time_out\": 0.1}')"
    )
    worker = queue.worker()
    left: list[float | None] = []

    async def handle(messages: list[Message]) -> None:
        left.extend(message.time_left for message in messages)
        await asyncio.Event().wait()

    async def write(messages: list[Message], connection: Any) -> None:
        await connection.execute("insert into effect values (1)")
        await handle(messages)

    worker.batch("work", size=3, wait=5, time_out=60)(write if transaction else handle)
    await drain(worker)
    assert len(left) == 3
    assert all(seconds is not None and seconds <= 0.1 for seconds in left)
    assert queue.states() == {"dead": 3}
    assert queue.message(ids[0]).attempts[0]["outcome"] == "timed_out"
    assert effects() == []


async def test_a_handler_extends_the_lease_of_a_message(queue: Queue) -> None:
    queue.publish(count=2)
    worker = queue.worker()
    ends: list[float] = []

    @worker.batch("work", size=2, wait=5)
    async def handle(messages: list[Message]) -> None:
        before = messages[1].expires_at
        ends.append(((await messages[1].extend(600)) - before).total_seconds())

    await drain(worker)
    assert ends[0] > 500


async def test_a_stop_lets_a_batch_end(queue: Queue) -> None:
    queue.publish(count=3)
    worker = queue.worker()
    inside, go = asyncio.Event(), asyncio.Event()

    @worker.batch("work", size=3, wait=5)
    async def handle(messages: list[Message]) -> None:
        inside.set()
        await go.wait()

    async with running(worker) as tasks:
        await asyncio.wait_for(inside.wait(), 120)
        worker.stop()
        await asyncio.sleep(0)
        assert not tasks[0].done()
        go.set()
    assert queue.states() == {"done": 3}


@pytest.mark.parametrize("limit", ["grace", "reserve"])
async def test_a_batch_that_would_take_too_long_is_cut_off_and_each_of_it_fails(
    queue: Queue, limit: str
) -> None:
    queue.policy(max_attempts=1)
    ids = queue.publish(count=3)
    worker = queue.worker(**({"grace": 1} if limit == "grace" else {"lease_time": 1.5, "reserve": 1}))
    inside = asyncio.Event()

    @worker.batch("work", size=3, wait=5)
    async def handle(messages: list[Message]) -> None:
        inside.set()
        await asyncio.Event().wait()

    async with running(worker):
        await asyncio.wait_for(inside.wait(), 120)
        if limit == "reserve":
            await async_wait_until(queue.is_done)
    why = "its worker was stopped" if limit == "grace" else "ran longer than the 0.5 seconds"
    assert sorted(errors(queue)) == ids
    assert all(why in error for _, error in errors(queue).values())
