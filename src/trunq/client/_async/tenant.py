"""Working for one tenant: a client that publishes and reads messages with one key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from psycopg import AsyncConnection

from trunq.client._async.log.unique import AsyncUniqueKeys
from trunq.client._async.passing import AsyncPassing
from trunq.client._async.work.cancel import AsyncCancelling
from trunq.errors import InvalidArgument, MessageNotFound
from trunq.record import Cancelled, DeadMessage, MessageState, Published
from trunq.wire.scalar import Label, label


class AsyncTenants(AsyncUniqueKeys, AsyncCancelling, AsyncPassing):
    """Tenants of a queue."""

    def for_tenant(self, key: Label) -> AsyncTenant:
        """What publishes and reads messages with this key alone, over the connections of this client.

        It takes no `connection=`: each call is a transaction of its own, in which the setting `trunq.tenant`
        is the key, behind a pooler too.
        """
        return AsyncTenant(self, key)


class AsyncTenant:
    """One tenant's messages (`client.for_tenant`). Each method is the client's, with the tenant's key."""

    def __init__(self, client: AsyncTenants, key: Label) -> None:
        known = label("key", key)
        if not known:
            raise InvalidArgument("a tenant has a key, which is not empty", "client.for_tenant('acme')")
        self._client = client
        self.key = known

    async def publish(
        self, queue: str, payload: Any = None, *, key: Label | None = None, **options: Any
    ) -> int:
        """Publish a message of this tenant; `options` are those of the client's method."""
        options["key"] = self._own(key)
        async with self._session(options) as connection:
            return await self._client.publish(queue, payload, connection=connection, **options)

    async def publish_many(
        self, queue: str, payloads: Iterable[Any] | None = None, *, key: Label | None = None, **options: Any
    ) -> list[int]:
        """Publish many messages of this tenant; `options` are those of the client's method, but `keys`."""
        options["key"] = self._own(key)
        async with self._session(options) as connection:
            return await self._client.publish_many(queue, payloads, connection=connection, **options)

    async def publish_unique(
        self,
        queue: str,
        payload: Any = None,
        unique_key: Label | None = None,
        *,
        key: Label | None = None,
        **options: Any,
    ) -> Published:
        """Publish a message of this tenant if no other holds its unique key. All tenants share those keys."""
        options["key"] = self._own(key)
        async with self._session(options) as connection:
            return await self._client.publish_unique(
                queue, payload, unique_key, connection=connection, **options
            )

    async def list_messages(
        self, queue: str, subscription: str | None = None, *, key: Label | None = None, **options: Any
    ) -> list[MessageState]:
        """Messages of this tenant, newest first; `options` are those of the client's method."""
        options["key"] = self._own(key)
        async with self._session(options) as connection:
            return await self._client.list_messages(queue, subscription, connection=connection, **options)

    async def show_message(self, queue: str, id: int) -> list[MessageState]:
        """One message of this tenant and all that became of it; [] also for that of another tenant."""
        async with self._session({}) as connection:
            return await self._show(queue, id, connection)

    async def list_dead(
        self, queue: str, subscription: str | None = None, *, key: Label | None = None, **options: Any
    ) -> list[DeadMessage]:
        """Dead messages of this tenant, newest first; `options` are those of the client's method."""
        options["key"] = self._own(key)
        async with self._session(options) as connection:
            return await self._client.list_dead(queue, subscription, connection=connection, **options)

    async def cancel(
        self, queue: str, ids: Iterable[int] | int, subscription: str | None = None
    ) -> list[Cancelled]:
        """Cancel messages of this tenant.

        Raises MessageNotFound, and cancels nothing, when one of them is nowhere, or is another tenant's.
        """
        wanted = [ids] if isinstance(ids, int) else list(ids)
        async with self._session({}) as connection:
            for id in wanted:
                if not await self._show(queue, id, connection):
                    raise MessageNotFound(
                        f'queue "{queue}" has no message {id} of tenant "{self.key}"', "nothing was cancelled"
                    )
            return await self._client.cancel(queue, wanted, subscription, connection=connection)

    async def _show(self, queue: str, id: int, connection: AsyncConnection[Any]) -> list[MessageState]:
        rows = await self._client.show_message(queue, id, connection=connection)
        return [row for row in rows if row.key == self.key]

    def _own(self, key: Label | None) -> str:
        if key is not None and label("key", key) != self.key:
            raise InvalidArgument(
                f'a client for tenant "{self.key}" was given the key "{key}"',
                "leave the key out, or take client.for_tenant(key) of that tenant",
            )
        return self.key

    @asynccontextmanager
    async def _session(self, options: dict[str, Any]) -> AsyncIterator[AsyncConnection[Any]]:
        """A transaction of its own that works for this tenant."""
        if refused := {"connection", "keys"} & set(options):
            raise InvalidArgument(
                f"a client for one tenant takes no {refused.pop()}",
                "its messages all have the tenant's key, and each call is a transaction of its own",
            )
        async with self._client.transaction() as connection:
            await connection.execute("select set_config('trunq.tenant', %s, true)", [self.key])
            yield connection
