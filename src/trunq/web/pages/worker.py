"""Who works, what each holds, and whether somebody performs the duties."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from trunq.web.page import Act, Column, Desk, Section
from trunq.web.pages.overview import findings


async def show(desk: Desk, request: Request) -> Response:
    """The page."""
    client, panel = desk.database.client, desk.database.panel
    workers = await panel("workers", lambda connection: client.list_workers(connection=connection))
    reports = await panel("reports", lambda connection: client.list_reports(connection=connection))
    duties = await panel("duties", lambda connection: client.list_duties(connection=connection), fresh_for=60)
    wrong = await findings(desk)
    return desk.page(
        request,
        "listing.html",
        title="Workers",
        lead="",
        findings=[each for each in wrong.rows or [] if each.area in ("leader", "workers")],
        sections=[
            Section(
                "Workers",
                workers,
                (
                    Column("worker", "name"),
                    Column("queue", "link", link=lambda row: f"/queues/{row.queue}"),
                    Column(
                        "subscription",
                        "link",
                        link=lambda row: f"/queues/{row.queue}/subscriptions/{row.subscription}",
                    ),
                    Column("slots", "number"),
                    Column("held", "number"),
                    Column("since", "ago", "holds since"),
                    Column("until", "ago", "lease ends"),
                    Column("seen_at", "ago"),
                    Column("connections", "number"),
                ),
                "No worker is at work.",
                "trunq worker handlers:handlers",
                acts=lambda row: (
                    [Act("free_worker", "Free", {"worker": row.worker}, asks=True)] if row.leases else []
                ),
                note="Free ends what a worker holds, for one whose machine is gone.",
            ),
            Section(
                "What they said last",
                reports,
                (
                    Column("worker", "name"),
                    Column("state", "state"),
                    Column("queue", "link", link=lambda row: f"/queues/{row.queue}"),
                    Column("host"),
                    Column("pid", "number"),
                    Column("version"),
                    Column("began_at", "ago", "began"),
                    Column("seen_at", "ago", "said so"),
                    Column("handling", "json"),
                ),
                "No worker has said anything within an hour.",
            ),
            Section(
                "Duties of the leader",
                duties,
                (
                    Column("duty", "name"),
                    Column("line"),
                    Column("every", "length"),
                    Column("per_queue", "yes", "for each queue"),
                ),
                "There is no duty.",
            ),
        ],
    )
