"""Which function handles which kind of message, and what it wants to be given."""

from __future__ import annotations

import inspect
import threading
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg

from trunq.message import Message

Function = TypeVar("Function", bound=Callable[..., Any])

DEFAULT_KIND = "*"


@dataclass(frozen=True, slots=True)
class Handler:
    """A function and how to call it.

    `connection` and `lost` are the names of the parameters that take the transaction's connection and the
    event that says "your lease is lost"; None when it has no such parameter. `is_plain` handlers are awaited
    without ceremony.
    """

    function: Callable[..., Any]
    is_async: bool
    connection: str | None = None
    lost: str | None = None
    is_plain: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_plain", self.is_async and self.connection is None and self.lost is None)


class Registry:
    """Handlers by kind; `*` stands for every kind that has none of its own."""

    def __init__(self) -> None:
        self.handlers: dict[str | None, Handler] = {}
        self._has_transactions = False

    @property
    def default(self) -> Handler | None:
        """The handler of kinds that have none of their own."""
        return self.handlers.get(DEFAULT_KIND)

    @property
    def kinds(self) -> list[str]:
        """The kinds that have a handler."""
        return sorted(str(kind) for kind in self.handlers)

    @property
    def colours_of_transactions(self) -> int:
        """0, 1 or 2: whether async and sync handlers want a transaction, which have a pool each."""
        wanting = (handler for handler in self.handlers.values() if handler.connection is not None)
        return len({handler.is_async for handler in wanting})

    def add(self, kind: str, function: Callable[..., Any], transaction: bool | None) -> None:
        """Register `function` for `kind`. Raises TypeError for one that could not be called, ValueError for a
        second.
        """
        if not kind:
            raise ValueError("a handler needs a kind; '*' stands for all others")
        if kind in self.handlers:
            raise ValueError(f"kind {kind!r} has a handler already: {_name(self.handlers[kind].function)}")
        handler = inspect_handler(function, transaction)
        self.handlers[kind] = handler
        self._has_transactions |= handler.connection is not None

    def wants_transaction(self, messages: Iterable[Message]) -> bool:
        """Whether one of the messages is for a handler in a transaction."""
        if not self._has_transactions:
            return False
        handlers = (self.find(message.kind) for message in messages)
        return any(handler is not None and handler.connection is not None for handler in handlers)

    def find(self, kind: str | None) -> Handler | None:
        """The handler of a kind, or the default one."""
        return self.handlers.get(kind) or self.default


def inspect_handler(function: Callable[..., Any], transaction: bool | None) -> Handler:
    """Read off a function's signature how it wants to be called.

    The first parameter is the message. A second one annotated as a psycopg connection, named `connection`, or
    any when `transaction` is true, is given the transaction; one annotated threading.Event hears that the
    lease was lost.
    """
    if not callable(function):
        raise TypeError(f"a handler is a function, not {type(function).__name__}")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{_name(function)} is a generator; a handler returns its answer")
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # an object whose __call__ is async
    )
    connection, lost = _extra_parameters(function, transaction)
    if is_async and lost is not None:
        raise TypeError(
            f"{_name(function)} is async: it is cancelled when its lease is lost and needs no {lost!r}"
        )
    if connection is not None:
        _check_colour(function, is_async, _hints(function).get(connection))
    if transaction and connection is None:
        raise TypeError(
            f"{_name(function)} asks for a transaction but has no parameter for its connection: "
            "def handle(message, connection)"
        )
    return Handler(function, is_async, connection, lost)


def _extra_parameters(
    function: Callable[..., Any], transaction: bool | None
) -> tuple[str | None, str | None]:
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise TypeError(f"{_name(function)} takes no message: def handle(message)")
    hints = _hints(function)
    connection = lost = None
    for parameter in parameters[1:]:
        hint = hints.get(parameter.name)
        if hint is threading.Event:
            lost = parameter.name
        elif connection is None and _takes_connection(parameter, hint, transaction):
            connection = parameter.name
        elif parameter.default is inspect.Parameter.empty and parameter.kind not in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        ):
            raise TypeError(
                f"{_name(function)} wants {parameter.name!r}, which a worker does not have; it gives "
                "the message, a psycopg connection (its transaction), a threading.Event (lease lost)"
            )
    return connection, lost


def _takes_connection(parameter: inspect.Parameter, hint: Any, transaction: bool | None) -> bool:
    if transaction is False or parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        return False
    if _is_connection(hint):
        return True
    bare = hint in (None, Any) and parameter.default is inspect.Parameter.empty
    return bare and (bool(transaction) or parameter.name == "connection")


def _is_connection(hint: Any) -> bool:
    kind = typing.get_origin(hint) or hint
    return inspect.isclass(kind) and issubclass(kind, psycopg.Connection | psycopg.AsyncConnection)


def _check_colour(function: Callable[..., Any], is_async: bool, hint: Any) -> None:
    if not _is_connection(hint):
        return
    wanted = psycopg.AsyncConnection if is_async else psycopg.Connection
    if not issubclass(typing.get_origin(hint) or hint, wanted):
        colour = "async" if is_async else "sync"
        raise TypeError(f"{_name(function)} is {colour}: its connection is a psycopg.{wanted.__name__}")


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else getattr(function, "func", type(function).__call__)
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError, AttributeError):
        # Names that exist for the type checker only; such annotations say nothing to us.
        return {}


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
