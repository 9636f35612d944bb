"""Messages of a queue by a filter, the life of one, and a copy of one to publish."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from typing import Any, get_args

from starlette.datastructures import FormData, QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from trunq.errors import InvalidArgument
from trunq.record import MessageState, Wait
from trunq.web import figure
from trunq.web.database import Walk, looked_to
from trunq.web.guard import root_of
from trunq.web.page import STATES, Desk, asking, text, whole
from trunq.web.pages.dead import sweeps
from trunq.word import Open

SHOWN = 50
LOOKED = 20_000
"""Messages that one look through them looks at; the page goes on where it ended."""
SINCE = {"5 min": 300, "1 h": 3600, "24 h": 86_400, "7 d": 604_800}


@dataclass(frozen=True)
class Filter:
    """What the address asks for."""

    subscription: str | None
    state: str | None
    kind: str | None
    key: str | None
    error: str | None
    payload: str | None
    headers: str | None
    since: str | None
    before: int | None

    @classmethod
    def of(cls, request: Request, hidden: frozenset[str]) -> Filter:
        """From the query string."""
        given = request.query_params
        known = {each.name: text(given, each.name) for each in fields(cls) if each.name != "before"}
        if known["state"] not in STATES:
            known["state"] = None
        if known["since"] not in SINCE:
            known["since"] = None
        # A filter tells, bit by bit, what it looks at.
        known |= dict.fromkeys(hidden & {*known})
        return cls(**known, before=whole(given, "before"))

    @property
    def is_walk(self) -> bool:
        """Whether messages are looked through one by one."""
        given = (self.kind, self.key, self.error, self.payload, self.headers, self.since)
        return any(given) or self.state in ("outdated", "replaced", "purged")


def wanted_of(given: QueryParams | FormData, hidden: frozenset[str]) -> dict[str, Any]:
    """What to look for, as the functions take it, besides subscription and state."""
    found: dict[str, Any] = {name: text(given, name) for name in ("kind", "key", "error")}
    found |= {name: _json(name, text(given, name)) for name in ("payload", "headers")}
    since = text(given, "since")
    if since in SINCE:
        found["newer_than"] = timedelta(seconds=SINCE[since])
    return {name: value for name, value in found.items() if value is not None and name not in hidden}


def _json(name: str, value: str | None) -> Any:
    try:
        return None if value is None else json.loads(value)
    except ValueError:
        raise InvalidArgument(
            f"{name} is to contain JSON, not {value:.40}",
            'write it like {"customer": "acme"}, and a text in quotes',
        ) from None


async def show_all(desk: Desk, request: Request) -> Response:
    """A page of messages, newest first."""
    queue = str(request.path_params["queue"])
    id = text(request.query_params, "id")
    if id is not None and id.isdecimal():
        return RedirectResponse(f"{root_of(request)}/queues/{queue}/messages/{id}", 303)
    filter = Filter.of(request, desk.hidden)
    client, panel = desk.database.client, desk.database.panel

    async def readers(connection: Any) -> list[Any]:
        found = await client.list_subscriptions(queue, connection=connection)
        return [each for each in found if each.mode == "shared"]

    shared = await panel(("shared", queue), readers, fresh_for=5)
    names = [each.subscription for each in shared.rows or []]
    reader = filter.subscription or ("default" if "default" in names or not names else names[0])

    wanted = wanted_of(request.query_params, desk.hidden)

    async def ask(connection: Any) -> Walk[MessageState]:
        if not names and shared.rows is not None:
            return Walk([])
        rows = await client.list_messages(
            queue,
            reader,
            state=filter.state,  # type: ignore[arg-type]  # of STATES
            limit=SHOWN + 1,
            before=filter.before,
            brief="error" in desk.hidden or None,
            look=LOOKED,
            connection=connection,
            **wanted,
        )
        return Walk(rows, await looked_to(connection))

    found = await panel(("messages", queue, filter), ask)
    walk: Walk[MessageState] = found.rows or Walk([])
    rows = desk.veiled(walk.rows)
    more = rows[SHOWN - 1].id if len(rows) > SHOWN else walk.to
    further = None if more is None else "?" + asking(**{**asdict(filter), "before": more})
    return desk.page(
        request,
        "messages.html",
        queue=queue,
        reader=reader,
        names=names,
        filter=filter,
        panel=found,
        rows=rows[:SHOWN],
        further=further,
        to=walk.to if len(rows) <= SHOWN else None,
        looked=LOOKED,
        open=get_args(Open),
        sweeps=await sweeps(desk, queue, "cancel"),
        states=STATES,
        spans=tuple(SINCE),
        asdict=asdict,
    )


async def _find(desk: Desk, queue: str, id: int) -> list[MessageState]:
    client = desk.database.client
    async with desk.database.reading() as connection:
        return desk.veiled(await client.show_message(queue, id, connection=connection))


async def _waits(desk: Desk, queue: str, id: int) -> dict[str, Wait]:
    """By subscription, why it waits there."""
    client = desk.database.client
    found = await desk.database.panel(
        ("wait", queue, id), lambda connection: client.explain_wait(queue, id, connection=connection)
    )
    return {each.subscription: each for each in found.rows or []}


async def show(desk: Desk, request: Request) -> Response:
    """The life of a message, for all its subscriptions on one axis of time."""
    queue, id = str(request.path_params["queue"]), int(request.path_params["id"])
    rows = await _find(desk, queue, id)
    now = desk.database.now
    begin, end = figure.span(rows, now)
    waits = await _waits(desk, queue, id) if any(row.state == "ready" for row in rows) else {}
    lives = [
        (row, figure.bars(row, begin, end, now, wait and wait.explanation), wait)
        for row in rows
        for wait in [waits.get(row.subscription)]
    ]
    return desk.page(
        request,
        "message.html",
        queue=queue,
        id=id,
        first=rows[0] if rows else None,
        lives=lives,
        begin=begin,
        end=end,
    )


async def copy(desk: Desk, request: Request) -> Response:
    """A form that publishes, filled in with a message when one is named."""
    queue, id = str(request.path_params["queue"]), whole(request.query_params, "copy")
    rows = [] if id is None else await _find(desk, queue, id)
    return desk.page(request, "publish.html", queue=queue, copy=id, row=rows[0] if rows else None)
