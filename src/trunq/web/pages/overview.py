"""The first page: what is wrong, in sentences, then every subscription, as the newest samples tell."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, get_args

from starlette.requests import Request
from starlette.responses import Response

from trunq.diagnosis import together
from trunq.record import Finding, Overview, Statistic, Status
from trunq.web.database import ANSWER_WITHIN, PATIENT_WITHIN, Panel
from trunq.web.page import Desk, text
from trunq.word import Severity

SHOWN = 100
"""Subscriptions on the page: the worst ones."""
FEW = 20
"""Up to so many are in the order of their names."""
FOUND = 10_000
"""Of so many, those are shown whose names somebody looks for."""
SENTENCES_WITHIN = 0.3
PRESSING = ("leader", "workers", "failures", "sessions")
"""Areas that are asked for at each look: cheap, and what they find hurts at once. Each names its trouble
within twelve seconds, so the page has it within fifteen, where a look takes a tenth of a second at most.
"""
SAMPLED_EVERY = timedelta(seconds=5)
LOOKED_AT = 50
"""Queues that are looked at one by one, in the background: some 40 ms each. Of more, the worst and others."""
STOPPED_AFTER = timedelta(seconds=15)
"""Without a sample for so long, nobody samples."""
SOON = 10
"""Seconds within which what waits is handled: nobody has to know whether it grows."""
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


class Look(NamedTuple):
    """What the samples say: when the last was taken (None: never), and the worst subscriptions."""

    sampled_at: datetime | None
    rows: list[Overview]

    @property
    def many(self) -> int:
        """Subscriptions there are."""
        return self.rows[0].subscriptions if self.rows else 0


async def findings(desk: Desk, wait_for: float = ANSWER_WITHIN) -> Panel[list[Finding]]:
    """What is wrong: what presses as of this look, the rest asked in the background, as that takes seconds
    where there are a thousand queues.
    """
    client, panel = desk.database.client, desk.database.panel

    async def ask(connection: Any) -> list[Finding]:
        return await client.diagnose(LOOKED_AT, connection=connection)

    async def ask_pressing(connection: Any) -> list[Finding]:
        return await client.diagnose(areas=PRESSING, connection=connection)

    pressing, whole = await asyncio.gather(
        panel("pressing", ask_pressing, meanwhile_for=15, wait_for=wait_for, linger=SENTENCES_WITHIN),
        panel("diagnose", ask, fresh_for=3, within=PATIENT_WITHIN, meanwhile_for=120, wait_for=wait_for),
    )
    found = _joined(pressing, whole)
    if found.rows is None:
        return found
    rows = sorted(found.rows, key=lambda each: SERIOUS.get(each.severity, 3))
    return replace(found, rows=[_without_error(each) if "error" in desk.hidden else each for each in rows])


def _joined(pressing: Panel[list[Finding]], whole: Panel[list[Finding]]) -> Panel[list[Finding]]:
    """All findings. That all is well only a look at the whole can say."""
    if pressing.rows is None or (whole.rows is None and not pressing.rows):
        return whole
    rows = pressing.rows + [each for each in whole.rows or [] if each.area not in PRESSING]
    why = pressing.why if whole.rows is None else pressing.why or whole.why
    return Panel(rows, why, max(pressing.age, whole.age))


def _without_error(found: Finding) -> Finding:
    return found._replace(finding=found.finding.partition("; the last error: ")[0])


async def look(desk: Desk, limit: int = SHOWN) -> Panel[Look]:
    """The overview: a reading for all pages that are open."""
    client = desk.database.client

    async def ask(connection: Any) -> Look:
        return Look(
            await client.sampled_at(connection=connection),
            await client.overview(limit, connection=connection),
        )

    # Half as long as samples are apart: figures are never older than a sample and a half.
    fresh_for = SAMPLED_EVERY.total_seconds() / 2
    return await desk.database.panel(("overview", limit), ask, fresh_for, meanwhile_for=15)


async def statuses(desk: Desk) -> Panel[list[Status]]:
    """Every subscription, looked at by itself."""
    client = desk.database.client
    return await desk.database.panel("status", lambda connection: client.status(connection=connection))


async def courses(desk: Desk, queue: str | None = None) -> Panel[dict[tuple[str, str], Course]]:
    """What each subscription of a queue, or of all, answered in the last hour."""
    client = desk.database.client

    async def ask(connection: Any) -> dict[tuple[str, str], Course]:
        rows = await client.statistics(queue, last=LAST, per=MINUTE, by_kind=False, connection=connection)
        return _courses(rows, desk.database.now)

    return await desk.database.panel(("courses", queue), ask, fresh_for=8)


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


class Line(NamedTuple):
    """A subscription as the page shows it."""

    row: Overview
    recent: list[int]
    """Ready, every ten seconds of five minutes; empty: it has no sample of that time."""
    empty_in: float | None
    """Seconds until nothing waits; None: nothing waits, or nobody can say."""
    trouble: str | None
    """In the place of that: why it will never be empty."""


def line(row: Overview) -> Line:
    """The line of a subscription."""
    taken, answered = row.published_per_second, row.answered_per_second
    empty_in = trouble = None
    if row.ready and row.mode == "shared" and row.paused:
        trouble = "paused"
    elif row.ready and row.mode == "shared" and not row.workers:
        trouble = "never"
    elif row.ready and answered is not None:
        if answered and row.ready / answered <= SOON:
            empty_in = row.ready / answered
        elif answered > (taken or 0):
            empty_in = row.ready / (answered - (taken or 0))
        else:
            trouble = "grows" if taken and taken > answered else "never"
    return Line(row, filled(row), empty_in, trouble)


def filled(row: Overview) -> list[int]:
    """A queue where nothing happens has a sample a minute: its figures held meanwhile."""
    values: list[int] = []
    for value in row.recent or ():
        if value is not None:
            values.append(value)
        elif values:
            values.append(values[-1])
    if values and row.ready is not None:
        values[-1] = row.ready
    return values


def stopped(seen: Look | None, now: datetime) -> str | None:
    """That nobody samples, and since when."""
    if seen is None or not seen.rows or (seen.sampled_at and now - seen.sampled_at <= STOPPED_AFTER):
        return None
    if seen.sampled_at is None:
        return "Nobody samples"
    return f"Nobody samples since {seen.sampled_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


async def show(desk: Desk, request: Request) -> Response:
    """The page."""
    named = text(request.query_params, "find")
    # The figures do not wait for the sentences, which come with the next look where there are many queues.
    wrong, seen = await asyncio.gather(
        findings(desk, SENTENCES_WITHIN), look(desk, SHOWN if named is None else FOUND)
    )
    every = seen.rows.rows if seen.rows else []
    rows = [row for row in every if named is None or named in f"{row.queue}/{row.subscription}"]
    many = seen.rows.many if seen.rows and named is None else len(rows)
    if many <= FEW:
        # With few of them, who looks every day finds each at its place.
        rows.sort(key=lambda row: (row.queue, row.subscription))
    return desk.page(
        request,
        "overview.html",
        wrong=wrong,
        seen=seen,
        stopped=stopped(seen.rows, desk.database.now),
        lines=[line(row) for row in rows[:SHOWN]],
        many=many,
        named=named,
        some=next(
            (row.finding for row in wrong.rows or [] if row.area == "queues" and row.missing_grant is None),
            None,
        ),
        unseen=[each for each in together(wrong.rows or []) if each.missing_grant is not None],
    )
