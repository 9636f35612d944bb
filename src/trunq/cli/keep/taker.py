"""trunq taker: create, list, drop."""

from __future__ import annotations

from typing import Annotated

import typer

from trunq import display
from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import Row, say, write_json, write_rows
from trunq.cli.ground.question import Yes, confirm

app = option.noun(
    "Takers: pipelines that take the history of a queue into a lake, before rotation empties it.",
    "trunq taker list",
    "trunq taker create mail mail_lake",
    "trunq taker drop mail mail_lake",
)

COLUMNS = ("queue", "taker", "behind", "open", "taken")

Taker = Annotated[str, typer.Argument(metavar="TAKER", help="The name of the taker: that of its pipeline.")]


@option.verb(app, "create", "trunq taker create mail mail_lake")
def create(
    queue: option.Queue, taker: Taker, *, database: option.Database, json: option.Json = False
) -> None:
    """Keep the attempts of a queue until a pipeline of that name has them.

    The pipeline, whose source has format = "history", does so by itself when it first runs; this keeps them
    from now on.
    """
    with client(database) as trunq:
        made = trunq.create_taker(queue, taker)
    if json:
        write_json({"queue": queue, "taker": taker, "created": made})
    else:
        say("Queue {queue} keeps its history until {taker} has taken it.", queue=queue, taker=taker)


@option.verb(app, "list", "trunq taker list", "trunq taker list mail --json | jq '.[].behind'")
def list_takers(
    queue: option.OneQueue = None,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List who takes the history of queues elsewhere, and how far behind each is.

    behind is how long ago the first attempt ended that is not taken yet; open is how many leases were
    still open when they were passed. Rotation keeps everything that is not taken.
    """
    with client(database) as trunq:
        found: list[Row] = [row._asdict() for row in trunq.list_takers(queue)]
    shown = [{**row, "behind": behind(row), "taken": row["taken_at"]} for row in found]
    nothing = 'Nobody takes the history of a queue. A pipeline does whose source has format = "history".'
    write_rows(found if json or csv else shown, COLUMNS, json, nothing, csv)


@option.verb(app, "drop", "trunq taker drop mail mail_lake")
def drop(
    queue: option.Queue,
    taker: Taker,
    yes: Yes = False,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Stop keeping history for a taker: rotation may empty what it has not taken."""
    with client(database) as trunq:
        row = next((each for each in trunq.list_takers(queue) if each.taker == taker), None)
        if row is None:
            raise Mistake(f"Queue {queue} has no taker {taker}. Those there are: trunq taker list")
        confirm(f"What {taker} has not taken of {queue} ({behind(row._asdict())}): give up?", is_answered=yes)
        trunq.drop_taker(queue, taker)
    if json:
        write_json({"queue": queue, "taker": taker, "dropped": True})
    else:
        say("Queue {queue} keeps nothing for {taker} any more.", queue=queue, taker=taker)


def behind(row: Row) -> str:
    """How far a taker is behind, in words."""
    if row["behind"] is None:
        return "it has all" if row["taken_at"] else "nothing to take yet"
    return f"{display.interval(row['behind'])} behind"
