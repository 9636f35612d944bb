"""Handlers that ask for a transaction: their writes and the ack commit together, or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from itertools import count
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from serving import Queue, drain, running
from trunq.client.message import Message, Reject, Retry
from waiting import async_wait_until, wait_until

Register = Callable[..., None]


@pytest.fixture
def effects(queue: Queue) -> Callable[[], list[int]]:
    """A table handlers write into; the fixture gives what was committed to it."""
    queue.connection.execute("create table effect (id bigint)")
    return lambda: [id for (id,) in queue.connection.execute("select id from effect order by id")]


def write(connection: psycopg.Connection[Any], message: Message) -> None:
    connection.execute("insert into effect values (%s)", (message.id,))


async def test_writes_and_ack_commit_together(queue: Queue, effects: Callable[[], list[int]]) -> None:
    ids = queue.publish(count=20)
    worker = queue.worker()

    @worker.handler("work")
    async def handle(message: Message, connection: psycopg.AsyncConnection[Any]) -> str:
        await connection.execute("insert into effect values (%s)", (message.id,))
        return "written"

    await drain(worker)
    assert effects() == ids
    assert queue.states() == {"done": 20}
    assert queue.message(ids[0]).result == "written"
    assert worker.statistics.handled == 20


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_run_again_for_another_transaction_it_finds_the_payload_as_it_was(
    queue: Queue, effects: Callable[[], list[int]], colour: str
) -> None:
    """Neither brought up to date a second time, nor with what the handler did to it."""
    (id,) = queue.publish(payload=[{"number": 7}])
    worker = queue.worker()
    tries = count(1)

    @worker.upcast("work", from_=1)
    def upcast(payload: Any) -> Any:
        return {"id": payload["number"]}

    def refuse() -> None:
        if next(tries) == 1:
            raise psycopg.errors.SerializationFailure

    async def handle(message: Message, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute("insert into effect values (%s)", (message.payload.pop("id"),))
        refuse()

    def handle_sync(message: Message, connection: psycopg.Connection[Any]) -> None:
        connection.execute("insert into effect values (%s)", (message.payload.pop("id"),))
        refuse()

    worker.handler("work")(handle if colour == "async" else handle_sync)
    await drain(worker)
    assert effects() == [7]
    assert queue.message(id).attempt == 1


async def test_a_sync_handler_gets_a_sync_connection_in_its_thread(
    queue: Queue, effects: Callable[[], list[int]]
) -> None:
    ids = queue.publish(count=20)
    worker = queue.worker()
    main = threading.current_thread()

    @worker.handler("work", transaction=True)
    def handle(message: Message, db: psycopg.Connection[Any]) -> None:
        assert threading.current_thread() is not main
        write(db, message)

    await drain(worker)
    assert effects() == ids
    assert queue.states() == {"done": 20}


async def test_the_ack_is_not_seen_before_the_commit_nor_the_writes_without_it(
    queue: Queue, effects: Callable[[], list[int]]
) -> None:
    """From outside, effect and state change in one moment: one statement sees both or none."""
    queue.publish(count=200)
    worker = queue.worker()

    @worker.handler("work")
    async def handle(message: Message, connection: Any) -> None:
        await connection.execute("insert into effect values (%s)", (message.id,))

    torn = []

    def look() -> bool:
        rows = queue.connection.execute(
            "select (select count(*) from effect), coalesce(sum(r.size), 0) from trunq_data.q_receipt r"
            " where r.outcome = 'a'"
        ).fetchone()
        assert rows is not None
        if rows[0] != rows[1]:
            torn.append(rows)
        return bool(rows[1] == 200)

    async with running(worker):
        await async_wait_until(look)
    assert not torn


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_failure_is_rolled_back_and_its_bookkeeping_survives(
    queue: Queue, effects: Callable[[], list[int]], colour: str
) -> None:
    queue.policy(max_attempts=2)
    ids = queue.publish(payload=["raise", "retry", "reject", "fine"])
    worker = queue.worker()

    def answer(message: Message) -> Retry | Reject | None:
        match message.payload:
            case "raise":
                raise ValueError("on purpose")
            case "retry":
                return Retry(error="later")
            case "reject":
                return Reject("never")
        return None

    if colour == "async":

        @worker.handler("work")
        async def handle(message: Message, connection: Any) -> Any:
            await connection.execute("insert into effect values (%s)", (message.id,))
            return answer(message)
    else:

        @worker.handler("work")
        def handle_sync(message: Message, connection: Any) -> Any:
            write(connection, message)
            return answer(message)

    await drain(worker)
    assert effects() == [ids[3]]
    dead = {
        dead.id: (dead.reason, [error["error"].splitlines()[0] for error in dead.errors])
        for dead in queue.dead()
    }
    assert dead == {
        ids[0]: ("max_attempts", ["ValueError: on purpose"] * 2),
        ids[1]: ("max_attempts", ["later"] * 2),
        ids[2]: ("rejected", ["never"]),
    }


@pytest.mark.parametrize("result", [None, "a result"])
@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_handler_whose_lease_was_given_to_another_is_rolled_back(
    queue: Queue, effects: Callable[[], list[int]], colour: str, result: str | None
) -> None:
    """The ack in the transaction is the fence: without it both would write."""
    ids = queue.publish()
    worker = queue.worker()
    attempts = []

    def take_away(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            queue.connection.execute(
                "select trunq.extend('q', 'default', %s, %s, '0 s')", (message.lease_id, message.token)
            )
            # The reaper leaves a subscription for later when somebody leases just then.
            wait_until(lambda: queue.connection.execute("select trunq.reap('q')").fetchone() == (1,))

    if colour == "async":

        @worker.handler("work")
        async def handle(message: Message, connection: Any) -> str | None:
            await connection.execute("insert into effect values (%s)", (message.id,))
            take_away(message)
            return result
    else:

        @worker.handler("work")
        def handle_sync(message: Message, connection: Any) -> str | None:
            write(connection, message)
            take_away(message)
            return result

    await drain(worker)
    assert attempts == [1, 2]
    assert effects() == ids
    assert (worker.statistics.handled, worker.statistics.lost) == (1, 1)


@pytest.mark.parametrize("result", [None, "a result"])
@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_writes_are_rolled_back_when_the_message_was_answered_meanwhile(
    queue: Queue, effects: Callable[[], list[int]], colour: str, result: str | None
) -> None:
    """By somebody who knows its lease and token: what that answer began must not be done twice."""
    (id,) = queue.publish()
    worker = queue.worker()

    def answer(message: Message) -> None:
        queue.connection.execute(
            "select trunq.ack('q', 'default', %s, %s, array[%s::bigint])",
            (message.lease_id, message.token, message.id),
        )

    if colour == "async":

        @worker.handler("work")
        async def handle(message: Message, connection: Any) -> str | None:
            await connection.execute("insert into effect values (%s)", (message.id,))
            answer(message)
            return result
    else:

        @worker.handler("work")
        def handle_sync(message: Message, connection: Any) -> str | None:
            write(connection, message)
            answer(message)
            return result

    await drain(worker)
    assert effects() == []
    assert queue.message(id).state == "done"
    assert (worker.statistics.handled, worker.statistics.lost) == (0, 1)


async def test_an_error_of_the_database_in_the_handler_fails_its_message_only(
    queue: Queue, effects: Callable[[], list[int]]
) -> None:
    queue.policy(max_attempts=1)
    ids = queue.publish(payload=["1", "x", "3"])
    worker = queue.worker()

    @worker.handler("work")
    async def handle(message: Message, connection: Any) -> None:
        await connection.execute("insert into effect values (%s::int)", (message.payload,))

    await drain(worker)
    assert effects() == [1, 3]
    (dead,) = queue.dead()
    assert dead.id == ids[1]
    assert "InvalidTextRepresentation" in dead.errors[-1]["error"]


async def test_a_connection_cut_in_the_handler_costs_an_attempt_and_no_effect_is_doubled(
    queue: Queue, effects: Callable[[], list[int]]
) -> None:
    ids = queue.publish()
    worker = queue.worker()

    @worker.handler("work")
    async def handle(message: Message, connection: Any) -> None:
        await connection.execute("insert into effect values (%s)", (message.id,))
        if message.attempt == 1:
            queue.connection.execute("select pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))

    await drain(worker)
    assert effects() == ids
    assert queue.message(ids[0]).attempt == 2


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_connection_cut_at_the_commit_costs_an_attempt_and_no_effect_is_doubled(
    queue: Queue, effects: Callable[[], list[int]], colour: str
) -> None:
    """Behind the ack, which came by the same message to the server."""
    queue.connection.execute(
        "create function cut() returns trigger language plpgsql as $$ begin"
        " if nextval('public.cuts') = 1 then perform pg_terminate_backend(pg_backend_pid()); end if;"
        " return null; end $$"
    )
    queue.connection.execute("create sequence cuts")
    queue.connection.execute(
        "create constraint trigger cut after insert on effect deferrable initially deferred"
        " for each row execute function cut()"
    )
    ids = queue.publish()
    worker = queue.worker()

    async def handle(message: Message, connection: Any) -> None:
        await connection.execute("insert into effect values (%s)", (message.id,))

    def handle_sync(message: Message, connection: Any) -> None:
        write(connection, message)

    worker.handler("work")(handle if colour == "async" else handle_sync)
    await drain(worker)
    assert effects() == ids
    assert queue.message(ids[0]).attempt == 2


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_an_ack_goes_to_the_server_together_with_the_commit(queue: Queue, colour: str) -> None:
    """A round trip less, and the lease is locked for less than one."""
    worker = queue.worker()
    sessions: list[int] = []

    async def handle(message: Message, connection: Any) -> None:
        sessions.append(connection.info.backend_pid)

    def handle_sync(message: Message, connection: Any) -> None:
        sessions.append(connection.info.backend_pid)

    worker.handler("work")(handle if colour == "async" else handle_sync)
    async with running(worker):
        queue.publish()
        await async_wait_until(queue.is_done)
        ((said,),) = queue.connection.execute(
            "select query from pg_stat_activity where pid = %s", sessions
        ).fetchall()
    assert said.startswith("select trunq._require_answered(trunq_queue.q_ack(")
    assert "; COMMIT; " in said


async def test_connections_cut_between_messages_cost_nothing(
    queue: Queue, effects: Callable[[], list[int]]
) -> None:
    """Pooled connections that died while idle are noticed before a handler gets one."""
    worker = queue.worker()

    @worker.handler("work")
    async def handle(message: Message, connection: Any) -> int:
        await connection.execute("insert into effect values (%s)", (message.id,))
        return int(connection.info.backend_pid)

    @worker.handler("sync")
    def handle_sync(message: Message, connection: Any) -> int:
        write(connection, message)
        return int(connection.info.backend_pid)

    async with running(worker):
        for _ in range(2):
            ids = queue.publish() + queue.publish("sync")
            await async_wait_until(queue.is_done)
            for id in ids:
                message = queue.message(id)
                assert message.attempt == 1
                queue.connection.execute("select pg_terminate_backend(%s, 5000)", (message.result,))
    assert len(effects()) == 4


async def test_messages_for_transactions_are_leased_as_many_as_others(
    queue: Queue, effects: Callable[[], list[int]]
) -> None:
    """The transactions of one lease do not wait for each other."""
    ids = queue.publish(count=100)
    worker = queue.worker(concurrency=8, prefetch=8)

    @worker.handler("work")
    async def handle(message: Message, connection: Any) -> None:
        await connection.execute("insert into effect values (%s)", (message.id,))

    await drain(worker)
    assert effects() == ids
    sizes = [
        size
        for (size,) in queue.connection.execute(
            "select size from trunq_data.q_lease where size > 0 order by lease_id"
        )
    ]
    assert max(sizes) >= 8


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_transactions_that_meet_are_run_again_and_cost_no_attempt(queue: Queue, colour: str) -> None:
    """Each reads what the others write, and asks for SERIALIZABLE: most of them fail at first."""
    queue.policy(max_attempts=1)
    queue.connection.execute("create table counter (n int)")
    queue.connection.execute("insert into counter values (0)")
    queue.publish(count=100)
    worker = queue.worker(concurrency=8)
    runs = []
    serializable = "set transaction isolation level serializable"

    if colour == "async":

        @worker.handler("work")
        async def handle(message: Message, connection: Any) -> None:
            runs.append(message.id)
            await connection.execute(serializable)
            (n,) = await (await connection.execute("select n from counter")).fetchone()
            await connection.execute("update counter set n = %s", (n + 1,))
    else:

        @worker.handler("work")
        def handle_sync(message: Message, connection: Any) -> None:
            runs.append(message.id)
            connection.execute(serializable)
            (n,) = connection.execute("select n from counter").fetchone()
            connection.execute("update counter set n = %s", (n + 1,))

    await drain(worker)
    assert queue.states() == {"done": 100}
    assert queue.connection.execute("select n from counter").fetchone() == (100,)
    assert len(runs) > 100


async def test_two_handlers_in_a_deadlock_both_end_and_cost_no_attempt(queue: Queue) -> None:
    queue.policy(max_attempts=1)
    queue.connection.execute("create table pair (side text primary key)")
    queue.connection.execute("insert into pair values ('left'), ('right')")
    queue.publish(payload=[["left", "right"], ["right", "left"]])
    worker = queue.worker(concurrency=2)
    both = asyncio.Barrier(2)
    runs = []

    @worker.handler("work")
    async def handle(message: Message, connection: Any) -> None:
        for side in message.payload:
            await connection.execute("select from pair where side = %s for update", (side,))
            if side == message.payload[0] and message.id not in runs:
                runs.append(message.id)
                await both.wait()

    await drain(worker)
    assert queue.states() == {"done": 2}


async def test_a_transaction_that_always_meets_others_costs_an_attempt_in_the_end(queue: Queue) -> None:
    queue.policy(max_attempts=1)
    queue.publish()
    worker = queue.worker()

    @worker.handler("work")
    async def handle(message: Message, connection: Any) -> None:
        await connection.execute("do $$ begin raise exception 'met' using errcode = '40001'; end $$")

    await drain(worker)
    (dead,) = queue.dead()
    assert dead.errors[-1]["error"].startswith("SerializationFailure: met")


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_a_handlers_transaction_is_read_committed_whatever_the_database_says(
    queue: Queue, colour: str
) -> None:
    tired = make_conninfo(queue.dsn, options="-c default_transaction_isolation=serializable")
    (id,) = queue.publish()
    worker = queue.worker(dsn=tired)

    if colour == "async":

        @worker.handler("work")
        async def handle(message: Message, connection: Any) -> Any:
            return (await (await connection.execute("show transaction_isolation")).fetchone())[0]
    else:

        @worker.handler("work")
        def handle_sync(message: Message, connection: Any) -> Any:
            return connection.execute("show transaction_isolation").fetchone()[0]

    await drain(worker)
    assert queue.message(id).result == "read committed"
