"""trunq column: add, drop, list."""

from __future__ import annotations

from typing import Annotated

import typer

from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.output import Row, say, write_json, write_rows
from trunq.cli.ground.question import Yes, confirm

app = option.noun(
    "Columns of your own: added to a queue, and in each message.",
    "trunq column add orders customer text",
    "trunq column list orders",
    "trunq column drop orders customer --yes",
)

COLUMNS = ("name", "type", "preset")

Name = Annotated[str, typer.Argument(metavar="COLUMN", help="The name of the column.")]


@option.verb(
    app,
    "add",
    "trunq column add orders customer text",
    "trunq column add orders amount 'numeric(12,2)' --default 0",
)
def add(
    queue: option.Queue,
    column: Name,
    type: Annotated[str, typer.Argument(metavar="TYPE", help="A type of Postgres: text, bigint, date.")],
    default: Annotated[
        str | None,
        typer.Option("--default", metavar="VALUE", help="What a message has whose publisher gives nothing."),
    ] = None,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Give a queue a column of your own, while publishers and workers go on.

    Publishers may give it a value, handlers find it in message.columns, filters may ask of it, and Spark
    reads it. It stays with a message through retries, delays and death.
    """
    with client(database) as trunq:
        is_new = trunq.add_column(queue, column, type, default)
    if json:
        write_json({"queue": queue, "column": column, "added": is_new})
    elif is_new:
        say("Queue {queue} has the column {column}.", queue=queue, column=column)
    else:
        say("Queue {queue} has the column {column} already.", queue=queue, column=column)


@option.verb(app, "drop", "trunq column drop orders customer", "trunq column drop orders customer --yes")
def drop(
    queue: option.Queue,
    column: Name,
    yes: Yes = False,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Drop a column of your own, with what messages have there."""
    confirm(f"Drop column {column} of queue {queue}, with what messages have there?", is_answered=yes)
    with client(database) as trunq:
        trunq.drop_column(queue, column)
    if json:
        write_json({"queue": queue, "column": column, "dropped": True})
    else:
        say("Column {column} of queue {queue} is dropped.", queue=queue, column=column)


@option.verb(app, "list", "trunq column list orders", "trunq column list orders --json")
def list_columns(
    queue: option.Queue,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List your own columns of a queue, with their types and defaults."""
    with client(database) as trunq:
        found: list[Row] = [row._asdict() for row in trunq.list_columns(queue)]
    write_rows(found, COLUMNS, json, "The queue has no columns of your own.", csv)
