"""References, and what users may see, through the client."""

from __future__ import annotations

import pytest

from client._async.orders import prepared
from trunq import AsyncClient, InvalidArgument, MessageNotFound
from trunq.record import PublicState


async def test_an_answer_of_ones_own_has_a_reference_and_a_public_text(database: str) -> None:
    async with AsyncClient(database) as client:
        (message,) = await prepared(client, 1)
        text = await client.add_reference("internal", public="Two\nlines")
        assert await client.reject(message, text) == 1
        (shown,) = await client.show_public("orders", message.id)
        assert shown == PublicState("default", "dead", shown.reference, "Two\nlines")
        assert shown.reference is not None
        (found,) = await client.find_reference(shown.reference.lower())
        assert (found.queue, found.subscription, found.id, found.kind) == (
            "orders", "default", message.id, "new"
        )  # fmt: skip
        assert (found.reference, found.attempt, found.worker) == (shown.reference, 1, "w1")
        assert (found.error, found.public) == (text, "Two\nlines")
        assert await client.find_reference(shown.reference, "orders") == [found]


async def test_what_is_not_there_is_said_so(database: str) -> None:
    async with AsyncClient(database) as client:
        await prepared(client, 1)
        assert await client.find_reference("0123456789") == []
        with pytest.raises(InvalidArgument, match="is no reference"):
            await client.find_reference("nothing")
        with pytest.raises(MessageNotFound):
            await client.show_public("orders", 10**9)
