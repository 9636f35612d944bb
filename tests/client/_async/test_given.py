"""What callers give: connections that are none, arguments that could not be sent, or that would be lost."""

from __future__ import annotations

from datetime import date
from enum import Enum
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool

from client._async.orders import lease, prepared
from conftest import AsyncConnect
from trunq import AsyncClient, InvalidArgument, RawJson, Reject, Retry

ID = UUID("12345678-1234-5678-1234-567812345678")
HALF = "a\ud800"
"""Half a surrogate pair: a str that is no text."""


class Kind(str, Enum):  # noqa: UP042  # its str() is its name, unlike that of a StrEnum
    """Text that is an Enum as well."""

    NEW = "new"


class Kinds(Enum):
    """A value that is a member of another Enum."""

    FIRST = Kind.NEW
    NUMBER = 7


async def refused(client: AsyncClient, given: Any, way: str) -> None:
    """Every way into the database refuses it, in the same words."""
    said = rf"connection= takes a psycopg\.\w+, not a (?!builtins).*\nHINT: .*{way}"
    with pytest.raises(InvalidArgument, match=said):
        await client.publish("orders", 1, connection=given)
    with pytest.raises(InvalidArgument, match=way):
        await client.list_queues(connection=given)
    for count in (1, 501, 1001):
        with pytest.raises(InvalidArgument, match=way):
            await client.publish_many("orders", range(count), delay=count % 2, connection=given)
        with pytest.raises(InvalidArgument, match=way):
            await client.publish_many("orders", range(count), connection=given)
    with pytest.raises(InvalidArgument, match=way):
        async with client.copy("orders", connection=given) as orders:
            await orders.write(1)


async def test_what_leads_to_a_connection_is_refused_with_the_way_to_it(
    database: str, async_connect: AsyncConnect
) -> None:
    client = AsyncClient(database)
    connection = await async_connect()
    await refused(client, connection.cursor(), r"cursor\.connection")
    await refused(client, AsyncConnectionPool(database, open=False), r"pool\.connection\(\)")
    await refused(client, database, r"Client\(address\)")
    await refused(client, object(), r"docs/client/frameworks\.md")


async def test_a_database_that_is_neither_address_nor_pool_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"an address or a psycopg \w+, not int"):
        AsyncClient(5)  # type: ignore[arg-type]


async def test_kinds_and_keys_may_be_numbers_and_uuids_and_enums(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        for kind, key in ((Kind.NEW, 7), (Kinds.FIRST, ID), (Kinds.NUMBER, Kind.NEW)):
            await client.publish("orders", 1, kind=kind, key=key)
            await client.publish_many("orders", [1], kinds=[kind], keys=[key])
            await client.publish_many("orders", [1] * 501, kind=kind, key=key)
            async with client.copy("orders") as orders:
                await orders.write(1, kind=kind, key=key)
        found = {(message.kind, message.key) for message in await lease(client, 2000)}
        assert found == {("new", "7"), ("new", str(ID)), ("7", "new")}


@pytest.mark.parametrize("times", [1, 300])
async def test_one_kind_and_key_stand_for_those_that_have_none(database: str, times: int) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish_many("orders", [1, 2] * times, kinds=["own", None] * times, kind="all", key=5)
        found = [(m.payload, m.kind, m.key) for m in await lease(client, 2000)]
        assert found == [(1, "own", "5"), (2, "all", "5")] * times


async def test_a_queue_may_be_named_by_an_enum(database: str) -> None:
    class Queue(str, Enum):  # noqa: UP042  # see Kind
        ORDERS = "orders"

    async with AsyncClient(database) as client:
        await client.create_queue(Queue.ORDERS)
        await client.publish(Queue.ORDERS, 1)
        async with client.copy(Queue.ORDERS) as orders:
            await orders.write(2)
        assert [message.payload for message in await lease(client)] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "trouble"),
    [
        ({"key": HALF}, "key.* has half a surrogate pair at 1"),
        ({"kind": HALF}, "kind.* has half a surrogate pair at 1"),
        ({"key": "a\0"}, "key.* has a NUL character at 1"),
        ({"key": 1.5}, r"key.* is text, not float"),
        ({"kind": True}, r"kind.* is text, not bool"),
        ({"key": [1]}, r"key.* is text, not list"),
        ({"payload": RawJson(b'"\xff"')}, "payload.* is RawJson that is not UTF-8"),
        ({"payload": RawJson(HALF)}, "payload.* is RawJson that is not UTF-8"),
        ({"headers": RawJson(b"\xff")}, "headers.* is RawJson that is not UTF-8"),
        ({"headers": [1]}, "headers.* is an object, not "),
        ({"headers": 5}, "headers.* is an object, not int"),
        ({"headers": "h"}, "headers.* is an object, not str"),
        ({"headers": RawJson("[]")}, "headers.* is an object, not RawJson"),
        ({"body": "text"}, r"bod.* is bytes, not str"),
    ],
)
async def test_what_cannot_be_sent_is_refused_by_its_name(
    database: str, arguments: dict[str, Any], trouble: str
) -> None:
    client = AsyncClient("host=/nonexistent")
    with pytest.raises(InvalidArgument, match=trouble):
        await client.publish("orders", **{"payload": 1, **arguments})
    if arguments != {"headers": [1]}:
        many = {f"{name.removesuffix('s')}s": [None, value] for name, value in arguments.items()}
        if "bodys" in many:
            many["bodies"] = many.pop("bodys")
        with pytest.raises(InvalidArgument, match=trouble):
            await client.publish_many("orders", **{"payloads": [1, 2], **many})
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        with pytest.raises(InvalidArgument, match=trouble):
            async with client.copy("orders") as orders:
                await orders.write(**{"payload": 1, **arguments})


def test_raw_json_is_text() -> None:
    with pytest.raises(InvalidArgument, match="RawJson is JSON text, not dict"):
        RawJson({"a": 1})  # type: ignore[arg-type]


async def test_a_message_with_nothing_in_it_is_refused() -> None:
    client = AsyncClient("host=/nonexistent")
    with pytest.raises(InvalidArgument, match="neither a payload nor a kind"):
        await client.publish("orders")


async def test_a_kind_alone_is_a_message(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish("orders", kind="wake_up")
        await client.publish("orders", False)
        assert [(m.kind, m.payload) for m in await lease(client)] == [("wake_up", None), (None, False)]


@pytest.mark.parametrize("due_at", ["2030-01-01T08:00Z", date(2030, 1, 1), 1_900_000_000])
async def test_a_due_time_that_is_no_datetime_is_refused(due_at: Any) -> None:
    client = AsyncClient("host=/nonexistent")
    for publish in (client.publish, client.publish_many):
        arguments: Any = ("orders", [1])
        with pytest.raises(InvalidArgument, match=r"due_at is a datetime with a time zone, not \w+\nHINT: "):
            await publish(*arguments, due_at=due_at)


async def test_the_advice_for_a_time_of_another_argument_speaks_of_no_delay() -> None:
    client = AsyncClient("host=/nonexistent")
    with pytest.raises(InvalidArgument, match=r"until is a datetime with a time zone, not int") as error:
        await client.pause_queue("orders", until=60)  # type: ignore[arg-type]
    assert "delay" not in str(error.value)


async def test_a_negative_length_of_time_is_shown_as_it_was_given(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        with pytest.raises(InvalidArgument, match=r"max_age must be positive .*, not -00:00:01"):
            await client.publish("orders", 1, max_age=-1)


async def test_two_arguments_that_say_the_same_are_refused(database: str) -> None:
    async with AsyncClient(database) as client:
        messages: Any = await prepared(client)
        for answer, both in (
            (client.ack, {"result": 1, "results": [1, 2, 3]}),
            (client.retry, {"after": 1, "delays": [1, 2, 3]}),
            (client.retry, {"error": "a", "errors": ["b"]}),
        ):
            method: Any = answer
            with pytest.raises(InvalidArgument, match=f"{' and '.join(both)} are both given"):
                await method(messages, **both)
        reject: Any = client.reject
        with pytest.raises(InvalidArgument, match="reason and errors are both given"):
            await reject(messages, "why", errors="why not")
        assert await reject(messages, errors=["a", "b", None]) == 3
        dead = [each.errors[-1]["error"] for each in await client.list_dead("orders")]
        assert sorted(dead, key=str) == sorted(["a", "b", None], key=str)


async def test_what_a_block_of_copy_raises_leaves_it_untouched(
    database: str, async_connect: AsyncConnect
) -> None:
    other = await async_connect()
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        for statement, error in (
            ("select 'x'::int", psycopg.DataError),
            ("select * from trunq.nothing", psycopg.errors.UndefinedTable),
            ("select trunq.publish('nowhere', '1')", psycopg.Error),
        ):
            with pytest.raises(error) as caught:
                async with client.copy("orders") as orders:
                    await orders.write(1)
                    await other.execute(statement)
            assert caught.value.__cause__ is None
        assert await lease(client) == []


def test_answers_check_what_they_are_given() -> None:
    for after in (float("nan"), float("inf"), -1, 1e300, "soon", [], True):
        with pytest.raises(InvalidArgument, match="after"):
            Retry(after=after)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="error is text, not ValueError"):
        Retry(error=ValueError())  # type: ignore[arg-type]
    for detail in (None, 5, ValueError()):
        with pytest.raises(InvalidArgument, match="detail is text"):
            Reject(detail)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="public is text, not int"):
        Reject("internal", public=5)  # type: ignore[arg-type]
    assert (Retry(5), Reject("a", "b")) == (Retry(after=5), Reject(detail="a", public="b"))
    assert Retry(5) != Retry(6)
