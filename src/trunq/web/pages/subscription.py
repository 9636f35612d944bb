"""A subscription: what it holds, what fails, where it stands."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from trunq.errors import SubscriptionNotFound
from trunq.web.page import Desk
from trunq.web.pages.dead import grouped
from trunq.web.pages.queue import RANGES, chart, chosen, kinds

HELD = 20


async def show(desk: Desk, request: Request) -> Response:
    """The page."""
    queue, subscription = str(request.path_params["queue"]), str(request.path_params["subscription"])
    client, panel = desk.database.client, desk.database.panel
    range = chosen(request)
    status, listed, drawn, by_kind, look = await asyncio.gather(
        panel(("status", queue), lambda connection: client.status(queue, connection=connection)),
        panel(
            ("subscriptions", queue),
            lambda connection: client.list_subscriptions(queue, connection=connection),
            fresh_for=5,
        ),
        chart(desk, queue, subscription, range),
        kinds(desk, queue, subscription, range),
        grouped(desk, queue, subscription),
    )
    mine = [row for row in status.rows or [] if row.subscription == subscription]
    if status.rows is not None and not mine:
        raise SubscriptionNotFound(f"subscription {subscription} of queue {queue} does not exist")
    row = mine[0] if mine else None
    known = [each for each in listed.rows or [] if each.subscription == subscription]
    is_shared = row is None or row.mode == "shared"

    async def held(connection: Any) -> list[Any]:
        if not is_shared:
            return []
        return await client.list_messages(
            queue, subscription, state="leased", limit=HELD, brief=True, connection=connection
        )

    async def streams(connection: Any) -> list[Any]:
        if is_shared:
            return []
        found = await client.list_streams(queue, connection=connection)
        return [each for each in found if each.subscription == subscription]

    return desk.page(
        request,
        "subscription.html",
        queue=queue,
        subscription=subscription,
        status=status,
        row=row,
        known=known[0] if known else None,
        held=await panel(("held", queue, subscription), held),
        stream=await panel(("stream", queue, subscription), streams),
        range=range,
        ranges=RANGES,
        chart=drawn,
        kinds=by_kind,
        look=look,
    )
