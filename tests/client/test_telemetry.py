"""Spans and figures of clients: what was published, leased and answered, and by which trace."""

from __future__ import annotations

import subprocess
import sys

import pytest
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.semconv.attributes import error_attributes, server_attributes

from tracing import Service, at, linked, told
from trunq import AsyncClient, Client
from trunq.errors import QueueNotFound
from trunq.telemetry import MOST_LINKS, convention


@pytest.fixture
def service() -> Service:
    """A service whose spans are kept."""
    return Service()


@pytest.fixture
def client(database: str, service: Service) -> object:
    """A traced client, with a queue."""
    with Client(database, telemetry=service.telemetry) as client:
        client.create_queue("orders")
        yield client


def test_our_names_are_those_of_the_conventions() -> None:
    ours = {name: value for name, value in vars(convention).items() if isinstance(value, str)}
    known = {
        value
        for module in (messaging_attributes, messaging_metrics, error_attributes, server_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    types = {each.value for each in messaging_attributes.MessagingOperationTypeValues}
    own = {name for name, value in ours.items() if value.startswith("trunq.")}
    strange = {
        name: value
        for name, value in ours.items()
        if name.isupper() and name not in own and value not in known | types
    }
    assert strange == {}


def test_a_message_carries_the_span_that_published_it(client: Client, service: Service) -> None:
    with service.tracer.start_as_current_span("checkout") as checkout:
        id = client.publish("orders", {"id": 1}, kind="placed", headers={"own": 1})
    span = service.span("publish orders")
    (message,) = client.lease("orders", "default", "me")
    trace_id, span_id = at(span)
    assert message.headers["traceparent"].startswith(f"00-{trace_id:032x}-{span_id:016x}-")
    assert message.headers["own"] == 1
    assert span.parent is not None
    assert span.parent.span_id == checkout.get_span_context().span_id
    assert span.kind.name == "PRODUCER"
    assert told(span) == {
        "messaging.system": "trunq",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.message.id": str(id),
        "trunq.message.kind": "placed",
    }


def test_leases_and_answers_have_spans_and_an_empty_lease_has_none(client: Client, service: Service) -> None:
    assert client.lease("orders", "default", "me") == []
    client.publish_many("orders", [1, 2, 3])
    messages = client.lease("orders", "default", "me", 10)
    client.ack(messages[:2])
    client.reject(messages[2], "no")
    lease = service.span("lease orders")
    assert linked(lease) == [at(service.span("publish orders"))] * 3
    assert told(lease)["messaging.batch.message_count"] == 3
    assert lease.kind.name == "CLIENT"
    assert told(service.span("ack orders")) == {
        "messaging.system": "trunq",
        "messaging.destination.name": "orders",
        "messaging.destination.subscription.name": "default",
        "messaging.operation.name": "ack",
        "messaging.operation.type": "settle",
        "messaging.batch.message_count": 2,
    }
    assert told(service.span("reject orders"))["messaging.message.id"] == str(messages[2].id)


def test_each_way_to_publish_has_a_span_and_is_counted(client: Client, service: Service) -> None:
    client.create_queue("alone", unique="refuse")
    client.publish("alone", 1)
    client.publish_many("alone", [1, 2])
    client.publish_unique("alone", 3, "a")
    client.publish_unique("alone", 3, "a")
    client.publish_many_unique("alone", [4, 5], ["a", "b"])
    with client.copy("alone") as copy:
        for each in range(3):
            copy.write(each)
    assert len(service.spans("publish alone")) == 6
    # Two of them were left out: another holds their key.
    ((attributes, count),) = service.points("messaging.client.sent.messages")
    assert (attributes["messaging.destination.name"], count) == ("alone", 1 + 2 + 1 + 1 + 3)
    for message in client.lease("alone", "default", "me", 100):
        assert "traceparent" in message.headers
    ((_, consumed),) = service.points("messaging.client.consumed.messages")
    assert consumed == 8


def test_what_is_refused_is_an_error_of_its_span_and_not_counted(client: Client, service: Service) -> None:
    with pytest.raises(QueueNotFound):
        client.publish("nowhere", 1)
    with pytest.raises(QueueNotFound):
        client.lease("nowhere", "default", "me")
    for name in ("publish nowhere", "lease nowhere"):
        span = service.span(name)
        assert told(span)["error.type"] == "QueueNotFound"
        assert span.status.status_code.name == "ERROR"
        assert [event.name for event in span.events] == ["exception"]
    assert service.points("messaging.client.sent.messages") == []
    errors = [
        attributes["error.type"] for attributes, _ in service.points("messaging.client.operation.duration")
    ]
    assert errors == ["QueueNotFound", "QueueNotFound"]


async def test_the_async_client_traces_as_well(database: str, service: Service) -> None:
    async with AsyncClient(database, telemetry=service.telemetry) as client:
        await client.create_queue("orders")
        await client.publish("orders", 1)
        messages = await client.lease("orders", "default", "me")
        await client.ack(messages)
    assert linked(service.span("lease orders")) == [at(service.span("publish orders"))]
    assert service.span("ack orders").end_time is not None


def test_a_batch_of_a_stream_has_one_span_and_no_more_links_than_a_span_keeps(
    client: Client, service: Service
) -> None:
    client.subscribe("orders", "ledger", mode="exclusive")
    client.publish("orders", 0)
    client.publish_many("orders", list(range(MOST_LINKS + 10)))
    for batch in client.stream("orders", "ledger", "me"):
        with batch.transaction():
            assert len(list(batch)) == MOST_LINKS + 11
        break
    span, (one, many) = service.span("process orders"), service.spans("publish orders")
    assert linked(span) == [at(one)] + [at(many)] * (MOST_LINKS - 1)
    assert told(span)["messaging.batch.message_count"] == MOST_LINKS + 11
    assert span.kind.name == "CONSUMER"
    assert span.parent is None


@pytest.mark.parametrize(
    "headers",
    [{"traceparent": 7}, {"traceparent": "no"}, {"traceparent": ["00"]}, {"tracestate": "a=b"}, {"own": 1}],
    ids=str,
)
def test_headers_that_name_no_trace_are_no_trouble(
    database: str, client: Client, service: Service, headers: dict[str, object]
) -> None:
    with Client(database) as other:
        other.publish("orders", 1, headers=headers)
    assert len(client.lease("orders", "default", "me")) == 1
    assert linked(service.span("lease orders")) == []


def test_without_the_package_the_module_says_which_extra_brings_it() -> None:
    program = "import sys; sys.modules['opentelemetry'] = None; import trunq.telemetry"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: trunq.telemetry needs opentelemetry-api: pip install 'trunq[otel]'"
    )
