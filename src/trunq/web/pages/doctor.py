"""What is wrong with the database, and the one thing that helps."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from trunq.diagnosis import together
from trunq.web.page import Desk
from trunq.web.pages.overview import findings


async def show(desk: Desk, request: Request) -> Response:
    """The page."""
    wrong = await findings(desk)
    rows = None if wrong.rows is None else list(together(wrong.rows))
    return desk.page(request, "doctor.html", wrong=replace(wrong, rows=rows))
