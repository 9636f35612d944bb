"""Spans of workers: a handler's is linked to the span that published its message, in each attempt."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from serving import Queue
from tracing import Service, at, linked, told
from trunq import Client, Consumer, Message, Reject, Retry
from trunq.telemetry import MOST_LINKS


@pytest.fixture
def service() -> Service:
    """A service whose spans are kept."""
    return Service()


def _publish(queue: Queue, service: Service, count: int = 1, **given: Any) -> None:
    with Client(queue.dsn, telemetry=service.telemetry) as client:
        for each in range(count):
            client.publish(queue.name, each, kind="work", **given)


def _current() -> tuple[int, int]:
    context = trace.get_current_span().get_span_context()
    return context.trace_id, context.span_id


async def test_publisher_and_handler_are_linked_through_a_retry(queue: Queue, service: Service) -> None:
    worker = queue.worker(until_idle=True, telemetry=service.telemetry)
    seen: list[tuple[int, int]] = []

    @worker.handler("work")
    async def handle(message: Message) -> None:
        seen.append(_current())
        if message.attempt == 1:
            raise ValueError("not yet")

    _publish(queue, service)
    await worker.run_async()
    published, (first, second) = at(service.span("publish q")), service.spans("process q")
    assert seen == [at(first), at(second)]
    assert linked(first) == linked(second) == [published]
    assert first.parent is second.parent is None
    assert len({at(first)[0], at(second)[0], published[0]}) == 3
    assert [told(each)["trunq.message.attempt"] for each in (first, second)] == [1, 2]
    assert told(first)["error.type"] == "ValueError"
    assert first.status.description == "not yet"
    assert told(second)["trunq.outcome"] == "success"
    assert [told(each)["messaging.operation.type"] for each in service.spans("lease q")] == ["receive"] * 2
    assert [each.name for each in service.spans("retry q") + service.spans("ack q")] == ["retry q", "ack q"]
    processed = service.points("messaging.process.duration")
    assert {attributes.get("error.type"): count for attributes, count in processed} == {
        None: 1,
        "ValueError": 1,
    }


async def test_headers_that_python_cannot_read_end_no_worker(queue: Queue, service: Service) -> None:
    digits = "1" * 5000
    queue.connection.execute(
        "select trunq.publish('q', '1', p_kind => 'work', p_headers => %s)", (f'{{"n": {digits}}}',)
    )
    worker = queue.worker(until_idle=True, telemetry=service.telemetry)
    seen: list[Any] = []

    @worker.handler("work")
    async def handle(message: Message) -> None:
        seen.append(message.payload)

    await worker.run_async()
    assert seen == [1]
    assert [told(each).get("trunq.outcome") for each in service.spans("process q")] == ["success"]


class _Broken(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:  # noqa: ARG002
        raise RuntimeError("a scrubber that is broken")

    def on_end(self, span: Any) -> None:  # noqa: ARG002
        raise RuntimeError("a scrubber that is broken")


async def test_a_processor_that_raises_fails_no_message(
    queue: Queue, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.tracers.add_span_processor(_Broken())
    worker = queue.worker(until_idle=True, telemetry=service.telemetry)
    seen: list[Any] = []

    @worker.handler("work")
    async def handle(message: Message) -> None:
        seen.append(message.payload)
        if message.attempt == 1:
            raise ValueError("not yet")

    _publish(queue, service, 2)
    await worker.run_async()
    assert sorted(seen) == [0, 0, 1, 1]
    assert (
        queue.connection.execute("select state from trunq.list_messages('q')").fetchall() == [("done",)] * 2
    )
    assert "telemetry failed" in caplog.text


async def test_a_trace_goes_through_two_services(queue: Queue) -> None:
    shop, billing = Service("shop"), Service("billing")
    queue.connection.execute("select trunq.create_queue('bills')")
    with Client(queue.dsn, telemetry=shop.telemetry) as client:
        first = queue.worker(until_idle=True, telemetry=shop.telemetry)
        second = queue.worker("bills", until_idle=True, telemetry=billing.telemetry)

        @first.handler("work")
        def order(message: Message) -> None:
            client.publish("bills", message.payload, kind="work")

        @second.handler("work")
        async def bill(message: Message, connection: psycopg.AsyncConnection[Any]) -> None:
            await connection.execute("select 1")

        _publish(queue, shop)
        await first.run_async()
        await second.run_async()
    handled, published = shop.span("process q"), shop.span("publish bills")
    assert linked(handled) == [at(shop.span("publish q"))]
    assert published.parent is not None
    # The handler runs in a thread, and its span is the current one there.
    assert published.parent.span_id == at(handled)[1]
    assert linked(billing.span("process bills")) == [at(published)]
    # Acked in the handler's own transaction.
    assert billing.spans("ack bills") == []


async def test_with_parent_all_is_one_trace(queue: Queue) -> None:
    service = Service(parent=True)
    worker = queue.worker(until_idle=True, telemetry=service.telemetry)

    @worker.handler("work")
    async def handle(message: Message) -> None:
        """Nothing to do."""

    _publish(queue, service)
    queue.publish()
    await worker.run_async()
    published = service.span("publish q")
    handled, alone = service.spans("process q")
    assert handled.parent is not None
    assert (handled.parent.trace_id, handled.parent.span_id) == at(published)
    assert at(handled)[0] == at(published)[0]
    assert linked(handled) == []
    assert alone.parent is None


async def test_a_batch_handler_has_one_span_a_batch(queue: Queue, service: Service) -> None:
    worker = queue.worker(until_idle=True, telemetry=service.telemetry, prefetch=500)
    _publish(queue, service, MOST_LINKS + 2)

    @worker.batch("work", size=MOST_LINKS + 2, wait=30)
    async def handle(messages: list[Message]) -> list[Any]:
        return [Reject("no") if message.payload == 0 else None for message in messages]

    await worker.run_async()
    span = service.span("process q")
    assert linked(span) == [at(each) for each in service.spans("publish q")][:MOST_LINKS]
    assert told(span)["messaging.batch.message_count"] == MOST_LINKS + 2
    assert told(span)["trunq.outcome"] == "rejected"


async def test_answers_that_are_no_failures_are_no_errors(queue: Queue, service: Service) -> None:
    worker = queue.worker(until_idle=True, telemetry=service.telemetry, concurrency=1)
    queue.publish("later")
    queue.publish("never")

    @worker.handler("later")
    def later(message: Message) -> Any:
        if message.attempt == 1:
            raise Retry(after=0)
        return None

    @worker.handler("never")
    async def never(message: Message) -> Any:
        return Reject("no")

    await worker.run_async()
    spans = service.spans("process q")
    outcomes = [(told(each)["trunq.message.kind"], told(each)["trunq.outcome"]) for each in spans]
    assert sorted(outcomes) == [("later", "failed"), ("later", "success"), ("never", "rejected")]
    assert {each.status.status_code.name for each in spans} == {"UNSET"}
    assert len(queue.dead()) == 1


async def test_a_handler_that_takes_too_long_is_an_error(queue: Queue, service: Service) -> None:
    worker = queue.worker(until_idle=True, telemetry=service.telemetry)
    queue.policy(max_attempts=1)
    queue.publish()

    @worker.handler("work", time_out=0.05)
    async def handle(message: Message) -> None:
        await asyncio.Event().wait()

    await worker.run_async()
    assert told(service.span("process q"))["error.type"] == "CancelledError"
    assert len(service.spans("time_out q")) == 1


async def test_what_is_not_sampled_is_handled_and_its_trace_goes_on(queue: Queue) -> None:
    silent, service = Service(sampler=ALWAYS_OFF), Service()
    worker = queue.worker(until_idle=True, telemetry=service.telemetry)

    @worker.handler("work")
    async def handle(message: Message) -> None:
        """Nothing to do."""

    _publish(queue, silent)
    await worker.run_async()
    assert silent.exporter.get_finished_spans() == ()
    (link,) = service.span("process q").links
    assert link.context.is_valid
    assert not link.context.trace_flags.sampled


def test_a_consumer_has_a_span_for_each_batch(queue: Queue, service: Service) -> None:
    queue.connection.execute("select trunq.subscribe('q', 'ledger', p_mode => 'exclusive')")
    _publish(queue, service, 3)
    done = threading.Event()

    async def book(batch: Any, connection: psycopg.AsyncConnection[Any]) -> None:
        async for _ in batch:
            pass
        done.set()

    consumer = Consumer("q", "ledger", book, database=queue.dsn, worker="me", telemetry=service.telemetry)
    consumer.start()
    assert done.wait(60)
    consumer.stop()
    assert consumer.wait(60)
    span = service.span("process q")
    assert linked(span) == [at(each) for each in service.spans("publish q")]
    assert told(span)["messaging.destination.subscription.name"] == "ledger"
