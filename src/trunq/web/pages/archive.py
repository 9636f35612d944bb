"""What stays: archives, and who takes the history elsewhere."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from trunq.web.page import Column, Desk, Section


async def show(desk: Desk, request: Request) -> Response:
    """The page."""
    client, panel = desk.database.client, desk.database.panel
    archives = await panel("archives", lambda connection: client.list_archives(connection=connection), 5)
    takers = await panel("takers", lambda connection: client.list_takers(connection=connection), 5)
    deletions = await panel("deletions", lambda connection: client.list_deletions(connection=connection), 5)
    queue = Column("queue", "link", link=lambda row: f"/queues/{row.queue}")
    return desk.page(
        request,
        "listing.html",
        title="Archives",
        lead="Attempts that stay when their queue forgets them.",
        findings=[],
        sections=[
            Section(
                "Archives",
                archives,
                (
                    queue,
                    Column("archive_for", "length", "kept for"),
                    Column("first_month", "date"),
                    Column("last_month", "date"),
                    Column("bytes", "size"),
                    Column("is_filled", "yes"),
                ),
                "No queue has an archive.",
                "trunq archive create orders --for 365d",
            ),
            Section(
                "Takers",
                takers,
                (
                    queue,
                    Column("taker"),
                    Column("behind", "length"),
                    Column("open", "number", "leases passed open"),
                    Column("taken_at", "ago"),
                ),
                "Nobody takes the history of a queue into a lake.",
                "trunq taker create orders lake",
            ),
            Section(
                "Erased",
                deletions,
                (
                    queue,
                    Column("deleted_at", "ago"),
                    Column("deleted_by"),
                    Column("messages", "number"),
                    Column("running", "number"),
                ),
                "No message was erased.",
            ),
        ],
    )
