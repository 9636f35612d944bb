"""Payloads on their way to a handler: brought up to date, then read as the type that it is annotated with."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Literal

from trunq.client.message import Message, Reject, Retry
from trunq.client.payload import PayloadType, Unfit, require_plain

VERSION = "version"
"""The header that says which version of its kind a payload is; 1 where there is none."""

OnInvalid = Literal["reject", "retry"] | Callable[[Message, Exception], Any]
"""What becomes of a message whose payload does not fit: an answer, or what is called with the message and
pydantic's ValidationError and gives one."""

Upcast = Callable[[Any], Any]


class Wanted(typing.NamedTuple):
    """What a handler's first parameter takes: the message, or the payload alone; and the payload's type."""

    type: PayloadType | None
    takes_message: bool


MESSAGE = Wanted(None, True)


def wanted(hint: Any) -> Wanted:
    """Read off the annotation of the first parameter. Raises TypeError for what cannot be checked."""
    if typing.get_origin(hint) is Message:
        (kind,) = typing.get_args(hint)
        if kind is Any or isinstance(kind, typing.TypeVar):
            return MESSAGE
        if kind is bytes:
            raise TypeError("a payload is JSON and never bytes, which are in message.body")
        return Wanted(PayloadType(kind), True)
    if _is_model(hint):
        return Wanted(PayloadType(hint), False)
    if typing.get_origin(hint) in (list, Sequence):
        raise TypeError("a handler takes one message; @worker.batch('kind') registers one that takes a list")
    if any(_is_model(each) for each in typing.get_args(hint)):
        raise TypeError(f"to get one of several types, annotate the message: Message[{hint}]")
    return MESSAGE


def wanted_each(hint: Any) -> Wanted:
    """The same for each element of a list. Raises TypeError for what is no list, and as `wanted` does."""
    if hint in (None, Any, list, Sequence):
        return MESSAGE
    if typing.get_origin(hint) not in (list, Sequence):
        raise TypeError("a batch handler takes a list: def handle(messages: list[Message])")
    return wanted(typing.get_args(hint)[0])


def _is_model(hint: Any) -> bool:
    if not inspect.isclass(hint) or issubclass(hint, Message):
        return False
    return dataclasses.is_dataclass(hint) or hasattr(hint, "model_validate")


class Incoming:
    """The upcasts of a worker, and what becomes of payloads that do not fit."""

    def __init__(self, on_invalid: OnInvalid = "reject") -> None:
        if on_invalid not in ("reject", "retry"):
            require_plain(on_invalid, "on_invalid is 'reject', 'retry' or a plain function")
        self._on_invalid = on_invalid
        self._upcasts: dict[str, dict[int, Upcast]] = {}

    @property
    def has_upcasts(self) -> bool:
        """Whether there are versions to bring up to date."""
        return bool(self._upcasts)

    def add(self, kind: str, from_: int, function: Upcast) -> None:
        """An upcast of a kind from one version to the next."""
        if type(from_) is not int or from_ < 1:
            raise ValueError(f"from_ is a version, 1 or above, not {from_!r}")
        require_plain(function, "an upcast is a plain function: old payload -> new payload")
        if from_ in (steps := self._upcasts.setdefault(kind, {})):
            raise ValueError(f"kind {kind!r} has an upcast from version {from_} already")
        steps[from_] = function

    def check(self) -> None:
        """Refuse steps that leave a version out."""
        for kind, steps in self._upcasts.items():
            if missing := sorted(set(range(min(steps), max(steps))) - set(steps)):
                raise ValueError(f"kind {kind!r} has no upcast from version {missing[0]}")

    def around(self, function: Callable[..., Any], wants: Wanted, *, is_async: bool) -> Callable[..., Any]:
        """A handler that is called with what it wants."""
        return self._around_async(function, wants) if is_async else self._around_sync(function, wants)

    def _around_async(self, function: Callable[..., Any], wants: Wanted) -> Callable[..., Any]:
        @wraps(function)
        async def handle(message: Message, **arguments: Any) -> Any:
            try:
                first = self.read(message, wants)
            except Answered as answered:
                return answered.answer
            return await function(first, **arguments)

        return handle

    def _around_sync(self, function: Callable[..., Any], wants: Wanted) -> Callable[..., Any]:
        @wraps(function)
        def handle(message: Message, **arguments: Any) -> Any:
            try:
                first = self.read(message, wants)
            except Answered as answered:
                return answered.answer
            return function(first, **arguments)

        return handle

    def read(self, message: Message, wants: Wanted) -> Any:
        """What the first parameter gets. Raises Answered for what no function is to see."""
        try:
            return self._first(message, wants)
        except _Newer as error:
            answer: Any = Retry(error=str(error))
        except Unfit as error:
            answer = self._answer(message, error)
        raise Answered(answer)

    def _first(self, message: Message, wants: Wanted) -> Any:
        if message.kind is not None and (steps := self._upcasts.get(message.kind)):
            _bring_up_to_date(message, steps)
        if wants.type is None:
            return message
        payload = wants.type.read(message.json)
        if not wants.takes_message:
            return payload
        message.payload = payload
        return message

    def _answer(self, message: Message, error: Unfit) -> Any:
        if self._on_invalid == "reject":
            return Reject(str(error))
        if self._on_invalid == "retry":
            return Retry(error=str(error))
        assert callable(self._on_invalid)
        return self._on_invalid(message, typing.cast("Exception", error.__cause__))


class Answered(Exception):
    """A message has its answer before its handler is called."""

    def __init__(self, answer: Any) -> None:
        super().__init__(answer)
        self.answer = answer


class _Newer(Exception):
    """A payload is of a later version than this worker knows."""


def _bring_up_to_date(message: Message, steps: dict[int, Upcast]) -> None:
    version = (message.headers or {}).get(VERSION, 1)
    if isinstance(version, bool) or not isinstance(version, int):
        raise Unfit(f"the header version is a number, not {version!r}") from ValueError(version)
    if version > (newest := max(steps) + 1):
        raise _Newer(
            f"version {version} of kind {message.kind} is newer than {newest}, which this worker knows"
        )
    while version < newest:
        if (step := steps.get(version)) is None:
            raise Unfit(f"kind {message.kind} has no upcast from version {version}") from ValueError(version)
        message.payload = step(message.payload)
        version += 1
