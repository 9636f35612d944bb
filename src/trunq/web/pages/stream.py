"""Streams and groups: where each reader stands, and the ticks of a queue."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from trunq.web.page import Act, Column, Desk, Section

TICKS = 30

STREAMS = (
    Column("queue", "link", link=lambda row: f"/queues/{row.queue}/stream"),
    Column("subscription", "link", link=lambda row: f"/queues/{row.queue}/subscriptions/{row.subscription}"),
    Column("pending", "estimate"),
    Column("lag", "length"),
    Column("position_tick_id", "number", "at tick"),
    Column("newest_tick_id", "number", "newest tick"),
    Column("batch_id", "number", "batch"),
    Column("worker"),
    Column("expires_at", "ago", "batch ends"),
    Column("seen_at", "ago"),
    Column("error", "error"),
)
GROUPS = (
    Column("queue", "link", link=lambda row: f"/queues/{row.queue}/stream"),
    Column("group_name", "name", "group"),
    Column("slots", "number"),
    Column("members", "number"),
    Column("alive", "number", "members alive"),
    Column("pending", "estimate"),
    Column("lag", "length"),
    Column("position_tick_id", "number", "at tick"),
    Column("newest_tick_id", "number", "newest tick"),
)
NO_STREAM = "Nobody reads a stream here. An exclusive subscription hands out batches, one after the other:"
NEW_STREAM = "trunq subscription create sales ledger --mode exclusive"


async def show_all(desk: Desk, request: Request) -> Response:
    """All of them."""
    client, panel = desk.database.client, desk.database.panel

    async def streams(connection: Any) -> list[Any]:
        return desk.veiled(await client.list_streams(connection=connection))

    groups = await panel("groups", lambda connection: client.list_groups(connection=connection))
    losses = await panel("losses", lambda connection: client.list_losses(connection=connection), fresh_for=5)
    return desk.page(
        request,
        "listing.html",
        title="Streams",
        lead="Who reads in batches, and how far behind.",
        findings=[],
        sections=[
            Section("Streams", await panel("streams", streams), STREAMS, NO_STREAM, NEW_STREAM),
            Section(
                "Groups",
                groups,
                GROUPS,
                "There is no group. In a group, several readers share a stream:",
                "trunq group create sales reports",
            ),
            Section(
                "Losses",
                losses,
                (
                    Column("queue"),
                    Column("subscription"),
                    Column("messages", "number"),
                    Column("reason"),
                    Column("lost_at", "ago"),
                    Column("accepted_at", "ago"),
                ),
                "No subscription has lost messages, as one does that stands still for too long.",
            ),
        ],
    )


async def show(desk: Desk, request: Request) -> Response:
    """The stream of one queue."""
    queue = str(request.path_params["queue"])
    client, panel = desk.database.client, desk.database.panel

    async def streams(connection: Any) -> list[Any]:
        return desk.veiled(await client.list_streams(queue, connection=connection))

    async def ticks(connection: Any) -> list[Any]:
        # The newest: ids of ticks of a queue count up by one.
        newest = max(
            (row.newest_tick_id for row in await client.list_streams(queue, connection=connection)),
            default=None,
        )
        from_ = None if newest is None else max(newest - TICKS, 0)
        found = await client.list_ticks(queue, from_=from_, connection=connection)
        return found[: -TICKS - 1 : -1]

    async def members(connection: Any) -> list[Any]:
        groups = await client.list_groups(queue, connection=connection)
        return [
            row
            for group in groups
            for row in await client.list_members(queue, group.group_name, connection=connection)
        ]

    groups = await panel(
        ("groups", queue), lambda connection: client.list_groups(queue, connection=connection)
    )
    return desk.page(
        request,
        "listing.html",
        title=f"Stream of {queue}",
        queue=queue,
        lead="A batch holds what was committed between two ticks. Each reader stands at a tick.",
        findings=[],
        acts=[Act("tick", "Cut a tick now", {"queue": queue})],
        sections=[
            Section(
                "Readers",
                await panel(("streams", queue), streams),
                STREAMS[1:],
                NO_STREAM,
                f"trunq subscription create {queue} ledger --mode exclusive",
            ),
            Section(
                "Groups",
                groups,
                GROUPS[1:],
                "No group reads this queue. In a group, several readers share a stream:",
                f"trunq group create {queue} reports",
            ),
            Section(
                "Members",
                await panel(("members", queue), members),
                (
                    Column("member", "name"),
                    Column("is_alive", "yes", "alive"),
                    Column("slot", "number"),
                    Column("batch_id", "number", "batch"),
                    Column("expires_at", "ago", "batch ends"),
                    Column("seen_at", "ago"),
                ),
                "No group has a member. A reader that asks for a batch of a group is one.",
            ),
            Section(
                "Newest ticks",
                await panel(("ticks", queue), ticks),
                (
                    Column("tick_id", "id", "tick"),
                    Column("created_at", "ago"),
                    Column("last_message_id", "id", "up to message"),
                    Column("reachable", "yes"),
                ),
                "There is no tick yet. The leader cuts one when there are messages.",
            ),
        ],
    )
