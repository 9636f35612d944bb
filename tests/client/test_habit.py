"""Words of other libraries: the error names ours, and ours works."""

from __future__ import annotations

from typing import Any

import pytest

from trunq import AsyncClient, Client, InvalidArgument
from trunq.client.message import Message
from trunq.connection.address import complete
from trunq.worker import Worker


def test_arguments_of_others_are_refused_with_ours(database: str) -> None:
    with Client(database) as client:
        client.create_queue("orders")
        publish: Any = client.publish
        many: Any = client.publish_many
        with pytest.raises(
            TypeError, match=r"unexpected keyword argument 'countdown'; what you mean is delay"
        ):
            publish("orders", {"order": 1}, countdown=10)
        with pytest.raises(TypeError, match="'eta'; what you mean is due_at"):
            many("orders", [1], eta=10)
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'flavour'$"):
            publish("orders", {"order": 1}, flavour=10)
        assert client.list_messages("orders") == []
        client.publish("orders", {"order": 1}, delay=10)
        assert [message.state for message in client.list_messages("orders")] == ["scheduled"]


def test_methods_of_others_are_refused_with_ours() -> None:
    client: Any = Client("host=/nonexistent")
    for name in ("enqueue", "delay", "send_task", "apply_async"):
        with pytest.raises(AttributeError, match=r"write client\.publish\('orders', \{'order': 1\}, kind="):
            getattr(client, name)
    with pytest.raises(AttributeError, match=r"'AsyncClient' object has no attribute 'flavour'$"):
        AsyncClient("host=/nonexistent").flavour  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(client, "flavour")


def test_a_worker_and_a_handler_name_ours() -> None:
    worker: Any = Worker("orders")
    with pytest.raises(AttributeError, match=r"no attribute 'task': write @worker.handler\('placed'\)"):
        _ = worker.task

    @worker.handler("placed")
    def place(message: Message) -> str:
        return "placed"

    with pytest.raises(AttributeError, match=r"client.publish\('queue', payload, kind='placed'\)"):
        place.delay(1)
    assert worker.handle_now({"order": 1}, kind="placed") == place(Message.__new__(Message)) == "placed"


@pytest.mark.parametrize(
    ("scheme", "way"),
    [
        ("postgresql+psycopg", "leave out +psycopg: postgresql://user@host/name"),
        ("postgres+asyncpg", "leave out +asyncpg: postgres://user@host/name"),
        ("mysql", "name a database as postgresql://user@host/name"),
        ("sqlite", "name a database as postgresql://user@host/name"),
    ],
)
def test_addresses_of_others_are_refused_without_their_password(scheme: str, way: str) -> None:
    dsn = f"{scheme}://ada:secret@host/name"
    with pytest.raises(InvalidArgument) as refused:
        Client(dsn)
    assert refused.value.hint == way
    assert f"{scheme}://" in refused.value.message
    assert "secret" not in str(refused.value)
    complete(way.rpartition(" ")[2], "test")


async def test_a_worker_refuses_such_an_address_too() -> None:
    worker = Worker("orders", dsn="postgresql+psycopg://host/name")
    worker.handler(len)
    with pytest.raises(InvalidArgument, match="is for SQLAlchemy"):
        await worker.run_async()
