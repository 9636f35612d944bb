"""Who did what to how many messages."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from trunq.record import Audit
from trunq.web.database import Panel, Walk, looked_to
from trunq.web.page import Column, Desk, Section, asking, text, whole

SHOWN = 100


async def show(desk: Desk, request: Request) -> Response:
    """The page."""
    client = desk.database.client
    queue, who = text(request.query_params, "queue"), text(request.query_params, "who")
    before = whole(request.query_params, "before")

    async def ask(connection: Any) -> Walk[Audit]:
        rows = await client.list_audit(queue, SHOWN + 1, before, who, connection=connection)
        return Walk(rows, await looked_to(connection))

    found = await desk.database.panel(("audit", queue, who, before), ask, fresh_for=2)
    walk: Walk[Audit] = found.rows or Walk([])
    more = walk.rows[SHOWN - 1].audit_id if len(walk.rows) > SHOWN else walk.to
    done = Panel(walk.rows[:SHOWN] if found.rows else None, found.why, found.age)
    # What somebody asked for may hold a part of what is hidden.
    told = () if desk.hidden else (Column("arguments", "pairs"),)
    return desk.page(
        request,
        "listing.html",
        title="Audit",
        lead=f"What people did here, in a shell or by SQL: {SHOWN} acts a page, the newest first.",
        further=more and "?" + asking(queue=queue, who=who, before=more),
        findings=[],
        sections=[
            Section(
                "Done",
                done,
                (
                    Column("at", "moment", "when"),
                    Column("who", "name"),
                    Column("did"),
                    Column("queue", "link", link=lambda row: f"/queues/{row.queue}"),
                    Column("messages", "number"),
                    *told,
                    Column("application", "text", "from"),
                ),
                "Nobody has done anything by hand yet. What is done is noted here, for example:",
                "trunq queue pause orders",
            )
        ],
    )
