"""Helpers for tests of telemetry: spans and figures kept in memory, one process's or several services'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from trunq.telemetry import Telemetry


class Service:
    """A service with its own providers, and all that they were told."""

    def __init__(self, name: str = "shop", *, parent: bool = False, sampler: Sampler = ALWAYS_ON) -> None:
        self.exporter = InMemorySpanExporter()
        resource = Resource.create({"service.name": name})
        self.tracers = TracerProvider(sampler, resource, shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self._reader = InMemoryMetricReader()
        meters = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        self.telemetry = Telemetry(tracer_provider=self.tracers, meter_provider=meters, parent=parent)

    @property
    def tracer(self) -> Any:
        """For spans of the user's own."""
        return self.tracers.get_tracer("own")

    def spans(self, name: str) -> list[ReadableSpan]:
        """Those of a name that have ended, in the order in which they began."""
        found = [each for each in self.exporter.get_finished_spans() if each.name == name]
        return sorted(found, key=lambda each: each.start_time or 0)

    def span(self, name: str) -> ReadableSpan:
        """The only one of a name."""
        (found,) = self.spans(name)
        return found

    def points(self, name: str) -> list[tuple[Mapping[str, Any], Any]]:
        """The attributes and the value of each point of a figure: a sum, or how many values it had."""
        data = self._reader.get_metrics_data()
        return [
            (dict(point.attributes or {}), getattr(point, "value", None) or getattr(point, "count", None))
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    """The trace and the span of each link."""
    return [(each.context.trace_id, each.context.span_id) for each in span.links]


def at(span: ReadableSpan) -> tuple[int, int]:
    """Its trace and itself."""
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def told(span: ReadableSpan) -> dict[str, Any]:
    """Its attributes."""
    return dict(span.attributes or {})
