"""Runs in spans of OpenTelemetry, under the span of the message that asked for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trunq.pipeline.control import Run

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from trunq.telemetry import Telemetry


class Tracing:
    """Spans of a runner; without a Telemetry there are none."""

    def __init__(self, telemetry: Telemetry | None = None) -> None:
        self._telemetry = telemetry

    @contextmanager
    def run(self, run: Run) -> Iterator[Told]:
        """One attempt of a runner at a run."""
        with self._inside(f"run {run.pipeline}", run) as span:
            yield Told(span)

    @contextmanager
    def spark(self, run: Run, group: str) -> Iterator[None]:
        """What Spark does for it, in the job group that its own pages name."""
        with self._inside(f"spark {run.pipeline}", run) as span:
            if span is not None:
                span.set_attribute("trunq.spark.group", group)
            yield

    @contextmanager
    def _inside(self, name: str, run: Run) -> Iterator[Span | None]:
        if self._telemetry is None:
            yield None
            return
        about: dict[str, str | int] = {"trunq.pipeline": run.pipeline, "trunq.run": run.number}
        with self._telemetry.inside(name, about) as work:
            yield work.span


class Told:
    """What a span says of a run in the end."""

    def __init__(self, span: Span | None) -> None:
        self._span = span

    def ended(self, answer: Mapping[str, Any]) -> None:
        """Its outcome and its rows."""
        if self._span is None:
            return
        for name in ("outcome", "rows_in", "rows_out", "rows_bad"):
            if (value := answer.get(name)) is not None:
                self._span.set_attribute(f"trunq.{name}", value)
