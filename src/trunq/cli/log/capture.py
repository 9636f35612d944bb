"""trunq capture: create, list, drop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from trunq.cli.ground import completion, option
from trunq.cli.ground.database import client
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import Row, say, write_json, write_rows
from trunq.word import CaptureFormat

app = option.noun(
    "Capture publishes the changes of a table: create, list, drop.",
    "trunq capture create public.orders changes",
    "trunq capture list",
    "trunq capture drop public.orders",
)

COLUMNS = ("table_name", "queue", "kind", "key", "columns", "ignore", "condition", "deny", "format")
MESSAGES = "The messages"

Name = Annotated[
    str,
    typer.Argument(
        metavar="TABLE", help="The table, as SQL names it: public.orders.", autocompletion=completion.captures
    ),
]


@dataclass(frozen=True, slots=True)
class Changes:
    """Which changes are published."""

    column: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="NAME", help="Publish this column; repeat it. Default: all."),
    ] = None
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore", metavar="NAME", help="Publish no update that changes nothing else; repeat it."
        ),
    ] = None
    where: Annotated[
        dict[str, Any] | None,
        typer.Option(
            "--where", parser=option.json_object, metavar="JSON",
            help="""Only rows that pass: {"in": {"status": ["paid"]}, "not_in": {"country": ["XX"]}}.""",
        ),
    ] = None  # fmt: skip
    deny: Annotated[
        list[str] | None,
        typer.Option(
            "--deny", metavar="CHANGE", help="Refuse insert, update, delete or truncate; repeat it."
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """The arguments of the client."""
        return {
            "columns": self.column or None,
            "ignore": self.ignore or None,
            "where": self.where,
            "deny": self.deny or None,
        }


@dataclass(frozen=True, slots=True)
class Shape:
    """What messages are like."""

    kind: Annotated[
        str | None,
        typer.Option(
            "--kind", "-k", rich_help_panel=MESSAGES,
            help="Kind of the messages; {table} and {op} stand for what they say (default: {table}.{op}).",
        ),
    ] = None  # fmt: skip
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key", metavar="NAME", rich_help_panel=MESSAGES,
            help="Make the key of this column; repeat it. Default: the primary key.",
        ),
    ] = None  # fmt: skip
    no_key: Annotated[
        bool,
        typer.Option("--no-key", metavar=option.FLAG, rich_help_panel=MESSAGES, help="Publish without keys."),
    ] = False
    format: Annotated[
        CaptureFormat | None,
        typer.Option(
            "--format", rich_help_panel=MESSAGES, help="What the payload looks like (default: plain)."
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """The arguments of the client."""
        if self.key and self.no_key:
            raise Mistake("Give --key or --no-key, not both.")
        return {"kind": self.kind, "key": [] if self.no_key else self.key or None, "format": self.format}


@option.verb(
    app,
    "create",
    "# One message for each row that is inserted, updated or deleted",
    "trunq capture create public.orders changes",
    "# Paid orders alone",
    """trunq capture create orders changes --where '{"in": {"status": ["paid"]}}'""",
    "# No message when only the time of the last visit changes",
    "trunq capture create orders changes --ignore seen_at",
    "# A handler for each kind: order_insert, order_update, ...",
    "trunq capture create orders changes --kind 'order_{op}' --deny truncate",
)
def create(
    table: Name,
    queue: option.Queue,
    *,
    changes: Changes,
    shape: Shape,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Publish the changes of a table into a queue, in the transactions that make them; or change how.

    If the table is captured already, settings that you leave out get their defaults. This waits up to two
    seconds for open transactions that write to the table. Partitions are captured with their table.
    """
    with client(database) as trunq:
        made = trunq.capture(table, queue, **changes.given(), **shape.given())
    if json:
        write_json({"table": table, "queue": queue, "created": made})
    elif made:
        say("Changes of table {table} are published into queue {queue}.", table=table, queue=queue)
    else:
        say(
            "Table {table} was captured; its changes go into queue {queue} now.",
            table=table,
            queue=queue,
        )


@option.verb(
    app,
    "list",
    "trunq capture list",
    "trunq capture list changes --json | jq '.[] | select(.warning != null)'",
)
def list_captures(
    queue: option.OneQueue = None,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List the captured tables, of a queue or all, and what is wrong with each."""
    with client(database) as trunq:
        found: list[Row] = [row._asdict() for row in trunq.list_captures(queue)]
    nothing = "No table is captured. Capture one with: trunq capture create TABLE QUEUE"
    if json or csv:
        write_rows(found, COLUMNS, json, nothing, csv)
        return
    write_rows(map(_for_people, found), COLUMNS, json, nothing)
    for row in found:
        if row["warning"] is not None:
            say("[yellow]warning:[/yellow] {warning}", warning=row["warning"])


@option.verb(app, "drop", "trunq capture drop public.orders")
def drop(table: Name, *, database: option.Database, json: option.Json = False) -> None:
    """Stop publishing the changes of a table. Messages that were published stay.

    This waits up to two seconds for open transactions that write to the table.
    """
    with client(database) as trunq:
        ended = trunq.uncapture(table)
    if json:
        write_json({"table": table, "dropped": ended})
        return
    if not ended:
        raise Mistake(f"Table {table} is not captured. Those that are: trunq capture list")
    say("Changes of table {table} are no longer published.", table=table)


def _for_people(row: Row) -> dict[str, Any]:
    return {name: ", ".join(value) if isinstance(value, list) else value for name, value in row.items()}
