"""A span while it is open. Each message of a worker that traces passes here: few calls, no generators."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter
from types import TracebackType
from typing import Any

from opentelemetry.context import attach, detach
from opentelemetry.metrics import Histogram
from opentelemetry.trace import INVALID_SPAN, Span, Status, StatusCode, set_span_in_context

from trunq.telemetry import convention as named
from trunq.telemetry.origin import MOST_LINKS, Traced, origin_of

log = logging.getLogger("trunq.telemetry")

Attributes = dict[str, str | int]


class Work:
    """What a span is open for; `attributes` are those of its figures, `count` the messages it is about."""

    __slots__ = ("_linked", "attributes", "count", "span")

    def __init__(self, span: Span, attributes: Attributes, count: int = 1) -> None:
        self.span = span
        self.attributes = attributes
        self.count = count
        self._linked = 0

    def published(self, published: Any) -> None:
        """These ids, or this one, or records that have them."""
        found = (
            published if isinstance(published, list | tuple) and not hasattr(published, "id") else [published]
        )
        self.count = sum(getattr(each, "is_new", True) for each in found)
        if len(found) == 1:
            self.span.set_attribute(named.MESSAGE_ID, str(getattr(found[0], "id", found[0])))
        else:
            self.span.set_attribute(named.COUNT, len(found))

    def copied(self, count: int) -> None:
        """So many, by COPY."""
        self.count = count
        self.span.set_attribute(named.COUNT, count)

    def read(self, message: Traced) -> None:
        """One more message of a stream's batch: the first of them are linked to their publishers' spans."""
        self.count += 1
        if self._linked < MOST_LINKS and (origin := origin_of(message)) is not None:
            self.span.add_link(origin.span)
            self._linked += 1

    def ended(self, outcome: str) -> None:
        """What the handler's answer says."""
        self.span.set_attribute(named.OUTCOME, outcome)


class Opened(AbstractContextManager[Work]):
    """A span, which is the current one while this is entered.

    `took` is told how long that was, `then` what was done, unless it failed. Without `has_stack` an error is
    told by its text alone.
    """

    __slots__ = ("_began", "_has_stack", "_start", "_then", "_token", "_took", "_work")

    def __init__(
        self,
        start: Callable[[], Span],
        attributes: Attributes,
        *,
        count: int = 1,
        took: Histogram | None = None,
        then: Callable[[Work], None] | None = None,
        has_stack: bool = True,
    ) -> None:
        self._start = start
        self._work = Work(INVALID_SPAN, attributes, count)
        self._took = took
        self._then = then
        self._has_stack = has_stack
        self._token: Any = None

    def __enter__(self) -> Work:
        self._began = perf_counter()
        try:
            self._work.span = span = self._start()
            self._token = attach(set_span_in_context(span))
        except Exception:
            say_failed()
        return self._work

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        work = self._work
        if error is not None:
            safely(fail, work.span, work.attributes, error, has_stack=self._has_stack)
        elif self._then is not None:
            safely(self._then, work)
        if self._took is not None:
            safely(self._took.record, perf_counter() - self._began, work.attributes)
        if self._token is not None:
            safely(detach, self._token)
        safely(work.span.end)


def fail(span: Span, attributes: Attributes, error: BaseException, *, has_stack: bool = True) -> None:
    """Have a span, and its figures, say what was raised."""
    name = type(error).__qualname__
    attributes[named.ERROR_TYPE] = name
    span.set_attribute(named.ERROR_TYPE, name)
    span.set_status(Status(StatusCode.ERROR, str(error)))
    if not isinstance(error, Exception):
        return
    if has_stack:
        span.record_exception(error)
    else:
        span.add_event("exception", {"exception.type": name, "exception.message": str(error)})


def safely(call: Callable[..., object], *values: Any, **named: Any) -> None:
    """What samplers and processors of the user raise is said, and is no failure of a message."""
    try:
        call(*values, **named)
    except Exception:
        say_failed()


def say_failed() -> None:
    """Say what is being handled."""
    log.warning("telemetry failed, and the message goes on without", exc_info=True)
