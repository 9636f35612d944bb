"""Dead messages: of all queues, and those of one by a filter, with what can be done to all that match."""

from __future__ import annotations

from typing import Any, get_args

from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import Response

from trunq.web.page import Desk, text, whole
from trunq.web.pages.overview import statuses
from trunq.web.pages.queue import by_error, last_error
from trunq.word import Reason

SHOWN = 50
GROUPED = 500
"""Of the newest ones, the errors are counted."""
COUNTED = 10_000
"""What one act takes at most, and how far is counted."""


def filter_of(given: QueryParams | FormData, hidden: frozenset[str]) -> dict[str, Any]:
    """What to look for, as the functions take it."""
    found: dict[str, Any] = {name: text(given, name) for name in ("subscription", "kind", "key", "reason")}
    if "error" not in hidden:
        found["error"] = text(given, "error")
    if found["reason"] not in get_args(Reason):
        found["reason"] = None
    id = whole(given, "id")
    if id is not None:
        found["id"] = id
    return {name: value for name, value in found.items() if value is not None}


async def show_all(desk: Desk, request: Request) -> Response:
    """Which queues have dead messages."""
    status = await statuses(desk)
    rows = sorted((row for row in status.rows or [] if row.dead), key=lambda row: -row.dead)
    return desk.page(request, "deaths.html", status=status, rows=rows)


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
        return await client.list_dead(queue, limit=GROUPED, before=before, connection=connection, **wanted)

    async def count(connection: Any) -> int:
        return await client.count_dead(queue, limit=COUNTED + 1, connection=connection, **wanted)

    found = await panel(("dead", *key, before), ask)
    rows = desk.veiled(found.rows or [])
    return desk.page(
        request,
        "dead.html",
        queue=queue,
        panel=found,
        rows=rows[:SHOWN],
        last_error=last_error,
        older=rows[SHOWN - 1].dead_id if len(rows) > SHOWN else None,
        groups=by_error(rows),
        grouped=len(rows),
        is_part_of=len(rows) == GROUPED,
        count=await panel(("count", *key), count),
        counted=COUNTED,
        wanted=wanted,
        reasons=get_args(Reason),
    )
