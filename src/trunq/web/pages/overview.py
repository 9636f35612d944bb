"""The first page: what is wrong, in sentences, then every subscription."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import NamedTuple, get_args

from starlette.requests import Request
from starlette.responses import Response

from trunq.record import Finding, Statistic, Status
from trunq.web.database import PATIENT_WITHIN, Panel
from trunq.web.page import Desk, text
from trunq.word import Severity

SHOWN = 100
"""Subscriptions on the page: the worst ones."""
LAST = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SERIOUS = {severity: place for place, severity in enumerate(get_args(Severity))}


class Course(NamedTuple):
    """What the last hour brought, minute by minute."""

    done: list[int]
    failed: list[int]

    @property
    def share(self) -> float | None:
        """Of the last ten minutes' attempts, how many failed; None: there was none."""
        failed, done = sum(self.failed[-10:]), sum(self.done[-10:])
        return failed / (failed + done) if failed + done else None


async def findings(desk: Desk) -> Panel[list[Finding]]:
    """What is wrong: looked at every few seconds, for it asks a lot."""
    client = desk.database.client

    async def ask(connection: object) -> list[Finding]:
        found = await client.diagnose(connection=connection)  # type: ignore[arg-type]
        return sorted(found, key=lambda each: SERIOUS.get(each.severity, 3))

    return await desk.database.panel("diagnose", ask, fresh_for=8, within=PATIENT_WITHIN)


async def statuses(desk: Desk) -> Panel[list[Status]]:
    """Every subscription."""
    client = desk.database.client
    return await desk.database.panel("status", lambda connection: client.status(connection=connection))


async def courses(desk: Desk) -> Panel[dict[tuple[str, str], Course]]:
    """What each subscription answered in the last hour."""
    client = desk.database.client

    async def ask(connection: object) -> dict[tuple[str, str], Course]:
        rows = await client.statistics(last=LAST, per=MINUTE, by_kind=False, connection=connection)  # type: ignore[arg-type]
        return _courses(rows, desk.database.now)

    return await desk.database.panel("courses", ask, fresh_for=8)


def _courses(rows: list[Statistic], now: datetime) -> dict[tuple[str, str], Course]:
    # A minute comes ten seconds after its end.
    begin = (now - timedelta(seconds=10)).replace(second=0, microsecond=0) - LAST
    found: dict[tuple[str, str], Course] = defaultdict(lambda: Course([0] * 60, [0] * 60))
    for row in rows:
        at = int((row.at - begin) / MINUTE) if row.at is not None else -1
        if 0 <= at < 60:
            course = found[row.queue, row.subscription]
            (course.done if row.outcome == "success" else course.failed)[at] += row.messages
    return dict(found)


def badness(row: Status) -> tuple[object, ...]:
    """What sorts the worst first."""
    waits = row.oldest_ready or timedelta(0)
    return (
        row.lost_at is None,
        not (row.ready and not row.workers and row.mode == "shared"),
        not row.paused,
        -waits.total_seconds(),
        -row.dead,
        row.queue,
        row.subscription,
    )


async def show(desk: Desk, request: Request) -> Response:
    """The page."""
    wrong, status, course = await findings(desk), await statuses(desk), await courses(desk)
    named = text(request.query_params, "find")
    rows = [row for row in status.rows or [] if named is None or named in f"{row.queue}/{row.subscription}"]
    # With few of them, who looks every day finds each at its place.
    rows.sort(key=badness if len(rows) > SHOWN else lambda row: (row.queue, row.subscription))
    return desk.page(
        request,
        "overview.html",
        wrong=wrong,
        status=status,
        course=course.rows or {},
        why_no_course=course.why,
        rows=rows[:SHOWN],
        many=len(rows),
        named=named,
        led=all(row.led for row in status.rows or []),
    )
