"""Traces and metrics of OpenTelemetry, for clients, workers, consumers and runners that get a Telemetry.

    client = Client(telemetry=Telemetry())
    worker = Worker("orders", telemetry=Telemetry())

It needs `pip install 'trunq[otel]'`; where spans and figures go to is said to OpenTelemetry's SDK. Nothing
else of trunq imports this module: who gives no Telemetry pays for a branch.

    convention   the names of spans, attributes and metrics
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter, time_ns
from typing import Any, Final, Protocol

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context, attach, detach
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise ImportError("trunq.telemetry needs opentelemetry-api: pip install 'trunq[otel]'") from error

from trunq.telemetry import convention as named

log = logging.getLogger("trunq.telemetry")

MOST_LINKS: Final = 128
"""Links of the span of a batch: OpenTelemetry keeps no more of any span, unless it is told to."""

_W3C: Final = TraceContextTextMapPropagator()
_ALONE: Final = Context()
"""A span that begins in it is the first of its trace, whatever runs around it."""

Attributes = dict[str, str | int]


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


class Work:
    """What a span is open for."""

    def __init__(self, span: Span, attributes: Attributes) -> None:
        self._span = span
        self._linked = 0
        self.attributes = attributes
        """Those of its figures, too."""
        self.count = 1
        """Messages that it was about."""

    def published(self, published: Any) -> None:
        """These ids, or this one, or records that have them."""
        found = (
            published if isinstance(published, list | tuple) and not hasattr(published, "id") else [published]
        )
        self.count = sum(getattr(each, "is_new", True) for each in found)
        if len(found) == 1:
            self._span.set_attribute(named.MESSAGE_ID, str(getattr(found[0], "id", found[0])))
        else:
            self._span.set_attribute(named.COUNT, len(found))

    def copied(self, count: int) -> None:
        """So many, by COPY."""
        self.count = count
        self._span.set_attribute(named.COUNT, count)

    def read(self, message: Traced) -> None:
        """One more message of a stream's batch: the first of them are linked to their publishers' spans."""
        self.count += 1
        if self._linked < MOST_LINKS and (origin := origin_of(message)) is not None:
            self._span.add_link(origin)
            self._linked += 1

    def ended(self, outcome: str) -> None:
        """What the handler's answer says."""
        self._span.set_attribute(named.OUTCOME, outcome)

    def count_read(self) -> None:
        """Say how many messages were read."""
        self._span.set_attribute(named.COUNT, self.count)


class Telemetry:
    """Spans and figures, by the conventions for messaging.

    `tracer_provider` and `meter_provider` are OpenTelemetry's own unless you give others. The span of a
    handler begins a trace and has a link to the span that published the message, in each of its attempts: a
    retry a day later is no child. With `parent` it is a child of that span all the same, so that all is one
    trace.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        parent: bool = False,
    ) -> None:
        self._tracer = trace.get_tracer("trunq", tracer_provider=tracer_provider)
        self._parent = parent
        meter = metrics.get_meter("trunq", meter_provider=meter_provider)
        self._sent = meter.create_counter(named.SENT, "{message}", "Messages published")
        self._consumed = meter.create_counter(named.CONSUMED, "{message}", "Messages handed out")
        self._took = meter.create_histogram(
            named.DURATION,
            "s",
            "Duration of calls that publish, lease or answer",
            explicit_bucket_boundaries_advisory=named.BUCKETS,
        )
        self._processed = meter.create_histogram(
            named.PROCESS_DURATION,
            "s",
            "Duration of handlers",
            explicit_bucket_boundaries_advisory=named.BUCKETS,
        )

    def inject(self, _queue: str, headers: Mapping[str, Any]) -> Mapping[str, Any]:
        """The headers with the context of the span that is open: an injector of a client."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return {**headers, **carrier}

    @contextmanager
    def publishing(self, queue: str, kind: Any = None) -> Iterator[Work]:
        """A span for a call that publishes, which is the current one in it."""
        attributes = _about("publish", named.SEND, queue)
        more: Attributes = {} if kind is None else {named.KIND: str(kind)}
        with self._calling(f"publish {queue}", SpanKind.PRODUCER, attributes, more) as work:
            yield work
        # Only what was published counts.
        with _harmless():
            self._sent.add(work.count, attributes)

    @contextmanager
    def settling(self, function: str, queue: str, subscription: str, ids: Sequence[int]) -> Iterator[None]:
        """A span for a call that answers."""
        attributes = _about(function, named.SETTLE, queue, subscription)
        with self._calling(f"{function} {queue}", SpanKind.CLIENT, attributes, _ids(ids)):
            yield

    def settled(
        self,
        function: str,
        queue: str,
        subscription: str,
        ids: Sequence[int],
        began: int,
        error: BaseException | None = None,
    ) -> None:
        """A worker's answers went out together at `began` (nanoseconds), and the database has taken them, or
        not.
        """
        attributes = _about(function, named.SETTLE, queue, subscription)
        self._over(f"{function} {queue}", attributes, _ids(ids), began, error)

    def received(self, queue: str, subscription: str, messages: Sequence[Traced], began: int) -> None:
        """A lease asked for at `began` (nanoseconds) got messages; one that gets none has no span."""
        attributes = _about("lease", named.RECEIVE, queue, subscription)
        self._over(f"lease {queue}", attributes, _ids([each.id for each in messages]), began, None, messages)
        with _harmless():
            self._consumed.add(len(messages), attributes)

    def refused(self, queue: str, subscription: str, began: int, error: BaseException) -> None:
        """A lease raised."""
        attributes = _about("lease", named.RECEIVE, queue, subscription)
        self._over(f"lease {queue}", attributes, {}, began, error)

    @contextmanager
    def processing(self, messages: Sequence[Received]) -> Iterator[Work]:
        """A span for a handler, which is the current one in it; for several messages one, with links to those
        that published the first of them.
        """
        first = messages[0]
        attributes = _about("process", named.PROCESS, first.queue, first.subscription)
        if len(messages) == 1:
            more: Attributes = {named.MESSAGE_ID: str(first.id), named.ATTEMPT: first.attempt}
            if first.kind is not None:
                more[named.KIND] = first.kind
            parent = _parent_of(first) if self._parent else None
            links = [] if parent else _links(messages)
        else:
            more, parent, links = {named.COUNT: len(messages)}, None, _links(messages)
        with self._processing(f"process {first.queue}", attributes, more, parent, links) as work:
            yield work

    @contextmanager
    def reading(self, queue: str, subscription: str) -> Iterator[Work]:
        """A span for the batch of a stream: messages are linked as they are read."""
        attributes = _about("process", named.PROCESS, queue, subscription)
        with self._processing(f"process {queue}", attributes, {}, None, []) as work:
            work.count = 0
            yield work
            work.count_read()
        with _harmless():
            self._consumed.add(work.count, attributes)

    @contextmanager
    def inside(self, name: str, attributes: Attributes) -> Iterator[Span]:
        """A span of a part of what a handler does. Of an error it has no stack: nobody redacts its causes."""
        with (
            self._current(name, None, SpanKind.INTERNAL, attributes) as span,
            _failing(span, {}, has_stack=False),
        ):
            yield span

    @contextmanager
    def _current(
        self,
        name: str,
        context: Context | None,
        kind: SpanKind,
        attributes: Attributes,
        links: Sequence[Link] = (),
    ) -> Iterator[Span]:
        """A span, which is the current one in it."""
        span: Span = trace.INVALID_SPAN
        token = None
        with _harmless():
            span = self._tracer.start_span(name, context, kind, attributes, links)
            token = attach(trace.set_span_in_context(span))
        try:
            yield span
        finally:
            with _harmless():
                if token is not None:
                    detach(token)
            with _harmless():
                span.end()

    @contextmanager
    def _processing(
        self,
        name: str,
        attributes: Attributes,
        more: Attributes,
        parent: Context | None,
        links: list[Link],
    ) -> Iterator[Work]:
        began, all = perf_counter(), {**attributes, **more}
        with self._current(name, parent or _ALONE, SpanKind.CONSUMER, all, links) as span:
            try:
                with _failing(span, attributes):
                    yield Work(span, attributes)
            finally:
                with _harmless():
                    self._processed.record(perf_counter() - began, attributes)

    @contextmanager
    def _calling(self, name: str, kind: SpanKind, attributes: Attributes, more: Attributes) -> Iterator[Work]:
        began = perf_counter()
        with self._current(name, None, kind, {**attributes, **more}) as span:
            try:
                with _failing(span, attributes):
                    yield Work(span, attributes)
            finally:
                with _harmless():
                    self._took.record(perf_counter() - began, attributes)

    def _over(
        self,
        name: str,
        attributes: Attributes,
        more: Attributes,
        began: int,
        error: BaseException | None,
        messages: Sequence[Traced] = (),
    ) -> None:
        """A span for what is over."""
        with _harmless():
            span = self._tracer.start_span(name, None, SpanKind.CLIENT, {**attributes, **more}, (), began)
            if span.is_recording():
                for link in _links(messages):
                    span.add_link(link.context)
            if error is not None:
                _fail(span, attributes, error)
            span.end()
            self._took.record((time_ns() - began) / 1e9, attributes)


def origin_of(message: Traced) -> SpanContext | None:
    """The span that published a message; None where its headers name none."""
    context = _parent_of(message)
    return None if context is None else trace.get_current_span(context).get_span_context()


def _parent_of(message: Traced) -> Context | None:
    try:
        headers = message.headers
    except (ValueError, RecursionError):
        # JSON of Postgres' that is none of Python's: a number of thousands of digits.
        return None
    if not isinstance(headers, Mapping) or "traceparent" not in headers:
        return None
    # Anybody may publish headers that are no texts.
    carrier = {name: headers.get(name) for name in ("traceparent", "tracestate")}
    found = _W3C.extract({name: text for name, text in carrier.items() if isinstance(text, str)}, Context())
    return found if trace.get_current_span(found).get_span_context().is_valid else None


def _links(messages: Iterable[Traced]) -> list[Link]:
    found: list[Link] = []
    for message in messages:
        if (origin := origin_of(message)) is not None:
            found.append(Link(origin))
            if len(found) == MOST_LINKS:
                break
    return found


def _about(operation: str, type: str, queue: str, subscription: str | None = None) -> Attributes:
    about: Attributes = {
        named.SYSTEM: "trunq",
        named.DESTINATION: queue,
        named.OPERATION: operation,
        named.OPERATION_TYPE: type,
    }
    if subscription is not None:
        about[named.SUBSCRIPTION] = subscription
    return about


def _ids(ids: Sequence[int]) -> Attributes:
    return {named.MESSAGE_ID: str(ids[0])} if len(ids) == 1 else {named.COUNT: len(ids)}


@contextmanager
def _harmless() -> Iterator[None]:
    """What samplers and processors of the user raise is said, and is no failure of a message."""
    try:
        yield
    except Exception:
        log.warning("telemetry failed, and the message goes on without", exc_info=True)


@contextmanager
def _failing(span: Span, attributes: Attributes, *, has_stack: bool = True) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        with _harmless():
            _fail(span, attributes, error, has_stack=has_stack)
        raise


def _fail(span: Span, attributes: Attributes, error: BaseException, *, has_stack: bool = True) -> None:
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
