"""A duty that waits: those of the other line go on, and the lease is renewed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import psycopg
import pytest

from pooling import needs_pgbouncer, pooling
from serving import PATIENCE, Queue
from trunq.embedded import Embedded
from trunq.leader import Leader, duty, election, line
from waiting import async_wait_until

BLOCKED = (
    "select count(*) from pg_stat_activity a, pg_locks l where l.pid = a.pid and not l.granted"
    " and a.application_name like 'trunq leader%' and l.relation = 'trunq.memo'::regclass"
)


@pytest.fixture
def queue(database: str, connection: psycopg.Connection[Any]) -> Queue:
    return Queue(database, connection)


@pytest.fixture
def in_the_way(queue: Queue) -> Iterator[psycopg.Connection[Any]]:
    """A session whose lock the duty forget_memos waits for, until it is closed."""
    with psycopg.connect(queue.dsn) as connection:
        connection.execute("lock table trunq.memo")
        yield connection


@asynccontextmanager
async def leading(leader: Leader) -> AsyncIterator[asyncio.Task[None]]:
    """It runs beside the test."""
    task = asyncio.create_task(leader.run_async())
    try:
        yield task
        leader.stop()
        async with asyncio.timeout(PATIENCE):
            await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def asks(queue: Queue, question: str) -> Callable[[], Any]:
    """What becomes true one day."""

    def ask() -> Any:
        row = queue.connection.execute(question.encode()).fetchone()
        return row and row[0]

    return ask


async def test_while_a_slow_duty_waits_quick_ones_go_on_and_the_lease_is_renewed(
    queue: Queue, in_the_way: psycopg.Connection[Any]
) -> None:
    leader = Leader(queue.dsn, lease_time=1.0)
    async with leading(leader):
        await async_wait_until(asks(queue, BLOCKED))
        before = leader.performed.calls.get("tick", 0)
        queue.connection.execute("select trunq.publish('q', p_delay => '1 s')")
        await async_wait_until(lambda: queue.states() == {"ready": 1})
        await async_wait_until(lambda: leader.performed.calls.get("tick", 0) >= before + 4)
        # Several leases later.
        assert leader.term == 1
        assert asks(queue, "select trunq._is_led()")()
        assert asks(queue, BLOCKED)()
        in_the_way.rollback()
        await async_wait_until(lambda: leader.performed.calls.get("forget_memos"))


@pytest.mark.slow
async def test_a_statement_over_its_budget_is_cut_and_named_and_the_others_go_on(
    queue: Queue,
    in_the_way: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setitem(line._BUDGETS, duty.SLOW, 1.0)
    leader = Leader(queue.dsn)
    async with leading(leader):
        await async_wait_until(lambda: "duty forget_memos failed" in caplog.text)
        before = leader.performed.calls["roll_up"]
        await async_wait_until(lambda: leader.performed.calls["roll_up"] >= before + 2)
    told = [record.getMessage() for record in caplog.records if "forget_memos failed:" in record.getMessage()]
    assert told == ["duty forget_memos failed: canceling statement due to statement timeout"]


async def test_losing_the_leadership_to_another_is_a_line_in_the_log(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    leader = Leader(queue.dsn, "first", lease_time=1.0)
    async with leading(leader):
        await async_wait_until(lambda: leader.performed.calls.get("tick"))
        queue.connection.execute(
            "update trunq.leader set name = 'second', term = 2, lease_time = '1 hour',"
            " expires_at = trunq.clock() + interval '1 hour'"
        )
        await async_wait_until(lambda: leader.term is None)
        assert "no longer the leader of term 1" in caplog.text
        queue.connection.execute("select trunq.publish('q', p_delay => '1 ms')")
        queue.connection.execute("select trunq.resign('second', 2)")
        await async_wait_until(lambda: leader.term == 3)
        await async_wait_until(lambda: queue.states() == {"ready": 1})


async def test_a_lease_that_cannot_be_renewed_is_a_line_in_the_log_and_duties_pause(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    leader = Leader(queue.dsn, lease_time=1.0)
    async with leading(leader):
        await async_wait_until(lambda: leader.performed.calls.get("tick"))
        with psycopg.connect(queue.dsn) as connection:
            connection.execute("select from trunq.leader for update")
            await async_wait_until(lambda: leader.term is None)
            assert "its lease could not be renewed in time" in caplog.text
            assert all(each._term is None for each in leader._lines)
        await async_wait_until(lambda: leader.term)


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["fails", "is done"])
@pytest.mark.parametrize("is_renewed", [True, False], ids=["the same term", "another term"])
async def test_a_duty_that_ends_after_its_term_leaves_the_next_one_alone(
    queue: Queue, is_renewed: bool, is_cancelled: bool
) -> None:
    leader = Leader(queue.dsn, lease_time=1.0)
    blocked = BLOCKED.replace("memo", "dead")
    with psycopg.connect(queue.dsn) as in_the_way:
        in_the_way.execute("lock table trunq.dead in share mode")
        async with leading(leader) as task:
            await async_wait_until(asks(queue, blocked))
            with psycopg.connect(queue.dsn) as connection:
                connection.execute("select from trunq.leader for update")
                await async_wait_until(lambda: leader.term is None)
                # As if the database had renewed the lease, and its answer had come late; or not.
                left = "1 hour" if is_renewed else "-1 hour"
                connection.execute(
                    "update trunq.leader set lease_time = '1 hour', expires_at = trunq.clock() + %s", [left]
                )
            await async_wait_until(lambda: leader.term)
            assert leader.term == (1 if is_renewed else 2)
            assert asks(queue, blocked)()
            if is_cancelled:
                queue.connection.execute(blocked.replace("count(*)", "pg_cancel_backend(a.pid)").encode())
            in_the_way.rollback()
            await async_wait_until(lambda: task.done() or leader.performed.calls.get("rotate"))
            assert not task.done()


def test_a_leader_that_waits_for_no_schedule_is_not_said_to_be_late(queue: Queue) -> None:
    queue.connection.execute("select trunq.elect('me', '1 hour')")
    rest = asks(queue, "select extract(epoch from trunq._until_due())::int")()
    noted = rest + int(election._NOTE_EVERY)
    queue.connection.execute("select trunq._note_duties(array['fire'], array[''], array[%s::int])", (noted,))
    assert asks(queue, "select string_agg(warning, '|') from trunq.list_warnings()")() is None


EACH_NOTED = "select (select count(*) from trunq.duty_done) = (select count(*) from trunq.list_duties())"


async def test_when_duties_were_done_is_noted_in_a_row_for_each_duty_however_many_queues(
    queue: Queue, in_the_way: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a new leader goes on counting: only the time in which nobody led is left out."""
    monkeypatch.setattr(election, "_NOTE_EVERY", 0.1)
    queue.connection.execute("select trunq.create_queue('q' || n) from generate_series(1, 5) n")
    queue.connection.execute(
        "select trunq._note_duties(array['forget_memos', 'promote'], array['', 'q'], array[5000, 1000])"
    )
    leader = Leader(queue.dsn, lease_time=3600.0)
    async with leading(leader):
        promoted = (
            "select count(*) from trunq.duty_done where duty = 'promote' and done_at > now() - interval '1 m'"
        )
        await async_wait_until(asks(queue, promoted))
        await async_wait_until(asks(queue, "select abs(ahead) < 10 from trunq.leader"))
        await async_wait_until(asks(queue, EACH_NOTED))
        late = "select extract(epoch from now() - done_at) from trunq.duty_done where duty = 'forget_memos'"
        assert 3990 < asks(queue, late)() < 4500
        warnings = "select string_agg(warning, '|') from trunq.list_warnings()"
        assert asks(queue, warnings)().startswith("duty forget_memos was last done at ")
        in_the_way.rollback()
        await async_wait_until(asks(queue, f"select ({warnings}) is null"))


LOOKS = BLOCKED.replace("trunq.memo", "trunq.sample")


@asynccontextmanager
async def hanging(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, budget: float = 3600.0
) -> AsyncIterator[psycopg.Connection[Any]]:
    """A look waits for a lock that somebody holds, and nothing but its budget ends that."""
    monkeypatch.setattr(line, "_LOOK_WAITS", "0")
    monkeypatch.setitem(line._BUDGETS, duty.LOOK, budget)
    queue.connection.execute("alter function trunq.sample set lock_timeout = '0'")
    with psycopg.connect(queue.dsn) as in_the_way:
        in_the_way.execute("lock table trunq.sample")
        yield in_the_way


async def goes_on(queue: Queue, leader: Leader) -> None:
    """Delayed messages are promoted, leases reaped, segments looked at for rotation."""
    queue.connection.execute("select trunq.publish('q', p_delay => '1 ms')")
    await async_wait_until(lambda: queue.states() == {"ready": 1})
    queue.connection.execute("select trunq.lease('q', 'default', 'gone', 1, '1 ms')")
    await async_wait_until(lambda: queue.states() in ({"ready": 1}, {"delayed": 1}))
    before = leader.performed.calls.get("fire", 0)
    await async_wait_until(lambda: leader.performed.calls.get("rotate"))
    await async_wait_until(lambda: leader.performed.calls.get("fire", 0) > before + 1)


@pytest.mark.slow
async def test_a_look_that_hangs_delays_neither_promotion_nor_reaping_nor_rotation(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        hanging(queue, monkeypatch) as in_the_way,
        leading(leader := Leader(queue.dsn, "looking", lease_time=1.0)),
    ):
        await async_wait_until(asks(queue, LOOKS))
        await goes_on(queue, leader)
        assert asks(queue, LOOKS)()
        assert "sample" not in leader.performed.calls
        # One each for the election and the lines.
        mine = "select count(*) from pg_stat_activity where application_name = 'trunq leader looking'"
        assert asks(queue, mine)() == 1 + len(duty.LINES) == 4
        in_the_way.rollback()
        await async_wait_until(lambda: leader.performed.calls.get("sample"))


@pytest.mark.slow
async def test_a_look_that_waits_for_a_lock_gives_up_and_is_named(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    leader = Leader(queue.dsn)
    with psycopg.connect(queue.dsn) as in_the_way:
        in_the_way.execute("lock table trunq.sample")
        async with leading(leader):
            await async_wait_until(lambda: "duty sample failed" in caplog.text)
            assert "duty sample failed: canceling statement due to lock timeout" in caplog.text
            await goes_on(queue, leader)
            in_the_way.rollback()
            await async_wait_until(lambda: leader.performed.calls.get("sample"))


@pytest.mark.parametrize(
    "mode", [None, pytest.param("transaction", marks=needs_pgbouncer)], ids=["direct", "pooler"]
)
async def test_a_look_over_its_budget_is_cut_and_stepped_over(
    mode: str | None,
    queue: Queue,
    server: Embedded,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Behind a pooler, where the server knows no budget, the leader cuts it."""
    with nullcontext(queue.dsn) if mode is None else pooling(server, queue.dsn, mode) as dsn:
        async with hanging(queue, monkeypatch, 1.0) as in_the_way, leading(leader := Leader(dsn)):
            await async_wait_until(lambda: leader.performed.errors.get("sample"))
            assert "duty sample failed" in caplog.text
            await goes_on(queue, leader)
            in_the_way.rollback()
            await async_wait_until(lambda: leader.performed.calls.get("sample"))


async def test_a_leader_whose_look_hangs_hands_over_to_another_who_goes_on(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        hanging(queue, monkeypatch) as in_the_way,
        leading(first := Leader(queue.dsn, "first")),
    ):
        await async_wait_until(asks(queue, LOOKS))
        async with leading(second := Leader(queue.dsn, "second", lease_time=1.0)):
            first.stop()
            await async_wait_until(lambda: second.term)
            await goes_on(queue, second)
            in_the_way.rollback()
            await async_wait_until(lambda: second.performed.calls.get("sample"))
