"""Leases through the client."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from client._async.orders import lease, prepared
from conftest import AsyncConnect
from trunq import (
    AsyncClient,
    InvalidArgument,
    LeaseLost,
    WrongIsolation,
)
from waiting import async_wait_until


async def test_a_number_given_as_true_is_named(database: str) -> None:
    async with AsyncClient(database) as client:
        with pytest.raises(InvalidArgument, match="max_attempts is nothing that is true or false"):
            await client.subscribe("orders", "audit", max_attempts=True)
        with pytest.raises(InvalidArgument, match="max_messages is nothing that is true or false"):
            await client.lease("orders", "default", "w", True)


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


async def test_a_lease_asks_for_a_part_and_others_get_the_rest(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish_many("orders", [1, 2, 3], kinds=["fax", "mail", "fax"])
        names = ("orders", "default", "w", 10)
        assert [message.payload for message in await client.lease(*names, asks={"kinds": ["mail"]})] == [2]
        assert [message.payload for message in await client.lease(*names, asks={"not_kinds": ["mail"]})] == [
            1,
            3,
        ]
        with pytest.raises(InvalidArgument, match='has no "kind"'):
            await client.lease(*names, asks={"kind": "mail"})


async def test_a_lease_can_be_made_longer_or_shorter(database: str, async_connect: AsyncConnect) -> None:
    async with AsyncClient(database) as client:
        one, *_ = await prepared(client)
        hold = ("orders", "default", one.lease_id, one.token)
        later = await client.extend(*hold, timedelta(hours=1))
        assert later.expires_at - one.expires_at > timedelta(minutes=50)
        assert (await client.extend(*hold, 0.001)).expires_at < one.expires_at

        async def is_reaped() -> bool:
            return await client.reap("orders") > 0

        await async_wait_until(is_reaped)
        with pytest.raises(LeaseLost):
            await client.extend(*hold)


async def test_a_worker_that_starts_again_gets_its_messages_back(database: str) -> None:
    async with AsyncClient(database) as client:
        await prepared(client)
        assert await client.reclaim("orders", "default", "another") == 0
        assert await client.reclaim("orders", "default", "w1") == 1
        # What ran out together comes back scattered over some seconds.
        found = await client.list_messages("orders")
        assert [(m.payload, m.state, m.attempt) for m in found] == [
            (number, "retrying", 2) for number in (2, 1, 0)
        ]


async def test_a_lease_above_read_committed_is_refused(database: str, async_connect: AsyncConnect) -> None:
    async with AsyncClient(database) as client:
        await prepared(client)
        connection = await async_connect(autocommit=False)
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        with pytest.raises(WrongIsolation, match="READ COMMITTED"):
            await lease(client, connection=connection)


async def test_a_message_knows_the_lease_to_extend(database: str) -> None:
    async with AsyncClient(database) as client:
        one, two, _ = await prepared(client)
        before = one.expires_at
        later, _ = await client.extend(one, lease_time=timedelta(hours=1))
        assert later - before > timedelta(minutes=50)
        assert (one.expires_at, two.expires_at) == (later, before)
        sooner, _ = await client.extend([one, two], lease_time=60)
        assert one.expires_at == two.expires_at == sooner < later


async def test_a_message_knows_its_deadline_and_its_own_attempts(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish("orders", 1, options={"max_attempts": 1}, max_age=3600)
        await client.publish("orders", 2)
        limited, plain = await lease(client)
        assert limited.deadline is not None
        assert timedelta(minutes=59) < limited.deadline - await client.clock() <= timedelta(hours=1)
        assert limited.is_last_attempt
        assert (plain.deadline, plain.is_last_attempt) == (None, False)
        await client.release([limited, plain])
        await client.subscribe("orders", "default", max_attempts=0)
        limited, for_ever = await lease(client)
        assert limited.is_last_attempt
        assert (for_ever.max_attempts, for_ever.is_last_attempt) == (0, False)


async def test_messages_are_leased_by_their_ids_and_the_others_are_told(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        first, second = await client.publish_many("orders", [1, 2], kind="new")
        later = await client.publish("orders", 3, delay=timedelta(hours=1))
        messages, others = await client.lease_ids("orders", "default", "w1", [second, later, later + 1000])
        assert [(message.id, message.payload, message.kind) for message in messages] == [(second, 2, "new")]
        assert [(each.id, each.state) for each in others] == [(later, "scheduled"), (later + 1000, None)]
        assert others[0].due_at is not None
        assert others[0].expires_at is None
        assert await client.extend(messages)
        messages_of_another, (taken,) = await client.lease_ids("orders", "default", "w2", second)
        assert messages_of_another == []
        assert (taken.state, taken.reason, taken.worker) == ("leased", None, "w1")
        assert taken.expires_at is not None
        assert await client.ack(messages[0]) == 1
        assert [message.id for message in await lease(client)] == [first]
