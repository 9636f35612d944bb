"""Pipelines: how fresh each sink is, its runs, and the rows that broke a rule."""

from __future__ import annotations

import re
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from trunq import display
from trunq.errors import PipelineNotFound
from trunq.web.database import Panel
from trunq.web.page import Act, Column, Desk, Section, Shown

RUNS = 50
INSTANCES = 100


class _State(Shown):
    """A pipeline, with its state in a word."""

    def __init__(self, row: Any) -> None:
        super().__init__(row)
        source, sink = (display.place(row.definition[part]) for part in ("source", "sink"))
        self.way = f"{source}\N{NO-BREAK SPACE}→ {sink}"
        self.formats = f"{row.source}\N{NO-BREAK SPACE}→\N{NO-BREAK SPACE}{row.sink}"
        self.said = (
            "paused" if row.paused else "running" if row.open_run is not None else row.last_outcome or ""
        ) or ("failed" if row.error else "")
        self.bad_rows = row.quarantined or None
        # Which pipeline it is stands beside it.
        self.why = row.error and re.sub(rf"^\w+: pipeline {re.escape(row.pipeline)}: ", "", row.error)


class _Run(Shown):
    """A run, with its number; those of backfills have none of their own."""

    def __init__(self, row: Any) -> None:
        super().__init__(row)
        self.run = "backfill" if row.backfill else row.number


def _acts(row: Any) -> list[Act]:
    given = {"pipeline": row.pipeline}
    verb = "resume" if row.paused else "pause"
    found = [Act("run_pipeline", "Run now", given), Act(f"{verb}_pipeline", verb.capitalize(), given)]
    if row.open_run is not None:
        found.append(Act("cancel_pipeline", "Cancel", given, asks=True))
    return found


NAME = Column("pipeline", "link", link=lambda row: f"/pipelines/{row.pipeline}")
STATE = Column("said", "state", "state")
BEHIND = Column("age", "length", "behind")
FIGURES = (
    Column("next_due", "ago"),
    Column("bad_rows", "number", "quarantined"),
    Column("why", "error", "error"),
)


async def _listed(desk: Desk) -> Panel[list[_State]]:
    client = desk.database.client

    async def ask(connection: Any) -> list[_State]:
        return [_State(row) for row in desk.veiled(await client.list_pipelines(connection=connection))]

    return await desk.database.panel("pipelines", ask)


async def show_all(desk: Desk, request: Request) -> Response:
    """All of them."""
    return desk.page(
        request,
        "listing.html",
        title="Pipelines",
        lead="Rows from sources into sinks, each once.",
        findings=[],
        sections=[
            Section(
                "Pipelines",
                await _listed(desk),
                (NAME, STATE, Column("formats", label="from, to"), BEHIND, *FIGURES),
                "There is no pipeline.",
                "trunq pipeline create orders.toml",
                acts=_acts,
            )
        ],
    )


async def show(desk: Desk, request: Request) -> Response:
    """One, with its runs."""
    name = str(request.path_params["pipeline"])
    client, panel = desk.database.client, desk.database.panel
    listed = await _listed(desk)
    mine = [row for row in listed.rows or [] if row.pipeline == name]
    if listed.rows is not None and not mine:
        raise PipelineNotFound(f"pipeline {name} does not exist")

    # One with `per` or `tables` has; the others, and instances themselves, have a state of their own.
    has_instances = "/" not in name and any(
        "per" in row.definition or "tables" in row.definition["source"] for row in mine
    )

    async def runs(connection: Any) -> list[Any]:
        return [
            _Run(row) for row in desk.veiled(await client.list_runs(name, limit=RUNS, connection=connection))
        ]

    async def reasons(connection: Any) -> list[Any]:
        return desk.veiled(await client.count_quarantine(name, connection=connection))

    async def instances(connection: Any) -> list[Any]:
        return desk.veiled(await client.list_instances(name, INSTANCES, connection=connection))

    each = []
    if has_instances:
        each.append(
            Section(
                "Instances",
                await panel(("instances", name), instances),
                (
                    Column("value", "name"),
                    Column("runs", "number"),
                    Column("failures", "number"),
                    Column("failing_since", "ago"),
                    Column("last_ended_at", "ago", "last run"),
                    Column("put_off_until", "ago"),
                    Column("quarantined", "number"),
                    Column("error", "error"),
                ),
                "A message that names one, or a run that finds a table, begins an instance.",
            )
        )
    return desk.page(
        request,
        "listing.html",
        title=name,
        lead="",
        findings=[],
        sections=[
            Section(
                "Pipeline",
                Panel(mine, listed.why, listed.age),
                (
                    STATE,
                    Column("way", "way", "from, to"),
                    BEHIND,
                    Column("last_ended_at", "ago", "last run"),
                    *FIGURES,
                ),
                "",
                acts=_acts,
            ),
            Section(
                "Runs",
                await panel(("runs of", name), runs),
                (
                    Column("run", "id"),
                    Column("outcome", "state"),
                    Column("engine"),
                    Column("begun_at", "ago"),
                    Column("ended_at", "ago"),
                    Column("attempts", "number"),
                    Column("rows_in", "number"),
                    Column("rows_out", "number"),
                    Column("rows_bad", "number"),
                    Column("bytes_out", "size"),
                    Column("error", "error"),
                ),
                "It has not run yet.",
                f"trunq pipeline run {name}",
            ),
            Section(
                "Quarantined rows",
                await panel(("reasons", name), reasons),
                (
                    Column("reason"),
                    Column("quarantined", "number"),
                    Column("newest_at", "ago"),
                    Column("example", "json"),
                ),
                "No row has broken a rule of this pipeline.",
                acts=lambda row: [
                    Act("resend_quarantine", "Send again", {"pipeline": name, "reason": row.reason})
                ],
            ),
            *each,
        ],
    )
