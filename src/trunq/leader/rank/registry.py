"""Functions that rank, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from trunq.leader.rank.order import Rank
from trunq.record import Lane

Said = Mapping[Lane | str, int | None] | Iterable[Rank]
Function = TypeVar("Function", bound=Callable[..., Said])

_WANTED = "def by_need(lanes, fleet), or def by_need(lanes, fleet, connection)"


@dataclass(frozen=True, slots=True)
class Ranked:
    """A function, and how it is called."""

    name: str
    function: Callable[..., Said]
    time_limit: float
    wants_connection: bool


class Ranks:
    """Functions that rank lanes, by the names that subscriptions know them by."""

    def __init__(self) -> None:
        self.functions: dict[str, Ranked] = {}

    def register(self, name: str, *, time_limit: float = 5.0) -> Callable[[Function], Function]:
        """Register a function under a name.

        It is called with the lanes (rows of `list_lanes`, the 10,000 deepest) and the fleet (`fleet`), in a
        thread, and has `time_limit` seconds. With a third parameter, `connection`, it gets a psycopg
        connection in a transaction that commits when it returns. It returns ranks by lane, or an iterable of
        `Rank`. Raises ValueError for a name that is taken, TypeError for a function that cannot be called so.
        """
        if not name or not isinstance(name, str):
            raise ValueError("a function that ranks is registered by a name: @ranks.register('by_need')")
        if not 0 < time_limit < float("inf"):
            raise ValueError(f"the time limit of {name!r} is a number of seconds, not {time_limit}")

        def register(function: Function) -> Function:
            if name in self.functions:
                taken = getattr(self.functions[name].function, "__qualname__", "another function")
                raise ValueError(f"{name!r} is registered already: {taken}")
            self.functions[name] = Ranked(name, function, time_limit, _wants_connection(name, function))
            return function

        return register


def _wants_connection(name: str, function: Callable[..., Any]) -> bool:
    """Whether a function has a parameter `connection`. Raises TypeError if it cannot be called."""
    if not callable(function):
        raise TypeError(f"{name!r} is a {type(function).__name__}, not a function: {_WANTED}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{name!r} is async; a function that ranks runs in a thread: {_WANTED}")
    signature = inspect.signature(function)
    wants = "connection" in signature.parameters
    try:
        signature.bind((), (), **({"connection": None} if wants else {}))
    except TypeError as error:
        raise TypeError(f"{name!r} cannot be called with lanes and fleet ({error}): {_WANTED}") from None
    return wants
