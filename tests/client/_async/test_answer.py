"""Leases and their answers through the client."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from conftest import AsyncConnect
from trunq import AsyncClient, LeaseLost, Message, MessageNotFound, WrongIsolation, WrongMode
from waiting import async_wait_until


async def lease(client: AsyncClient, max_messages: int = 10, **options: Any) -> list[Message]:
    return await client.lease("orders", "default", "w1", max_messages, **options)


async def prepared(client: AsyncClient, count: int = 3, **policy: Any) -> list[Message]:
    """A queue with so many messages, all leased; the policy of its subscription changed."""
    await client.create_queue("orders")
    if policy:
        assert not await client.subscribe("orders", "default", **policy)
    await client.publish_many("orders", list(range(count)), kinds="new")
    messages = await lease(client)
    assert [message.payload for message in messages] == list(range(count))
    return messages


async def states(client: AsyncClient) -> list[str]:
    return sorted(message.state for message in await client.list_messages("orders"))


async def test_a_lease_holds_its_messages_and_tells_them_apart_by_its_token(database: str) -> None:
    async with AsyncClient(database) as client:
        first = await prepared(client)
        assert len({(message.lease_id, message.token, message.expires_at) for message in first}) == 1
        assert await lease(client) == []
        await client.publish("orders", 3)
        (other,) = await lease(client)
        assert other.token != first[0].token
        assert "3" not in repr(first[0])
        assert repr(other) == f"<Message {other.id} of orders/default kind=None key=None attempt=1>"


async def test_a_lease_takes_no_more_than_asked(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish_many("orders", ["x" * 1000] * 10)
        assert len(await lease(client, 1)) == 1
        assert len(await lease(client, 4)) == 4
        assert 0 < len(await lease(client, 10, max_bytes=2500)) < 5


async def test_each_answer_has_its_outcome(database: str) -> None:
    async with AsyncClient(database) as client:
        one, two, three, four = await prepared(client, 4)
        hold = ("orders", "default", one.lease_id, one.token)
        assert await client.ack(*hold, [one.id], [{"made": 1}], [0.25]) == 1
        assert await client.retry(*hold, [two.id], ["later"], [timedelta(hours=1)], [None]) == 1
        assert await client.reject(*hold, [three.id], "never") == 1
        assert await client.release(*hold, [four.id]) == 1
        assert await states(client) == ["dead", "done", "ready", "retrying"]
        (done,) = await client.show_message("orders", one.id)
        assert (done.state, done.result, done.error) == ("done", {"made": 1}, None)
        assert done.attempts[0]["took"] == pytest.approx(0.25)
        (retrying,) = await client.show_message("orders", two.id)
        assert retrying.state == "retrying"
        assert retrying.due_at is not None
        assert retrying.due_at - await client.clock() > timedelta(minutes=50)
        (dead,) = await client.show_message("orders", three.id)
        assert (dead.state, dead.error) == ("dead", "never")


async def test_an_answer_given_twice_counts_once(database: str) -> None:
    async with AsyncClient(database) as client:
        one, two, _ = await prepared(client)
        hold = ("orders", "default", one.lease_id, one.token)
        assert await client.ack(*hold, [one.id, two.id]) == 2
        assert await client.ack(*hold, [one.id, two.id]) == 0
        assert await client.reject(*hold, [one.id]) == 0
        assert await states(client) == ["done", "done", "leased"]


async def test_an_answer_under_another_token_or_for_another_message_is_refused(database: str) -> None:
    async with AsyncClient(database) as client:
        one, *_ = await prepared(client)
        with pytest.raises(LeaseLost):
            await client.ack("orders", "default", one.lease_id, one.token + 1, [one.id])
        with pytest.raises(MessageNotFound):
            await client.ack("orders", "default", one.lease_id, one.token, [one.id + 1000])
        assert await states(client) == ["leased"] * 3


async def test_an_ack_joins_the_transaction_of_its_effects(
    database: str, async_connect: AsyncConnect
) -> None:
    async with AsyncClient(database) as client:
        one, *_ = await prepared(client)
        hold = ("orders", "default", one.lease_id, one.token)
        connection = await async_connect(autocommit=False)
        await connection.execute("create table effect (n int)")
        await client.ack(*hold, [one.id], connection=connection)
        await connection.rollback()
        assert await states(client) == ["leased"] * 3
        await connection.execute("create table effect (n int)")
        await client.ack(*hold, [one.id], connection=connection)
        await connection.commit()
        assert await states(client) == ["done", "leased", "leased"]


async def test_a_lease_can_be_made_longer_or_shorter(database: str, async_connect: AsyncConnect) -> None:
    async with AsyncClient(database) as client:
        one, *_ = await prepared(client)
        hold = ("orders", "default", one.lease_id, one.token)
        later = await client.extend(*hold, timedelta(hours=1))
        assert later - one.expires_at > timedelta(minutes=50)
        assert await client.extend(*hold, 0.001) < one.expires_at

        async def is_reaped() -> bool:
            return await client.reap("orders") > 0

        await async_wait_until(is_reaped)
        with pytest.raises(LeaseLost):
            await client.extend(*hold)


async def test_attempts_are_counted_until_the_message_is_dead(database: str) -> None:
    async with AsyncClient(database) as client:
        await prepared(client, 0, max_attempts=2, backoff_base=0, jitter=0)
        message_id = await client.publish("orders", 1)
        (first,) = await lease(client)
        assert (first.attempt, first.max_attempts, first.is_last_attempt) == (1, 2, False)
        await client.retry("orders", "default", first.lease_id, first.token, [first.id], ["first"])
        await client.promote("orders")
        (second,) = await lease(client)
        assert (second.id, second.attempt, second.is_last_attempt) == (message_id, 2, True)
        await client.retry("orders", "default", second.lease_id, second.token, [second.id], ["second"])
        (dead,) = await client.list_dead("orders")
        assert (dead.id, dead.reason, dead.attempts, dead.payload) == (message_id, "max_attempts", 2, 1)
        assert [error["error"] for error in dead.errors] == ["first", "second"]


async def test_dead_messages_are_requeued_or_purged(database: str) -> None:
    async with AsyncClient(database) as client:
        one, two, three = await prepared(client)
        await client.reject("orders", "default", one.lease_id, one.token, [one.id, two.id, three.id], "no")
        assert [dead.id for dead in await client.list_dead("orders", limit=2)] == [three.id, two.id]
        page = await client.list_dead(
            "orders", "default", before=(await client.list_dead("orders"))[0].dead_id
        )
        assert [dead.id for dead in page] == [two.id, one.id]
        assert await client.purge("orders", ids=[one.id]) == 1
        assert await client.purge("orders", older_than=3600) == 0
        assert await client.requeue("orders", "default", [two.id]) == 1
        assert [(m.id, m.attempt) for m in await lease(client)] == [(two.id, 1)]
        assert await client.requeue("orders") == 1
        assert await client.list_dead("orders") == []


async def test_a_worker_that_starts_again_gets_its_messages_back(database: str) -> None:
    async with AsyncClient(database) as client:
        await prepared(client)
        assert await client.reclaim("orders", "default", "another") == 0
        assert await client.reclaim("orders", "default", "w1") == 1
        assert [(m.payload, m.attempt) for m in await lease(client)] == [(0, 2), (1, 2), (2, 2)]


async def test_a_lease_above_read_committed_is_refused(database: str, async_connect: AsyncConnect) -> None:
    async with AsyncClient(database) as client:
        await prepared(client)
        connection = await async_connect(autocommit=False)
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        with pytest.raises(WrongIsolation, match="READ COMMITTED"):
            await lease(client, connection=connection)


async def test_shared_subscriptions_have_no_batches_and_exclusive_ones_no_leases(
    database: str,
) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.subscribe("orders", "stream", mode="exclusive")
        with pytest.raises(WrongMode):
            await client.next_batch("orders", "default", "w")
        with pytest.raises(WrongMode):
            await client.lease("orders", "stream", "w")


async def test_the_bell_goes_from_sleeper_to_sleeper(database: str, async_connect: AsyncConnect) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        first, second = await async_connect(), await async_connect()
        channel = await client.queue_channel("orders")
        await first.execute(f"listen {channel}")
        assert await client.take_bell("orders", connection=first) == "held"
        assert await client.take_bell("orders", connection=second) == "sleeper"
        await client.publish("orders", 1)
        assert [notice.payload async for notice in first.notifies(timeout=10, stop_after=1)] == ["m"]
        assert await client.give_bell("orders", connection=first)
        assert not await client.give_bell("orders", connection=first)
        assert await client.take_bell("orders", connection=second) == "held"
