"""Who did what to how many messages."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from trunq.web.page import Column, Desk, Section, text

SHOWN = 100


async def show(desk: Desk, request: Request) -> Response:
    """The page."""
    client = desk.database.client
    queue, who = text(request.query_params, "queue"), text(request.query_params, "who")
    done = await desk.database.panel(
        f"audit {queue} {who}",
        lambda connection: client.list_audit(queue, SHOWN, who=who, connection=connection),
        fresh_for=2,
    )
    # What somebody asked for may hold a part of what is hidden.
    told = () if desk.hidden else (Column("arguments", "pairs"),)
    return desk.page(
        request,
        "listing.html",
        title="Audit",
        lead=f"What people did here, in a shell or by SQL: the newest {SHOWN} acts.",
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
