"""Handlers that report progress, and go on from a checkpoint."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection

from calling import call
from serving import PATIENCE, Queue, drain, running, take_away
from trunq import InvalidArgument, LeaseLost, MessageTooLarge
from trunq.client.message import Message, Reject, Retry
from trunq.client.progress import Progress
from trunq.wire.json import RawJson
from trunq.worker.answer import Outbox
from trunq.worker.answer.lease import Lease
from trunq.worker.answer.report import Report, Reports
from waiting import async_wait_until, wait_until

PROGRAM = Path(__file__).parent / "checkpointing.py"


def reported(queue: Queue) -> Any:
    """What was last reported of the one message that was reported of; None: nothing."""
    rows = call(queue.connection, "list_progress", queue=queue.name)
    return rows[0] if rows else None


def writes(queue: Queue) -> int:
    """How often a row of progress was inserted or updated."""
    row = queue.connection.execute(
        "select sum(n_tup_ins + n_tup_upd) from pg_stat_user_tables where relname = 'progress'"
    ).fetchone()
    assert row is not None
    return int(row[0])


async def test_percent_and_note_are_seen_while_it_runs(queue: Queue) -> None:
    worker, go = queue.worker(name="ada"), asyncio.Event()

    @worker.handler("work")
    async def handle(message: Message) -> None:
        assert message.checkpoint is None
        await message.set_progress(percent=25)
        await message.set_progress(note="a quarter")
        await go.wait()

    (id,) = queue.publish()
    async with running(worker):
        await async_wait_until(lambda: (row := reported(queue)) and row.note)
        assert reported(queue)[:7] == ("default", id, True, 25, "a quarter", None, "ada")
        go.set()
        await async_wait_until(queue.is_done)
    assert reported(queue) is None


async def test_a_thousand_reports_are_few_writes_and_the_last_is_one(queue: Queue) -> None:
    worker, go = queue.worker(), asyncio.Event()

    @worker.handler("work")
    async def handle(message: Message) -> None:
        for step in range(1000):
            await message.set_progress(percent=step / 10, note=f"step {step}")
            await asyncio.sleep(0)
        await go.wait()

    queue.publish()
    async with running(worker):
        await async_wait_until(lambda: (row := reported(queue)) and row.note == "step 999")
        go.set()
        await async_wait_until(queue.is_done)
    queue.connection.execute("select pg_stat_clear_snapshot()")
    assert writes(queue) <= 10


async def test_a_checkpoint_is_committed_before_the_handler_goes_on(queue: Queue) -> None:
    worker, seen = queue.worker(), []

    @worker.handler("work")
    async def handle(message: Message) -> None:
        for step in range(20):
            await message.set_progress(percent=step, checkpoint={"step": step})
            row = reported(queue)
            found = queue.connection.execute(
                "select trunq.show_checkpoint('q', %s)", (message.id,)
            ).fetchone()
            seen.append((row.percent, found, message.checkpoint))

    queue.publish()
    await drain(worker)
    assert seen == [(step, ({"step": step},), {"step": step}) for step in range(20)]


class Failed(Exception):
    pass


def fail() -> Any:
    raise Failed


@pytest.mark.parametrize("end", [fail, lambda: Retry(0), lambda: asyncio.sleep(60)])
async def test_the_next_attempt_goes_on(queue: Queue, end: Any) -> None:
    worker, found = queue.worker(), []

    @worker.handler("work", time_out=1)
    async def handle(message: Message) -> Any:
        found.append(message.checkpoint)
        if message.attempt == 3:
            return None
        await message.set_progress(checkpoint=[*(message.checkpoint or []), message.attempt])
        ended = end()
        return await ended if asyncio.iscoroutine(ended) else ended

    queue.publish()
    await drain(worker)
    assert found == [None, [1], [1, 2]]
    assert queue.states() == {"done": 1}
    assert reported(queue) is None


async def test_a_checkpoint_that_is_not_found_costs_no_place_of_its_handler(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    recall, tries = Outbox.recall, count(1)

    async def fail_once(self: Outbox, message: Message) -> None:
        if next(tries) == 1:
            raise Failed
        await recall(self, message)

    monkeypatch.setattr(Outbox, "recall", fail_once)
    queue.policy(backoff_base=0)
    worker, found = queue.worker(), []

    @worker.handler("work", concurrency=1)
    async def handle(message: Message) -> Any:
        found.append(message.checkpoint)
        if message.attempt > 1:
            return None
        await message.set_progress(checkpoint="here")
        return Retry(0)

    queue.publish()
    await drain(worker)
    assert found == [None, "here"]
    assert next(tries) == 3, "it was asked for twice"


async def test_a_sync_handler_reports_from_its_thread(queue: Queue) -> None:
    worker, found = queue.worker(), []

    @worker.handler("work")
    def handle(message: Message, connection: psycopg.Connection[Any]) -> None:
        found.append(message.checkpoint)
        message.set_progress_sync(percent=50, note="half")
        if message.attempt == 1:
            message.set_progress_sync(checkpoint={"rows": 7})
            raise Failed

    queue.publish()
    await drain(worker)
    assert found == [None, {"rows": 7}]
    assert queue.states() == {"done": 1}


async def test_progress_is_no_part_of_the_handlers_transaction(queue: Queue) -> None:
    worker, found = queue.worker(), []
    queue.connection.execute("create table note (attempt int)")

    @worker.handler("work")
    async def handle(message: Message, connection: AsyncConnection[Any]) -> None:
        # A level at which another's update of a row fails one's own.
        await connection.execute("set transaction isolation level serializable")
        await connection.execute("insert into note values (%s)", (message.attempt,))
        found.append(message.checkpoint)
        await message.set_progress(checkpoint=message.attempt)
        assert reported(queue).is_running
        if message.attempt == 1:
            raise Failed

    queue.publish()
    await drain(worker)
    assert found == [None, 1]
    assert queue.connection.execute("select attempt from note").fetchall() == [(2,)]


async def test_a_dead_message_keeps_its_checkpoint_for_a_requeue(queue: Queue) -> None:
    worker, found = queue.worker(), []

    @worker.handler("work")
    async def handle(message: Message) -> Any:
        found.append((message.attempt, message.checkpoint))
        await message.set_progress(checkpoint="page 3")
        return Reject("no more") if len(found) == 1 else None

    queue.publish()
    await drain(worker)
    queue.connection.execute("select trunq.requeue('q')")
    again = queue.worker()
    again.handler("work")(handle)
    await drain(again)
    assert found == [(1, None), (1, "page 3")]


async def test_who_lost_the_lease_is_refused(queue: Queue) -> None:
    worker, told = queue.worker(), []

    @worker.handler("work")
    async def handle(message: Message) -> None:
        if message.attempt > 1:
            told.append(message.checkpoint)
            return
        await message.set_progress(checkpoint="mine")
        take_away(queue, message.id)
        try:
            await message.set_progress(percent=99, checkpoint="late")
        except (LeaseLost, asyncio.CancelledError) as error:
            told.append(type(error))
            raise

    queue.publish()
    await drain(worker)
    told.remove("mine")
    assert told in ([LeaseLost], [asyncio.CancelledError])
    assert worker.statistics.lost == 1


async def test_a_thread_that_lost_the_lease_is_refused(queue: Queue) -> None:
    worker, told = queue.worker(), []

    @worker.handler("work")
    def handle(message: Message, lost: threading.Event) -> None:
        if message.attempt > 1:
            told.append(message.checkpoint)
            return
        take_away(queue, message.id)
        with pytest.raises(LeaseLost):
            message.set_progress_sync(checkpoint="late")
        assert lost.wait(PATIENCE)

    queue.publish()
    await drain(worker)
    assert told == [None]


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, InvalidArgument, "nothing to say"),
    ({"percent": 101}, InvalidArgument, "0 to 100, not 101"),
    ({"percent": float("nan")}, InvalidArgument, "0 to 100, not nan"),
    ({"percent": "50"}, InvalidArgument, "a number, not str"),
    ({"percent": True}, InvalidArgument, "a number, not bool"),
    ({"note": "x" * 501}, InvalidArgument, "500 characters, not 501"),
    ({"note": 5}, InvalidArgument, "text, not int"),
    ({"note": "a\0b"}, InvalidArgument, "NUL"),
    ({"checkpoint": object()}, InvalidArgument, "checkpoint"),
    ({"checkpoint": {"a": float("nan")}}, InvalidArgument, "checkpoint"),
    ({"checkpoint": RawJson("{no")}, InvalidArgument, "json"),
    ({"checkpoint": "x" * 50_000_000}, MessageTooLarge, "1,048,576 bytes .1 MB., not 50,000,002"),
    ({"checkpoint": "x" * 70_000_000}, MessageTooLarge, "1,048,576 bytes .1 MB., not more than 64 MB"),
    ({"checkpoint": [1] * 500_000}, MessageTooLarge, "1048576 bytes .1 MB."),
]


async def test_what_cannot_be_reported_is_said_and_nothing_is_written(queue: Queue) -> None:
    worker, raised = queue.worker(), []

    @worker.handler("work")
    async def handle(message: Message) -> None:
        for given, error, said in WRONG:
            with pytest.raises(error, match=said):
                await message.set_progress(**given)
            raised.append(said)
        assert reported(queue) is None
        # And what is right is not kept from it by what was wrong.
        await message.set_progress(percent=100, checkpoint=1)
        assert reported(queue).percent == 100

    queue.publish()
    await drain(worker)
    assert len(raised) == len(WRONG)
    assert queue.states() == {"done": 1}


async def test_a_first_report_of_each_in_a_large_batch_looks_at_few_others() -> None:
    lease, looks = Lease("q", "default", 1, 1, 200, 0.0, 60.0), count()
    told: list[Report] = []

    def lease_of(message: Message) -> Lease:
        next(looks)
        return lease

    reports = Reports(lease_of, told.append)
    for number in range(200):
        message = Message((1, 1, number, *[None] * 11), "q", "default")
        await reports.add(message, Progress(percent=50))
    assert len(told) == 200
    assert next(looks) <= 3 * 200


async def test_after_the_handler_there_is_nothing_to_report(queue: Queue) -> None:
    worker, kept = queue.worker(concurrency=1), []

    @worker.handler("work")
    async def handle(message: Message) -> None:
        kept.append(message)

    queue.publish(count=2)
    await drain(worker)
    for message in kept:
        with pytest.raises(InvalidArgument, match=f"handler of message {message.id} has ended"):
            await message.set_progress(percent=1)
    with pytest.raises(RuntimeError, match=r"await message\.set_progress"):
        kept[0].set_progress_sync(percent=1)


@pytest.mark.parametrize("in_transaction", [False, True])
async def test_a_report_that_comes_last_never_fails_the_answer(queue: Queue, in_transaction: bool) -> None:
    worker = queue.worker(concurrency=20)

    async def report(message: Message) -> None:
        # Two in a row: the second waits for its time, and the handler does not.
        await message.set_progress(percent=1)
        await message.set_progress(percent=2)

    async def report_beside(message: Message, connection: AsyncConnection[Any]) -> None:
        await report(message)

    worker.handler("work")(report_beside if in_transaction else report)

    queue.publish(count=200)
    await drain(worker)
    assert queue.states() == {"done": 200}
    assert worker.statistics.handled == 200
    assert worker.statistics.lost == worker.statistics.failed == 0


async def test_a_checkpoint_waits_for_a_database_that_is_away(queue: Queue) -> None:
    worker, found = queue.worker(), []
    cut = "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'trunq worker%'"

    @worker.handler("work")
    async def handle(message: Message) -> None:
        found.append(message.checkpoint)
        if message.attempt == 1:
            for step in range(5):
                queue.connection.execute(cut.encode())
                await message.set_progress(percent=step, checkpoint=step)
            raise Failed

    queue.publish()
    await drain(worker)
    assert found == [None, 4]


@pytest.fixture
def programs(queue: Queue) -> Iterator[Any]:
    """Start worker processes; none is left."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, str(PROGRAM), queue.dsn, name]))
        return started[-1]

    yield start
    for program in started:
        program.kill()
        program.wait()


@pytest.mark.parametrize("name", ["ada", "bob"])
def test_a_killed_worker_leaves_its_checkpoint_to_the_next(queue: Queue, programs: Any, name: str) -> None:
    """To itself, started again, and to another when the lease runs out."""
    (id,) = queue.publish(payload={"steps": 3})
    first = programs("ada")
    wait_until(lambda: (row := reported(queue)) and row.note == "step 3", PATIENCE)
    os.kill(first.pid, 9)
    first.wait()
    second = programs(name)
    if name != "ada":
        row = queue.connection.execute(
            "select lease_id, token from trunq_data.q_lease where %s = any(ids)"
            " order by lease_id desc limit 1",
            (id,),
        ).fetchone()
        queue.connection.execute("select trunq.extend('q', 'default', %s, %s, '0 s')", row)
        wait_until(lambda: queue.connection.execute("select trunq.reap('q')").fetchone() == (1,))
    wait_until(lambda: queue.message(id).state == "done", PATIENCE)
    assert queue.message(id).result == {"attempt": 2, "checkpoint": {"step": 3}}
    assert second.poll() is None
    assert reported(queue) is None


async def test_nobody_asks_for_a_checkpoint_where_there_is_none(queue: Queue) -> None:
    worker = queue.worker()

    @worker.handler("work")
    async def handle(message: Message) -> None:
        assert not message.has_checkpoint
        assert message.checkpoint is None
        if message.attempt == 1:
            raise Failed

    queue.publish(count=5)
    name = queue.connection.info.dbname
    queue.connection.execute(f"alter database {name} set track_functions = 'all'".encode())
    await drain(worker)
    assert queue.states() == {"done": 5}
    counted = "select funcname from pg_stat_user_functions where funcname ~ '(checkpoint|_answer)$'"
    # Sessions tell of what they called when they end.
    await async_wait_until(lambda: queue.connection.execute(counted.encode()).fetchall())
    assert queue.connection.execute(counted.encode()).fetchall() == [("q_answer",)]
