"""Functions that handle a list of messages: what they are given, and what each message's outcome is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Final, NamedTuple

from trunq import display
from trunq.client.message import Message, Reject, Retry
from trunq.worker.handler.incoming import Answered, Incoming, Wanted


class Batching(NamedTuple):
    """How messages are gathered."""

    size: int
    """So many at most run together."""
    wait: float
    """Seconds from the first to the start at the latest."""


class WrongOutcomes(ValueError):
    """A batch handler gave something other than one outcome for each message."""


def batched(
    function: Callable[..., Any], incoming: Incoming, wants: Wanted, *, is_async: bool
) -> Callable[..., Any]:
    """A handler that is called with messages and returns the outcome of each, in their order.

    A message whose payload does not fit has an outcome already: the function does not see it.
    """
    return _async(function, incoming, wants) if is_async else _sync(function, incoming, wants)


def _async(function: Callable[..., Any], incoming: Incoming, wants: Wanted) -> Callable[..., Any]:
    @wraps(function)
    async def handle(messages: Iterable[Message], **arguments: Any) -> list[Any]:
        reading = _Reading(messages, incoming, wants)
        return reading.outcomes(await function(reading.firsts, **arguments) if reading.firsts else None)

    return handle


def _sync(function: Callable[..., Any], incoming: Incoming, wants: Wanted) -> Callable[..., Any]:
    @wraps(function)
    def handle(messages: Iterable[Message], **arguments: Any) -> list[Any]:
        reading = _Reading(messages, incoming, wants)
        return reading.outcomes(function(reading.firsts, **arguments) if reading.firsts else None)

    return handle


class _Reading:
    """The messages of a batch as its function wants them."""

    def __init__(self, messages: Iterable[Message], incoming: Incoming, wants: Wanted) -> None:
        self._messages = list(messages)
        self._known: dict[int, Any] = {}
        """Outcomes of messages that cannot be read, by place."""
        self.firsts: list[Any] = []
        for place, message in enumerate(self._messages):
            try:
                self.firsts.append(incoming.read(message, wants))
            except Answered as answered:
                self._known[place] = answered.answer
            except Exception as error:
                # An upcast, or on_invalid, raised: the others run all the same.
                self._known[place] = error
        self._expected = len(self.firsts)
        """The function may take messages out of its list as it goes."""

    def outcomes(self, answer: Any) -> list[Any]:
        """The outcome of each message. Raises a Retry or Reject that is for all, and WrongOutcomes."""
        given = iter(self._given(answer))
        places = range(len(self._messages))
        return [self._known[place] if place in self._known else next(given) for place in places]

    def _given(self, answer: Any) -> list[Any] | tuple[Any, ...]:
        expected = self._expected
        if answer is None:
            return [None] * expected
        if isinstance(answer, Retry | Reject):
            raise answer
        if not isinstance(answer, list | tuple):
            raise WrongOutcomes(f"{self._who} returned a {type(answer).__name__}: {_WANTED}")
        if len(answer) != expected:
            outcomes, messages = display.counted(len(answer), "outcome"), display.counted(expected, "message")
            raise WrongOutcomes(f"{self._who} gave {outcomes} for {messages}: {_WANTED}")
        return answer

    @property
    def _who(self) -> str:
        kinds = sorted({message.kind or "(none)" for message in self._messages})
        return f"the batch handler of kind {', '.join(kinds)}"


_WANTED: Final = "return a list with one for each, in their order, or None when all are done"
