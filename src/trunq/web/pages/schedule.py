"""Schedules: when each is due, what it published, and its pause."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from trunq import display
from trunq.errors import ScheduleNotFound
from trunq.web.database import Panel
from trunq.web.page import Act, Column, Desk, Section, Shown

AHEAD = 5
RUNS = 50


def _rule(row: Any) -> str:
    if row.cron:
        return f"{row.cron} ({row.zone})"
    return f"every {row.calendar or display.interval(row.every)}"


def _acts(row: Any) -> list[Act]:
    verb = "resume" if row.paused else "pause"
    named = {"schedule": row.schedule}
    return [
        Act("run_schedule", "Run now", named, asks=True),
        Act(f"{verb}_schedule", verb.capitalize(), named),
    ]


class _Ruled(Shown):
    """A schedule with its rule in words."""

    def __init__(self, row: Any) -> None:
        super().__init__(row)
        self.rule = _rule(row)
        self.state = "paused" if row.paused else "error" if row.error else ""


async def _listed(desk: Desk) -> Panel[list[_Ruled]]:
    client = desk.database.client

    async def ask(connection: Any) -> list[_Ruled]:
        rows = await client.list_schedules(connection=connection)
        return [_Ruled(row) for row in desk.veiled(rows)]

    return await desk.database.panel("schedules", ask)


COLUMNS = (
    Column("schedule", "link", link=lambda row: f"/schedules/{row.schedule}"),
    Column("rule"),
    Column("queue", "link", link=lambda row: f"/queues/{row.queue}"),
    Column("kind"),
    Column("next_due", "ago"),
    Column("last_due", "ago"),
    Column("state", "state", ""),
    Column("error", "error"),
)


async def show_all(desk: Desk, request: Request) -> Response:
    """All of them."""
    return desk.page(
        request,
        "listing.html",
        title="Schedules",
        lead="Messages at the times of a cron text, or every so often.",
        findings=[],
        sections=[
            Section(
                "Schedules",
                await _listed(desk),
                COLUMNS,
                "There is no schedule.",
                "trunq schedule create nightly reports --cron '0 3 * * *' --zone Europe/Berlin",
                acts=_acts,
            )
        ],
    )


async def show(desk: Desk, request: Request) -> Response:
    """One: what comes, and what was."""
    name = str(request.path_params["schedule"])
    client, panel = desk.database.client, desk.database.panel
    listed = await _listed(desk)
    mine = [row for row in listed.rows or [] if row.schedule == name]
    if listed.rows is not None and not mine:
        raise ScheduleNotFound(f"schedule {name} does not exist")

    async def preview(connection: Any) -> list[Any]:
        return [_Due(at) for at in await client.preview_schedule(name, AHEAD, connection=connection)]

    async def runs(connection: Any) -> list[Any]:
        return desk.veiled(await client.list_schedule_runs(name, RUNS, connection=connection))

    queue = mine[0].queue if mine else ""
    return desk.page(
        request,
        "listing.html",
        title=name,
        lead="",
        findings=[],
        sections=[
            Section("Schedule", Panel(mine, listed.why, listed.age), COLUMNS[1:], "", acts=_acts),
            Section(
                "Next five",
                await panel(("due", name), preview),
                (Column("due_at", "moment"),),
                "None is due.",
            ),
            Section(
                "Runs",
                await panel(("runs", name), runs),
                (
                    Column("due_at", "moment"),
                    Column("id", "id", link=lambda row: row.id and f"/queues/{queue}/messages/{row.id}"),
                    Column("skipped"),
                    Column("runs", "number", "times"),
                    Column("error", "error"),
                ),
                "It has not been due yet.",
            ),
        ],
    )


class _Due:
    def __init__(self, due_at: Any) -> None:
        self.due_at = due_at
