"""Election, duties, handing over."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from serving import PATIENCE, Queue
from trunq import Client
from trunq.client.message import Message
from trunq.leader import Leader, line
from waiting import async_wait_until, wait_until


@pytest.fixture
def queue(database: str, connection: psycopg.Connection[Any]) -> Queue:
    return Queue(database, connection, backoff="constant", backoff_base="0 s", jitter=0.0)


@pytest.fixture
def other(queue: Queue) -> Queue:
    return Queue(queue.dsn, queue.connection, "other")


@asynccontextmanager
async def leading(*leaders: Leader) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Candidates that run beside the test."""
    tasks = [asyncio.create_task(leader.run_async()) for leader in leaders]
    try:
        yield tasks
        for leader in leaders:
            leader.stop()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def terms(queue: Queue) -> tuple[Any, ...]:
    row = queue.connection.execute("select name, term from trunq.leader").fetchone()
    assert row is not None
    return tuple(row)


async def test_of_several_candidates_one_leads(queue: Queue) -> None:
    leaders = [Leader(queue.dsn, f"candidate {number}", lease_time=1.0) for number in range(3)]
    async with leading(*leaders):
        await async_wait_until(lambda: any(leader.term for leader in leaders))
        (first,) = [leader for leader in leaders if leader.term]
        # Over several renewals it stays the one, in the same term.
        renewed = "select expires_at from trunq.leader"
        begun = queue.connection.execute(renewed).fetchone()
        assert begun is not None
        await async_wait_until(
            lambda: (
                queue.connection.execute(f"select ({renewed}) > %s + interval '1.5 s'", begun).fetchone()
                == (True,)
            )
        )
        assert [leader for leader in leaders if leader.term] == [first]
        assert terms(queue) == (first.name, first.term)


async def test_one_that_stops_resigns_and_another_takes_over(queue: Queue) -> None:
    first, second = (Leader(queue.dsn, name, lease_time=60.0) for name in ("first", "second"))
    async with leading(first):
        await async_wait_until(lambda: first.term)
    assert terms(queue) == (None, 1)
    async with leading(second):
        await async_wait_until(lambda: second.term == 2)


async def test_one_that_is_elected_again_in_a_new_term_goes_on(queue: Queue) -> None:
    """As after a pause longer than its lease, in which another led."""
    leader = Leader(queue.dsn, lease_time=0.003)
    async with leading(leader) as (task,):
        await async_wait_until(lambda: (leader.term or 0) > 20 or task.done())
        assert not task.done()


async def test_one_that_dies_is_succeeded_when_its_lease_ends(queue: Queue) -> None:
    queue.connection.execute("select trunq.elect('dead', '0.5 s')")
    leader = Leader(queue.dsn, "heir", lease_time=0.5)
    async with leading(leader):
        await async_wait_until(lambda: leader.term == 2)
        # It does not just hold the title.
        await async_wait_until(lambda: leader.performed.calls.get("reap"))


async def test_every_duty_is_performed_for_every_queue(queue: Queue, other: Queue) -> None:
    duties = dict(queue.connection.execute("select duty, per_queue from trunq.list_duties()").fetchall())
    per_queue = [duty for duty, each in duties.items() if each]
    assert len(per_queue) >= 5
    leader = Leader(queue.dsn)
    async with leading(leader):
        await async_wait_until(lambda: set(leader.performed.calls) == set(duties))
        await async_wait_until(lambda: min(leader.performed.calls[duty] for duty in per_queue) >= 2)


async def test_the_duties_are_those_of_perform_duties(queue: Queue) -> None:
    performed = "select duty from trunq.perform_duties() where queue = 'q' order by 1"
    listed = "select duty from trunq.list_duties() where per_queue order by 1"
    rows = queue.connection.execute(performed).fetchall()
    assert rows == queue.connection.execute(listed).fetchall() != []


async def test_delayed_messages_are_promoted_leases_reaped_and_ticks_cut(queue: Queue, other: Queue) -> None:
    queue.connection.execute("select trunq.publish('q', p_kind => 'work', p_delay => '0.1 s')")
    (leased,) = other.publish()
    other.connection.execute("select trunq.lease('other', 'default', 'gone', p_lease_time => '0.1 s')")
    ticks = "select count(*) from trunq.list_ticks('q')"
    before = queue.connection.execute(ticks).fetchone()
    leader = Leader(queue.dsn)
    async with leading(leader):
        await async_wait_until(lambda: queue.states() == {"ready": 1})
        await async_wait_until(lambda: other.message(leased).attempts[0]["outcome"] == "lease_expired")
        await async_wait_until(lambda: queue.connection.execute(ticks).fetchone() != before)
    assert leader.performed.done["promote"] >= 1
    assert leader.performed.done["reap"] >= 1


async def test_a_duty_with_much_to_do_is_called_again_at_once(queue: Queue) -> None:
    queue.connection.execute(
        "select trunq.publish_many('q', array_fill('1'::jsonb, array[3500]), p_delay => '1 ms')"
    )
    leader = Leader(queue.dsn)
    async with leading(leader):
        await async_wait_until(lambda: leader.performed.calls.get("tick"))
        # Three thousands and a half in one round, not one thousand a second.
        assert leader.performed.done["promote"] == 3500
        assert leader.performed.calls["tick"] == 1


async def test_rotation_is_called_within_every_span(queue: Queue) -> None:
    """Called once a span or less often, it would meet every second segment, and leave the others full."""
    queue.connection.execute("select trunq.create_queue('short', '4 s')")
    queue.connection.execute(
        "create table called (span bigint, queue text); create or replace function trunq.rotate(p_queue text)"
        " returns integer language sql as $$ insert into public.called"
        " select floor(date_part('epoch', now()) / 2), p_queue; select 0 $$"
    )
    four_in_a_row = (
        "select exists (select from called a where queue = 'short'"
        " and 4 = (select count(distinct b.span) from called b where b.span between a.span and a.span + 3))"
    )
    leader = Leader(queue.dsn)
    async with leading(leader):
        await async_wait_until(lambda: queue.connection.execute(four_in_a_row).fetchone() == (True,), 120)
    often = queue.connection.execute("select count(*) from called where queue = 'q'").fetchone()
    assert often == (1,), "a day's retention is not rotated by the second"


async def test_rotation_that_somebody_was_in_the_way_of_is_tried_again_at_once(queue: Queue) -> None:
    """A subscription that is not committed yet keeps it away; half a minute later would be soon enough."""
    with psycopg.connect(queue.dsn) as subscriber:
        subscriber.execute("select trunq.subscribe('q', 'new')")
        leader = Leader(queue.dsn)
        async with leading(leader):
            await async_wait_until(lambda: leader.performed.calls.get("rotate", 0) >= 3)


async def test_a_duty_that_fails_leaves_the_others_their_turn(
    queue: Queue, other: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    """One broken queue must not stop the rest."""
    queue.connection.execute(
        "create or replace function trunq.reap(p_queue text) returns integer language plpgsql as"
        " $$ begin if p_queue = 'q' then raise exception 'broken on purpose'; end if; return 0; end $$"
    )
    leader = Leader(queue.dsn)
    async with leading(leader) as (task,):
        await async_wait_until(lambda: leader.performed.calls.get("reap", 0) >= 2)
        assert leader.performed.calls["tick"] >= 2
        assert not task.done()
    assert "duty reap of queue q failed: broken on purpose" in caplog.text


async def test_a_queue_dropped_and_one_created_meanwhile_are_no_trouble(queue: Queue, other: Queue) -> None:
    leader = Leader(queue.dsn)
    async with leading(leader) as (task,):
        await async_wait_until(lambda: leader.performed.calls.get("tick", 0) >= 2)
        other.connection.execute("select trunq.drop_queue('other', true)")
        late = Queue(queue.dsn, queue.connection, "late")
        late.connection.execute("select trunq.publish('late', p_delay => '1 ms')")
        await async_wait_until(lambda: late.states() == {"ready": 1})
        assert not task.done()


async def test_cut_off_it_comes_back_and_leads_on(queue: Queue) -> None:
    leader = Leader(queue.dsn, "lasting", lease_time=5.0)
    async with leading(leader):
        await async_wait_until(lambda: leader.performed.calls.get("tick"))
        queue.connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where application_name = 'trunq leader lasting'"
        )
        before = leader.performed.calls["tick"]
        await async_wait_until(lambda: leader.performed.calls["tick"] > before + 1)
    assert terms(queue) == (None, 1)


async def test_two_who_both_think_they_lead_do_no_harm(queue: Queue) -> None:
    """As when one was stopped for longer than its lease. Each duty is done once, whoever does it."""
    worker = queue.worker()
    seen: list[int] = []

    @worker.handler("work")
    async def note(message: Message) -> None:
        seen.append(message.id)

    queue.connection.execute(
        "select trunq.publish_many('q', array_fill('1'::jsonb, array[2000]), array['work'],"
        " p_delay => '0.5 s')"
    )
    # One name, so both are elected and renew.
    twins = [Leader(queue.dsn, "twin", lease_time=15.0) for _ in range(2)]
    running = asyncio.create_task(worker.run_async())
    async with leading(*twins):
        await async_wait_until(lambda: all(twin.term for twin in twins))
        await async_wait_until(lambda: len(seen) >= 2000)
        await async_wait_until(queue.is_done)
        await async_wait_until(lambda: all(twin.performed.calls.get("reap", 0) >= 3 for twin in twins))
    worker.stop()
    async with asyncio.timeout(PATIENCE):
        await running
    assert len(seen) == len(set(seen)) == 2000
    assert sum(twin.performed.done["promote"] for twin in twins) == 2000


async def test_a_worker_stands_for_election_by_itself(queue: Queue) -> None:
    worker = queue.worker(name="volunteer", lead=True)

    @worker.handler("work")
    async def handle(message: Message) -> None: ...

    task = asyncio.create_task(worker.run_async())
    await async_wait_until(lambda: terms(queue) == ("volunteer", 1))
    worker.stop()
    async with asyncio.timeout(PATIENCE):
        await task
    assert terms(queue) == (None, 1)


async def test_no_database_is_an_error_not_a_hang() -> None:
    with pytest.raises(psycopg.OperationalError):
        async with asyncio.timeout(PATIENCE):
            await Leader("postgresql://127.0.0.1:1/x").run_async()


def test_as_a_process_it_resigns_on_a_signal(queue: Queue) -> None:
    program = "import sys; from trunq.leader import Leader; Leader(sys.argv[1], 'process', 60.0).run()"
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program, queue.dsn], env=dict(os.environ)
    )
    try:
        wait_until(lambda: terms(queue) == ("process", 1), 120)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
    assert terms(queue) == (None, 1)


async def test_a_warning_of_the_database_is_logged_once(
    queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "_WARN_EVERY", 0.0)
    queue.connection.execute(
        "insert into trunq.duty_failure (duty, queue, failed_at, error)"
        " values ('retire', 'q', now(), 'no room')"
    )
    looks = []
    monkeypatch.setattr(line, "execute", counted(line.execute, looks, "list_warnings"))
    async with leading(Leader(queue.dsn)):
        await async_wait_until(lambda: len(looks) >= 3)
    told = [record.getMessage() for record in caplog.records if "duty retire failed" in record.getMessage()]
    assert len(told) == 1
    assert "no room" in told[0]


def counted(function: Any, calls: list[str], name: str) -> Any:
    """The function, noting its calls of that name."""

    async def call(connection: Any, call: Any) -> Any:
        if call.function == name:
            calls.append(name)
        return await function(connection, call)

    return call


async def test_a_time_out_of_the_role_does_not_stop_its_leader(queue: Queue) -> None:
    """Sixty leases to end take longer than a second that is meant for the application."""
    queue.connection.execute(
        "do $$ begin execute format('alter database %I set statement_timeout = ''300ms''',"
        " current_database()); end $$"
    )
    queue.connection.execute(
        "create or replace function trunq.reap(p_queue text) returns integer language plpgsql as $$ begin"
        " perform pg_catalog.pg_sleep(0.5); return 0; end $$"
    )
    leader = Leader(queue.dsn)
    async with leading(leader):
        await async_wait_until(lambda: leader.performed.calls.get("reap", 0) >= 2)


async def test_one_is_stopped_from_another_thread(queue: Queue) -> None:
    first, second = Leader(queue.dsn, "first"), Leader(queue.dsn, "second", lease_time=3600.0)
    async with leading(first):
        await async_wait_until(lambda: first.term)
        async with leading(second) as (task,):
            # Asleep for twenty minutes: nothing but the stop itself can wake it.
            await async_wait_until(lambda: second._stopped._waiters)
            # An event loop in debug mode refuses what another thread must not do.
            asyncio.get_running_loop().set_debug(True)
            await asyncio.to_thread(second.stop)
            async with asyncio.timeout(PATIENCE):
                await task
            assert task.done()


async def test_one_that_is_stopped_before_it_runs_does_not_lead(queue: Queue) -> None:
    leader = Leader(queue.dsn)
    await asyncio.to_thread(leader.stop)
    async with asyncio.timeout(PATIENCE):
        await leader.run_async()
    assert queue.connection.execute("select count(*) from trunq.leader where term > 0").fetchone() == (0,)


def fired(queue: Queue) -> list[tuple[float, float]]:
    """How many seconds after its time each run was fired, and after the one before, oldest first."""
    runs = (
        "select due_at, fired_at, lag(due_at) over (order by due_at) from trunq.schedule_run order by due_at"
    )
    return [
        ((at - due).total_seconds(), 0.0 if before is None else (due - before).total_seconds())
        for due, at, before in queue.connection.execute(runs.encode())
    ]


async def test_schedules_fire_when_they_are_due(queue: Queue) -> None:
    """Each at its second, by a cron text and by an interval; the leader computes times in time."""
    with Client(queue.dsn) as client:
        client.create_schedule("cron", "q", cron="* * * * * *", kind="work")
        queue.connection.execute("delete from trunq.schedule_due where due_at > now() + interval '30 s'")
        async with leading(Leader(queue.dsn)):
            await async_wait_until(lambda: len(fired(queue)) >= 4)
        assert [apart for _, apart in fired(queue)[1:4]] == [1.0, 1.0, 1.0]
        assert min(late for late, _ in fired(queue)) >= 0.0
        assert len(client.preview_schedule("cron", 1000)) > 900


async def test_a_new_schedule_is_heard_of_by_a_leader_who_has_none(queue: Queue) -> None:
    """It would look again in a minute."""
    leader = Leader(queue.dsn)
    async with leading(leader):
        await async_wait_until(lambda: leader.performed.calls.get("fire"))
        queue.connection.execute("select trunq.create_schedule('often', 'q', p_every => '1 s')")
        await async_wait_until(lambda: fired(queue))
        calls = leader.performed.calls["fire"]
        queue.connection.execute("select trunq.delete_schedule('often')")
        queue.connection.execute("select trunq.create_schedule('again', 'q', p_every => '1 s')")
        await async_wait_until(lambda: fired(queue))
        assert leader.performed.calls["fire"] > calls


async def test_a_new_schedule_is_heard_of_after_the_connection_was_lost(queue: Queue) -> None:
    leader = Leader(queue.dsn)
    async with leading(leader):
        await async_wait_until(lambda: leader.performed.calls.get("fire"))
        ended = queue.connection.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = current_database() and application_name like 'trunq leader%'"
        ).fetchall()
        # Three lines, one of which may still connect, and the election.
        assert ended in ([(True,)] * 3, [(True,)] * 4)
        ticks = leader.performed.calls["tick"]
        await async_wait_until(lambda: leader.performed.calls["tick"] > ticks)
        queue.connection.execute("select trunq.create_schedule('often', 'q', p_every => '1 s')")
        await async_wait_until(lambda: fired(queue))


async def test_the_leader_waits_before_it_tries_a_time_again_that_it_could_not_fire(queue: Queue) -> None:
    queue.connection.execute(
        "select trunq.create_schedule('often', 'q', p_every => '1 s', p_missed => 'all')"
    )
    queue.connection.execute("select trunq.close_queue('q')")
    leader = Leader(queue.dsn)
    async with leading(leader):
        failed = "select error from trunq.schedule where error is not null"
        await async_wait_until(lambda: queue.connection.execute(failed).fetchone())
        calls, ticks = leader.performed.calls["fire"], leader.performed.calls["tick"]
        await async_wait_until(lambda: leader.performed.calls["tick"] >= ticks + 3)
        assert leader.performed.calls["fire"] <= calls + 5
        queue.connection.execute("select trunq.open_queue('q')")
        await async_wait_until(lambda: fired(queue))
