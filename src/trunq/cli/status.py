"""trunq status: what waits, runs, is put off and was given up."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from trunq import Client, display
from trunq.cli import option
from trunq.cli.database import client
from trunq.cli.output import Row, out, write_csv, write_json

COUNTED = (("ready", "cyan"), ("leased", "blue"), ("delayed", "yellow"), ("dead", "red"))
"""Numbers with their colours."""

UNLED = (
    "! No leader runs, so nothing delayed or retried runs, and nothing that a dead worker held."
    " Start a worker, or: trunq leader"
)
"""The first line, where it is so."""

EXAMPLES = (
    "trunq status",
    "# Once, for a script or a cron mail",
    "trunq status --once",
    "trunq status mail --json | jq '.[] | select(.dead > 0)'",
)


def status(
    queue: Annotated[str | None, typer.Argument(metavar="QUEUE", help="Only this queue.")] = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once", metavar=option.FLAG, help="Print the table once instead of keeping it up to date."
        ),
    ] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.2, metavar="SECONDS", help="How often it is brought up to date.")
    ] = 1.0,
    dsn: option.Dsn = None,
    embedded: option.Embedded = None,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """Show each subscription of each queue, live: a line a subscription.

    ready waits for a worker; leased is held by one; delayed runs later; dead was given up. `oldest` is how
    long the first of the ready ones has waited, `done` what was answered within the last minute. `~` marks
    an estimate: numbers are exact up to 1,000. The first line says when no leader runs, the last ones
    what else is wrong. Ctrl-C ends it.
    """
    with client(dsn, embedded) as trunq:
        if json or csv:
            rows = [row._asdict() for row in trunq.status(queue)]
            write_csv(rows) if csv else write_json(rows)
        elif once or not out.is_terminal:
            out.print(_shown(trunq, queue))
        else:
            with Live(console=out, screen=False, auto_refresh=False, transient=False) as live:
                while True:
                    live.update(Group(_shown(trunq, queue), _foot()), refresh=True)
                    time.sleep(every)


def _shown(trunq: Client, queue: str | None) -> Group:
    rows = [row._asdict() for row in trunq.status(queue)]
    table = _table(rows)
    unled = [] if all(row["led"] for row in rows) else [Text(UNLED, style="bold yellow")]
    warnings = (Text(f"! {row.warning}; {row.hint}", style="yellow") for row in trunq.list_warnings(queue))
    return Group(*unled, table, *warnings)


def _table(rows: Iterable[Row]) -> Table | Text:
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold")
    for name in ("queue", "subscription"):
        drawn.add_column(name, overflow="fold")
    for name in ("ready", "leased", "delayed", "dead", "oldest", "workers", "done"):
        drawn.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    for row in rows:
        drawn.add_row(*_cells(row))
    return (
        drawn if drawn.row_count else Text("There is no queue yet. Create one with: trunq queue create NAME")
    )


def _cells(row: dict[str, Any] | Row) -> list[Text | str]:
    return [
        Text(row["queue"], style="bold"),
        Text(row["subscription"]) if row["mode"] == "shared" else Text(f"{row['subscription']} (exclusive)"),
        *(_counted(row, name, style) for name, style in COUNTED),
        display.interval(row["oldest_ready"]) if row["oldest_ready"] is not None else "",
        _number(f"{row['workers']:,}", row["workers"], ""),
        _counted(row, "done_last_minute", "green", "/min"),
    ]


def _counted(row: dict[str, Any] | Row, name: str, style: str, unit: str = "") -> Text:
    return _number(display.count(row[name], name in row["estimated"]) + unit, row[name], style)


def _number(shown: str, value: int, style: str) -> Text:
    return Text(shown, style=style) if value else Text("–", style="dim")


def _foot() -> Text:
    return Text(f"{time.strftime('%H:%M:%S')}   Ctrl-C ends this", style="dim")
