"""What other libraries, and the client of the other colour, have for a connection."""

from __future__ import annotations

import copy
import pickle

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from conftest import AsyncConnect
from trunq import AsyncClient, Client, InvalidArgument, Reject, Retry


async def test_a_connection_of_the_other_colour_is_refused_with_the_client_it_goes_with(
    database: str, connection: psycopg.Connection[object], async_connect: AsyncConnect
) -> None:
    with pytest.raises(InvalidArgument, match="this one with AsyncClient"):
        Client(database).publish("orders", 1, connection=await async_connect())  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="this one with Client"):
        await AsyncClient(database).publish("orders", 1, connection=connection)  # type: ignore[arg-type]


def way(database: str, given: object) -> str:
    """The way to a connection that a refusal names."""
    with pytest.raises(InvalidArgument, match=r"connection= takes a psycopg\.Connection, not a ") as caught:
        Client(database).publish("orders", 1, connection=given)  # type: ignore[arg-type]
    return str(caught.value.hint)


def test_sqlalchemys_objects_are_refused_with_a_way_that_leads_to_the_connection(database: str) -> None:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database))
    with Client(database) as client, Session(engine) as session:
        client.create_queue("orders")
        connection = session.connection()
        ways = [way(database, given) for given in (session, connection, connection.connection, engine)]
        assert ways == [
            "give session.connection().connection.driver_connection",
            "give connection.connection.driver_connection",
            "give its driver_connection",
            "take a connection, and give connection.connection.driver_connection",
        ]
        assert way(database, scoped_session(sessionmaker(engine))) == ways[0]
        below = session.connection().connection.driver_connection
        client.publish("orders", 1, connection=below)  # type: ignore[arg-type]
        session.commit()
        assert len(client.lease("orders", "default", "w")) == 1
    engine.dispose()


async def test_sqlalchemys_async_objects_are_refused_with_a_way_that_leads_to_the_connection(
    database: str,
) -> None:
    async def connect() -> psycopg.AsyncConnection[object]:
        return await psycopg.AsyncConnection.connect(database)

    engine = create_async_engine("postgresql+psycopg://", async_creator=connect)
    async with AsyncClient(database) as client, AsyncSession(engine) as session:
        await client.create_queue("orders")
        raw = await (await session.connection()).get_raw_connection()
        for given, below in (
            (session, "raw = await (await session.connection()).get_raw_connection()"),
            (await session.connection(), "raw = await connection.get_raw_connection()"),
            (raw, "give its driver_connection"),
        ):
            assert below in way(database, given)
        await client.publish("orders", 1, connection=raw.driver_connection)
        await session.commit()
        assert len(await client.lease("orders", "default", "w")) == 1
    await engine.dispose()


def test_djangos_connection_is_refused_with_the_way_to_the_one_below(database: str) -> None:
    from django.db import connection  # noqa: PLC0415  # asks for settings when it is used

    assert "connection.connection" in way(database, connection)


ANSWERS = [Retry(), Retry(after=5), Retry(error="e"), Reject("r"), Reject(reason="r")]


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_travels_to_another_process(answer: Retry | Reject) -> None:
    for made in (pickle.loads(pickle.dumps(answer)), copy.copy(answer)):  # noqa: S301
        assert (type(made), made, hash(made), str(made)) == (type(answer), answer, hash(answer), str(answer))
