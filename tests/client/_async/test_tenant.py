"""Tenants and roles through the client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from trunq import AsyncClient, InvalidArgument, MessageNotFound


@pytest.fixture
def as_tenant(database: str, connection: psycopg.Connection[Any]) -> Iterator[str]:
    """The address of the database for a role that publishes, reads and cancels in a queue of tenants."""
    role = f"tenants_{connection.info.dbname}"
    connection.execute(f"create role {role} login".encode())
    connection.execute(
        "select trunq.create_queue('shared', p_unique => 'refuse'), trunq.set_tenancy('shared')"
    )
    for kind in ("publisher", "reader", "admin"):
        connection.execute(
            "select trunq.grant_role('shared', %s, %s, p_payload => %s)", (kind, role, kind == "reader")
        )
    yield make_conninfo(database, user=role)
    connection.execute(f"drop owned by {role}; drop role {role}".encode())


async def test_a_tenant_s_client_publishes_and_reads_its_messages_alone(
    as_tenant: str, connection: psycopg.Connection[Any]
) -> None:
    async with AsyncClient(as_tenant) as client:
        ada, bob = client.for_tenant("ada"), client.for_tenant("bob")
        ids = [await ada.publish("shared", 1), await ada.publish("shared", 2, key="ada", delay=3600)]
        # By arrays, as Postgres refuses COPY there.
        ids += await ada.publish_many("shared", range(600))
        ids.append((await ada.publish_unique("shared", 3, "once")).id)
        other = await bob.publish("shared", 4)
        assert connection.execute("select distinct key from trunq_log.shared order by 1").fetchall() == [
            ("ada",),
            ("bob",),
        ]
        assert {row.id for row in await ada.list_messages("shared")} == set(ids)
        (seen,) = await bob.list_messages("shared")
        assert (seen.id, seen.payload) == (other, 4)
        assert await ada.show_message("shared", other) == []
        assert (await bob.show_message("shared", other))[0].payload == 4
        with pytest.raises(MessageNotFound, match=f"no message {other} of tenant"):
            await ada.cancel("shared", [ids[1], other])
        assert await ada.list_dead("shared") == []
        assert [row.state for row in await ada.cancel("shared", ids[1])] == ["scheduled"]
        assert [row.id for row in await ada.list_dead("shared")] == [ids[1]]
        assert await bob.list_dead("shared") == []
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await client.publish("shared", 5, key="ada")


async def test_another_s_key_is_refused_with_a_sentence(as_tenant: str) -> None:
    async with AsyncClient(as_tenant) as client:
        ada = client.for_tenant("ada")
        calls: Any = (
            lambda **more: ada.publish("shared", 1, **more),
            lambda **more: ada.publish_many("shared", [1], **more),
            lambda **more: ada.publish_unique("shared", 1, "k", **more),
            lambda **more: ada.list_messages("shared", **more),
            lambda **more: ada.list_dead("shared", **more),
        )
        for call in calls:
            with pytest.raises(InvalidArgument, match='tenant "ada" was given the key "bob"'):
                await call(key="bob")
            with pytest.raises(InvalidArgument, match="takes no connection"):
                await call(connection=None)
        with pytest.raises(InvalidArgument, match="takes no keys"):
            await ada.publish_many("shared", [1], keys=["bob"])
        with pytest.raises(InvalidArgument, match="not empty"):
            client.for_tenant("")
        assert await ada.list_messages("shared") == []


async def test_the_setting_ends_with_the_call(as_tenant: str) -> None:
    """The connection goes back to the pool, or to the pooler, as it came."""
    async with AsyncClient(as_tenant, max_connections=1) as client:
        await client.for_tenant("ada").publish("shared", 1)
        async with client.transaction() as connection:
            cursor = await connection.execute("select nullif(current_setting('trunq.tenant', true), '')")
            assert await cursor.fetchone() == (None,)


async def test_roles_are_granted_listed_and_revoked(database: str, as_tenant: str) -> None:
    async with AsyncClient(database) as client:
        roles = await client.list_roles("shared")
        assert [(role.role, role.payload) for role in roles] == [
            ("admin", None),
            ("publisher", None),
            ("reader", True),
        ]
        assert await client.revoke_role("shared", "admin", roles[0].grantee)
        assert not await client.revoke_role("shared", "admin", roles[0].grantee)
        await client.grant_role("shared", "worker", roles[0].grantee)
        assert [role.role for role in await client.list_roles()] == ["publisher", "reader", "worker"]
    async with AsyncClient(as_tenant) as client:
        assert await client.lease("shared", "default", "w") == []
        assert [row.ready for row in await client.status()] == [0]
