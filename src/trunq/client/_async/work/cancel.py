"""Cancelling messages that nobody needs any more."""

from __future__ import annotations

from collections.abc import Iterable

from trunq.client._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import Cancelled
from trunq.wire.array import bigint_array


class AsyncCancelling(AsyncAccess):
    """Cancelling."""

    async def cancel(
        self,
        queue: str,
        ids: Iterable[int] | int,
        subscription: str | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> list[Cancelled]:
        """Cancel a message, or up to 10,000, for one shared subscription or for all of them.

        Returns the state each was in. What was scheduled, retrying or ready will not run. Of what was leased
        the worker is told: an async handler is cancelled, a sync one can see its event; if it ends well all
        the same, the message is done. What was done, dead or purged stays so. A cancelled message is dead,
        with the reason cancelled, and `requeue` hands it out again. Raises MessageNotFound, and cancels
        nothing, when one of them is nowhere.
        """
        ids = [ids] if isinstance(ids, int) else ids
        return await self._records(
            connection, Cancelled, "cancel", queue=queue, ids=bigint_array(ids), subscription=subscription
        )
