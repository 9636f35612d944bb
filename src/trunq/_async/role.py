"""Roles: who may publish to a queue, work on it, read or administer it."""

from __future__ import annotations

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import Role
from trunq.word import RoleName


class AsyncRoles(AsyncAccess):
    """Roles."""

    async def grant_role(
        self,
        queue: str,
        role: RoleName,
        grantee: str,
        *,
        payload: bool = False,
        connection: AsyncGiven | None = None,
    ) -> None:
        """Let a database role do with this queue what a publisher, worker, reader or admin does, and no more.

        A reader sees payloads, headers and results with `payload` alone.
        """
        await self._value(
            connection, "grant_role", queue=queue, role=role, grantee=grantee, payload=payload or None
        )

    async def revoke_role(
        self,
        queue: str,
        role: RoleName,
        grantee: str,
        *,
        connection: AsyncGiven | None = None,
    ) -> bool:
        """Take a role of this queue away from a database role; False when it did not have it."""
        had: bool = await self._value(connection, "revoke_role", queue=queue, role=role, grantee=grantee)
        return had

    async def list_roles(
        self, queue: str | None = None, *, connection: AsyncGiven | None = None
    ) -> list[Role]:
        """Who has which role of a queue, or of all queues, as granted."""
        return await self._records(connection, Role, "list_roles", queue=queue)
