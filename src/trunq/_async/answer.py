"""Answers: what became of leased messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from psycopg import AsyncConnection

from trunq._async.access import AsyncAccess
from trunq.wire.array import bigint_array, interval_array, jsonb_array, real_array, text_array
from trunq.wire.scalar import Interval


class AsyncAnswers(AsyncAccess):
    """Answers."""

    async def ack(
        self,
        queue: str,
        subscription: str,
        lease_id: int,
        token: int,
        ids: Iterable[int],
        results: Sequence[Any] | None = None,
        took: Iterable[float | None] | None = None,
        *,
        connection: AsyncConnection[Any] | None = None,
    ) -> int:
        """Messages are done; returns how many were not answered before.

        `results` (any JSON, kept if the subscription keeps results) and `took` (seconds each handler ran)
        are in the order of `ids`.
        """
        acked: int = await self._value(
            connection,
            "ack",
            queue=queue,
            subscription=subscription,
            lease_id=lease_id,
            token=token,
            ids=bigint_array(ids),
            results=jsonb_array("results", results),
            took=real_array(took),
        )
        return acked

    async def retry(
        self,
        queue: str,
        subscription: str,
        lease_id: int,
        token: int,
        ids: Iterable[int],
        errors: Sequence[str | None] | str | None = None,
        delays: Iterable[Interval | None] | None = None,
        took: Iterable[float | None] | None = None,
        *,
        connection: AsyncConnection[Any] | None = None,
    ) -> int:
        """Messages are to be tried again; those whose attempts are used up become dead. Returns how many.

        `errors` is one for all, or, like `delays` and `took`, one for each id. A delay of None is by the
        subscription's policy.
        """
        retried: int = await self._value(
            connection,
            "retry",
            queue=queue,
            subscription=subscription,
            lease_id=lease_id,
            token=token,
            ids=bigint_array(ids := list(ids)),
            errors=text_array("errors", [errors] * len(ids) if isinstance(errors, str) else errors),
            delays=interval_array("delays", delays),
            took=real_array(took),
        )
        return retried

    async def reject(
        self,
        queue: str,
        subscription: str,
        lease_id: int,
        token: int,
        ids: Iterable[int],
        errors: Sequence[str | None] | str | None = None,
        took: Iterable[float | None] | None = None,
        *,
        connection: AsyncConnection[Any] | None = None,
    ) -> int:
        """Messages will never succeed: they become dead, with these reasons. Returns how many."""
        rejected: int = await self._value(
            connection,
            "reject",
            queue=queue,
            subscription=subscription,
            lease_id=lease_id,
            token=token,
            ids=bigint_array(ids := list(ids)),
            errors=text_array("errors", [errors] * len(ids) if isinstance(errors, str) else errors),
            took=real_array(took),
        )
        return rejected

    async def release(
        self,
        queue: str,
        subscription: str,
        lease_id: int,
        token: int,
        ids: Iterable[int],
        *,
        connection: AsyncConnection[Any] | None = None,
    ) -> int:
        """Messages were not started: they go back at once, the attempt does not count. Returns how many."""
        released: int = await self._value(
            connection,
            "release",
            queue=queue,
            subscription=subscription,
            lease_id=lease_id,
            token=token,
            ids=bigint_array(ids),
        )
        return released
