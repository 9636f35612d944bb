"""Which functions can be handlers, and what they are given."""

from __future__ import annotations

import functools
import threading
from typing import Any

import psycopg
import pytest

from trunq.client.message import Message
from trunq.worker import Worker
from trunq.worker.handler import inspect_handler


async def plain(message: Message) -> None: ...


def sync(message: Message) -> None: ...


async def named(message: Message, connection) -> None: ...  # type: ignore[no-untyped-def]


async def annotated(message: Message, db: psycopg.AsyncConnection[Any]) -> None: ...


def sync_annotated(message: Message, db: psycopg.Connection) -> None: ...  # type: ignore[type-arg]


def with_event(message: Message, lost: threading.Event) -> None: ...


def with_both(message: Message, connection: Any, *, lost: threading.Event) -> None: ...


async def with_default(message: Message, pause: float = 1.0) -> None: ...


class Callable:
    async def __call__(self, message: Message, db: psycopg.AsyncConnection[Any]) -> None: ...


@pytest.mark.parametrize(
    ("function", "is_async", "connection", "lost"),
    [
        (plain, True, None, None),
        (sync, False, None, None),
        (named, True, "connection", None),
        (annotated, True, "db", None),
        (sync_annotated, False, "db", None),
        (with_event, False, None, "lost"),
        (with_default, True, None, None),
        (Callable(), True, "db", None),
        (functools.partial(annotated), True, "db", None),
        (functools.partial(sync), False, None, None),
    ],
)
def test_a_signature_says_how_a_handler_is_called(
    function: Any, is_async: bool, connection: str | None, lost: str | None
) -> None:
    handler = inspect_handler(function, None)
    assert (handler.is_async, handler.connection, handler.lost) == (is_async, connection, lost)


def test_a_transaction_asked_for_takes_the_second_parameter_whatever_its_name() -> None:
    def handle(message, tx): ...  # type: ignore[no-untyped-def]

    assert inspect_handler(handle, True).connection == "tx"
    assert inspect_handler(with_both, True).connection == "connection"
    with pytest.raises(TypeError, match="wants 'tx'"):
        inspect_handler(handle, None)


def test_only_plain_coroutines_take_the_short_way() -> None:
    assert inspect_handler(plain, None).is_plain
    assert not inspect_handler(sync, None).is_plain
    assert not inspect_handler(named, None).is_plain


def no_message() -> None: ...


def stranger(message: Message, customer: str) -> None: ...


async def wrong_colour(message: Message, connection: psycopg.Connection[Any]) -> None: ...


def wrong_colour_too(message: Message, connection: psycopg.AsyncConnection[Any]) -> None: ...


async def needless(message: Message, lost: threading.Event) -> None: ...


def generator(message: Message) -> Any:
    yield


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (no_message, "no_message takes no message"),
        (stranger, "stranger wants 'customer'"),
        (wrong_colour, "wrong_colour is async: its connection is a psycopg.AsyncConnection"),
        (wrong_colour_too, "wrong_colour_too is sync: its connection is a psycopg.Connection"),
        (needless, "it is cancelled when its lease is lost"),
        (generator, "generator is a generator"),
        ("ship", "a handler is a function, not str"),
    ],
)
def test_a_function_that_could_not_be_called_is_refused_when_registered(function: Any, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        Worker("q").handler("work")(function)


def test_a_transaction_without_a_parameter_for_it_is_refused() -> None:
    with pytest.raises(TypeError, match="has no parameter for its connection"):
        Worker("q").handler("work", transaction=True)(plain)


def test_a_kind_has_one_handler() -> None:
    worker = Worker("q")
    worker.handler("a", "b")(plain)
    assert worker.kinds == ["a", "b"]
    with pytest.raises(ValueError, match="'b' has a handler already: plain"):
        worker.handler("b")(sync)


def test_a_bare_handler_is_that_of_all_kinds_that_have_none() -> None:
    worker, other = Worker("q"), Worker("q")

    @worker.handler("a")
    def handle(message: Message) -> str:
        return "its own"

    @worker.handler
    def handle_others(message: Message) -> str | None:
        return message.kind

    @other.handler(concurrency=2)
    def handle_all(message: Message) -> str:
        return "any"

    assert worker.kinds == ["*", "a"]
    assert worker.handle_now(kind="a") == "its own"
    assert worker.handle_now(kind="b") == "b"
    assert worker.handle_now() is None
    assert handle_others.__name__ == "handle_others"
    assert other.handle_now(kind="b") == handle_all(Message.__new__(Message)) == "any"
    with pytest.raises(ValueError, match=r"kind '\*' has a handler already: .*handle_others"):
        worker.handler(plain)


@pytest.mark.parametrize("kinds", [(plain, "a"), (Message,), (1.5,)])
def test_what_is_no_kind_is_refused(kinds: Any) -> None:
    with pytest.raises(TypeError, match=r"name the kind: .*@worker.handler alone is for all others"):
        Worker("q").handler(*kinds)
