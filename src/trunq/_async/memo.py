"""Memos: small values by scope and name."""

from __future__ import annotations

from typing import Any

from trunq._async.access import AsyncAccess
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

    async def delete_memo(
        self, scope: str, name: str, *, expected: int | None = None, connection: AsyncGiven | None = None
    ) -> bool:
        """Delete a memo, or only its version `expected`; False when it was not there."""
        is_gone: bool = await self._value(
            connection, "delete_memo", scope=scope, name=name, expected=expected
        )
        return is_gone

    async def list_memos(
        self,
        scope: str | None = None,
        *,
        prefix: str | None = None,
        limit: int | None = None,
        after_scope: str | None = None,
        after: str | None = None,
        connection: AsyncGiven | None = None,
    ) -> list[Memo]:
        """Memos by scope and name: of one scope, or all; `prefix`: only names that begin so.

        At most `limit` (1,000); the next page begins behind scope and name of the last, `after_scope` and
        `after`.
        """
        return await self._records(
            connection,
            Memo,
            "list_memos",
            scope=scope,
            prefix=prefix,
            limit=limit,
            after_scope=after_scope,
            after=after,
        )

    async def forget_memos(self, *, connection: AsyncGiven | None = None) -> int:
        """Delete memos whose time is over, 1,000 at most; a leader does so each minute."""
        count: int = await self._value(connection, "forget_memos")
        return count
