"""After an outage of the server, clients are back soon, however long it was."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from copying import copied_server
from trunq import AsyncClient, Client
from trunq.embedded import Embedded
from waiting import async_wait_until, wait_until

TRIES = 8
"""More than one connection makes in PATIENCE seconds, if it doubles its pause after each."""
PATIENCE = 60.0
SOON = 5.0


@pytest.fixture(scope="module")
def own_server() -> Iterator[Embedded]:
    """A server that may go away."""
    with copied_server(settings={"fsync": "off"}) as server:
        yield server


def test_a_client_is_back_within_five_seconds(own_server: Embedded, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, "psycopg.pool"),
        Client(own_server.dsn, max_connections=1, timeout=SOON) as client,
    ):
        client.create_queue("orders")
        own_server.kill()
        with pytest.raises(psycopg.OperationalError):
            client.publish("orders", 1)
        wait_until(lambda: caplog.text.count("error connecting") >= TRIES, PATIENCE)
        own_server.restart()
        assert client.publish("orders", 2)


async def test_an_async_client_is_back_within_five_seconds(
    own_server: Embedded, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "psycopg.pool"):
        async with AsyncClient(make_conninfo(own_server.dsn), max_connections=1, timeout=SOON) as client:
            await client.create_queue("more")
            await asyncio.to_thread(own_server.kill)
            with pytest.raises(psycopg.OperationalError):
                await client.publish("more", 1)
            await async_wait_until(lambda: caplog.text.count("error connecting") >= TRIES, PATIENCE)
            await asyncio.to_thread(own_server.restart)
            assert await client.publish("more", 2)
