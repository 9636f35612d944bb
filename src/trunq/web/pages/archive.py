"""What stays: archives, and who takes the history elsewhere."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from trunq import display
from trunq.web.page import Column, Desk, Section, Shown


class _Kept(Shown):
    """An archive, with its times in words."""

    def __init__(self, row: Any) -> None:
        super().__init__(row)
        self.kept_for = "ever" if row.archive_for is None else display.interval(row.archive_for)
        self.from_month, self.to_month = (
            f"{month:%B %Y}" if month else None for month in (row.first_month, row.last_month)
        )


async def show(desk: Desk, request: Request) -> Response:
    """The page."""
    client, panel = desk.database.client, desk.database.panel

    async def kept(connection: Any) -> list[_Kept]:
        return [_Kept(row) for row in await client.list_archives(connection=connection)]

    archives = await panel("archives", kept, 5)
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
                    Column("kept_for"),
                    Column("from_month", label="from"),
                    Column("to_month", label="to"),
                    Column("bytes", "size"),
                    Column("is_filled", "yes", "grows"),
                ),
                "No queue has an archive. An archive keeps every attempt for as long as you say:",
                "trunq archive create orders --for 365d",
            ),
            Section(
                "Takers of the history",
                takers,
                (
                    queue,
                    Column("taker"),
                    Column("behind", "length"),
                    Column("open", "number", "open leases passed"),
                    Column("taken_at", "ago"),
                ),
                "Nobody takes the history of a queue into a lake. This keeps it for the pipeline named lake:",
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
                    Column("running", "number", "of them running"),
                ),
                "Nobody has erased a message. This erases the content of one, for good:",
                "trunq message delete orders 42",
            ),
        ],
    )
