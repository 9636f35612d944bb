"""Who works, what each holds, and whether somebody performs the duties."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from trunq import display
from trunq.diagnosis import together
from trunq.record import Performed
from trunq.web.page import Act, Column, Desk, Section, Shown
from trunq.web.pages.overview import findings

AREAS = ("leader", "workers", "bells")
"""Of the findings, those about processes."""
NAMED = 3
"""Of the messages that a worker handles, so many are named."""


class _Report(Shown):
    """What a worker said, with what it handles in words."""

    def __init__(self, row: Any) -> None:
        super().__init__(row)
        told = [_handled(each, row.seen_at) for each in row.handling[:NAMED]]
        if len(row.handling) > NAMED:
            told.append(f"{len(row.handling) - NAMED} more")
        self.handles = ", ".join(told)


def _handled(message: dict[str, Any], seen_at: datetime) -> str:
    kind = f" ({message['kind']})" if message.get("kind") else ""
    since = message.get("since")
    took = f" for {display.interval(seen_at - datetime.fromisoformat(since))}" if since else ""
    return f"{message.get('id')}{kind}{took}"


def _leads(duty: Performed | None) -> str:
    if duty is None:
        return ""
    if duty.leader is None:
        return "No process leads. With pg_cron that is as it should be."
    return (
        f"{duty.leader} leads, in term {duty.term}. Of a duty that is done for each queue, it is that queue "
        "for which it is longest ago. The leader notes it every ten seconds."
    )


async def show(desk: Desk, request: Request) -> Response:
    """The page."""
    client, panel = desk.database.client, desk.database.panel

    async def said(connection: Any) -> list[Any]:
        return [_Report(row) for row in await client.list_reports(connection=connection)]

    async def performed(connection: Any) -> list[Performed]:
        return desk.veiled(await client.list_performed(connection=connection))

    workers, reports, duties, wrong = await asyncio.gather(
        panel("workers", lambda connection: client.list_workers(connection=connection)),
        panel("reports", said),
        panel("duties", performed),
        findings(desk),
    )
    leader = next(iter(duties.rows or []), None)
    return desk.page(
        request,
        "listing.html",
        title="Workers",
        lead="Which processes work, what each holds and handles, and what the leader does.",
        findings=list(together(each for each in wrong.rows or [] if each.area in AREAS)),
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
                    Column("seen_at", "ago", "reported"),
                    Column("connections", "number"),
                ),
                "No worker is at work.",
                "trunq worker shop:worker",
                acts=lambda row: (
                    [Act("free_worker", "Free", {"worker": row.worker}, asks=True)] if row.leases else []
                ),
                note="Free is for a worker whose machine is gone: others get its messages at once.",
            ),
            Section(
                "Reports of the last hour",
                reports,
                (
                    Column("worker", "name"),
                    Column("state", "state"),
                    Column("queue", "link", link=lambda row: f"/queues/{row.queue}"),
                    Column("host"),
                    Column("pid", "id"),
                    Column("version"),
                    Column("began_at", "ago", "began"),
                    Column("seen_at", "ago", "reported"),
                    Column("handles"),
                ),
                "No worker has reported within an hour. Each does so every ten seconds.",
            ),
            Section(
                "Duties of the leader",
                duties,
                (
                    Column("duty", "name"),
                    Column("every", "length"),
                    Column("done_at", "ago", "last done"),
                    Column("queue", "link", "of queue", link=lambda row: f"/queues/{row.queue}"),
                    Column("failed_at", "ago", "failed"),
                    Column("error", "error"),
                ),
                "There is no duty.",
                note=_leads(leader),
            ),
        ],
    )
