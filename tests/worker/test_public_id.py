"""A worker that asks for public ids: message.public_id in each handler."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from trunq import Client, Message, Worker


@pytest.mark.parametrize("sort", ["async", "sync"])
def test_a_handler_knows_the_public_id_of_its_message(
    database: str, connection: psycopg.Connection[Any], sort: str
) -> None:
    seen: dict[int, Any] = {}
    worker = Worker("orders", dsn=database, public_ids=True, until_empty=True)
    if sort == "async":

        @worker.handler("*")
        async def handle(message: Message) -> None:
            seen[message.id] = message.public_id

    else:

        @worker.handler("*")
        def handle_sync(message: Message) -> None:
            seen[message.id] = message.public_id

    with Client(database) as client:
        client.create_queue("orders")
        ids = client.publish_many("orders", list(range(5)))
        worker.run()
        assert seen == {id: client.public_id("orders", id) for id in ids}
