"""The lanes of a queue: what waits in each, and its limits."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from trunq.web.page import Act, Column, Desk, Section, Shown

SHOWN = 200


async def show(desk: Desk, request: Request) -> Response:
    """The page."""
    queue = str(request.path_params["queue"])
    client = desk.database.client

    async def ask(connection: Any) -> list[Any]:
        lanes = [each for each in await client.list_queues(connection=connection) if each.queue == queue]
        if not lanes or lanes[0].lanes is None:
            return []
        readers = await client.list_subscriptions(queue, connection=connection)
        shared = [each.subscription for each in readers if each.mode == "shared"]
        return [
            _Lane(reader, row)
            for reader in shared
            for row in await client.list_lanes(queue, reader, SHOWN, connection=connection)
        ]

    def acts(row: Any) -> list[Act]:
        verb = "resume" if row.is_paused else "pause"
        lane = {"queue": queue, "subscription": row.subscription, "lane": row.lane, "priority": row.priority}
        return [Act(f"{verb}_lane", verb.capitalize(), lane)]

    listed = await desk.database.panel(("lanes", queue), ask)
    is_cut = len(listed.rows or ()) >= SHOWN
    return desk.page(
        request,
        "listing.html",
        title=f"Lanes of {queue}",
        queue=queue,
        lead="Each lane has a fair share of the workers; here is what waits in each, and its limits.",
        findings=[],
        sections=[
            Section(
                "Lanes",
                listed,
                (
                    Column("named", "name", "lane"),
                    Column("subscription"),
                    Column("waiting", "number"),
                    Column("running", "number"),
                    Column("max_running", "number", "at most"),
                    Column("rate", "rate"),
                    Column("weight", "number"),
                    Column("rank", "number"),
                    Column("oldest_ready", "length", "oldest"),
                    Column("state", "state", ""),
                ),
                "This queue has no lanes, or nothing waits in one. A queue is made with them:",
                "trunq queue create mail --lanes key",
                acts=acts,
                note=f"Of each subscription, the {SHOWN} deepest lanes at most." if is_cut else "",
            )
        ],
    )


class _Lane(Shown):
    """A lane of a subscription."""

    def __init__(self, subscription: str, row: Any) -> None:
        super().__init__(row)
        self.subscription = subscription
        # Lanes by key have no priority, and those by priority no name.
        priority = f"priority {row.priority}" if row.priority or not row.lane else ""
        self.named = ", ".join(filter(None, (row.lane, priority)))
        self.waiting = f"{row.depth:,}{'+' if row.is_more else ''}"
        self.state = "paused" if row.is_paused else ""
