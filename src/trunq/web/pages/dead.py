"""Dead messages: of all queues, and those of one by a filter, with what can be done to all that match."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, get_args

from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import Response

from trunq.record import DeadGroup
from trunq.record.dead import look_of
from trunq.web.database import Panel
from trunq.web.page import HIDDEN, Desk, text, whole
from trunq.web.pages.overview import statuses
from trunq.web.pages.queue import last_error
from trunq.word import Reason

SHOWN = 50
LOOKED = 10_000
"""Of the newest ones, the errors are grouped."""
SWEPT = 20
"""Sweeps that ended, and are shown."""
LISTED = 200
"""Sweeps that run, and among how many of the newest those that ended are looked for: a group in many queues
is one in each.
"""
COUNTED = 10_000
"""What one act takes at most, and how far is counted."""


def filter_of(given: QueryParams | FormData, hidden: frozenset[str]) -> dict[str, Any]:
    """What to look for, as the functions take it."""
    found: dict[str, Any] = {name: text(given, name) for name in ("subscription", "kind", "key", "reason")}
    if "error" not in hidden:
        found |= {name: text(given, name) for name in ("error", "fingerprint")}
    if found["reason"] not in get_args(Reason):
        found["reason"] = None
    id = whole(given, "id")
    if id is not None:
        found["id"] = id
    return {name: value for name, value in found.items() if value is not None}


@dataclass
class Group:
    """Dead messages with one fingerprint, of one queue or several."""

    fingerprint: str
    error: str | None
    newest: DeadGroup
    messages: int = 0
    queues: list[str] = field(default_factory=list)
    first: datetime | None = None
    last: datetime | None = None

    @property
    def is_told(self) -> bool:
        """Whether it may be named: what is hidden cannot be acted on as a group."""
        return self.fingerprint != HIDDEN


@dataclass(frozen=True)
class Look:
    """What a look at the newest dead messages found, and how far it came."""

    groups: list[Group]
    looked: int = 0
    to: int | None = None
    to_at: datetime | None = None


async def grouped(
    desk: Desk, queue: str | None = None, subscription: str | None = None, before: int | None = None
) -> Panel[Look]:
    """What the newest messages died of."""

    async def ask(connection: Any) -> Look:
        rows = await desk.database.client.list_dead_groups(
            queue, subscription, LOOKED, before, connection=connection
        )
        return _look(desk.veiled(rows))

    return await desk.database.panel(("groups", queue, subscription, before), ask, fresh_for=8)


def _look(rows: list[DeadGroup]) -> Look:
    found: dict[str, Group] = {}
    for row in rows:
        group = found.setdefault(row.fingerprint, Group(row.fingerprint, row.error, row))
        group.messages += row.messages
        # What is hidden is one group, of several that the database told apart.
        group.queues += [row.queue] if row.queue not in group.queues else []
        group.first = min(row.first_died_at, group.first or row.first_died_at)
        if group.last is None or row.last_died_at > group.last:
            group.last, group.newest, group.error = row.last_died_at, row, row.error
    ordered = sorted(found.values(), key=lambda group: -group.messages)
    return Look(ordered, *look_of(rows))


async def sweeps(desk: Desk, queue: str | None, *acts: str) -> Panel[list[Any]]:
    """What runs, and what ended within the hour."""

    async def ask(connection: Any) -> list[Any]:
        client = desk.database.client
        running = await client.list_sweeps(queue, LISTED, state="running", connection=connection)
        newest = await client.list_sweeps(queue, LISTED, connection=connection)
        since = desk.database.now - timedelta(hours=1)
        ended = [row for row in newest if row.act in acts and row.ended_at and row.ended_at > since]
        return [row for row in running if row.act in acts] + ended[:SWEPT]

    return await desk.database.panel(("sweeps", queue, acts), ask)


async def show_all(desk: Desk, request: Request) -> Response:
    """What messages of all queues died of, and which queues have some."""
    before = whole(request.query_params, "before")
    status, look, swept = await asyncio.gather(
        statuses(desk), grouped(desk, before=before), sweeps(desk, None, "requeue", "purge")
    )
    rows = sorted((row for row in status.rows or [] if row.dead), key=lambda row: -row.dead)
    return desk.page(
        request,
        "deaths.html",
        status=status,
        rows=rows[:SHOWN],
        many=len(rows),
        look=look,
        before=before,
        sweeps=swept,
    )


async def show(desk: Desk, request: Request) -> Response:
    """Those of a queue."""
    queue = str(request.path_params["queue"])
    client, panel = desk.database.client, desk.database.panel
    wanted = filter_of(request.query_params, desk.hidden)
    # By its id one is found on its own page.
    wanted.pop("id", None)
    before = whole(request.query_params, "before")
    key = (queue, tuple(sorted(wanted.items())))

    async def ask(connection: Any) -> list[Any]:
        return await client.list_dead(queue, limit=SHOWN + 1, before=before, connection=connection, **wanted)

    async def count(connection: Any) -> int:
        return await client.count_dead(queue, limit=COUNTED + 1, connection=connection, **wanted)

    found = await panel(("dead", *key, before), ask)
    rows = desk.veiled(found.rows or [])
    look = None
    if not {*wanted} - {"subscription"} and before is None:
        look = await grouped(desk, queue, wanted.get("subscription"))
    return desk.page(
        request,
        "dead.html",
        queue=queue,
        panel=found,
        rows=rows[:SHOWN],
        last_error=last_error,
        older=rows[SHOWN - 1].dead_id if len(rows) > SHOWN else None,
        look=look,
        count=await panel(("count", *key), count),
        counted=COUNTED,
        wanted=wanted,
        reasons=get_args(Reason),
        sweeps=await sweeps(desk, queue, "requeue", "purge"),
    )
