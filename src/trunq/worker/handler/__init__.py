"""Which function handles which kind of message, and what it wants to be given.

incoming   payloads of old versions, and those that have a type
batched    functions that handle several messages at once
policy     how often and how soon a handler's messages are tried again
process    runs functions in processes that can be killed (child: what goes on there)
result     what a function returned or raised, as the database keeps it
"""

from __future__ import annotations

import inspect
import threading
import typing
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypedDict, TypeVar, Unpack

import psycopg

from trunq.connection.bridge.transaction import Library
from trunq.worker.handler.batched import Batching, batched
from trunq.worker.handler.incoming import MESSAGE, Incoming, Upcast, Wanted, wanted, wanted_each
from trunq.worker.handler.policy import Policy
from trunq.worker.handler.process import Processes

Function = TypeVar("Function", bound=Callable[..., Any])

DEFAULT_KIND = "*"


class Settings(TypedDict, total=False):
    """What a user sets of a handler, beside its function."""

    time_out: float | None
    concurrency: int | None
    policy: Policy | None
    batching: Batching | None


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """A function and how to call it.

    `connection` and `lost` are the names of the parameters that take the transaction's connection and the
    event that says "your lease is lost"; None when it has no such parameter. `library` is whose transaction
    it is, when not one of ours. `wants` is what the first parameter takes; with `is_reading`, the function
    reads that off the message. `is_plain` handlers are awaited without ceremony; messages of those that are
    `is_held` may have to wait, for a place or for others.
    """

    function: Callable[..., Any]
    is_async: bool
    connection: str | None = None
    lost: str | None = None
    library: Library | None = None
    wants: Wanted = MESSAGE
    is_reading: bool = False
    time_out: float | None = None
    """Seconds it may take."""
    concurrency: int | None = None
    """So many of its messages run at a time in one worker; None: as many as there are slots."""
    policy: Policy | None = None
    """In place of the subscription's."""
    batching: Batching | None = None
    """It handles a list of messages, gathered so."""
    processes: Processes | None = None
    """Where `function` has the work done, when not here."""
    here: Handler | None = None
    """That handler as one of this process, for tests."""
    is_plain: bool = field(init=False)
    is_held: bool = field(init=False)

    def __post_init__(self) -> None:
        needs = (
            self.has_transaction,
            self.lost,
            self.time_out,
            self.concurrency,
            self.policy,
            self.batching,
            self.processes,
        )
        object.__setattr__(self, "is_plain", self.is_async and not any(needs))
        object.__setattr__(self, "is_held", self.concurrency is not None or self.batching is not None)

    @property
    def has_transaction(self) -> bool:
        """Whether it runs in a transaction."""
        return self.connection is not None or self.library is not None

    @property
    def name(self) -> str:
        """What it is called, in errors."""
        return _name(self.function if self.here is None else self.here.function)

    def arguments(self, connection: Any) -> dict[str, Any]:
        """What it gets of the transaction, beside the message."""
        return {} if self.connection is None else {self.connection: connection}


class Registry:
    """Handlers by kind; `*` stands for every kind that has none of its own."""

    def __init__(
        self,
        library: Library | None = None,
        incoming: Incoming | None = None,
        processes: Processes | None = None,
    ) -> None:
        self._library = library
        self._incoming = incoming or Incoming()
        self.processes = processes or Processes()
        self.handlers: dict[str | None, Handler] = {}

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
        """0, 1 or 2: whether async and sync handlers want a transaction of ours, which have a pool each."""
        wanting = (each for each in self.handlers.values() if each.has_transaction and each.library is None)
        return len({handler.is_async for handler in wanting})

    def inspect(
        self, function: Callable[..., Any], transaction: bool | None, **settings: Unpack[Settings]
    ) -> Handler:
        """The handler that a function makes. Raises TypeError for one that could not be called."""
        handler = inspect_handler(function, transaction, self._library, **settings)
        if handler.batching is not None:
            called = batched(function, self._incoming, handler.wants, is_async=handler.is_async)
            return replace(handler, function=called, is_reading=True)
        return self._reading(handler) if self._must_read(handler) else handler

    def inspect_apart(
        self, function: Callable[..., Any], transaction: bool | None, **settings: Unpack[Settings]
    ) -> Handler:
        """The handler that a function makes whose calls go to processes. Raises TypeError for one that cannot
        be called there.
        """
        here = inspect_handler(function, transaction, self._library, **settings)
        if here.has_transaction:
            raise TypeError(
                f"{here.name} runs in a process of its own, which has no part in a transaction of its worker:"
                " leave out the parameter for its connection, or process=True"
            )
        if here.lost is not None:
            raise TypeError(
                f"{here.name} runs in a process of its own, which is killed when its lease is lost:"
                f" leave out {here.lost!r}"
            )
        call = self.processes.add(function)
        handler = replace(here, function=call, is_async=True, processes=self.processes, here=here)
        return self._reading(handler) if self._must_read(handler) else handler

    def around(self, wrap: Callable[[Handler], Callable[..., Any]]) -> Registry:
        """The same handlers, with another function called in the place of each one's. A handler of several
        kinds stays one: its limit is for all of them.
        """
        made = {each: replace(each, function=wrap(each)) for each in self.handlers.values()}
        registry = Registry(self._library, self._incoming, self.processes)
        registry.handlers = {kind: made[handler] for kind, handler in self.handlers.items()}
        return registry

    def add(self, kind: str, handler: Handler) -> None:
        """Register `handler` for `kind`. Raises ValueError for a second."""
        if not kind:
            raise ValueError("a handler needs a kind, or none at all: @worker.handler is for all others")
        if kind in self.handlers:
            raise ValueError(f"kind {kind!r} has a handler already: {self.handlers[kind].name}")
        self.handlers[kind] = handler

    def add_upcast(self, kind: str, from_: int, function: Upcast) -> None:
        """Register an upcast of a kind."""
        self._incoming.add(kind, from_, function)
        # A handler of several kinds stays one: its limit is for all of them.
        made = {
            each: self._reading(each) if self._must_read(each) else each for each in self.handlers.values()
        }
        self.handlers = {kind: made[handler] for kind, handler in self.handlers.items()}

    def check(self) -> None:
        """Refuse upcasts that leave a version out, and handlers that a process would not find."""
        self._incoming.check()
        self.processes.check()

    def _must_read(self, handler: Handler) -> bool:
        return not handler.is_reading and (handler.wants.type is not None or self._incoming.has_upcasts)

    def _reading(self, handler: Handler) -> Handler:
        function = self._incoming.around(handler.function, handler.wants, is_async=handler.is_async)
        here = None if handler.here is None else self._reading(handler.here)
        return replace(handler, function=function, is_reading=True, here=here)

    def find(self, kind: str | None) -> Handler | None:
        """The handler of a kind, or the default one."""
        return self.handlers.get(kind) or self.default

    def policy(self, kind: str | None) -> Policy | None:
        """What a kind has in place of its subscription's policy."""
        handler = self.find(kind)
        return None if handler is None else handler.policy


def inspect_handler(
    function: Callable[..., Any],
    transaction: bool | None,
    library: Library | None = None,
    **settings: Unpack[Settings],
) -> Handler:
    """Read off a function's signature how it wants to be called.

    The first parameter is the message, or the list of them that is gathered. A second one annotated as a
    psycopg connection, named `connection`, or any when `transaction` is true, is given the transaction, and
    so is one that a `library` knows for its own; one annotated threading.Event hears that the lease was lost.
    """
    if not callable(function):
        raise TypeError(f"a handler is a function, not {type(function).__name__}")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{_name(function)} is a generator; a handler returns its answer")
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # an object whose __call__ is async
    )
    connection, lost = _extra_parameters(function, transaction, library)
    if library is not None and not _is_of(library, function, connection, transaction):
        library = None
    if is_async and lost is not None:
        raise TypeError(
            f"{_name(function)} is async: it is cancelled when its lease is lost and needs no {lost!r}"
        )
    if library is not None:
        library.check_colour(is_async)
    elif connection is not None:
        _check_colour(function, is_async, _hints(function).get(connection))
    if transaction and connection is None and library is None:
        raise TypeError(
            f"{_name(function)} asks for a transaction but has no parameter for its connection: "
            "def handle(message, connection)"
        )
    wants = _wanted(function, wanted if settings.get("batching") is None else wanted_each)
    return Handler(function, is_async, connection, lost, library, wants, **settings)


def _wanted(function: Callable[..., Any], wanted: Callable[[Any], Wanted]) -> Wanted:
    """What the first parameter takes."""
    first = next(iter(inspect.signature(function).parameters.values()))
    try:
        return wanted(_hints(function).get(first.name))
    except TypeError as error:
        raise TypeError(f"{_name(function)}: {error}") from error


def _is_of(
    library: Library, function: Callable[..., Any], connection: str | None, transaction: bool | None
) -> bool:
    """Whether the transaction of a handler is one of this library."""
    if connection is None:
        return bool(transaction) and not library.needs_parameter
    return library.takes(connection, _hints(function).get(connection))


def _extra_parameters(
    function: Callable[..., Any], transaction: bool | None, library: Library | None
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
        elif connection is None and (
            _takes_connection(parameter, hint, transaction)
            or (library is not None and transaction is not False and library.takes(parameter.name, hint))
        ):
            connection = parameter.name
        elif parameter.default is inspect.Parameter.empty and parameter.kind not in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        ):
            raise TypeError(
                f"{_name(function)} wants {parameter.name!r}, which a worker does not have; it gives "
                "the message, a psycopg connection (its transaction), a threading.Event (lease lost)"
                f"{_NO_ENGINE if parameter.name == 'session' and library is None else ''}"
            )
    return connection, lost


_NO_ENGINE: Final = "; with Worker(engine=) a session of SQLAlchemy"


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
