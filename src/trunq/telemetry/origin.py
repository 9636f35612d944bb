"""Who published a message: the span that its headers name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

MOST_LINKS: Final = 128
"""Links of the span of a batch: OpenTelemetry keeps no more of any span, unless it is told to."""
W3C: Final = TraceContextTextMapPropagator()
ALONE: Final = Context()
"""A span that begins in it is the first of its trace, whatever runs around it."""


class Traced(Protocol):
    """A message, as far as a span tells of it."""

    @property
    def id(self) -> int:
        """Its id."""

    @property
    def headers(self) -> Any:
        """Its headers, decoded."""


class Received(Traced, Protocol):
    """A message under a lease."""

    @property
    def queue(self) -> str:
        """Its queue."""

    @property
    def subscription(self) -> str:
        """Whose it is."""

    @property
    def kind(self) -> str | None:
        """Its kind."""

    @property
    def attempt(self) -> int:
        """How often it was handed out."""


class Origin(NamedTuple):
    """The span that published a message."""

    parent: Context
    """What begins in this is a child of it."""
    span: SpanContext


def origin_of(message: Traced) -> Origin | None:
    """None where the headers of a message name no span."""
    try:
        headers = message.headers
    except (ValueError, RecursionError):
        # JSON of Postgres' that is none of Python's: a number of thousands of digits.
        return None
    if not isinstance(headers, Mapping):
        return None
    # Anybody may publish headers that are no texts.
    parent, state = headers.get("traceparent"), headers.get("tracestate")
    if not isinstance(parent, str):
        return None
    carrier = (
        {"traceparent": parent, "tracestate": state} if isinstance(state, str) else {"traceparent": parent}
    )
    found = W3C.extract(carrier, ALONE)
    span = get_current_span(found).get_span_context()
    return Origin(found, span) if span.is_valid else None


def links(messages: Iterable[Traced]) -> list[Link]:
    """To those that published the first of these messages."""
    found: list[Link] = []
    for message in messages:
        if (origin := origin_of(message)) is not None:
            found.append(Link(origin.span))
            if len(found) == MOST_LINKS:
                break
    return found
