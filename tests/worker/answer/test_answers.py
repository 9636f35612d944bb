"""What a handler answers becomes of the message."""

from __future__ import annotations

import asyncio
import datetime
import logging
import threading
from datetime import date
from decimal import Decimal
from time import monotonic
from typing import Any

import pytest

from serving import Queue, drain, running, said
from trunq.client.message import Message, Reject, Retry
from trunq.wire.json import RawJson
from trunq.worker.slot import TURN
from waiting import async_wait_until


async def test_a_returned_value_is_an_ack_and_kept_as_result(queue: Queue) -> None:
    (id,) = queue.publish(payload={"n": 20})
    worker = queue.worker()

    @worker.handler("work")
    async def double(message: Message) -> Any:
        return {"twice": message.payload["n"] * 2}

    await drain(worker)
    message = queue.message(id)
    assert (message.state, message.result, message.attempt) == ("done", {"twice": 40}, 1)
    assert message.attempts[0]["outcome"] == "success"
    assert message.attempts[0]["took"] >= 0
    assert worker.statistics.handled == 1


async def test_returning_nothing_is_an_ack_without_a_result(queue: Queue) -> None:
    (id,) = queue.publish()
    worker = queue.worker()

    @worker.handler("work")
    async def nothing(message: Message) -> None: ...

    await drain(worker)
    assert (queue.message(id).state, queue.message(id).result) == ("done", None)


async def test_falsy_and_raw_results_are_kept_too(queue: Queue) -> None:
    answers: list[Any] = [0, "", False, [], RawJson('{"raw": true}')]
    ids = queue.publish(payload=list(range(len(answers))))
    worker = queue.worker()

    @worker.handler("work")
    async def answer(message: Message) -> Any:
        return answers[message.payload]

    await drain(worker)
    assert [queue.message(id).result for id in ids] == [0, "", False, [], {"raw": True}]


@pytest.mark.parametrize("after", [0.01, datetime.timedelta(milliseconds=10)])
async def test_retry_runs_the_message_again_after_its_delay(queue: Queue, after: Any) -> None:
    (id,) = queue.publish()
    worker = queue.worker(lead=True)
    attempts = []

    @worker.handler("work")
    async def second_time_lucky(message: Message) -> Retry | None:
        attempts.append(message.attempt)
        return Retry(after=after, error="not yet") if message.attempt == 1 else None

    await drain(worker)
    message = queue.message(id)
    assert attempts == [1, 2]
    assert [attempt["outcome"] for attempt in message.attempts] == ["failed", "success"]
    assert said(message.attempts[0]["error"]) == "not yet"
    assert (worker.statistics.retried, worker.statistics.handled) == (1, 1)


async def test_a_retry_is_not_handed_out_before_its_time(queue: Queue) -> None:
    (id,) = queue.publish()
    worker = queue.worker()

    @worker.handler("work")
    async def later(message: Message) -> Retry:
        return Retry(after=3600)

    async with running(worker):
        await async_wait_until(lambda: queue.message(id).state == "retrying")
        due_in = queue.message(id).due_at - datetime.datetime.now(datetime.UTC)
    assert 3500 < due_in.total_seconds() < 3700


async def test_reject_makes_it_dead_with_the_reason(queue: Queue) -> None:
    queue.publish()
    worker = queue.worker()

    @worker.handler("work")
    async def refuse(message: Message) -> Reject:
        return Reject("no such customer")

    await drain(worker)
    (dead,) = queue.dead()
    assert dead.reason == "rejected"
    assert said(dead.errors[-1]["error"]) == "no such customer"
    assert worker.statistics.rejected == 1


async def test_what_a_handler_raises_is_retried_and_kept_with_type_text_and_place(queue: Queue) -> None:
    queue.policy(max_attempts=3)
    queue.publish()
    worker = queue.worker()

    @worker.handler("work")
    async def fail(message: Message) -> None:
        raise KeyError(f"attempt {message.attempt}")

    await drain(worker)
    (dead,) = queue.dead()
    errors = [error["error"] for error in dead.errors]
    assert dead.reason == "max_attempts"
    assert [error.splitlines()[0] for error in errors] == [f"KeyError: 'attempt {n}'" for n in (1, 2, 3)]
    assert "in fail: raise KeyError" in errors[0]
    assert worker.statistics.failed == 3


async def test_the_default_handler_takes_every_other_kind(queue: Queue) -> None:
    queue.publish("letter")
    queue.publish("telegram")
    queue.publish(None)
    worker = queue.worker()
    seen = []

    @worker.handler("letter")
    async def letter(message: Message) -> None:
        seen.append(("letter", message.kind))

    @worker.handler("*")
    async def other(message: Message) -> None:
        seen.append(("*", message.kind))

    await drain(worker)
    assert sorted(seen, key=str) == [("*", "telegram"), ("*", None), ("letter", "letter")]


async def test_a_result_that_is_no_json_is_an_error_that_says_so(queue: Queue) -> None:
    queue.policy(max_attempts=1)
    queue.publish()
    worker = queue.worker()

    @worker.handler("work")
    async def wrong(message: Message) -> Any:
        return {"made": [object()]}

    await drain(worker)
    (dead,) = queue.dead()
    assert "returned what JSON cannot hold (result['made'][0] is a object" in dead.errors[-1]["error"]


async def test_a_result_may_hold_what_a_payload_may(queue: Queue) -> None:
    queue.policy(keep_results=True)
    (id,) = queue.publish()
    worker = queue.worker()

    @worker.handler("work")
    async def paid(message: Message) -> Any:
        return {"paid": Decimal("1.10"), "on": date(2026, 1, 2)}

    await drain(worker)
    assert queue.message(id).result == {"paid": "1.10", "on": "2026-01-02"}


async def test_a_result_the_database_refuses_fails_alone(queue: Queue) -> None:
    queue.policy(max_attempts=1)
    ids = queue.publish(payload=list(range(10)))
    worker = queue.worker()

    @worker.handler("work")
    async def mostly_fine(message: Message) -> Any:
        return RawJson("no JSON") if message.payload == 4 else "fine"

    await drain(worker)
    (dead,) = queue.dead()
    assert dead.id == ids[4]
    assert "the database refused the result" in dead.errors[-1]["error"]
    assert queue.states() == {"done": 9, "dead": 1}
    assert (worker.statistics.handled, worker.statistics.failed) == (9, 1)


async def test_error_texts_are_kept_whatever_they_hold(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    # Half a pair cannot be sent from one process of pytest to another.
    caplog.set_level(logging.CRITICAL, "trunq.worker")
    queue.policy(max_attempts=1)
    queue.publish()
    worker = queue.worker()

    @worker.handler("work")
    async def fail(message: Message) -> None:
        raise ValueError("zero \x00, quotes \" ' \\, braces {,}, half a pair \ud800")

    await drain(worker)
    (dead,) = queue.dead()
    assert "zero \\x00, quotes \" ' \\, braces {,}, half a pair \\ud800" in dead.errors[-1]["error"]


async def test_sync_handlers_run_in_threads_at_the_same_time(queue: Queue) -> None:
    queue.publish(count=3)
    worker = queue.worker(concurrency=3)
    meeting = threading.Barrier(3, timeout=120)
    threads = set()

    @worker.handler("work")
    def meet(message: Message) -> str:
        meeting.wait()
        threads.add(threading.current_thread().name)
        return "met"

    await drain(worker)
    assert len(threads) == 3
    assert worker.statistics.handled == 3


async def test_async_handlers_run_at_the_same_time_and_no_more_than_stated(queue: Queue) -> None:
    queue.publish(count=30)
    worker = queue.worker(concurrency=3)
    meeting = asyncio.Barrier(3)
    inside: set[int] = set()
    most = 0

    @worker.handler("work")
    async def meet(message: Message) -> None:
        nonlocal most
        inside.add(message.id)
        most = max(most, len(inside))
        await meeting.wait()
        inside.remove(message.id)

    await drain(worker)
    assert worker.statistics.handled == 30
    assert most <= 3


async def test_sync_handlers_answer_in_all_ways(queue: Queue) -> None:
    queue.policy(max_attempts=1)
    ids = queue.publish(payload=["ack", "reject", "raise", "stop"])
    worker = queue.worker()

    @worker.handler("work")
    def answer(message: Message) -> Any:
        match message.payload:
            case "ack":
                return "done"
            case "reject":
                return Reject("no")
            case "stop":
                raise StopIteration
        raise ValueError("oh")

    await drain(worker)
    assert queue.message(ids[0]).result == "done"
    assert {dead.id: dead.reason for dead in queue.dead()} == {
        ids[1]: "rejected",
        ids[2]: "max_attempts",
        ids[3]: "max_attempts",
    }


async def test_a_handler_that_cancels_itself_or_exits_fails_like_any_other(queue: Queue) -> None:
    queue.policy(max_attempts=1)
    queue.publish(payload=["cancel", "exit", "fine"])
    worker = queue.worker(concurrency=1)

    @worker.handler("work")
    async def leave(message: Message) -> None:
        if message.payload == "cancel":
            raise asyncio.CancelledError
        if message.payload == "exit":
            raise SystemExit(3)

    await drain(worker)
    assert queue.states() == {"done": 1, "dead": 2}


async def test_thousands_are_answered_once_each(queue: Queue) -> None:
    queue.publish(count=2000)
    worker = queue.worker()
    seen: list[int] = []

    @worker.handler("work")
    async def note(message: Message) -> int | None:
        seen.append(message.id)
        return message.id if message.id % 3 == 0 else None

    await drain(worker)
    assert len(seen) == len(set(seen)) == 2000
    assert worker.statistics.handled == 2000
    assert queue.states() == {"done": 2000}


async def test_handlers_that_never_wait_leave_the_loop_a_turn_between_messages(queue: Queue) -> None:
    """Else answers, extensions and everything else would have to wait until a whole lease is handled."""
    queue.publish(count=20)
    worker = queue.worker(concurrency=1, prefetch=20)
    turns = 0
    seen: list[tuple[int, int]] = []

    @worker.handler("work")
    async def spin(message: Message) -> None:
        seen.append((message.lease_id, turns))
        begun = monotonic()
        while monotonic() - begun < TURN:
            pass

    async with running(worker):
        while len(seen) < 20:
            turns += 1
            await asyncio.sleep(0)
    assert len({lease_id for lease_id, _ in seen}) == 1
    assert len({turn for _, turn in seen}) == 20


async def test_one_answer_that_the_database_refuses_takes_no_other_with_it(queue: Queue) -> None:
    """Four retries of one lease, one of them for a time that is out of bounds."""
    ids = queue.publish("work", count=4)
    worker = queue.worker(concurrency=4)

    @worker.handler("work")
    async def handle(message: Message) -> Retry:
        if message.id == ids[0]:
            return Retry(after=datetime.timedelta(days=365 * 2000), error="mine")
        return Retry(after=3600, error="later")

    async with running(worker):
        await async_wait_until(lambda: worker.statistics.retried + worker.statistics.failed >= 4)
        await async_wait_until(lambda: queue.states().get("retrying", 0) >= 3)
        await async_wait_until(lambda: worker.statistics.failed == 1)
    query = "select id, errors -> -1 ->> 'error' from trunq.delayed order by id"
    rows = queue.connection.execute(query).fetchall()
    told = dict(rows)
    assert [said(told[id]) for id in ids[1:]] == ["later"] * 3


async def test_a_reason_that_is_not_text_fails_the_message_alone(queue: Queue) -> None:
    ids = queue.publish("work", count=2)
    worker = queue.worker(concurrency=2)

    @worker.handler("work")
    async def handle(message: Message) -> Any:
        if message.id == ids[0]:
            return Reject(ValueError("no such order"))  # type: ignore[arg-type]
        return None

    async with running(worker):
        await async_wait_until(lambda: worker.statistics.handled == 1)
        await async_wait_until(lambda: queue.states().get("dead") == 1)
    error = queue.connection.execute("select errors -> -1 ->> 'error' from trunq.dead").fetchone()
    assert error is not None
    assert "detail is text, not ValueError" in error[0]
