"""The messages of a batch, from one database into the other: by COPY, as the texts they are.

Payloads are not decoded: numbers keep all their digits, and the program does half the work.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from psycopg import AsyncConnection, sql

from trunq.process.mover.split import Split
from trunq.record import Batch
from trunq.wire.call import explained
from trunq.wire.json import json_text

SOURCE_ID: Final = "trunq_source_id"
"""The header with the id that a message had in the queue where it was published first."""

_AT_ONCE: Final = 4_194_304
"""Bytes that are gathered before they are sent."""

_READ: Final = """copy (
  select r.id, r.kind, r.key, r.payload, r.body, h.headers, r.priority{values}
  from trunq.read_batch({queue}, {subscription}, {batch}, p_filter => {filter}) r
  cross join lateral (select case when jsonb_typeof(r.headers) = 'object' then {id} || r.headers
    else coalesce(r.headers, {id}) end as headers) h{own}) to stdout"""
_ID: Final = "pg_catalog.jsonb_build_object({name}, r.id)"
_OWN: Final = " cross join lateral jsonb_to_record(coalesce(r.columns, '{{}}')) as o({columns})"
_WRITE: Final = "copy {} (kind, key, payload, body, headers, priority{}) from stdin"
_FIELDS: Final = 6
"""How many columns of ours are written."""
_COLUMNS: Final = """
  select o.name, o.type from trunq.queue q cross join trunq._own_columns(q) o
  where q.name = %s and (o.is_given or %s) order by o.place"""

_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_PLAIN: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}

Ready = Callable[[str], Awaitable[None]]


async def move_rows(
    batch: Batch,
    filter: Mapping[str, Any] | None,
    split: Split,
    reading: AsyncConnection[Any],
    writing: AsyncConnection[Any],
    ready: Ready,
) -> int:
    """Publish the messages of a batch; returns how many. `ready` is asked once for each queue they go to."""
    own = await _own_columns(reading, batch.queue, to_read=True)
    gathered: dict[str, list[bytes]] = {}
    shared: dict[str, list[int]] = {}
    """For each target, which of the columns of the user's it has, too."""
    size = count = 0

    async def send() -> None:
        for queue, lines in gathered.items():
            more = sql.SQL("").join(
                sql.SQL(", {}").format(sql.Identifier(own[at][0])) for at in shared[queue]
            )
            statement = sql.SQL(_WRITE).format(sql.Identifier("trunq_log", queue), more)
            with explained:
                async with writing.cursor() as cursor, cursor.copy(statement) as into:
                    await into.write(b"".join(lines))
        gathered.clear()

    async with reading.cursor() as cursor, cursor.copy(_read(batch, filter, own)) as rows:
        async for row in rows:
            line = bytes(row)
            id, kind, key, _ = line.split(b"\t", 3)
            queue = split.target(int(id), _label(kind), _label(key))
            if queue not in shared:
                await ready(queue)
                there = await _own_columns(writing, queue) if own else []
                shared[queue] = [at for at, each in enumerate(own) if each in there]
            rest = line[len(id) + 1 :]
            if len(shared[queue]) < len(own):
                fields = rest.rstrip(b"\n").split(b"\t")
                chosen = [*fields[:_FIELDS], *(fields[_FIELDS + at] for at in shared[queue])]
                rest = b"\t".join(chosen) + b"\n"
            gathered.setdefault(queue, []).append(rest)
            size += len(line)
            count += 1
            if size > _AT_ONCE:
                await send()
                size = 0
    await send()
    return count


async def _own_columns(
    connection: AsyncConnection[Any], queue: str, *, to_read: bool = False
) -> list[tuple[str, str]]:
    """The columns that the user added to a queue: name and type; those alone that a publisher may give, or
    all.
    """
    cursor = await connection.execute(_COLUMNS, (queue, to_read))
    return [(str(name), str(type)) for name, type in await cursor.fetchall()]


def _read(batch: Batch, filter: Mapping[str, Any] | None, own: list[tuple[str, str]]) -> sql.Composed:
    # The types as Postgres writes them.
    columns = [sql.SQL("{} ").format(sql.Identifier(name)) + sql.SQL(type) for name, type in own]
    values = [sql.SQL(", o.{}").format(sql.Identifier(name)) for name, _ in own]
    id = sql.SQL(_ID).format(name=sql.Literal(SOURCE_ID))
    return sql.SQL(_READ).format(
        id=id,
        values=sql.SQL("").join(values),
        own=sql.SQL(_OWN).format(columns=sql.SQL(", ").join(columns)) if own else sql.SQL(""),
        queue=sql.Literal(batch.queue),
        subscription=sql.Literal(batch.subscription),
        batch=sql.Literal(batch.batch_id),
        filter=sql.SQL("{}::jsonb").format(sql.Literal(json_text("filter", filter) if filter else None)),
    )


def _label(field: bytes) -> str | None:
    """A field of COPY's text format."""
    if field == b"\\N":
        return None
    if b"\\" in field:
        field = _ESCAPED.sub(lambda found: _PLAIN.get(found[1], found[1]), field)
    return field.decode()
