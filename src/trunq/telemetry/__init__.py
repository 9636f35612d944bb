"""Traces and metrics of OpenTelemetry, for clients, workers, consumers and runners that get a Telemetry.

    client = Client(telemetry=Telemetry())
    worker = Worker("orders", telemetry=Telemetry())

It needs `pip install 'trunq[otel]'`; where spans and figures go to is said to OpenTelemetry's SDK. Nothing
else of trunq imports this module: who gives no Telemetry pays for a branch.

    convention   the names of spans, attributes and metrics
    origin       the span that published a message
    span         a span while it is open
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import time_ns
from typing import Any

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, SpanKind, TracerProvider
except ModuleNotFoundError as error:
    raise ImportError("trunq.telemetry needs opentelemetry-api: pip install 'trunq[otel]'") from error

from trunq.telemetry import convention as named
from trunq.telemetry.origin import ALONE, MOST_LINKS, W3C, Received, Traced, links, origin_of
from trunq.telemetry.span import Attributes, Opened, Work, fail, safely

__all__ = ["MOST_LINKS", "Telemetry", "Work"]


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
        W3C.inject(carrier)
        return {**headers, **carrier}

    def publishing(self, queue: str, kind: Any = None) -> Opened:
        """A span for a call that publishes, which is the current one in it."""
        attributes = _about("publish", named.SEND, queue)
        more: Attributes = {} if kind is None else {named.KIND: str(kind)}
        # Only what was published counts.
        return self._calling(f"publish {queue}", SpanKind.PRODUCER, attributes, more, self._count_sent)

    def settling(self, function: str, queue: str, subscription: str, ids: Sequence[int]) -> Opened:
        """A span for a call that answers."""
        attributes = _about(function, named.SETTLE, queue, subscription)
        return self._calling(f"{function} {queue}", SpanKind.CLIENT, attributes, _ids(ids))

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
        safely(self._over, f"{function} {queue}", attributes, _ids(ids), began, error)

    def received(self, queue: str, subscription: str, messages: Sequence[Traced], began: int) -> None:
        """A lease asked for at `began` (nanoseconds) got messages; one that gets none has no span."""
        attributes = _about("lease", named.RECEIVE, queue, subscription)
        safely(
            self._over,
            f"lease {queue}",
            attributes,
            _ids([each.id for each in messages]),
            began,
            None,
            messages,
        )
        safely(self._consumed.add, len(messages), attributes)

    def refused(self, queue: str, subscription: str, began: int, error: BaseException) -> None:
        """A lease raised."""
        attributes = _about("lease", named.RECEIVE, queue, subscription)
        safely(self._over, f"lease {queue}", attributes, {}, began, error)

    def processing(self, messages: Sequence[Received]) -> Opened:
        """A span for a handler, which is the current one in it; for several messages one, with links to those
        that published the first of them.
        """
        first = messages[0]
        attributes = _about("process", named.PROCESS, first.queue, first.subscription)
        if len(messages) > 1:
            more: Attributes = {named.COUNT: len(messages)}
            return self._processing(first.queue, attributes, more, ALONE, links(messages))
        more = {named.MESSAGE_ID: str(first.id), named.ATTEMPT: first.attempt}
        if first.kind is not None:
            more[named.KIND] = first.kind
        origin = origin_of(first)
        if origin is None:
            return self._processing(first.queue, attributes, more, ALONE, ())
        if self._parent:
            return self._processing(first.queue, attributes, more, origin.parent, ())
        return self._processing(first.queue, attributes, more, ALONE, (Link(origin.span),))

    def reading(self, queue: str, subscription: str) -> Opened:
        """A span for the batch of a stream: messages are linked as they are read."""
        attributes = _about("process", named.PROCESS, queue, subscription)
        start = partial(
            self._tracer.start_span, f"process {queue}", ALONE, SpanKind.CONSUMER, dict(attributes)
        )
        return Opened(start, attributes, count=0, took=self._processed, then=self._count_read)

    def inside(self, name: str, attributes: Attributes) -> Opened:
        """A span of a part of what a handler does. Of an error it has no stack: nobody redacts its causes."""
        start = partial(self._tracer.start_span, name, None, SpanKind.INTERNAL, attributes)
        return Opened(start, {}, has_stack=False)

    def _processing(
        self, queue: str, attributes: Attributes, more: Attributes, parent: Context, links: Sequence[Link]
    ) -> Opened:
        all = {**attributes, **more}
        start = partial(self._tracer.start_span, f"process {queue}", parent, SpanKind.CONSUMER, all, links)
        return Opened(start, attributes, took=self._processed)

    def _calling(
        self,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        more: Attributes,
        then: Callable[[Work], None] | None = None,
    ) -> Opened:
        start = partial(self._tracer.start_span, name, None, kind, {**attributes, **more})
        return Opened(start, attributes, took=self._took, then=then)

    def _count_sent(self, work: Work) -> None:
        self._sent.add(work.count, work.attributes)

    def _count_read(self, work: Work) -> None:
        work.span.set_attribute(named.COUNT, work.count)
        self._consumed.add(work.count, work.attributes)

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
        span = self._tracer.start_span(name, None, SpanKind.CLIENT, {**attributes, **more}, (), began)
        if span.is_recording():
            for link in links(messages):
                span.add_link(link.context)
        if error is not None:
            fail(span, attributes, error)
        span.end()
        self._took.record((time_ns() - began) / 1e9, attributes)


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
