"""Spans around calls of a client that was given a Telemetry."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from time import time_ns
from typing import TYPE_CHECKING, Any, TypeVar, cast

from trunq.client.answered import Answered

if TYPE_CHECKING:
    from trunq.telemetry import Telemetry, Work

Function = TypeVar("Function", bound=Callable[..., Any])


def publishing(function: Function) -> Function:
    """Around a method that publishes: its result says what."""

    @wraps(function)
    async def publish(self: Any, queue: str, *values: Any, **arguments: Any) -> Any:
        if (telemetry := self._telemetry) is None:
            return await function(self, queue, *values, **arguments)
        with telemetry.publishing(queue, arguments.get("kind")) as work:
            published = await function(self, queue, *values, **arguments)
            work.published(published)
        return published

    return cast(Function, publish)


def leasing(function: Function) -> Function:
    """Around a method that leases: its result, or the first part of that, is messages."""

    @wraps(function)
    async def lease(self: Any, queue: str, subscription: str, *values: Any, **arguments: Any) -> Any:
        if (telemetry := self._telemetry) is None:
            return await function(self, queue, subscription, *values, **arguments)
        began = time_ns()
        try:
            leased = await function(self, queue, subscription, *values, **arguments)
        except BaseException as error:
            telemetry.refused(queue, subscription, began, error)
            raise
        if messages := leased[0] if isinstance(leased, tuple) else leased:
            telemetry.received(queue, subscription, messages, began)
        return leased

    return cast(Function, lease)


def settling(
    telemetry: Telemetry | None, function: str, held: Answered
) -> AbstractContextManager[Work | None]:
    """Around the call of an answer."""
    if telemetry is None:
        return nullcontext()
    return telemetry.settling(function, held.lease["queue"], held.lease["subscription"], held.ids)
