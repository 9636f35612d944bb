"""Publishing with unique keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from trunq.client._async.log.publish import AsyncPublishing
from trunq.client._async.traced import publishing
from trunq.client.outgoing import with_awaited
from trunq.connection.given import AsyncGiven
from trunq.errors import InvalidArgument
from trunq.record import Published
from trunq.wire.call import Call
from trunq.wire.copy import Columns
from trunq.wire.json import headers_text, json_text
from trunq.wire.scalar import Interval, Label, content, interval, moment
from trunq.word import OnConflict, UniqueUntil


class AsyncUniqueKeys(AsyncPublishing):
    """Publishing into a queue made with `unique`: of the messages with one key, one at a time holds it."""

    @publishing
    async def publish_unique(
        self,
        queue: str,
        payload: Any = None,
        unique_key: Label | None = None,
        *,
        kind: Label | None = None,
        key: Label | None = None,
        headers: Any = None,
        body: bytes | None = None,
        priority: int | None = None,
        delay: Interval | None = None,
        due_at: datetime | None = None,
        options: Mapping[str, Any] | None = None,
        max_age: Interval | None = None,
        awaited: bool | Interval = False,
        unique_until: UniqueUntil | None = None,
        unique_for: Interval | None = None,
        on_conflict: OnConflict | None = None,
        connection: AsyncGiven | None = None,
    ) -> Published:
        """Publish a message if no other holds its `unique_key`, or in the place of that one.

        What becomes of it is a value: `published.is_new`, and `published.id`, which is that of the message
        that holds the key when this one was left out. Without a `unique_key`, the key is made of kind and
        content. The message holds it until it is done, until it is leased (`unique_until="leased"`), or for a
        time (`unique_for`), whatever becomes of it. `on_conflict` is the queue's policy, `refuse` or
        `replace`, unless you say otherwise; `raise` raises Duplicate. The rest is as for `publish`. It waits
        for another open transaction that publishes with this key, and for nobody else.
        """
        if payload is None and kind is None and key is None and headers is None and body is None:
            raise InvalidArgument(
                "this message has neither a payload nor a kind", "give publish what a handler is to be told"
            )
        if self._outgoing is not None:
            payload, headers = self._outgoing.one(queue, kind, payload, headers, body)
        (published,) = await self._records(
            connection,
            Published,
            "publish_unique",
            queue=queue,
            payload=json_text("payload", payload),
            unique_key=unique_key,
            kind=kind,
            key=key,
            headers=headers_text(headers),
            body=content("body", body),
            priority=priority,
            delay=interval("delay", delay),
            due_at=moment("due_at", due_at),
            options=json_text("options", with_awaited(options, awaited)),
            max_age=interval("max_age", max_age),
            unique_until=unique_until,
            unique_for=interval("unique_for", unique_for),
            on_conflict=on_conflict,
        )
        return published

    @publishing
    async def publish_many_unique(
        self,
        queue: str,
        payloads: Iterable[Any] | None = None,
        unique_keys: Iterable[Label | None] | None = None,
        *,
        kinds: Iterable[Label | None] | None = None,
        keys: Iterable[Label | None] | None = None,
        headers: Any = None,
        bodies: Iterable[bytes | None] | None = None,
        delay: Interval | None = None,
        due_at: datetime | None = None,
        options: Mapping[str, Any] | None = None,
        max_age: Interval | None = None,
        awaited: bool | Interval = False,
        priorities: Sequence[int] | int | None = None,
        unique_until: UniqueUntil | None = None,
        unique_for: Interval | None = None,
        on_conflict: OnConflict | None = None,
        kind: Label | None = None,
        key: Label | None = None,
        connection: AsyncGiven | None = None,
    ) -> list[Published]:
        """Publish many messages, as `publish_unique` does each; what became of them, in the order given.

        Those whose keys others hold are left out, or replace them; the others are published. A message whose
        key is None has none; without `unique_keys`, keys are made of kind and content. Of one key given twice
        the first message counts, and where it replaces, the last. Columns are as for `publish_many`. Two of
        these calls never wait for each other crosswise; two in one transaction may.
        """
        if isinstance(payloads, Mapping | str | bytes):
            raise TypeError(f"payloads is a list of payloads, not one {type(payloads).__name__}")
        payloads = list(payloads or [])
        if not payloads and not bodies:
            return []
        if self._outgoing is not None:
            payloads, kinds, headers = self._outgoing.many(
                queue, payloads, kinds, kind, headers, has_bodies=bodies is not None
            )
        columns = Columns(
            payloads or [None], kinds, keys, headers, bodies, kind, key, priorities, unique_keys
        )
        # All in one call: keys are taken in their order.
        (arrays,) = columns.arrays()
        call = Call(
            "publish_many_unique",
            {
                "queue": queue,
                **arrays(),
                "delay": interval("delay", delay),
                "due_at": moment("due_at", due_at),
                "options": json_text("options", with_awaited(options, awaited)),
                "max_age": interval("max_age", max_age),
                "unique_until": unique_until,
                "unique_for": interval("unique_for", unique_for),
                "on_conflict": on_conflict,
            },
            Published._fields,
        )
        return [Published._make(row) for row in await self._execute(connection, call)]
