"""What tracing costs a worker: rates of one that empties a queue, without a Telemetry, with one behind which
there is no SDK, with one of 1 % of the traces, with one of all, and by batches.

Handlers do nothing, messages carry the `traceparent` of another service, spans end at an exporter that
forgets them, behind the SDK's own BatchSpanProcessor. The clock runs from the first handler call to the last
answer.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from time import perf_counter

import psycopg

from _bench import (
    KIND,
    QUEUE,
    Options,
    Table,
    a_second,
    apart,
    copy_in,
    drop_database,
    in_turn,
    main,
    median_ratio,
    new_database,
    server,
    settle,
)
from trunq import Message
from trunq.embedded import Embedded
from trunq.worker import Worker

OFF = "no Telemetry"
ARMS: dict[str, tuple[float | None, bool]] = {
    OFF: (None, False),
    "no SDK": (-1.0, False),
    "1 % of the traces": (0.01, False),
    "every trace": (1.0, False),
    "no Telemetry, batches of 100": (None, True),
    "every trace, batches of 100": (1.0, True),
}
"""What is sampled (below 0: OpenTelemetry's API alone), and whether a handler takes batches."""

HEADER = '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}'


def measure(options: Options) -> Iterator[Table]:
    """The table of one version of Postgres."""
    messages = options.size(60_000, 10_000)
    with server(options) as running:
        figures = in_turn(
            {
                name: partial(rate, running, messages, sampled, is_batched)
                for name, (sampled, is_batched) in ARMS.items()
            },
            rounds=options.rounds(quick=3),
        )
    table = Table(
        f"tracing, Postgres {options.postgres}",
        f"One worker process empties a queue of {messages:,} messages of 200 bytes; median of"
        f" {len(figures[OFF])} rounds in turn.",
        ["spans", "messages/s", "µs a message", "share of the rate without"],
    )
    for name, rates in figures.items():
        middle = statistics.median(rates)
        table.add(name, a_second(middle), f"{1e6 / middle:.1f}", f"{median_ratio(figures, name, OFF):.2f}")
    yield table


def rate(running: Embedded, messages: int, sampled: float | None, is_batched: bool) -> float:
    """Messages a second of one round."""
    dsn = new_database(running)
    with psycopg.connect(dsn, autocommit=True) as connection:
        # Whatever is copied in gets the header: the queue's own default for it.
        connection.execute(
            f"alter table trunq_log.{QUEUE} alter column headers set default '{HEADER}'".encode()
        )
        copy_in(connection, f"trunq_log.{QUEUE}", messages)
        settle(dsn)
        took = apart(drain, dsn, messages, sampled, is_batched)
        done = connection.execute(f"select sum(size) from trunq_data.{QUEUE}_receipt where outcome = 'a'")
        assert done.fetchone() == (messages,)
    drop_database(running, dsn)
    return messages / took


def drain(dsn: str, messages: int, sampled: float | None, is_batched: bool) -> float:
    """In the worker's process: handle that many messages, return the seconds it took."""
    telemetry = None if sampled is None else telemetry_of(sampled)
    worker = Worker(QUEUE, dsn=dsn, telemetry=telemetry)
    handled, begun = 0, 0.0

    def count(some: int) -> None:
        nonlocal handled, begun
        if not handled:
            begun = perf_counter()
        handled += some
        if handled == messages:
            worker.stop()

    if is_batched:

        @worker.batch(KIND, size=100)
        async def handle_each(given: list[Message]) -> None:
            count(len(given))

    else:

        @worker.handler(KIND)
        async def handle(_: Message) -> None:
            count(1)

    worker.run()
    return perf_counter() - begun


def telemetry_of(sampled: float) -> object:
    """A Telemetry with an exporter that forgets."""
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415  # workers without it load nothing
    from opentelemetry.sdk.trace.export import (  # noqa: PLC0415
        BatchSpanProcessor,
        SpanExporter,
        SpanExportResult,
    )
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased  # noqa: PLC0415

    from trunq.telemetry import Telemetry  # noqa: PLC0415

    if sampled < 0:
        return Telemetry()

    class Forgetful(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:  # noqa: ARG002
            return SpanExportResult.SUCCESS

    provider = TracerProvider(ParentBased(TraceIdRatioBased(sampled)))
    provider.add_span_processor(BatchSpanProcessor(Forgetful()))
    return Telemetry(tracer_provider=provider)


if __name__ == "__main__":
    main(__doc__, measure)
