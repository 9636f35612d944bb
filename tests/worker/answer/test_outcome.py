"""What a worker says of its work in the log."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

import trunq
from serving import Queue, running
from trunq.client.message import Message, Reject, Retry
from trunq.worker import Worker
from trunq.worker.answer import outcome
from trunq.worker.run import pulse
from waiting import async_wait_until


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "trunq.worker")
    return caplog


def lines(said: pytest.LogCaptureFixture, level: int) -> list[str]:
    """Without references, which test_reference.py is about."""
    texts = [record.getMessage() for record in said.records if record.levelno == level]
    return [re.sub(r" \(reference \w{10}\)", "", text) for text in texts]


def failing(queue: Queue, **options: Any) -> Worker:
    """A worker whose handlers do what the payload says."""
    worker = queue.worker(**options)

    @worker.handler("work")
    async def work(message: Message) -> Any:
        match message.payload:
            case "fail":
                raise ValueError("two\nlines")
            case "later":
                return Retry(after=3600, error="no paper")
            case "never":
                return Reject("no such order")

    return worker


async def test_a_failed_attempt_is_a_line_with_attempt_kind_next_try_and_error(
    queue: Queue, said: pytest.LogCaptureFixture
) -> None:
    queue.policy(backoff_base="4 s", jitter=0)
    (id,) = queue.publish(payload=["fail"])
    async with running(failing(queue)):
        await async_wait_until(lambda: "failed" in said.text)
    (line,) = lines(said, logging.WARNING)
    assert line == f"message {id} of q failed, attempt 1/20, kind work, next try in 4s: ValueError: two lines"
    (record,) = [record for record in said.records if record.levelno == logging.WARNING]
    about = ("queue", "message_id", "kind", "attempt", "outcome")
    assert [getattr(record, name) for name in about] == ["q", id, "work", 1, "failed"]


async def test_the_first_of_its_way_is_a_warning_with_a_traceback_and_the_next_are_lines(
    queue: Queue, said: pytest.LogCaptureFixture
) -> None:
    queue.policy(max_attempts=4)
    (id,) = queue.publish(payload=["fail"])
    async with running(failing(queue)):
        await async_wait_until(queue.is_done)
        await async_wait_until(lambda: "is dead" in said.text)
    (first,) = lines(said, logging.WARNING)
    assert "attempt 1/4, kind work, next try at once" in first
    again = [line for line in lines(said, logging.INFO) if "failed" in line and "ended" not in line]
    assert [line.partition(" failed, ")[2][:11] for line in again] == ["attempt 2/4", "attempt 3/4"]
    (dead,) = lines(said, logging.ERROR)
    assert dead == f"message {id} of q is dead (max_attempts), attempt 4/4, kind work: ValueError: two lines"
    assert said.text.count("Traceback") == 1


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_traceback_has_only_frames_of_the_user(
    queue: Queue, said: pytest.LogCaptureFixture, colour: str
) -> None:
    queue.publish()
    worker = queue.worker()
    if colour == "async":

        @worker.handler("work")
        async def work(message: Message, connection: Any) -> None:
            await connection.execute("select 1 / 0")
    else:

        @worker.handler("work")
        def work_sync(message: Message, connection: Any) -> None:
            connection.execute("select 1 / 0")

    async with running(worker):
        await async_wait_until(lambda: "DivisionByZero" in said.text)
    assert re.findall(r'File "([^"]+)"', said.text)[:1] == [__file__]
    assert set(re.findall(r'File "([^"]+)"', said.text)) == {__file__}
    assert trunq.__path__[0] not in said.text


async def test_answers_of_handlers_are_lines_too(queue: Queue, said: pytest.LogCaptureFixture) -> None:
    later, never = queue.publish(payload=["later", "never"])
    async with running(failing(queue)):
        await async_wait_until(lambda: "no paper" in said.text and "no such order" in said.text)
    assert f"message {later} of q runs again, attempt 1/20, kind work, next try in 1h: no paper" in said.text
    assert lines(said, logging.ERROR) == [
        f"message {never} of q is dead (rejected), attempt 1/20, kind work: no such order"
    ]


async def test_without_a_limit_no_limit_is_said(queue: Queue, said: pytest.LogCaptureFixture) -> None:
    queue.policy(max_attempts=0)
    queue.publish(payload=["later"])
    async with running(failing(queue)):
        await async_wait_until(lambda: "no paper" in said.text)
    assert "runs again, attempt 1, kind work" in said.text


async def test_success_is_said_to_those_who_ask(queue: Queue, said: pytest.LogCaptureFixture) -> None:
    queue.publish(count=2)
    async with running(failing(queue)):
        await async_wait_until(queue.is_done)
    assert "done" not in said.text
    said.set_level(logging.DEBUG, "trunq.worker")
    (id,) = queue.publish()
    async with running(failing(queue)):
        await async_wait_until(queue.is_done)
    assert re.search(rf"message {id} of q done, attempt 1/20, kind work, in [\d.e-]+ ms", said.text)


async def test_of_hundreds_that_fail_alike_the_first_are_lines_and_the_others_a_count(
    queue: Queue, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.policy(max_attempts=1)
    queue.publish("value", count=200)
    queue.publish("key", count=100)
    worker = queue.worker()

    @worker.handler("value")
    async def value(message: Message) -> None:
        raise ValueError(message.id)

    @worker.handler("key")
    def key(message: Message) -> None:
        raise KeyError(message.id)

    # A count between would make more lines.
    monkeypatch.setattr(pulse, "EVERY", 3600)
    async with running(worker):
        await async_wait_until(queue.is_done, 120)
    assert said.text.count("Traceback") == 2
    assert said.text.count("is dead (max_attempts), attempt") == 2 * outcome.LINES
    assert f"{200 - outcome.LINES} more of kind value in q" in said.text
    assert f"{100 - outcome.LINES} more of kind key in q" in said.text
    assert len(queue.dead()) > 0
    assert worker.statistics.dead == 300


def test_what_is_told_apart_is_bounded(said: pytest.LogCaptureFixture) -> None:
    outcomes = outcome.Outcomes()
    for kind in range(3 * outcome.MOST):
        note = outcomes.answered(outcome.Subject("q", 1, str(kind)), "runs again", None)
        outcomes.say(note, None, None)
    assert len(outcomes._known) == len(outcomes._counts) == outcome.MOST


async def test_numbers_are_said_while_there_are_any(
    queue: Queue, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "EVERY", 0.02)
    queue.publish(count=3)
    worker = failing(queue)
    async with running(worker):
        await async_wait_until(lambda: re.search("in 0 s: [123] handled; ", said.text))
        await async_wait_until(queue.is_done)
        counts = [int(n) for n in re.findall(r"in 0 s: (\d) handled", said.text)]
        await async_wait_until(lambda: sum(map(int, re.findall(r"in 0 s: (\d) handled", said.text))) == 3)
        assert len(counts) <= 3, "nothing is said of a time in which nothing was done"
    assert lines(said, logging.INFO)[-1].startswith("ended after ")
    assert lines(said, logging.INFO)[-1].endswith(": 3 handled")


async def test_a_stop_says_what_still_runs(queue: Queue, said: pytest.LogCaptureFixture) -> None:
    queue.publish(count=2)
    worker = queue.worker()
    entered, go = asyncio.Semaphore(0), asyncio.Event()

    @worker.handler("work")
    async def wait(message: Message) -> None:
        entered.release()
        await go.wait()

    async with running(worker):
        await entered.acquire()
        await entered.acquire()
        worker.stop()
        await async_wait_until(lambda: "stopping" in said.text)
        worker.stop()
        go.set()
    assert [line for line in lines(said, logging.INFO) if line.startswith("stopping")] == [
        "stopping: 2 handlers still run, Ctrl-C again ends them"
    ]


async def test_a_worker_that_is_ended_at_once_says_what_it_cut_off(
    queue: Queue, said: pytest.LogCaptureFixture
) -> None:
    queue.publish()
    worker = queue.worker()
    entered = asyncio.Event()

    @worker.handler("work")
    async def wait(message: Message) -> None:
        entered.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(worker.run_async())
    await entered.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert "ended at once: 1 handler was cut off; its message comes back when its lease ends" in said.text
