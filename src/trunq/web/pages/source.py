"""What comes in by itself: tables that are captured, and webhooks."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from trunq.web.page import Column, Desk, Section


async def show(desk: Desk, request: Request) -> Response:
    """The page."""
    client, panel = desk.database.client, desk.database.panel
    captures = await panel("captures", lambda connection: client.list_captures(connection=connection), 5)
    webhooks = await panel("webhooks", lambda connection: client.list_webhooks(connection=connection), 5)
    queue = Column("queue", "link", link=lambda row: f"/queues/{row.queue}")
    return desk.page(
        request,
        "listing.html",
        title="Captures and webhooks",
        lead="Messages that nobody publishes by hand.",
        findings=[],
        sections=[
            Section(
                "Captures",
                captures,
                (
                    Column("table_name", "name", "table"),
                    queue,
                    Column("kind"),
                    Column("format"),
                    Column("columns", "list"),
                    Column("deny", "list", "denied"),
                    Column("created_at", "ago"),
                    Column("warning", "warning"),
                ),
                "No table is captured. Its changes become messages:",
                "trunq capture create shop.orders orders",
            ),
            Section(
                "Webhooks",
                webhooks,
                (
                    Column("webhook", "name"),
                    queue,
                    Column("kind"),
                    Column("scheme"),
                    Column("secret"),
                    Column("body"),
                    Column("max_bytes", "size"),
                    Column("created_at", "ago"),
                ),
                "There is no webhook. A signed request becomes a message:",
                "trunq webhook create github pushes --secret GITHUB_SECRET --scheme github",
            ),
        ],
    )
