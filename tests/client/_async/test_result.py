"""Awaiting results through the client, and memos."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from trunq import (
    AsyncClient,
    InvalidArgument,
    MemoTooLarge,
    MessageFailed,
    MessageNotFound,
    MessageTooLarge,
    QueueNotFound,
    ResultTimeout,
    SubscriptionNotFound,
    WrongIsolation,
)


async def handle(client: AsyncClient, result: Any = None) -> None:
    """Ack the next message, as a worker would."""
    (message,) = await client.lease("orders", "default", "w1")
    await client.ack(message, result=result)


async def test_a_result_that_is_there_comes_at_once_to_all_who_ask(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        id = await client.publish("orders", {"order": 1}, awaited=True)
        assert await client.list_replies("orders", [id]) == []
        await handle(client, {"total": 7, "parts": [1.5, None]})
        for _ in range(2):
            assert await client.result("orders", id) == {"total": 7, "parts": [1.5, None]}
        (reply,) = await client.list_replies("orders", [id])
        assert (reply.id, reply.outcome, reply.error) == (id, "success", None)
        assert reply.expires_at - reply.replied_at == timedelta(hours=1)


async def test_publish_many_and_unique_keys_are_awaited_too(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders", unique="refuse")
        ids = await client.publish_many("orders", [1, 2], awaited=timedelta(hours=2), options={"time_out": 9})
        published = await client.publish_unique("orders", 3, "key", awaited=90)
        (many,) = await client.publish_many_unique("orders", [4], unique_keys=["other"], awaited=True)
        for n in range(4):
            await handle(client, n)
        assert [await client.result("orders", id) for id in ids] == [0, 1]
        assert await client.result("orders", published) == 2
        assert await client.result("orders", many) == 3
        kept = [
            (reply.expires_at - reply.replied_at).total_seconds()
            for reply in await client.list_replies("orders", [*ids, published.id, many.id])
        ]
        assert kept == [7200, 7200, 90, 3600]


async def test_what_does_not_succeed_is_an_error_that_says_why(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        id = await client.publish("orders", 1, awaited=True)
        (message,) = await client.lease("orders", "default", "w1")
        error = await client.add_reference("the shop is closed", "Come again tomorrow")
        await client.reject(message, error)
        with pytest.raises(MessageFailed, match="was rejected: the shop is closed") as caught:
            await client.result("orders", id)
        assert (caught.value.outcome, caught.value.error) == ("rejected", "the shop is closed")
        assert caught.value.public == "Come again tomorrow"
        assert [row.id for row in await client.find_reference(caught.value.reference or "")] == [id]
        copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
        assert (str(copy), vars(copy)) == (str(caught.value), vars(caught.value))
        id = await client.publish("orders", 2, awaited=True)
        await client.cancel("orders", id)
        assert await client.lease("orders", "default", "w1") == []
        with pytest.raises(MessageFailed, match="was cancelled") as caught:
            await client.result("orders", id)
        assert (caught.value.outcome, caught.value.error) == ("cancelled", None)


async def test_a_result_that_is_too_large_is_refused_with_a_sentence(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        id = await client.publish("orders", 1, awaited=True)
        await handle(client, "x" * 1_100_000)
        with pytest.raises(MessageTooLarge, match="succeeded, but the result is too large"):
            await client.result("orders", id)


async def test_a_result_that_is_late_leaves_the_message_alone(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        id = await client.publish("orders", 1, awaited=True)
        with pytest.raises(ResultTimeout, match=r"within 0\.1 s") as caught:
            await client.result("orders", id, timeout=0.1)
        assert isinstance(caught.value, TimeoutError)
        async with client.transaction() as connection:
            with pytest.raises(ResultTimeout):
                await client.result("orders", id, timeout=timedelta(0), connection=connection)
        await handle(client, "late")
        assert await client.result("orders", id, timeout=10) == "late"


async def test_who_would_wait_for_ever_is_refused(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        id = await client.publish("orders", 1)
        with pytest.raises(InvalidArgument, match="not published as awaited"):
            await client.result("orders", id)
        with pytest.raises(MessageNotFound, match="no message 999"):
            await client.result("orders", 999)
        with pytest.raises(SubscriptionNotFound):
            await client.result("orders", id, subscription="nobody")
        with pytest.raises(QueueNotFound):
            await client.result("nothing", id)
        with pytest.raises(TypeError):
            await client.result("orders", "42")  # type: ignore[arg-type]
        id = await client.publish("orders", 1, awaited=True)
        await client.drop_queue("orders", force=True)
        with pytest.raises(QueueNotFound):
            await client.result("orders", id)


async def test_nobody_waits_for_a_message_that_is_not_committed(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        async with client.transaction() as connection:
            id = await client.publish("orders", 1, awaited=True, connection=connection)
            with pytest.raises(MessageNotFound, match="has committed"):
                await client.result("orders", id)
            with pytest.raises(InvalidArgument, match="commit first"):
                async with connection.transaction():
                    await client.result("orders", id, connection=connection)
        await handle(client, "now")
        assert await client.result("orders", id) == "now"


async def test_a_connection_of_the_caller_asks_again_and_again(database: str) -> None:
    async with (
        AsyncClient(database) as client,
        await client.connect() as own,
        await psycopg.AsyncConnection.connect(database) as frozen,
    ):
        await client.create_queue("orders")
        id = await client.publish("orders", 1, awaited=True)
        with pytest.raises(ResultTimeout):
            await client.result("orders", id, timeout=0.2, connection=own)
        await handle(client, [])
        assert await client.result("orders", id, connection=own) == []
        # In a transaction of this level no reply would ever come.
        await frozen.execute("set transaction isolation level repeatable read")
        with pytest.raises(WrongIsolation):
            await client.result("orders", id, connection=frozen)


async def test_a_memo_is_kept_changed_and_deleted(database: str) -> None:
    async with AsyncClient(database) as client:
        assert await client.get_memo("acme", "cursor") is None
        first = await client.set_memo("acme", "cursor", {"page": 1}, expected=0)
        assert first is not None
        assert await client.set_memo("acme", "cursor", {"page": 9}, expected=0) is None
        second = await client.set_memo("acme", "cursor", {"page": 2}, expected=first)
        assert await client.set_memo("acme", "cursor", {"page": 3}, expected=first) is None
        memo = await client.get_memo("acme", "cursor")
        assert memo is not None
        assert (memo.scope, memo.name, memo.value, memo.version) == ("acme", "cursor", {"page": 2}, second)
        assert memo.expires_at is None
        await client.set_memo("acme", "none", None, expires=60)
        await client.set_memo("zoo", "other", 1)
        listed = await client.list_memos("acme")
        assert [(each.name, each.value) for each in listed] == [("cursor", {"page": 2}), ("none", None)]
        assert [each.name for each in await client.list_memos(prefix="o")] == ["other"]
        following = await client.list_memos(limit=1, after_scope="acme", after="cursor")
        assert [each.name for each in following] == ["none"]
        assert not await client.delete_memo("acme", "cursor", expected=first)
        assert await client.delete_memo("acme", "cursor", expected=second)
        assert not await client.delete_memo("acme", "cursor")
        assert await client.forget_memos() == 0


async def test_a_memo_that_is_too_large_or_has_no_name_is_refused(database: str) -> None:
    async with AsyncClient(database) as client:
        with pytest.raises(MemoTooLarge, match="at most 65536"):
            await client.set_memo("acme", "big", "x" * 65_536)
        with pytest.raises(InvalidArgument, match="scope and a name"):
            await client.set_memo("acme", "", 1)
        with pytest.raises(InvalidArgument):
            await client.get_memo("acme", "n" * 201)
