"""References: one error, as users of the application and those who run it speak of it."""

from __future__ import annotations

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import PublicState, Referred


class AsyncReferences(AsyncAccess):
    """References."""

    async def add_reference(
        self, error: str | None, public: str | None = None, *, connection: AsyncGiven | None = None
    ) -> str:
        """An error for an answer of your own: the internal text, a new reference, and what users may see.

        For those who lease and answer themselves: `client.reject(message, text)`. Workers add references by
        themselves.
        """
        text: str = await self._value(connection, "add_reference", error=error, public=public)
        return text

    async def find_reference(
        self, reference: str, queue: str | None = None, *, connection: AsyncGiven | None = None
    ) -> list[Referred]:
        """The attempts whose error has this reference, in one queue or all: mostly one.

        Found as long as the queue keeps messages, in its archive, and among dead messages. Small letters,
        spaces and hyphens do not matter.
        """
        return await self._records(connection, Referred, "find_reference", reference=reference, queue=queue)

    async def show_public(
        self, queue: str, id: int, *, connection: AsyncGiven | None = None
    ) -> list[PublicState]:
        """What users of your application may see of a message, a row a shared subscription.

        Never the internal text of an error. That the message is theirs is for you to know.
        """
        return await self._records(connection, PublicState, "show_public", queue=queue, id=id)
