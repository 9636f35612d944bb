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

from trunq import display
from trunq.cli import option
from trunq.cli.database import client
from trunq.cli.output import Row, out, write_json

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
) -> None:
    """Show each subscription of each queue, live: a line a subscription.

    ready waits for a worker; leased is held by one; delayed runs later; dead was given up. `oldest` is how
    long the first of the ready ones has waited, `done` what was answered within the last minute. Ctrl-C
    ends it.
    """
    with client(dsn, embedded) as trunq:
        if json:
            write_json([row._asdict() for row in trunq.status(queue)])
        elif once or not out.is_terminal:
            out.print(_table(row._asdict() for row in trunq.status(queue)))
        else:
            with Live(console=out, screen=False, auto_refresh=False, transient=False) as live:
                while True:
                    rows = [row._asdict() for row in trunq.status(queue)]
                    live.update(Group(_table(rows), _foot()), refresh=True)
                    time.sleep(every)


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
    ready = display.ready(row["ready"], row["ready_is_capped"])
    return [
        Text(row["queue"], style="bold"),
        Text(row["subscription"]) if row["mode"] == "shared" else Text(f"{row['subscription']} (exclusive)"),
        _number(ready, row["ready"], "cyan"),
        _number(f"{row['leased']:,}", row["leased"], "blue"),
        _number(f"{row['delayed']:,}", row["delayed"], "yellow"),
        _number(f"{row['dead']:,}", row["dead"], "red"),
        display.interval(row["oldest_ready"]) if row["oldest_ready"] is not None else "",
        _number(f"{row['workers']:,}", row["workers"], ""),
        _number(f"{row['done_last_minute']:,}/min", row["done_last_minute"], "green"),
    ]


def _number(shown: str, value: int, style: str) -> Text:
    return Text(shown, style=style) if value else Text("–", style="dim")


def _foot() -> Text:
    return Text(f"{time.strftime('%H:%M:%S')}   Ctrl-C ends this", style="dim")
