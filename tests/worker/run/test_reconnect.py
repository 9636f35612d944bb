"""The database goes away and comes back: handlers do not notice, their answers are delivered afterwards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from serving import Queue, running
from trunq.client.message import Message
from trunq.embedded import Embedded
from trunq.worker.answer import MOST_UNSENT
from trunq.worker.run.leasing import LARGEST_LEASE, MOST_AHEAD
from waiting import async_wait_until

NEVER = 3600.0


@pytest.fixture
def administrator(server: Embedded) -> Iterator[psycopg.Connection[Any]]:
    """A connection to another database of the server."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def cut(queue: Queue, administrator: psycopg.Connection[Any]) -> Callable[[], int]:
    """Cut all connections to the test's database, the test's own excepted; gives how many."""
    name = conninfo_to_dict(queue.dsn)["dbname"]

    def cut_all() -> int:
        rows = administrator.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = %s and pid <> %s and backend_type = 'client backend'",
            (name, queue.connection.info.backend_pid),
        ).fetchall()
        return len(rows)

    return cut_all


@pytest.fixture
def away(queue: Queue, administrator: psycopg.Connection[Any], cut: Callable[[], int]) -> Callable[[], Any]:
    """A block in which nobody can connect to the test's database."""
    name = conninfo_to_dict(queue.dsn)["dbname"]

    @contextmanager
    def block() -> Iterator[None]:
        administrator.execute(f"alter database {name} with allow_connections false")
        cut()
        yield
        administrator.execute(f"alter database {name} with allow_connections true")

    return block


async def test_all_connections_cut_while_a_handler_runs(queue: Queue, cut: Callable[[], int]) -> None:
    (id,) = queue.publish()
    worker = queue.worker(lead=True, poll=NEVER)
    entered, go = asyncio.Event(), asyncio.Event()

    @worker.handler("work")
    async def wait(message: Message) -> str:
        entered.set()
        await go.wait()
        return "undisturbed"

    async with running(worker):
        await entered.wait()
        # Lease, answers, bell, and four of the leader.
        await async_wait_until(
            lambda: (
                queue.connection.execute(
                    "select count(*) from pg_stat_activity where datname = current_database()"
                    " and application_name ~ '^trunq (worker|leader)'"
                ).fetchone()
                == (7,)
            )
        )
        assert cut() == 7
        go.set()
        await async_wait_until(queue.is_done, 120)
        # It is back in all respects: woken by a bell too.
        (other,) = queue.publish()
        await async_wait_until(queue.is_done, 120)
    assert queue.message(id).result == "undisturbed"
    assert (queue.message(id).attempt, queue.message(other).attempt) == (1, 1)


async def test_connections_cut_again_and_again_in_the_middle_of_everything(
    queue: Queue, cut: Callable[[], int]
) -> None:
    """At least once: a lease whose rows were on their way to us when the connection broke comes back by the
    reaper.
    """
    seen: list[int] = []
    ids = queue.publish(count=3000)
    worker = queue.worker(lead=True, lease_time=1.0)

    @worker.handler("work")
    async def note(message: Message) -> None:
        seen.append(message.id)
        await asyncio.sleep(0)

    async with running(worker):
        for share in range(1, 6):
            await async_wait_until(lambda share=share: len(set(seen)) >= share * 500)
            cut()
        await async_wait_until(queue.is_done, 120)
    assert set(seen) == set(ids)
    assert queue.states() == {"done": 3000}


async def test_answers_given_while_the_database_is_away_are_delivered(
    queue: Queue, away: Callable[[], Any]
) -> None:
    ids = queue.publish(payload=["a", "b", "c"])
    worker = queue.worker(poll=NEVER, concurrency=3)
    entered, go = asyncio.Event(), asyncio.Event()

    @worker.handler("work")
    async def wait(message: Message) -> Any:
        entered.set()
        await go.wait()
        return message.payload

    async with running(worker):
        await entered.wait()
        with away():
            go.set()
            await async_wait_until(lambda: worker.statistics.handled == 3)
        await async_wait_until(queue.is_done)
    assert [queue.message(id).result for id in ids] == ["a", "b", "c"]
    assert [queue.message(id).attempt for id in ids] == [1, 1, 1]


async def test_while_answers_wait_to_be_delivered_no_more_is_leased_than_stated(
    queue: Queue, connect: Callable[..., psycopg.Connection[Any]]
) -> None:
    """Answers take memory; and what was handled unanswered runs again after a crash."""
    count = MOST_UNSENT * 2
    queue.connection.execute(
        "insert into trunq_log.q (kind) select 'work' from generate_series(1, %s)", (count,)
    )
    worker = queue.worker()

    @worker.handler("work")
    async def handle(message: Message) -> None: ...

    blocker = connect(autocommit=False)
    blocker.execute(f"lock table {table(queue, 'receipt')} in exclusive mode".encode())
    async with running(worker):
        await async_wait_until(lambda: worker.statistics.handled > MOST_UNSENT)
        await async_wait_until(lambda: leases_no_more(queue))
        assert worker.statistics.leased <= MOST_UNSENT + MOST_AHEAD + LARGEST_LEASE
        blocker.rollback()
        await async_wait_until(queue.is_done)
    assert worker.statistics.handled == count


def leases_no_more(queue: Queue) -> bool:
    """Whether a worker has asked for no messages for a tenth of a second."""
    row = queue.connection.execute(
        "select max(state_change) < clock_timestamp() - interval '0.1 s' and bool_and(state = 'idle')"
        " from pg_stat_activity where datname = current_database()"
        " and application_name like 'trunq worker%%' and query like '%%lease(%%'"
    ).fetchone()
    return row == (True,)


def table(queue: Queue, kind: str) -> str:
    """The queue's table of leases or receipts."""
    row = queue.connection.execute(
        "select c.oid::regclass::text from pg_class c where c.relkind = 'p' and c.relname ~ ('^(q_)?' || %s)"
        " and c.relnamespace = 'trunq_data'::regnamespace",
        (kind,),
    ).fetchone()
    assert row is not None
    return str(row[0])


async def test_answers_wait_for_the_disk_and_leases_do_not(
    queue: Queue, administrator: psycopg.Connection[Any]
) -> None:
    """Losing a lease only redelivers. An answer that the worker counts as delivered must survive a crash."""
    name = conninfo_to_dict(queue.dsn)["dbname"]
    administrator.execute(f"alter database {name} set synchronous_commit = on".encode())
    queue.connection.execute("create table committed (what text, synchronous text)")
    queue.connection.execute(
        "create function note() returns trigger language plpgsql as $$ begin"
        " insert into public.committed values (tg_argv[0], current_setting('synchronous_commit'));"
        " return null; end $$"
    )
    for what in ("lease", "receipt"):
        queue.connection.execute(
            f"create trigger note after insert on {table(queue, what)}"
            f" for each row execute function note('{what}')".encode()
        )
    queue.connection.execute("create table effect (id bigint)")
    queue.publish("plain")
    queue.publish("once")
    worker = queue.worker(concurrency=1, prefetch=0)

    @worker.handler("plain")
    async def plain(message: Message) -> None: ...

    @worker.handler("once")
    async def once(message: Message, connection: Any) -> None:
        await connection.execute("insert into effect values (%s)", (message.id,))

    async with running(worker):
        await async_wait_until(queue.is_done)
    committed = queue.connection.execute("select distinct what, synchronous from committed order by 1")
    assert committed.fetchall() == [("lease", "off"), ("receipt", "on")]


async def test_a_lease_that_ran_out_while_the_database_was_away_counts_if_nobody_reaped_it(
    queue: Queue, away: Callable[[], Any]
) -> None:
    (id,) = queue.publish()
    worker = queue.worker(lease_time=0.3, poll=NEVER)
    entered, go = asyncio.Event(), asyncio.Event()

    @worker.handler("work")
    async def wait(message: Message) -> str:
        entered.set()
        await go.wait()
        return "late, but nobody minds"

    async with running(worker):
        await entered.wait()
        with away():
            end = queue.message(id).expires_at
            await async_wait_until(
                lambda: queue.connection.execute("select trunq.clock() > %s", (end,)).fetchone() == (True,)
            )
            go.set()
            await async_wait_until(lambda: worker.statistics.handled == 1)
        await async_wait_until(queue.is_done)
    message = queue.message(id)
    assert (message.result, message.attempt) == ("late, but nobody minds", 1)


async def test_what_waits_is_not_started_after_its_lease_ran_out_unheard(
    queue: Queue, away: Callable[[], Any]
) -> None:
    """For all the worker knows, someone else has these messages by then. Back in touch, it asks."""
    ids = queue.publish(count=3)
    worker = queue.worker(lease_time=0.3, poll=NEVER, concurrency=1, prefetch=2)
    seen: list[int] = []
    entered, go = asyncio.Event(), asyncio.Event()

    @worker.handler("work")
    async def wait(message: Message) -> None:
        seen.append(message.id)
        entered.set()
        await go.wait()

    async with running(worker):
        await entered.wait()
        with away():
            end = queue.message(ids[0]).expires_at
            await async_wait_until(
                lambda: queue.connection.execute("select trunq.clock() > %s", (end,)).fetchone() == (True,)
            )
            go.set()
            await async_wait_until(lambda: worker.statistics.handled == 1)
            assert seen == ids[:1]
        await async_wait_until(queue.is_done)
    assert sorted(seen) == ids


async def test_a_stop_gives_back_what_was_not_started_because_its_lease_ran_out(
    queue: Queue, away: Callable[[], Any]
) -> None:
    ids = queue.publish(count=3)
    worker = queue.worker(lease_time=0.3, poll=NEVER, concurrency=1, prefetch=2)
    entered, go = asyncio.Event(), asyncio.Event()

    @worker.handler("work")
    async def wait(message: Message) -> None:
        entered.set()
        await go.wait()

    async with running(worker) as (task,):
        await entered.wait()
        with away():
            end = queue.message(ids[0]).expires_at
            await async_wait_until(
                lambda: queue.connection.execute("select trunq.clock() > %s", (end,)).fetchone() == (True,)
            )
            go.set()
            await async_wait_until(lambda: worker.statistics.handled == 1)
            worker.stop()
            await async_wait_until(lambda: worker.statistics.released == 2)
        await task
    assert queue.states() == {"done": 1, "ready": 2}
    assert [queue.message(id).attempt for id in ids] == [1, 1, 1]


async def test_a_stop_while_the_database_is_away_waits_to_deliver_the_answers(
    queue: Queue, away: Callable[[], Any]
) -> None:
    (id,) = queue.publish()
    worker = queue.worker(poll=NEVER)
    entered, go = asyncio.Event(), asyncio.Event()

    @worker.handler("work")
    async def wait(message: Message) -> None:
        entered.set()
        await go.wait()

    async with running(worker) as (task,):
        await entered.wait()
        with away():
            worker.stop()
            go.set()
            await async_wait_until(lambda: worker.statistics.handled == 1)
            assert not task.done()
    assert queue.message(id).state == "done"


async def test_a_stop_while_the_database_is_away_ends_at_once_with_nothing_to_deliver(
    queue: Queue, away: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """As when a whole installation is shut down, the database first."""
    worker = queue.worker(poll=0.05, lead=True)

    @worker.handler("work")
    async def handle(message: Message) -> None: ...

    caplog.set_level(logging.DEBUG, "trunq.link")
    task = asyncio.create_task(worker.run_async())
    await async_wait_until(lambda: worker.statistics.empty_looks > 1)
    with away():
        # Leasing as well as leading keeps trying.
        await async_wait_until(lambda: caplog.text.count("trying again") > 4)
        worker.stop()
        async with asyncio.timeout(120):
            await task


async def test_answers_of_a_queue_dropped_meanwhile_end_the_worker_with_a_sentence(queue: Queue) -> None:
    queue.publish()
    worker = queue.worker(poll=0.05)
    entered, go = asyncio.Event(), asyncio.Event()

    @worker.handler("work")
    async def wait(message: Message) -> None:
        entered.set()
        await go.wait()

    task = asyncio.create_task(worker.run_async())
    await entered.wait()
    queue.connection.execute("select trunq.drop_queue('q', true)")
    go.set()
    with pytest.raises(Exception, match='"q"') as caught:
        async with asyncio.timeout(120):
            await task
    assert type(caught.value).__name__ in {"QueueNotFound", "SubscriptionNotFound"}


@pytest.mark.parametrize(
    "setting",
    [
        "default_transaction_isolation=serializable",
        "DateStyle=German",
        "IntervalStyle=iso_8601",
        "array_nulls=off",
        "standard_conforming_strings=off",
    ],
)
async def test_a_role_with_settings_of_its_own_is_served_all_the_same(queue: Queue, setting: str) -> None:
    queue.publish(count=3)
    worker = queue.worker(dsn=make_conninfo(queue.dsn, options=f"-c {setting}"), lead=True)
    failed: set[int] = set()

    @worker.handler("work")
    async def plain(message: Message) -> None:
        if message.id not in failed:
            failed.add(message.id)
            raise ValueError("the first time it fails")

    async with running(worker):
        await async_wait_until(queue.is_done)
    assert queue.states() == {"done": 3}


ALL = 6
"""Connections of a worker that leads: three to work, three to lead. An idle one notices at its next use."""


async def test_an_outage_is_one_line_in_the_log(
    queue: Queue, away: Callable[[], Any], cut: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever number of connections meets it, and whatever each of them tries."""
    worker = queue.worker(lead=True, poll=0.05)

    @worker.handler("work")
    async def handle(message: Message) -> None: ...

    def lines() -> list[str]:
        return [record.message for record in caplog.records if record.levelno >= logging.INFO]

    def tries() -> int:
        return sum("trying again" in record.message for record in caplog.records)

    caplog.set_level(logging.DEBUG, "trunq")
    async with running(worker):
        await async_wait_until(lambda: worker.statistics.empty_looks > 1)
        await async_wait_until(lambda: any("leading" in line for line in lines()))
        before = len(lines())
        with away():
            await async_wait_until(lambda: tries() >= 8)
        queue.publish()
        await async_wait_until(queue.is_done)
        await async_wait_until(lambda: connected(queue) == ALL)
        # The next one is news again.
        assert cut() == ALL
        queue.publish()
        await async_wait_until(lambda: queue.is_done() and connected(queue) == ALL)
        said = [line for line in lines()[before:] if not line.startswith("in 10 s")]
    assert [line.partition(", the database was away")[0] for line in said] == ["connected again"] * 2


def connected(queue: Queue) -> int:
    """How many connections the worker has."""
    row = queue.connection.execute(
        "select count(*) from pg_stat_activity where datname = current_database()"
        " and application_name ~ '^trunq (worker|leader)'"
    ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_handlers_in_transactions_are_back_soon_after_an_outage(
    queue: Queue, away: Callable[[], Any], caplog: pytest.LogCaptureFixture, colour: str
) -> None:
    """A pool that doubled its pause after each try would need 15 seconds for so many, and 16 for the next."""
    worker = queue.worker(concurrency=1, prefetch=5)
    entered, go = asyncio.Event(), asyncio.Event()

    @worker.handler("gate")
    async def wait(message: Message) -> None:
        entered.set()
        await go.wait()

    if colour == "async":

        @worker.handler("work")
        async def handle(message: Message, connection: Any) -> None: ...
    else:

        @worker.handler("work")
        def handle_sync(message: Message, connection: Any) -> None: ...

    caplog.set_level(logging.WARNING, "psycopg.pool")
    async with running(worker):
        queue.publish()
        await async_wait_until(queue.is_done)
        queue.publish("gate")
        queue.publish()
        await entered.wait()
        await async_wait_until(lambda: worker.statistics.leased == 3)
        with away():
            go.set()
            await async_wait_until(lambda: caplog.text.count("error connecting") >= 8, 60)
        await async_wait_until(queue.is_done, 120)
