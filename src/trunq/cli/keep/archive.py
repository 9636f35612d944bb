"""trunq archive: create, list, drop."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer
from rich.filesize import decimal

from trunq import display
from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import Row, say, write_json, write_rows
from trunq.cli.ground.question import Yes, confirm

app = option.noun(
    "Archives: every attempt of a queue, with its message, in a table for your own SQL.",
    "trunq archive create mail --for 90d",
    "trunq archive list",
    "psql -c 'select outcome, count(*) from trunq_archive.mail group by outcome'",
)

COLUMNS = ("queue", "kept", "first_month", "last_month", "size", "filled")


@option.verb(
    app,
    "create",
    "# For ever",
    "trunq archive create mail",
    "# What is older than 90 days goes, by whole months",
    "trunq archive create mail --for 90d",
    "# A row is there as soon as its answer is",
    "trunq archive create mail --at-once",
)
def create(
    queue: option.Queue,
    for_: Annotated[
        timedelta | None,
        typer.Option(
            "--for",
            parser=option.interval,
            metavar="INTERVAL",
            help="How long rows are kept: 90d, 1000d; 0: for ever, which is the default.",
        ),
    ] = None,
    at_once: Annotated[
        bool | None,
        typer.Option(
            "--at-once/--later",
            metavar=option.FLAG,
            help="Let answers write their rows themselves; or, which is the default, a leader soon after.",
            show_default=False,
        ),
    ] = None,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Keep every attempt of a queue's messages in the table trunq_archive.QUEUE.

    Each finished attempt is a row: the message, its outcome, error and result, the worker, and when. It
    starts with what the queue still holds. A leader fills the table, or with --at-once each answer, in
    its own transaction. Rotation waits for the archive. If the queue has an archive already, this changes
    the settings that you give.
    """
    with client(database) as trunq:
        made = trunq.create_archive(queue, for_, at_once)
        (row,) = (each._asdict() for each in trunq.list_archives() if each.queue == queue)
    if json:
        write_json({**row, "created": made})
        return
    said = "Every attempt of queue {queue} is kept" if made else "Attempts of queue {queue} are kept"
    kept = _kept(row) + ", written at once" * row["at_once"]
    say(said + " in {table}, {kept}.", queue=queue, table=f"trunq_archive.{queue}", kept=kept)


@option.verb(app, "list", "trunq archive list")
def list_archives(*, database: option.Database, json: option.Json = False, csv: option.Csv = False) -> None:
    """List the archives, including those of queues that were dropped."""
    with client(database) as trunq:
        found: list[Row] = [row._asdict() for row in trunq.list_archives()]
    shown = [
        {
            **row,
            "kept": _kept(row),
            "size": decimal(row["bytes"]),
            "filled": "no: its queue is gone" * (not row["is_filled"]) or "at once" * row["at_once"],
        }
        for row in found
    ]
    nothing = "No queue has an archive. Give one its own with: trunq archive create QUEUE"
    write_rows(found if json or csv else shown, COLUMNS, json, nothing, csv)


@option.verb(app, "drop", "trunq archive drop mail")
def drop(
    queue: option.Queue, yes: Yes = False, *, database: option.Database, json: option.Json = False
) -> None:
    """Drop the archive of a queue with all its rows. The queue itself may be gone already."""
    with client(database) as trunq:
        row = next((each for each in trunq.list_archives() if each.queue == queue), None)
        if row is None:
            raise Mistake(f"Queue {queue} has no archive. Those there are: trunq archive list")
        confirm(f"The archive of {queue}, {decimal(row.bytes)}: drop?", is_answered=yes)
        trunq.drop_archive(queue)
    if json:
        write_json({"queue": queue, "dropped": True})
    else:
        say("The archive of queue {queue} is dropped.", queue=queue)


def _kept(row: Row) -> str:
    return "for ever" if row["archive_for"] is None else f"for {display.interval(row['archive_for'])}"
