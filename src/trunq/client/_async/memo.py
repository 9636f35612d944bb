"""Memos: small values by scope and name."""

from __future__ import annotations

from typing import Any

from trunq.client._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import Memo
from trunq.wire.json import json_text
from trunq.wire.scalar import Interval, interval


class AsyncMemos(AsyncAccess):
    """Memos of a worker, a queue, a tenant: what a `scope` is, you say."""

    async def set_memo(
        self,
        scope: str,
        name: str,
        value: Any,
        *,
        expires: Interval | None = None,
        expected: int | None = None,
        connection: AsyncGiven | None = None,
    ) -> int | None:
        """Keep a JSON value of at most 64 kB, for `expires` or for ever; returns its version.

        With `expected`, the version that you read, or 0 for none, it overwrites only that: None says that
        another was there and nothing was changed. Raises MemoTooLarge.
        """
        version: int | None = await self._value(
            connection,
            "set_memo",
            scope=scope,
            name=name,
            # A memo may be null, which a payload left out would be as well.
            value="null" if value is None else json_text("value", value),
            expires=interval("expires", expires),
            expected=expected,
        )
        return version

    async def get_memo(self, scope: str, name: str, *, connection: AsyncGiven | None = None) -> Memo | None:
        """A memo, with its version; None when there is none, or its time is over."""
        found = await self._records(connection, Memo, "get_memo", scope=scope, name=name)
        return found[0] if found else None
