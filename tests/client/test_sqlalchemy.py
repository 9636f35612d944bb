"""Sessions and connections of SQLAlchemy, given as `connection=`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, create_async_engine
from sqlalchemy.ext.asyncio import async_sessionmaker as async_session_maker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from bridging import Through, url
from client.test_pooler import call_everything
from trunq import (
    AsyncClient,
    Client,
    InvalidArgument,
    LeaseLost,
    MessageTooLarge,
    QueueClosed,
    QueueNotFound,
    RawJson,
)
from waiting import wait_until

PART = 500


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    engine = create_engine(url(database))
    yield engine
    engine.dispose()


@pytest.fixture(params=["psycopg", "asyncpg"])
async def async_engine(request: pytest.FixtureRequest, database: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(url(database, request.param))
    yield engine
    await engine.dispose()


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as client:
        client.create_queue("orders")
        yield client


def payloads(client: Client) -> list[Any]:
    """What another session sees in the queue."""
    return sorted(message.payload for message in client.list_messages("orders", limit=10_000))


@pytest.mark.parametrize("what", ["session", "scoped", "connection"])
def test_what_is_published_shares_the_fate_of_the_transaction(
    client: Client, engine: Engine, what: str
) -> None:
    makers: dict[str, Any] = {
        "session": lambda: Session(engine),
        "scoped": scoped_session(sessionmaker(engine)),
        "connection": engine.connect,
    }
    for ending in ("rollback", "commit"):
        given = makers[what]()
        client.publish("orders", 0, connection=given)
        ids = client.publish_many("orders", range(1, 2 * PART + 2), connection=given)
        assert len(ids) == 2 * PART + 1
        assert ids == sorted(ids)
        assert payloads(client) == []
        getattr(given, ending)()
        given.close()
    assert payloads(client) == list(range(2 * PART + 2))


@pytest.mark.parametrize("what", ["session", "scoped", "connection"])
async def test_what_is_published_from_an_event_loop_does_so_too(
    client: Client, database: str, async_engine: AsyncEngine, what: str
) -> None:
    makers: dict[str, Any] = {
        "session": lambda: AsyncSession(async_engine),
        "scoped": async_scoped_session(async_session_maker(async_engine), asyncio.current_task),
        "connection": async_engine.connect,
    }
    async with AsyncClient(database) as own:
        for ending in ("rollback", "commit"):
            given = makers[what]()
            if what == "connection":
                await given.start()
            await own.publish("orders", 0, connection=given)
            ids = await own.publish_many("orders", range(1, 2 * PART + 2), connection=given)
            assert ids == sorted(ids)
            assert payloads(client) == []
            await getattr(given, ending)()
            await given.close()
    assert payloads(client) == list(range(2 * PART + 2))


ARGUMENTS: dict[str, Any] = {
    "payload": {"text": "quotes \" ' and \\ : :name %s %% ä 漢", "n": [1.5, None, True]},
    "kind": "a:b",
    "key": 'c"\\d',
    "headers": {"h": "1"},
    "body": b"\x00\xff\\",
}


async def test_what_arrives_is_what_was_given(
    client: Client, database: str, engine: Engine, async_engine: AsyncEngine
) -> None:
    """Every form of value, through arrays too; and read through each driver it is the same again."""
    due_at = datetime.now(UTC) - timedelta(seconds=5)
    rest = {"options": {"max_attempts": 7}, "max_age": timedelta(days=3, microseconds=1), "due_at": due_at}
    many = {
        "payloads": [ARGUMENTS["payload"], None],
        "kinds": ["a:b", None],
        "keys": [None, ARGUMENTS["key"]],
        "headers": [{"h": "1"}, None],
        "bodies": [None, ARGUMENTS["body"]],
    }
    with Session(engine) as session, session.begin():
        client.publish("orders", **ARGUMENTS, connection=session)
        client.publish("orders", **ARGUMENTS, **rest, connection=session)
        client.publish_many("orders", **many, connection=session)
    async with AsyncClient(database) as own, AsyncSession(async_engine) as events, events.begin():
        await own.publish("orders", **ARGUMENTS, connection=events)
        await own.publish("orders", **ARGUMENTS, **rest, connection=events)
        await own.publish_many("orders", **many, connection=events)
    client.promote("orders")
    everything = []
    with Session(engine) as session:
        leased = client.lease("orders", "default", "w", 100, connection=session)
        everything.append([shown(message) for message in leased])
        session.rollback()
    async with AsyncClient(database) as own, AsyncSession(async_engine) as events:
        leased = await own.lease("orders", "default", "w", 100, connection=events)
        everything.append([shown(message) for message in leased])
        await events.rollback()
    leased = client.lease("orders", "default", "w", 100)
    everything.append([shown(message) for message in leased])
    assert everything[0] == everything[1] == everything[2]
    assert len(leased) == 8
    wanted = {**ARGUMENTS, "max_attempts": 7}
    delayed = [message for message in leased if message.deadline is not None]
    for message in delayed:
        assert {name: getattr(message, name) for name in wanted} == wanted
        assert abs(message.deadline - datetime.now(UTC) - timedelta(days=3)) < timedelta(minutes=5)
    assert len(delayed) == 2
    columns = zip(*(many[name] for name in ("payloads", "kinds", "keys", "headers", "bodies")), strict=True)
    found = [(m.payload, m.kind, m.key, m.headers, m.body) for m in leased]
    assert all(found.count(row) == 2 for row in columns)


def shown(message: Any) -> dict[str, Any]:
    names = (
        "id",
        "kind",
        "key",
        "payload",
        "body",
        "headers",
        "created_at",
        "attempt",
        "deadline",
        "priority",
    )
    return {name: getattr(message, name) for name in names}


def test_every_method_works_through_psycopg(
    client: Client, engine: Engine, connection: psycopg.Connection[Any]
) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as given:
        through = Through(client, given, client)
        call_everything(through, "q", connection)
    assert len(through.called) > 40


async def test_every_method_works_through_drivers_of_event_loops(
    client: Client, database: str, async_engine: AsyncEngine, connection: psycopg.Connection[Any]
) -> None:
    async with AsyncClient(database) as own, async_engine.connect() as given:
        await given.execution_options(isolation_level="AUTOCOMMIT")
        through = Through(own, given, client, asyncio.get_running_loop())
        await asyncio.to_thread(call_everything, through, "q", connection)
    assert len(through.called) > 40


def test_where_each_statement_commits_many_messages_are_all_or_none(client: Client, engine: Engine) -> None:
    many = [*range(2 * PART), RawJson("{")]
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as given:
        with pytest.raises(InvalidArgument, match="json"):
            client.publish_many("orders", many, connection=given)
        assert payloads(client) == []
        client.publish_many("orders", many[:-1], connection=given)
    assert payloads(client) == many[:-1]


def refusals(client: Any) -> list[tuple[type[Exception], str, dict[str, Any]]]:
    """Errors that the database raises: their class, SQLSTATE, and what to publish for them."""
    return [
        (QueueNotFound, "42883", {"queue": "nowhere", "payload": 1}),
        (QueueClosed, "TQ018", {"queue": "closed", "payload": 1}),
        (InvalidArgument, "22P02", {"queue": "orders", "payload": RawJson("{")}),
        (MessageTooLarge, "TQ006", {"queue": "orders", "payload": "x" * 17_000_000}),
    ]


def test_what_the_database_refuses_is_raised_as_ours_and_the_session_goes_on(
    client: Client, engine: Engine
) -> None:
    client.create_queue("closed")
    client.close_queue("closed")
    with Session(engine) as session:
        for error, sqlstate, arguments in refusals(client):
            with pytest.raises(error) as caught:
                client.publish(**arguments, connection=session)
            assert isinstance(caught.value.__cause__, DBAPIError)
            assert caught.value.__cause__.orig.sqlstate == sqlstate
            session.rollback()
            with pytest.raises(error), session.begin_nested():
                client.publish(**arguments, connection=session)
            client.publish("orders", sqlstate, connection=session)
            session.commit()
    assert payloads(client) == sorted(sqlstate for _, sqlstate, _ in refusals(client))


async def test_what_the_database_refuses_is_raised_as_ours_in_event_loops(
    client: Client, database: str, async_engine: AsyncEngine
) -> None:
    client.create_queue("closed")
    client.close_queue("closed")
    async with AsyncClient(database) as own, AsyncSession(async_engine) as session:
        for error, sqlstate, arguments in refusals(client):
            with pytest.raises(error) as caught:
                await own.publish(**arguments, connection=session)
            assert isinstance(caught.value.__cause__, DBAPIError)
            assert caught.value.__cause__.orig.sqlstate == sqlstate
            if error is QueueClosed:
                assert str(caught.value).startswith('queue "closed" is closed')
                assert caught.value.hint
            await session.rollback()
            await own.publish("orders", sqlstate, connection=session)
            await session.commit()
    assert payloads(client) == sorted(sqlstate for _, sqlstate, _ in refusals(client))


def test_an_error_that_is_none_of_ours_stays_the_librarys(client: Client, engine: Engine) -> None:
    with Session(engine) as session:
        with pytest.raises(DBAPIError):
            session.execute(text("select 1/0"))
        with pytest.raises(DBAPIError, match="aborted"):
            client.publish("orders", 1, connection=session)


def test_an_answer_joins_the_transaction_and_is_refused_when_the_lease_is_lost(
    client: Client, engine: Engine
) -> None:
    client.publish_many("orders", [1, 2])
    messages = client.lease("orders", "default", "w", 2)
    with Session(engine) as session:
        assert client.ack(messages[0], result={"r": 1}, connection=session) == 1
        session.rollback()
        assert client.retry(messages, error="e", delays=[100, 100.5], connection=session) == 2
        session.commit()
    assert {(m.state, m.error) for m in client.list_messages("orders")} == {("retrying", "e")}
    client.publish("orders", 3)
    (late,) = client.lease("orders", "default", "w", lease_time=0.001)
    wait_until(lambda: client.reap("orders") == 1)
    with Session(engine) as session, pytest.raises(LeaseLost):
        client.ack(late, connection=session)


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_a_session_of_the_other_colour_and_an_engine_are_refused_with_the_way(
    database: str, engine: Engine, async_engine: AsyncEngine, colour: str
) -> None:
    given: Any
    if colour == "sync":
        for given, way in (
            (AsyncSession(async_engine), "this one with AsyncClient"),
            (async_engine.connect(), "this one with AsyncClient"),
            (engine, r"engine\.connect\(\)"),
        ):
            with pytest.raises(InvalidArgument, match=way):
                Client(database).publish("orders", 1, connection=given)
    else:
        for given, way in (
            (Session(engine), "this one with Client"),
            (async_engine, r"engine\.connect\(\)"),
        ):
            with pytest.raises(InvalidArgument, match=way):
                await AsyncClient(database).publish("orders", 1, connection=given)


def test_a_database_that_is_no_postgres_is_refused(database: str) -> None:
    with Session(create_engine("sqlite://")) as session, pytest.raises(InvalidArgument, match="to sqlite"):
        Client(database).publish("orders", 1, connection=session)


def test_copy_takes_the_psycopg_connection_below(client: Client, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        with (
            pytest.raises(InvalidArgument, match=r"connection\(\)\.connection\.driver_connection"),
            client.copy("orders", connection=session),  # type: ignore[arg-type]
        ):
            pass
        below: Any = session.connection().connection.driver_connection
        with client.copy("orders", connection=below) as orders:
            orders.write(1)
    assert payloads(client) == [1]
