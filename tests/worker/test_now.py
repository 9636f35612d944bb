"""A worker's handlers run on a message here and now, as its users' tests do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from conftest import AsyncConnect, Connect
from trunq import InvalidArgument, Message, Reject, Retry, Worker

AT = datetime(2026, 1, 2, tzinfo=UTC)


@dataclass
class Line:
    sku: str


def answering(colour: str, function: Callable[[Message], Any], *kinds: str) -> Worker:
    """A worker whose handler is this function, in either colour."""
    worker = Worker("orders")
    if colour == "sync":
        worker.handler(*(kinds or ("work",)))(function)
    else:

        async def handle(message: Message) -> Any:
            return function(message)

        worker.handler(*(kinds or ("work",)))(handle)
    return worker


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_handler_gets_what_a_worker_would_give_it(colour: str) -> None:
    seen: list[Message] = []
    worker = answering(colour, seen.append)
    worker.handle_now({"at": AT, "pair": (1, 2)}, kind="work", key=7, headers={"h": AT}, attempt=3, body=b"b")
    (message,) = seen
    assert (message.payload, message.headers) == (
        {"at": "2026-01-02T00:00:00Z", "pair": [1, 2]},
        {"h": "2026-01-02T00:00:00Z"},
    )
    assert (message.kind, message.key, message.attempt, message.body) == ("work", "7", 3, b"b")
    assert (message.queue, message.subscription, message.is_last_attempt) == ("orders", "default", False)
    assert message.created_at < message.expires_at
    worker.handle_now(kind="work", attempt=2, max_attempts=2)
    assert seen[1].is_last_attempt


def test_it_returns_what_a_worker_would_answer(colour: str) -> None:
    answers: dict[str, Any] = {
        "nothing": None,
        "result": Line("a"),
        "retry": Retry(after=5),
        "reject": Reject("no"),
    }
    worker = answering(colour, lambda message: answers[message.payload])
    assert worker.handle_now("nothing", kind="work") is None
    assert worker.handle_now("result", kind="work") == {"sku": "a"}
    assert worker.handle_now("retry", kind="work") == Retry(after=5)
    assert worker.handle_now("reject", kind="work") == Reject("no")


def test_answers_that_are_raised_are_returned_and_errors_are_raised(colour: str) -> None:
    errors = {"retry": Retry(5), "reject": Reject("no"), "error": ValueError("oh")}

    def fail(message: Message) -> None:
        raise errors[message.payload]

    worker = answering(colour, fail)
    assert worker.handle_now("retry", kind="work") == Retry(5)
    assert worker.handle_now("reject", kind="work") == Reject("no")
    with pytest.raises(ValueError, match="oh"):
        worker.handle_now("error", kind="work")


def test_a_result_that_is_not_json_is_refused_as_in_a_worker(colour: str) -> None:
    with pytest.raises(TypeError, match="the handler returned what JSON cannot hold"):
        answering(colour, lambda _: object()).handle_now(kind="work")


def test_a_message_is_taken_as_it_is(colour: str) -> None:
    seen: list[Message] = []
    worker = answering(colour, seen.append)
    worker.handle_now({"n": 1}, kind="work")
    worker.handle_now(seen[0])
    assert seen[1] is seen[0]
    with pytest.raises(InvalidArgument, match="a Message has its own kind, attempt"):
        worker.handle_now(seen[0], kind="work", attempt=2)


def test_a_kind_without_a_handler_is_named(colour: str) -> None:
    worker = answering(colour, lambda _: None, "placed", "shipped")
    with pytest.raises(InvalidArgument, match="no handler for kind 'lost'; this worker has: placed, shipped"):
        worker.handle_now(kind="lost")


async def test_in_an_event_loop_both_colours_run() -> None:
    for colour in ("sync", "async"):
        worker = answering(colour, lambda message: message.payload)
        assert await worker.handle_now_async(5, kind="work") == 5
    with pytest.raises(RuntimeError, match=r"await worker\.handle_now_async\(\)"):
        worker.handle_now(5, kind="work")


def test_a_handler_that_hears_of_a_lost_lease_gets_an_event() -> None:
    worker = Worker("orders")

    @worker.handler("work")
    def handle(message: Message, lost: threading.Event) -> bool:
        return lost.is_set()

    assert worker.handle_now(kind="work") is False


def writing(worker: Worker) -> None:
    """Handlers in a transaction that write, and answer what their message says."""

    @worker.handler("sync")
    def write(message: Message, connection: Any) -> Any:
        connection.execute("insert into effect values (1)")
        return Reject("no") if message.payload else None

    @worker.handler("async")
    async def write_async(message: Message, connection: Any) -> Any:
        await connection.execute("insert into effect values (1)")
        raise Retry(error="later") if message.payload else ZeroDivisionError


async def test_only_an_ack_leaves_what_its_transaction_wrote(
    connect: Connect, async_connect: AsyncConnect
) -> None:
    worker, connection, other = Worker("orders"), connect(), await async_connect()
    connection.execute("create table effect (n int)")
    writing(worker)

    def effects() -> int:
        row = connection.execute("select count(*) from effect").fetchone()
        return int(row[0]) if row else -1

    assert worker.handle_now(True, kind="sync", connection=connection) == Reject("no")
    assert effects() == 0
    assert worker.handle_now(False, kind="sync", connection=connection) is None
    assert effects() == 1
    assert await worker.handle_now_async(True, kind="async", connection=other) == Retry(error="later")
    with pytest.raises(ZeroDivisionError):
        await worker.handle_now_async(False, kind="async", connection=other)
    assert effects() == 1


def test_a_connection_is_asked_for_where_one_is_wanted(connection: psycopg.Connection[Any]) -> None:
    worker = Worker("orders")
    writing(worker)
    worker.handler("plain")(lambda _: None)
    with pytest.raises(InvalidArgument, match=r"connection=, a psycopg\.Connection"):
        worker.handle_now(kind="sync")
    with pytest.raises(InvalidArgument, match=r"takes a psycopg\.AsyncConnection"):
        worker.handle_now(kind="async", connection=connection)
    with pytest.raises(InvalidArgument, match="no parameter for a connection"):
        worker.handle_now(kind="plain", connection=connection)


def test_something_may_stand_in_for_a_connection() -> None:
    class Written(list[str]):
        execute = list.append

    worker, written = Worker("orders"), Written()
    writing(worker)
    assert worker.handle_now(True, kind="sync", connection=written) == Reject("no")
    assert written == ["insert into effect values (1)"]


@pytest.mark.parametrize("is_async", [True, False])
def test_what_a_handler_reports_is_checked_and_its_checkpoint_is_in_the_message(is_async: bool) -> None:
    worker, seen = Worker("q"), []

    async def report(message: Message) -> None:
        await message.set_progress(50, "half", {"page": 3})
        await message.extend(60)
        seen.append((message.checkpoint, message.time_left))
        await message.set_progress(101)

    def report_sync(message: Message) -> None:
        message.set_progress_sync(50, "half", {"page": 3})
        message.extend_sync(60)
        seen.append((message.checkpoint, message.time_left))
        message.set_progress_sync(101)

    worker.handler("work")(report if is_async else report_sync)
    with pytest.raises(InvalidArgument, match="0 to 100, not 101"):
        worker.handle_now({}, kind="work")
    assert seen == [({"page": 3}, None)]
