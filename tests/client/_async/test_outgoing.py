"""What a client does to messages before they are sent: headers are injected, payloads checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel

from client._async.orders import lease
from trunq import AsyncClient, InvalidArgument, RawJson, Schedule


class Line(BaseModel):
    """A line of an order."""

    item: str
    price: float


class Order(BaseModel):
    """An order."""

    id: int
    lines: list[Line] = []


@dataclass
class Point:
    """A dataclass, which checks nothing by itself."""

    x: int
    y: int = 0


class Kind(Enum):
    PLACED = "placed"


def numbered() -> Any:
    """An injector that counts its calls."""
    numbers: Iterator[int] = iter(range(10_000))
    return lambda queue, headers: {**headers, "queue": queue, "number": next(numbers)}


async def headers_of(client: AsyncClient) -> list[Any]:
    return [message.headers for message in await lease(client, 2000)]


async def test_headers_are_injected_in_order_and_what_the_caller_says_stands(database: str) -> None:
    seen = []

    def first(queue: str, headers: dict[str, Any]) -> dict[str, Any]:
        seen.append((queue, headers))
        return {"a": 1, "b": 1, "c": 1}

    def second(queue: str, headers: dict[str, Any]) -> dict[str, Any]:
        seen.append((queue, headers))
        return {**headers, "b": 2, "c": 2}

    async with AsyncClient(database, injectors=[first, second]) as client:
        await client.create_queue("orders")
        await client.publish("orders", 1, headers={"c": 3, "d": 3})
        assert await headers_of(client) == [{"a": 1, "b": 2, "c": 3, "d": 3}]
    assert seen == [("orders", {"c": 3, "d": 3}), ("orders", {"a": 1, "b": 1, "c": 3, "d": 3})]


async def test_headers_are_injected_however_many_are_published(database: str) -> None:
    """One header for all is injected into once; a list of them, and each of a copy, by itself."""
    async with AsyncClient(database, injectors=[numbered()]) as client:
        await client.create_queue("orders")
        await client.publish_many("orders", [1, 2])
        await client.publish_many("orders", [3] * 600, headers={"own": True})
        await client.publish_many("orders", [4, 5], headers=[{"own": 1}, None])
        async with client.copy("orders") as orders:
            await orders.write(6)
            await orders.write(7, headers=RawJson('{"number": "mine"}'))
        found = await headers_of(client)
    of_queue = {"queue": "orders"}
    assert found[:2] == [{**of_queue, "number": 0}] * 2
    assert found[2:602] == [{**of_queue, "own": True, "number": 1}] * 600
    assert found[602:] == [
        {**of_queue, "own": 1, "number": 2},
        {**of_queue, "number": 3},
        {**of_queue, "number": 4},
        {**of_queue, "number": "mine"},
    ]


async def test_a_retry_injects_nothing(database: str) -> None:
    async with AsyncClient(database, injectors=[numbered()]) as client:
        await client.create_queue("orders")
        await client.publish("orders", 1)
        (message,) = await lease(client)
        await client.retry(message, after=0)
        await client.promote("orders")
        (again,) = await lease(client)
        assert again.headers == message.headers == {"queue": "orders", "number": 0}


async def test_an_injector_that_fails_fails_the_publish(database: str) -> None:
    def broken(queue: str, headers: dict[str, Any]) -> dict[str, Any]:
        raise LookupError("no context")

    def nothing(queue: str, headers: dict[str, Any]) -> Any:
        return None

    def odd(queue: str, headers: dict[str, Any]) -> dict[str, Any]:
        return {"a": object()}

    async with AsyncClient(database) as plain:
        await plain.create_queue("orders")
        for injector, error, trouble in (
            (broken, LookupError, "no context"),
            (nothing, InvalidArgument, "returned NoneType, not headers"),
            (odd, InvalidArgument, r"headers.*\['a'\] is a object"),
        ):
            async with AsyncClient(database, injectors=[injector]) as client:
                with pytest.raises(error, match=trouble):
                    await client.publish("orders", 1)
                with pytest.raises(error, match=trouble):
                    await client.publish_many("orders", [1, 2])
                with pytest.raises(error, match=trouble):
                    async with client.copy("orders") as orders:
                        await orders.write(1)
        assert await lease(plain) == []


def test_an_injector_is_a_plain_function() -> None:
    with pytest.raises(TypeError, match="an injector is a plain function"):
        AsyncClient("", injectors=[{"a": 1}])  # type: ignore[list-item]


TYPES: dict[Any, Any] = {Kind.PLACED: Order, "point": Point}


async def test_a_payload_that_fits_is_sent_as_it_is(database: str) -> None:
    async with AsyncClient(database, payload_types=TYPES) as client:
        await client.create_queue("orders")
        await client.publish("orders", {"id": 1, "more": "kept"}, kind="placed")
        await client.publish("orders", Order(id=2), kind=Kind.PLACED)
        await client.publish("orders", Point(1), kind="point")
        await client.publish("orders", RawJson('{"x": 3}'), kind="point")
        await client.publish("orders", "anything", kind="other")
        await client.publish("orders", "anything")
        await client.publish("orders", kind="placed", body=b"\x00")
        await client.publish_many("orders", [{"x": 4}, "any"], kinds=["point", None])
        assert [message.payload for message in await lease(client, 20)] == [
            {"id": 1, "more": "kept"},
            {"id": 2, "lines": []},
            {"x": 1, "y": 0},
            {"x": 3},
            "anything",
            "anything",
            None,
            {"x": 4},
            "any",
        ]


async def test_a_payload_that_does_not_fit_is_refused_with_its_first_errors(database: str) -> None:
    lines: list[Any] = [{"price": "much"}, {"item": 1, "price": 1}, 5]
    async with AsyncClient(database, payload_types=TYPES) as client:
        await client.create_queue("orders")
        with pytest.raises(InvalidArgument) as caught:
            await client.publish("orders", {"lines": lines}, kind="placed")
        assert caught.value.message == (
            "the payload of kind placed does not fit Order: id: Field required; lines.0.item: Field required;"
            " lines.0.price: Input should be a valid number, unable to parse string as a number; and 2 more"
        )
        for payload in (Point("a"), None, RawJson("{"), Point):  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument, match=r"the payload of kind point does not fit|is not JSON"):
                await client.publish("orders", payload, kind="point")
        for many in (
            {"payloads": [{"x": 1}, {}], "kind": "point"},
            {"payloads": [{}, {}], "kinds": ["other", "point"]},
            {"payloads": [1] * 600 + [{}], "kinds": ["other"] * 600 + ["point"]},
        ):
            place = len(many["payloads"]) - 1
            with pytest.raises(
                InvalidArgument, match=rf"payloads\[{place}\] of kind point does not fit Point: x"
            ):
                await client.publish_many("orders", **many)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="does not fit"):
            async with client.copy("orders") as orders:
                await orders.write({"x": 1}, kind="point")
                await orders.write({"y": 1}, kind="point")
        assert await lease(client) == []


def test_a_type_that_pydantic_cannot_check_is_refused_at_once() -> None:
    class Odd:
        pass

    with pytest.raises(TypeError, match="a payload cannot be checked against Odd: "):
        AsyncClient("", payload_types={"odd": Odd})


async def test_bytes_arrive_untouched_with_their_content_type(database: str) -> None:
    content = bytes(range(256))
    async with AsyncClient(database, payload_types=TYPES, injectors=[numbered()]) as client:
        await client.create_queue("orders")
        image = {"content_type": "image/png"}
        await client.publish("orders", body=content, kind="placed", headers=image)
        await client.publish_many("orders", bodies=[content, b""], kind="placed", headers=image)
        await client.publish_many("orders", bodies=[content] * 600, kind="placed", headers=image)
        async with client.copy("orders") as orders:
            await orders.write(kind="placed", body=content, headers=image)
        found = await lease(client, 2000)
        assert [message.body for message in found] == [content, content, b"", *[content] * 601]
        assert {message.headers["content_type"] for message in found} == {"image/png"}
        assert {message.payload for message in found} == {None}


async def test_messages_with_unique_keys_are_injected_into_and_checked(database: str) -> None:
    async with AsyncClient(database, injectors=[numbered()], payload_types=TYPES) as client:
        await client.create_queue("orders", unique="refuse")
        first = await client.publish_unique("orders", Point(1), kind="point")
        # What is injected is no part of the content that the key is made of.
        again = await client.publish_unique("orders", {"x": 1, "y": 0}, kind="point")
        assert (again.id, again.is_new) == (first.id, False)
        await client.publish_many_unique("orders", [{"x": 2}, {"x": 3}], ["a", "b"], kind="point")
        with pytest.raises(InvalidArgument, match="the payload of kind point does not fit"):
            await client.publish_unique("orders", {}, "c", kind="point")
        with pytest.raises(InvalidArgument, match=r"payloads\[1\] of kind point does not fit"):
            await client.publish_many_unique("orders", [{"x": 4}, {}], ["d", "e"], kind="point")
        found = await lease(client, 20)
        assert [(message.payload["x"], message.headers["number"]) for message in found] == [
            (1, 0),
            (2, 2),
            (3, 2),
        ]


async def test_a_schedules_payload_is_checked_and_nothing_is_injected(database: str) -> None:
    async with AsyncClient(database, injectors=[numbered()], payload_types=TYPES) as client:
        await client.create_queue("orders")
        own = {"own": True}
        await client.create_schedule("made", "orders", Point(1), kind="point", every=60, headers=own)
        listed = Schedule(schedule="listed", queue="orders", payload=Point(2), kind="point", every=60)
        await client.sync_schedules([listed])
        assert {each.schedule: (each.payload, each.headers) for each in await client.list_schedules()} == {
            "made": ({"x": 1, "y": 0}, own),
            "listed": ({"x": 2, "y": 0}, None),
        }
        with pytest.raises(InvalidArgument, match="the payload of kind point does not fit"):
            await client.create_schedule("odd", "orders", {}, kind="point", every=60)
        with pytest.raises(InvalidArgument, match="the payload of kind point does not fit"):
            await client.sync_schedules([replace(listed, payload={})])
