"""A queue: what it brought, its subscriptions, its kinds, its settings."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from trunq.errors import QueueNotFound
from trunq.record import Finding, Statistic
from trunq.web.database import Panel
from trunq.web.page import Desk, text
from trunq.web.pages.overview import courses

RANGES = {
    "1h": (timedelta(hours=1), timedelta(minutes=1), "the last hour, by minute"),
    "24h": (timedelta(hours=24), timedelta(minutes=15), "24 hours, by quarter of an hour"),
    "7d": (timedelta(days=7), timedelta(hours=2), "7 days, by two hours"),
}


@dataclass
class Chart:
    """What was answered, by interval."""

    done: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    begin: Any = None
    end: Any = None


def chosen(request: Request) -> str:
    """The range in the address."""
    asked = text(request.query_params, "range")
    return asked if asked in RANGES else "1h"


async def chart(desk: Desk, queue: str, subscription: str | None, range: str) -> Panel[Chart]:
    """Answers over time."""
    last, per, _ = RANGES[range]
    client = desk.database.client

    async def ask(connection: Any) -> Chart:
        rows = await client.statistics(
            queue, subscription, last=last, per=per, by_kind=False, connection=connection
        )
        return _chart(rows, desk.database.now, last, per)

    return await desk.database.panel(("chart", queue, subscription, range), ask, fresh_for=8)


def _chart(rows: list[Statistic], now: Any, last: timedelta, per: timedelta) -> Chart:
    places = int(last / per)
    # A minute comes ten seconds after its end: before, it would look as if all had stopped.
    end = (now - timedelta(seconds=10)).replace(second=0, microsecond=0)
    made = Chart([0] * places, [0] * places, end - last, end)
    for row in rows:
        at = int((row.at - made.begin) / per) if row.at is not None and row.at >= made.begin else -1
        if 0 <= at < places:
            (made.done if row.outcome == "success" else made.failed)[at] += row.messages
    return made


@dataclass
class Kind:
    """What became of messages of one kind."""

    kind: str | None
    done: int = 0
    failed: int = 0
    best: Statistic | None = None


async def kinds(desk: Desk, queue: str, subscription: str | None, range: str) -> Panel[list[Kind]]:
    """By kind: how many, and how long they waited and took."""
    client = desk.database.client

    async def ask(connection: Any) -> list[Kind]:
        rows = await client.statistics(queue, subscription, last=RANGES[range][0], connection=connection)
        found: dict[str | None, Kind] = {}
        for row in rows:
            kind = found.setdefault(row.kind, Kind(row.kind))
            if row.outcome == "success":
                kind.done += row.messages
                if kind.best is None or kind.best.messages < row.messages:
                    kind.best = row
            else:
                kind.failed += row.messages
        return sorted(found.values(), key=lambda each: -each.done - each.failed)

    return await desk.database.panel(("kinds", queue, subscription, range), ask, fresh_for=8)


async def show(desk: Desk, request: Request) -> Response:
    """The page."""
    queue = str(request.path_params["queue"])
    client, panel = desk.database.client, desk.database.panel
    range = chosen(request)

    async def warned(connection: Any) -> list[Finding]:
        # A link leads to the subscription: this is the page of the queue.
        return [
            Finding(
                "warnings",
                row.severity,
                row.subscription and queue,
                row.subscription,
                row.warning,
                row.hint,
                None,
            )
            for row in await client.list_warnings(queue, connection=connection)
        ]

    status, queues, warnings, course, drawn, by_kind = await asyncio.gather(
        panel(("status", queue), lambda connection: client.status(queue, connection=connection)),
        panel("queues", lambda connection: client.list_queues(connection=connection), fresh_for=5),
        panel(
            ("warnings", queue),
            warned,
            fresh_for=5,
        ),
        courses(desk, queue),
        chart(desk, queue, None, range),
        kinds(desk, queue, None, range),
    )
    mine = [row for row in queues.rows or [] if row.queue == queue]
    if queues.rows is not None and not mine:
        raise QueueNotFound(f"queue {queue} does not exist")
    return desk.page(
        request,
        "queue.html",
        queue=queue,
        status=status,
        row=mine[0] if mine else None,
        warnings=warnings,
        course=course.rows or {},
        range=range,
        ranges=RANGES,
        chart=drawn,
        kinds=by_kind,
    )


def last_error(row: Any) -> str:
    """Why a message died: the first line of its last error, or the reason."""
    errors = row.errors or []
    said = errors[-1].get("error") if errors else None
    return str(said or row.reason).partition("\n")[0]
