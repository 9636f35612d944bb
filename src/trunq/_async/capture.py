"""Capture: the changes of tables, published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import Capture
from trunq.wire.array import name_array
from trunq.wire.json import json_text
from trunq.word import CaptureFormat, Change


class AsyncCaptures(AsyncAccess):
    """Captured tables."""

    async def capture(
        self,
        table: str,
        queue: str,
        *,
        ignore: Iterable[str] | None = None,
        where: Mapping[str, Any] | None = None,
        kind: str | None = None,
        key: Iterable[str] | None = None,
        deny: Iterable[Change] | None = None,
        columns: Iterable[str] | None = None,
        format: CaptureFormat | None = None,
        connection: AsyncGiven | None = None,
    ) -> bool:
        """Publish the changes of a table into a queue, in the transaction that changes it.

        A message a row: the payload has `op`, `table`, `before`, `after`, `changed` and `at`, or with
        `format` what Debezium writes. `kind` is its kind ("{table}.{op}"), `key` the columns that make its
        key (the primary key; []: no key). Only these `columns` are published; an update of columns to
        `ignore` alone is not. Only rows `where` columns have certain values, for an update before or after
        it: `{"in": {"status": ["paid"]}, "not_in": {...}}`. Changes to `deny` raise ChangeDenied.

        `table` is named as in SQL. Called again, it changes the capture; what you leave out gets its default.
        Returns True when it was made. Raises InvalidArgument for what cannot be captured, QueueInUse while an
        open transaction uses the table.
        """
        made: bool = await self._value(
            connection,
            "capture",
            table=table,
            queue=queue,
            ignore=name_array("ignore", ignore),
            where=json_text("where", where),
            kind=kind,
            # A list, not the label that "key" is elsewhere.
            key_=name_array("key", key),
            deny=name_array("deny", deny),
            columns=name_array("columns", columns),
            format=format,
        )
        return made

    async def uncapture(self, table: str, *, connection: AsyncGiven | None = None) -> bool:
        """Publish the changes of a table no longer; False when it was not captured.

        What was published stays. Raises QueueInUse while an open transaction uses the table.
        """
        ended: bool = await self._value(connection, "uncapture", table=table)
        return ended

    async def list_captures(
        self, queue: str | None = None, *, connection: AsyncGiven | None = None
    ) -> list[Capture]:
        """The captured tables by name, of one queue or all, and what is wrong with each."""
        return await self._records(connection, Capture, "list_captures", queue=queue)
