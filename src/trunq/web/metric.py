"""GET /metrics, for Prometheus: what `trunq leader --metrics` tells, of the database of the dashboard."""

from __future__ import annotations

import logging
from typing import Any, Final

from psycopg import AsyncConnection
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from trunq.connection.outage import Said
from trunq.errors import InvalidArgument
from trunq.metrics import look, page_of, refusal, refused
from trunq.metrics.figure import OF_SIZES, Known
from trunq.web.page import Desk

log = logging.getLogger("trunq.web")
_said = Said()

_KNOWN_FOR: Final = 4.0
"""Seconds for which figures are given again: many who scrape cost what one does."""
_SIZES_FOR: Final = 60.0

_Named = tuple[str, Known]
"""What the database is called, and its figures."""


async def show(desk: Desk, request: Request) -> Response:
    """The figures. A database that is away has `trunq_up` 0, and no other; of one that the role may not
    see, `trunq_refused` names the grant.
    """
    client, panel = desk.database.client, desk.database.panel

    async def ask(connection: AsyncConnection[Any]) -> _Named:
        return connection.info.dbname, await look(client, connection, sizes=False)

    async def ask_sizes(connection: AsyncConnection[Any]) -> _Named:
        return connection.info.dbname, await look(client, connection, sizes=True)

    now = await panel("metrics", ask, fresh_for=_KNOWN_FOR)
    name, known = now.rows or ("default", None)
    if now.why is not None:
        known = None
        if now.is_refused:
            # Not even the clock, which each look asks first.
            async with client.transaction() as connection:
                name, known = connection.info.dbname, await refused(connection)
    if known is not None and not known.is_seen and _said.is_new(name, told := refusal(known)):
        log.warning("no figures of %s: %s", name, told)
    if known is not None:
        _, sized = (await panel("sizes", ask_sizes, fresh_for=_SIZES_FOR)).rows or (name, known)
        sizes = [each for each in sized.figures if each[0] in OF_SIZES]
        known = known._replace(figures=[*known.figures, *sizes])
    try:
        type, text = page_of(name, known, request.headers.get("accept", ""))
    except InvalidArgument as error:
        return PlainTextResponse(f"{error}; {error.hint}", 501)
    return Response(text, headers={"Content-Type": type})
