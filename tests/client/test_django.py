"""Django's connections and their aliases, given as `connection=`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.test.utils import override_settings

from bridging import Through, django_on
from client.test_pooler import call_everything
from trunq import AsyncClient, Client, InvalidArgument, MessageTooLarge, QueueNotFound, RawJson

PART = 500


@pytest.fixture
def django(database: str) -> Iterator[Any]:
    with django_on(database) as connection:
        yield connection


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as client:
        client.create_queue("orders")
        yield client


def payloads(client: Client) -> list[Any]:
    """What another session sees in the queue."""
    return sorted(message.payload for message in client.list_messages("orders", limit=10_000))


class Undone(Exception):
    """On purpose."""


@pytest.mark.parametrize("what", ["wrapper", "proxy", "alias"])
def test_what_is_published_shares_the_fate_of_the_block(client: Client, django: Any, what: str) -> None:
    from django.db import connection, transaction  # noqa: PLC0415  # asks for settings

    given = {"wrapper": django, "proxy": connection, "alias": "default"}[what]
    with pytest.raises(Undone), transaction.atomic():
        client.publish("orders", 0, connection=given)
        client.publish_many("orders", range(1, 2 * PART + 2), connection=given)
        raise Undone
    assert payloads(client) == []
    with transaction.atomic():
        client.publish("orders", 0, connection=given)
        ids = client.publish_many("orders", range(1, 2 * PART + 2), connection=given)
        assert ids == sorted(ids)
        assert payloads(client) == []
    assert payloads(client) == list(range(2 * PART + 2))


def test_outside_of_a_block_many_messages_are_all_or_none(client: Client, django: Any) -> None:
    many = [*range(2 * PART), RawJson("{")]
    with pytest.raises(InvalidArgument, match="json"):
        client.publish_many("orders", many, connection="default")
    assert payloads(client) == []
    client.publish_many("orders", many[:-1], connection="default")
    assert payloads(client) == many[:-1]


def test_what_the_database_refuses_is_raised_as_ours_and_a_savepoint_keeps_the_block(
    client: Client, django: Any
) -> None:
    from django.db import transaction  # noqa: PLC0415

    refused: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (QueueNotFound, "42883", {"queue": "nowhere", "payload": 1}),
        (InvalidArgument, "22P02", {"queue": "orders", "payload": RawJson("{")}),
        (MessageTooLarge, "TQ006", {"queue": "orders", "payload": "x" * 17_000_000}),
    ]
    for error, sqlstate, arguments in refused:
        with transaction.atomic():
            client.publish("orders", sqlstate, connection=django)
            with pytest.raises(error) as caught, transaction.atomic():
                client.publish(**arguments, connection=django)
            cause = caught.value.__cause__
            assert cause is not None
            assert isinstance(cause.__cause__, psycopg.Error)
            assert cause.__cause__.sqlstate == sqlstate
    assert payloads(client) == sorted(sqlstate for _, sqlstate, _ in refused)


def test_every_method_works_through_django(
    client: Client, django: Any, connection: psycopg.Connection[Any]
) -> None:
    through = Through(client, "default", client)
    call_everything(through, "q", connection)
    assert len(through.called) > 40


def test_without_time_zones_times_are_the_same_moments(client: Client, database: str) -> None:
    client.publish("orders", 1)
    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Kolkata"), django_on(database):
        (through,) = client.list_messages("orders", connection="default")
    (direct,) = client.list_messages("orders")
    assert through == direct


def test_connections_that_do_not_fit_are_refused_with_the_way(client: Client, database: str) -> None:
    given: Any
    with django_on(database, lite="sqlite") as django:
        for given, way in (("lite", "is one of sqlite"), ("other", r"Client\(address\)")):
            with pytest.raises(InvalidArgument, match=way):
                client.publish("orders", 1, connection=given)
        for given in (django, "default"):
            with pytest.raises(InvalidArgument, match=r"with Client|Client\(address\)"):
                asyncio.run(AsyncClient(database).publish("orders", 1, connection=given))
        with (
            pytest.raises(InvalidArgument, match=r"connection\.connection"),
            client.copy("orders", connection=django),
        ):
            pass
    assert payloads(client) == []
