"""Payloads on their way to a handler: read as its type, and old versions brought up to date."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import date
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import TypedDict

from serving import Queue, drain, said
from trunq import Client, Message, Reject, Retry
from trunq.worker import Worker
from trunq.worker.handler import Registry


class Order(BaseModel):
    model_config = ConfigDict(strict=True)

    id: int
    day: date = date(2026, 1, 1)


@dataclass
class Point:
    x: int
    y: int = 0


def handled(message: Message) -> str:
    return "handled"


class Names(TypedDict):
    name: str


async def test_a_handler_gets_the_payload_as_the_type_it_is_annotated_with(queue: Queue) -> None:
    """In every way that handlers are called. Strict models too: a date is text in JSON."""
    queue.publish("model", {"id": 1, "day": "2026-02-03"})
    queue.publish("point", {"x": 1})
    queue.publish("message", {"id": 2})
    queue.publish("thread", {"id": 3})
    queue.publish("transaction", {"id": 4})
    queue.publish("list", [[{"name": "a"}]])
    queue.publish("plain", {"id": 5})
    worker = queue.worker()
    seen: dict[str, Any] = {}

    @worker.handler("model")
    async def model(order: Order) -> None:
        seen["model"] = order

    @worker.handler("point")
    async def point(point: Point) -> None:
        seen["point"] = point

    @worker.handler("message")
    async def whole(message: Message[Order]) -> None:
        seen["message"] = (message.id, message.payload)

    @worker.handler("thread")
    def thread(order: Order, lost: threading.Event) -> None:
        assert not lost.is_set()
        seen["thread"] = order

    @worker.handler("transaction")
    async def transaction(order: Order, connection: psycopg.AsyncConnection[Any]) -> None:
        await connection.execute("select 1")
        seen["transaction"] = order

    @worker.handler("list")
    async def listed(message: Message[list[Names] | None]) -> None:
        seen["list"] = message.payload

    @worker.handler("plain")
    async def plain(message: Message) -> None:
        seen["plain"] = message.payload

    await drain(worker)
    assert seen == {
        "model": Order(id=1, day=date(2026, 2, 3)),
        "point": Point(1),
        "message": (3, Order(id=2)),
        "thread": Order(id=3),
        "transaction": Order(id=4),
        "list": [{"name": "a"}],
        "plain": {"id": 5},
    }
    assert queue.states() == {"done": 7}


LONG = {"x": "a", "y": "b", "z": 1}


@pytest.mark.parametrize("colour", ["async", "sync", "transaction"])
async def test_a_payload_that_does_not_fit_is_rejected_with_its_errors(queue: Queue, colour: str) -> None:
    ids = queue.publish(payload=[{"x": "a", "y": "b"}, 5, None, {"x": 1}])
    worker = queue.worker()
    handled = []
    if colour == "async":

        @worker.handler("work")
        async def handle(point: Point) -> None:
            handled.append(point)
    elif colour == "sync":

        @worker.handler("work")
        def handle_sync(point: Point) -> None:
            handled.append(point)
    else:

        @worker.handler("work")
        async def handle_inside(point: Point, connection: Any) -> None:
            handled.append(point)

    await drain(worker)
    assert handled == [Point(1)]
    dead = {each.id: (each.reason, said(each.errors[-1]["error"])) for each in queue.dead()}
    not_a_number = "Input should be a valid integer, unable to parse string as an integer"
    assert dead[ids[0]] == (
        "rejected",
        f"the payload does not fit Point: x: {not_a_number}; y: {not_a_number}",
    )
    assert set(dead) == set(ids[:3])
    assert all(reason == "rejected" for reason, _ in dead.values())


async def test_it_is_retried_where_the_worker_says_so(queue: Queue) -> None:
    queue.policy(max_attempts=2)
    queue.publish(payload=[{}])
    worker = queue.worker(on_invalid="retry")

    @worker.handler("work")
    async def handle(point: Point) -> None: ...

    await drain(worker)
    (dead,) = queue.dead()
    errors = [said(error["error"]) for error in dead.errors]
    assert dead.reason == "max_attempts"
    assert errors == ["the payload does not fit Point: x: Field required"] * 2


async def test_or_what_a_function_of_yours_answers(queue: Queue) -> None:
    ids = queue.publish(payload=[{"y": "done"}, {"y": "reject"}])
    seen = []

    def decide(message: Message, error: Exception) -> Any:
        assert isinstance(error, ValidationError)
        seen.append((message.id, error.error_count()))
        return Reject("no order of ours") if message.payload["y"] == "reject" else "looked at"

    worker = queue.worker(on_invalid=decide)

    @worker.handler("work")
    async def handle(point: Point) -> None: ...

    await drain(worker)
    assert sorted(seen) == [(id, 2) for id in ids]
    assert queue.message(ids[0]).result == "looked at"
    (dead,) = queue.dead()
    assert said(dead.errors[-1]["error"]) == "no order of ours"


async def test_old_versions_are_brought_up_to_date_in_turn(queue: Queue) -> None:
    with Client(queue.dsn) as client:
        client.publish("q", {"n": 1}, kind="work")
        client.publish("q", {"x": 2}, kind="work", headers={"version": 2})
        client.publish("q", {"x": 3, "y": 3}, kind="work", headers={"version": 3})
        client.publish("q", {"n": 4}, kind="other")
    worker = queue.worker()
    seen, others = [], []

    @worker.upcast("work", from_=2)
    def add_y(payload: Any) -> Any:
        return {**payload, "y": 7}

    @worker.handler("work")
    async def handle(point: Point) -> None:
        seen.append(point)

    @worker.handler("*")
    async def rest(message: Message) -> None:
        others.append(message.payload)

    @worker.upcast("work", from_=1)
    def rename(payload: Any) -> Any:
        return {"x": payload["n"]}

    await drain(worker)
    assert seen == [Point(1, 7), Point(2, 7), Point(3, 3)]
    assert others == [{"n": 4}]


async def test_a_later_version_waits_for_a_worker_that_knows_it(queue: Queue) -> None:
    queue.policy(max_attempts=2)
    with Client(queue.dsn) as client:
        client.publish("q", {"x": 1}, kind="work", headers={"version": 3})
    worker = queue.worker()
    worker.upcast("work", from_=1)(lambda payload: payload)

    @worker.handler("work")
    async def handle(message: Message) -> None: ...

    await drain(worker)
    (dead,) = queue.dead()
    why = "version 3 of kind work is newer than 2, which this worker knows"
    assert [said(error["error"]) for error in dead.errors] == [why] * 2


async def test_an_upcast_that_fails_is_a_failure_of_the_handler(queue: Queue) -> None:
    queue.policy(max_attempts=1)
    queue.publish(payload=[{}])
    worker = queue.worker()

    @worker.upcast("work", from_=1)
    def broken(payload: Any) -> Any:
        return payload["n"]

    @worker.handler("work")
    async def handle(message: Message) -> None: ...

    await drain(worker)
    (dead,) = queue.dead()
    assert dead.errors[-1]["error"].startswith("KeyError: 'n'")


@pytest.mark.parametrize("version", ["2", 2.5, True, 1])
def test_a_version_that_none_leads_on_from_does_not_fit(version: Any) -> None:
    worker = Worker("q")
    worker.upcast("work", from_=2)(lambda payload: payload)
    worker.handler("work")(handled)
    answer = worker.handle_now({}, kind="work", headers={"version": version})
    assert isinstance(answer, Reject)
    assert "version" in answer.detail


def test_tests_of_handlers_see_the_same() -> None:
    worker = Worker("q")

    @worker.handler("point")
    def handle(point: Point) -> int:
        return point.x

    assert worker.handle_now(Point(3), kind="point") == 3
    unfit = Reject("the payload does not fit Point: x: Field required")
    assert worker.handle_now({"y": 1}, kind="point") == unfit
    worker = Worker("q", on_invalid="retry")
    worker.handler("point")(handle)
    assert isinstance(worker.handle_now({}, kind="point"), Retry)


def test_what_cannot_be_is_refused_when_it_is_registered() -> None:
    class Odd:
        pass

    def several(point: Point | None) -> None: ...

    def content(message: Message[bytes]) -> None: ...

    def odd(message: Message[Odd]) -> None: ...

    odd.__annotations__["message"] = Message[Odd]

    for function, trouble in (
        (several, r"several: to get one of several types, annotate the message: Message\["),
        (content, r"content: a payload is JSON and never bytes"),
        (odd, r"odd: a payload cannot be checked against Odd"),
    ):
        with pytest.raises(TypeError, match=trouble):
            Worker("q").handler("work")(function)

    async def coroutine(payload: Any) -> Any: ...

    worker = Worker("q")
    for from_, function, error in ((0, str, ValueError), (True, str, ValueError), (1, coroutine, TypeError)):
        with pytest.raises(error):
            worker.upcast("work", from_=from_)(function)
    worker.upcast("work", from_=1)(str)
    with pytest.raises(ValueError, match="has an upcast from version 1 already"):
        worker.upcast("work", from_=1)(str)
    worker.upcast("work", from_=3)(str)
    worker.handler("work")(handled)
    with pytest.raises(ValueError, match="kind 'work' has no upcast from version 2"):
        worker.run()
    for none in ("perhaps", coroutine):
        with pytest.raises(TypeError, match="on_invalid is 'reject', 'retry' or a plain function"):
            Worker("q", on_invalid=none)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an injector is a plain function"):
        Client("", injectors=[coroutine])  # type: ignore[list-item]


def test_a_handler_of_several_kinds_has_one_limit_for_all_of_them_whenever_an_upcast_comes() -> None:
    registry = Registry()
    early = registry.inspect(lambda _message: None, None, concurrency=1)
    for kind in ("a", "b"):
        registry.add(kind, early)
    registry.add_upcast("a", 1, lambda payload: payload)
    late = registry.inspect(lambda _message: None, None, concurrency=2)
    for kind in ("c", "d"):
        registry.add(kind, late)
    registry.add_upcast("c", 1, lambda payload: payload)
    handlers = registry.handlers
    assert handlers["a"] is handlers["b"]
    assert handlers["c"] is handlers["d"]
    assert [handlers[kind].concurrency for kind in "abcd"] == [1, 1, 2, 2]
