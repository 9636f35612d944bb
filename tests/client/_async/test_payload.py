"""What payloads, headers and results become, as docs/log/payloads.md says it."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, SecretStr

from trunq import AsyncClient, InvalidArgument

ID = UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
PAGE = Path(__file__).parents[3] / "docs" / "log" / "payloads.md"


class Color(Enum):
    RED = "red"
    ODD = 1.5


class Size(IntEnum):
    SMALL = 1


class Word(StrEnum):
    YES = "yes"


@dataclass
class Line:
    sku: str
    price: Decimal


class Order(BaseModel):
    id: UUID
    placed_at: datetime = Field(serialization_alias="placedAt")
    lines: list[Line]


Point = namedtuple("Point", "x y")

BECOMES: list[tuple[Any, Any]] = [
    (NOON, "2026-01-02T12:00:00Z"),
    (NOON.astimezone(timezone(timedelta(hours=2))), "2026-01-02T14:00:00+02:00"),
    (datetime(2026, 1, 2, 3, 4, 5, 600), "2026-01-02T03:04:05.000600"),
    (date(2026, 1, 2), "2026-01-02"),
    (time(12, 30), "12:30:00"),
    (timedelta(days=1, seconds=1.5), "P1DT1.5S"),
    (Decimal("1.10"), "1.10"),
    (ID, str(ID)),
    (Color.RED, "red"),
    (Color.ODD, 1.5),
    (Size.SMALL, 1),
    (Word.YES, "yes"),
    (Line("a", Decimal("9.99")), {"sku": "a", "price": "9.99"}),
    (
        Order(id=ID, placed_at=NOON, lines=[Line("a", Decimal(1))]),
        {"id": str(ID), "placedAt": "2026-01-02T12:00:00Z", "lines": [{"sku": "a", "price": "1"}]},
    ),
    ((1, "a"), [1, "a"]),
    (Point(1, 2), [1, 2]),
    ({7}, [7]),
    (frozenset([7]), [7]),
    (deque([1, 2]), [1, 2]),
    ((n for n in (1, 2)), [1, 2]),
    (OrderedDict(a=1), {"a": 1}),
    (defaultdict(int, a=1), {"a": 1}),
    ({1: "a", None: "b", False: "c"}, {"1": "a", "null": "b", "false": "c"}),
    (Path("/a/b"), "/a/b"),
    (ip_address("10.0.0.1"), "10.0.0.1"),
]


@pytest.mark.parametrize("place", range(len(BECOMES)), ids=lambda n: type(BECOMES[n][0]).__name__)
async def test_what_json_does_not_know_becomes_what_the_page_says(database: str, place: int) -> None:
    value, becomes = BECOMES[place]
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.publish("orders", {"deep": [value]}, headers={"h": 1})
        (message,) = await client.lease("orders", "default", "w")
        assert message.payload == {"deep": [becomes]}


async def test_headers_and_results_and_many_at_once_take_the_same(database: str) -> None:
    async with AsyncClient(database) as client:
        await client.create_queue("orders")
        await client.subscribe("orders", "default", keep_results=True)
        await client.publish("orders", ID, headers={"at": NOON})
        await client.publish_many("orders", [ID] * 600, headers={"at": NOON})
        async with client.copy("orders") as orders:
            await orders.write(ID, headers={"at": NOON})
        messages = await client.lease("orders", "default", "w", 1000)
        assert {(m.payload, m.headers["at"]) for m in messages} == {(str(ID), "2026-01-02T12:00:00Z")}
        assert len(messages) == 602
        await client.ack(messages[:1], result=Line("a", Decimal(1)))
        (done,) = await client.show_message("orders", messages[0].id)
        assert done.result == {"sku": "a", "price": "1"}


class Strange:
    def __repr__(self) -> str:
        return "strange"


@pytest.mark.parametrize(
    ("payload", "trouble"),
    [
        ({"a": [0, {"b": math.inf}]}, r"payload\['a'\]\[1\]\['b'\] is inf, which is not JSON"),
        ({"a": {1, math.nan}}, r"payload\['a'\]\[\d\] is nan, which is not JSON"),
        ({"a": Line("a\0", Decimal(1))}, r"payload\['a'\]\['sku'\] has a NUL character"),
        ({"a": Line("\ud800", Decimal(1))}, r"payload\['a'\].*"),
        ({"a": Strange()}, r"payload\['a'\] is a Strange, which is not JSON"),
        ([SecretStr, 1], r"payload\[0\] is a "),
        (b"raw", "payload is a bytes, which is not JSON; send bytes as body="),
        ({"a": bytearray(b"x")}, r"payload\['a'\] is a bytearray, which is not JSON; send bytes as body="),
        ({"a": "\0"}, r"payload\['a'\] has a NUL character"),
        ({"a": "\ud800"}, r"payload\['a'\] has half a surrogate pair"),
        ({(1, 2): 3}, "a key that is a tuple"),
        ({ID: 3}, "a key that is a UUID"),
    ],
)
async def test_what_is_not_json_is_refused_with_its_place(database: str, payload: Any, trouble: str) -> None:
    client = AsyncClient("host=/nonexistent")
    with pytest.raises(InvalidArgument, match=trouble):
        await client.publish("orders", payload)
    with pytest.raises(InvalidArgument, match=trouble.replace("payload", r"payloads\[1\]")):
        await client.publish_many("orders", [1, payload])


async def test_what_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidArgument, match="nested too deeply, or contains itself"):
        await AsyncClient("host=/nonexistent").publish("orders", loop)


def test_the_page_names_every_type_that_is_tried() -> None:
    page = PAGE.read_text()
    tried = {type(value).__name__ for value, _ in BECOMES if type(value).__module__ != __name__}
    tried = {"Path" if name.endswith("Path") else name for name in tried}
    assert {name for name in tried if f"`{name}`" not in page} == set()
