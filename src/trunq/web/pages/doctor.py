"""What is wrong with the database, and the one thing that helps."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from trunq.web.page import Desk
from trunq.web.pages.overview import findings


async def show(desk: Desk, request: Request) -> Response:
    """The page."""
    return desk.page(request, "doctor.html", wrong=await findings(desk))
