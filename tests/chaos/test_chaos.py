"""Workers, leaders and the server die in the middle of work; the ledger of effects says what became of it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import psycopg
import pytest

from chaos.fleet import Fleet
from scope import some
from serving import Queue, running
from trunq.client.message import Message
from trunq.embedded import Embedded
from trunq.leader import Leader
from waiting import async_wait_until

ROUNDS = some(2, 4)
COUNT = some(150, 500)
"""Messages of each of four kinds; a third of them is handled at the last blow, so that it hits work."""
STEP = some(100, 200)
"""Messages handled between two blows."""
AFTERWARDS = some(25, 100)
"""Of each kind, when nobody dies any more."""


def start(fleet: Fleet, count: int = COUNT) -> None:
    """Two workers with a name, one without, and two leaders of one name: each believes that it leads."""
    for name in ("first", "second", "-third"):
        fleet.start_worker(name)
    for _ in range(2):
        fleet.start_leader("twin")
    # Without a database to begin with they end, as they should.
    fleet.wait_until_all_run()
    fleet.publish(count)


def finish(fleet: Fleet, *, crashed: bool = False) -> None:
    # A worker that is frozen until its lease has run out was at work.
    assert fleet.was_frozen or fleet.handled() < sum(map(len, fleet.ids.values())), "chaos came too late"
    fleet.publish(AFTERWARDS)
    fleet.wait_for_end()
    fleet.stop()
    fleet.check_ledger(crashed=crashed)


@pytest.mark.slow
def test_workers_killed_in_the_middle_of_batches(fleet: Fleet, chance: Callable[[list[str]], str]) -> None:
    start(fleet)
    for number in range(1, ROUNDS + 1):
        fleet.wait_for(number * STEP)
        name = chance(list(fleet.workers))
        fleet.kill_worker(name)
        fleet.start_worker(name)
    finish(fleet)
    assert fleet.expired() > 0


@pytest.mark.slow
def test_every_connection_terminated_again_and_again(fleet: Fleet) -> None:
    start(fleet)
    for number in range(1, ROUNDS + 1):
        fleet.wait_for(number * STEP)
        fleet.terminate_connections()
    finish(fleet)


@pytest.mark.slow
def test_a_server_restarted_in_an_orderly_way(fleet: Fleet) -> None:
    start(fleet)
    for number in range(1, ROUNDS + 1):
        fleet.wait_for(number * STEP)
        fleet.server.restart()
    finish(fleet)


@pytest.mark.slow
def test_a_server_killed_with_all_its_processes(fleet: Fleet) -> None:
    """Leases do not wait for the disk. What had not reached it never was; answers under it are refused."""
    start(fleet)
    for number in range(1, ROUNDS + 1):
        fleet.wait_for(number * STEP)
        fleet.server.kill()
        fleet.server.restart()
    finish(fleet, crashed=True)


@pytest.mark.slow
def test_a_leader_killed_and_one_stopped_for_longer_than_its_lease(fleet: Fleet) -> None:
    """The one that was stopped goes on leading for a moment when it is woken, beside its successor."""
    fleet.publish(some(100, 200))
    for name in ("first", "second"):
        fleet.start_worker(name)
    fleet.start_leader("sleepy")
    fleet.wait_for(50)
    fleet.leaders[0].send_signal(signal.SIGSTOP)
    fleet.start_leader("doomed")
    fleet.kill_worker("first")
    fleet.wait_for(some(150, 300))
    fleet.kill_leader(1)
    fleet.start_leader("heir")
    fleet.leaders[0].send_signal(signal.SIGCONT)
    fleet.start_worker("first")
    finish(fleet)


@pytest.fixture
def queue(own_server: Embedded) -> Queue:
    connection = psycopg.connect(own_server.dsn, autocommit=True)
    return Queue(own_server.dsn, connection)


@pytest.mark.slow
@pytest.mark.parametrize("crash", [False, True], ids=["restart", "kill"])
async def test_a_handler_longer_than_its_lease_across_a_restart_completes_once(
    own_server: Embedded, queue: Queue, crash: bool
) -> None:
    (id,) = queue.publish()
    worker = queue.worker(lease_time=3.0)
    leader = Leader(queue.dsn)
    runs: list[int] = []
    entered, go = asyncio.Event(), asyncio.Event()

    @worker.handler("work")
    async def long(message: Message) -> str:
        runs.append(message.attempt)
        entered.set()
        await go.wait()
        return "once"

    def restart() -> None:
        if crash:
            own_server.kill()
        own_server.restart()

    leading = asyncio.create_task(leader.run_async())
    async with running(worker):
        await entered.wait()
        # A lease that had not reached the disk could not survive a crash.
        await async_wait_until(
            lambda: (
                queue.connection.execute(
                    "select pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()"
                ).fetchone()
                == (True,)
            )
        )
        first_end = queue.message(id).expires_at
        queue.connection.close()
        await asyncio.to_thread(restart)
        queue.connection = psycopg.connect(own_server.dsn, autocommit=True)
        # It runs on for a whole lease after the one it had, reapers all around.
        await async_wait_until(
            lambda: (
                queue.connection.execute(
                    "select trunq.clock() > %s + interval '3 s'", (first_end,)
                ).fetchone()
                == (True,)
            )
        )
        assert queue.message(id).state == "leased"
        go.set()
        await async_wait_until(queue.is_done)
    leader.stop()
    await leading
    assert runs == [1]
    assert (queue.message(id).result, queue.message(id).attempt) == ("once", 1)
    queue.connection.close()
