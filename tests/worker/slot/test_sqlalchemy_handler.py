"""Handlers that get a session of SQLAlchemy: its transaction and the ack commit together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from bridging import url
from serving import PATIENCE, Queue, drain, running, take_away
from trunq import Message, Reject, Retry
from trunq.worker import Worker
from waiting import async_wait_until


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effect"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def effects(queue: Queue) -> Callable[[], list[int]]:
    """What handlers wrote, as others see it."""
    queue.connection.execute("create table effect (id bigint primary key)")
    return lambda: [id for (id,) in queue.connection.execute("select id from effect order by id")]


@pytest.fixture(params=["psycopg sync", "psycopg", "asyncpg"])
async def engine(request: pytest.FixtureRequest, queue: Queue) -> AsyncIterator[Any]:
    if request.param == "psycopg sync":
        made = create_engine(url(queue.dsn))
        yield made
        made.dispose()
    else:
        events = create_async_engine(url(queue.dsn, request.param))
        yield events
        await events.dispose()


def register(
    worker: Worker, engine: Any, handle: Callable[[Message, Any], Any], concurrency: int | None = None
) -> None:
    """A handler of the engine's colour, which does what `handle` does with the session."""
    if hasattr(engine, "sync_engine"):

        @worker.handler("work", concurrency=concurrency)
        async def events(message: Message, session: AsyncSession) -> Any:
            return await session.run_sync(lambda below: handle(message, below))
    else:

        @worker.handler("work", concurrency=concurrency)
        def threads(message: Message, session: Session) -> Any:
            return handle(message, session)


async def test_what_the_session_writes_and_the_ack_commit_together(
    queue: Queue, effects: Callable[[], list[int]], engine: Any
) -> None:
    ids = queue.publish(count=20)
    worker = queue.worker(engine=engine)

    def handle(message: Message, session: Session) -> dict[str, str]:
        session.add(Effect(id=message.id))  # unflushed: the worker sends it before the ack
        return {"level": session.scalar(text("show transaction_isolation")) or ""}

    register(worker, engine, handle)
    await drain(worker)
    assert effects() == ids
    assert queue.states() == {"done": 20}
    assert queue.message(ids[0]).result == {"level": "read committed"}
    assert worker.statistics.handled == 20


async def test_what_a_batch_writes_and_all_its_outcomes_commit_together(
    queue: Queue, effects: Callable[[], list[int]], engine: Any
) -> None:
    ids = queue.publish(count=5)
    worker = queue.worker(engine=engine)

    def handle(messages: list[Message], session: Session) -> list[Any]:
        session.add_all([Effect(id=message.id) for message in messages])
        return [*["written"] * (len(messages) - 1), Reject("the last")]

    if hasattr(engine, "sync_engine"):

        @worker.batch("work", size=5, wait=5)
        async def events(messages: list[Message], session: AsyncSession) -> Any:
            return await session.run_sync(lambda below: handle(messages, below))
    else:
        worker.batch("work", size=5, wait=5)(handle)
    await drain(worker)
    assert effects() == ids
    assert queue.states() == {"done": 4, "dead": 1}
    assert queue.message(ids[0]).result == "written"


async def test_a_failure_is_rolled_back_and_its_bookkeeping_survives(
    queue: Queue, effects: Callable[[], list[int]], engine: Any
) -> None:
    queue.policy(max_attempts=1)
    ids = queue.publish(payload=["raise", "retry", "reject", "unique", "commit", "fine"])
    worker = queue.worker(engine=engine, concurrency=1)

    def handle(message: Message, session: Session) -> Any:
        session.add(Effect(id=message.id))
        match message.payload:
            case "raise":
                raise ValueError("on purpose")
            case "retry":
                return Retry(error="later")
            case "reject":
                return Reject("never")
            case "unique":
                session.execute(text("insert into effect select 1 from generate_series(1, 2)"))
            case "commit":
                session.rollback()
        return None

    register(worker, engine, handle)
    await drain(worker)
    assert effects() == [ids[-1]]
    dead = {each.id: each.errors[-1]["error"].splitlines()[0] for each in queue.dead()}
    assert dead[ids[0]] == "ValueError: on purpose"
    assert dead[ids[1]] == "later"
    assert dead[ids[2]] == "never"
    assert dead[ids[3]].startswith("IntegrityError: ")
    assert dead[ids[4]].startswith("TransactionEnded: the transaction ended before its handler did")
    assert queue.message(ids[5]).state == "done"


async def test_a_handler_whose_lease_was_given_to_another_is_rolled_back(
    queue: Queue, effects: Callable[[], list[int]], engine: Any
) -> None:
    ids = queue.publish()
    worker = queue.worker(engine=engine)
    attempts = []

    def handle(message: Message, session: Session) -> None:
        attempts.append(message.attempt)
        session.add(Effect(id=message.id))
        session.flush()
        if message.attempt == 1:
            take_away(queue, message.id)

    register(worker, engine, handle)
    await drain(worker)
    assert attempts == [1, 2]
    assert effects() == ids
    assert (worker.statistics.handled, worker.statistics.lost) == (1, 1)


async def test_transactions_that_meet_are_run_again_and_cost_no_attempt(queue: Queue, engine: Any) -> None:
    queue.policy(max_attempts=1)
    queue.connection.execute("create table counter (n int)")
    queue.connection.execute("insert into counter values (0)")
    queue.publish(count=40)
    worker = queue.worker(concurrency=4, engine=engine)
    runs = []

    def handle(message: Message, session: Session) -> None:
        runs.append(message.id)
        session.execute(text("set transaction isolation level serializable"))
        n = session.scalar(text("select n from counter")) or 0
        session.execute(text("update counter set n = :n"), {"n": n + 1})

    register(worker, engine, handle)
    await drain(worker)
    assert queue.states() == {"done": 40}
    assert queue.connection.execute("select n from counter").fetchone() == (40,)
    assert len(runs) > 40


async def test_a_handler_waits_for_a_database_that_its_engine_does_not_reach(
    queue: Queue, effects: Callable[[], list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    (id,) = queue.publish()
    tries = []

    def connect() -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionRefusedError("not yet")
        return psycopg.connect(queue.dsn)

    engine = create_engine("postgresql+psycopg://", creator=connect)
    worker = queue.worker(engine=engine)

    @worker.handler("work")
    def handle(message: Message, session: Session) -> None:
        session.add(Effect(id=message.id))

    await drain(worker)
    assert effects() == [id]
    assert queue.message(id).attempt == 1
    assert "a handler waits for its transaction: not yet" in caplog.text
    engine.dispose()


async def test_a_sessionmaker_makes_the_sessions(queue: Queue) -> None:
    class Special(Session):
        pass

    queue.publish()
    engine = create_engine(url(queue.dsn))
    worker = queue.worker(engine=sessionmaker(engine, class_=Special))
    seen = []

    @worker.handler("work")
    def handle(message: Message, session) -> None:  # type: ignore[no-untyped-def]
        seen.append(isinstance(session, Special))

    await drain(worker)
    assert seen == [True]
    engine.dispose()


async def test_what_does_not_fit_is_refused_when_it_is_registered(queue: Queue) -> None:
    sync, events = create_engine(url(queue.dsn)), create_async_engine(url(queue.dsn))

    async def coroutine(message: Message, session: AsyncSession) -> None: ...

    def function(message: Message, session: Session) -> None: ...

    with pytest.raises(TypeError, match="create_async_engine"):
        queue.worker(engine=sessionmaker(sync)).handler("work")(coroutine)
    for each in (events, async_sessionmaker(events)):
        with pytest.raises(TypeError, match=r"create_engine\(\)"):
            queue.worker(engine=each).handler("work")(function)
    with pytest.raises(TypeError, match=r"with Worker\(engine=\) a session of SQLAlchemy"):
        queue.worker().handler("work")(function)
    for none in ("postgresql://", sync.pool):
        with pytest.raises(TypeError, match="engine is "):
            queue.worker(engine=none)


async def test_one_that_takes_too_long_is_rolled_back_and_goes_by_the_policy_of_its_kind(
    queue: Queue, effects: Callable[[], list[int]], engine: Any
) -> None:
    (id,) = queue.publish()
    worker = queue.worker(engine=engine)
    limits: dict[str, Any] = {"time_out": 0.5, "max_attempts": 1}
    if hasattr(engine, "sync_engine"):

        @worker.handler("work", **limits)
        async def events(message: Message, session: AsyncSession) -> None:
            session.add(Effect(id=message.id))
            await session.flush()
            await asyncio.Event().wait()
    else:

        @worker.handler("work", **limits)
        def threads(message: Message, session: Session, stop: threading.Event) -> Retry:
            session.add(Effect(id=message.id))
            session.flush()
            assert stop.wait(PATIENCE)
            return Retry(error="told to give up")

    await drain(worker)
    assert effects() == []
    (dead,) = queue.dead()
    assert (dead.id, dead.attempts, dead.reason) == (id, 1, "max_attempts")
    assert "ran longer than the 0.5 seconds" in dead.errors[0]["error"]


async def test_one_that_was_cancelled_is_told_and_rolled_back(
    queue: Queue, effects: Callable[[], list[int]], engine: Any
) -> None:
    (id,) = queue.publish()
    worker = queue.worker(engine=engine)
    started = threading.Event()
    if hasattr(engine, "sync_engine"):

        @worker.handler("work")
        async def events(message: Message, session: AsyncSession) -> None:
            session.add(Effect(id=message.id))
            await session.flush()
            started.set()
            await asyncio.Event().wait()
    else:

        @worker.handler("work")
        def threads(message: Message, session: Session, stop: threading.Event) -> None:
            session.add(Effect(id=message.id))
            session.flush()
            started.set()
            assert stop.wait(PATIENCE)
            raise RuntimeError("cancelled")

    async with running(worker):
        await async_wait_until(started.is_set)
        queue.connection.execute("select trunq.cancel('q', %s)", ([id],))
        await async_wait_until(queue.is_done)
    assert effects() == []
    assert [dead.reason for dead in queue.dead()] == ["cancelled"]


async def test_a_limit_holds_for_handlers_with_a_session(
    queue: Queue, effects: Callable[[], list[int]], engine: Any
) -> None:
    ids = queue.publish(count=3)
    # What the limit gives back is delayed: a leader promotes it.
    worker = queue.worker(engine=engine, lead=True)
    now, most = 0, 0

    def handle(message: Message, session: Session) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        session.execute(text("select pg_sleep(0.02)"))
        session.add(Effect(id=message.id))
        now -= 1

    register(worker, engine, handle, concurrency=1)
    await drain(worker)
    assert (effects(), most) == (ids, 1)
