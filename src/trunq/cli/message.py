"""trunq message: show, list."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer
from rich.markup import escape

from trunq.cli import option
from trunq.cli.database import client
from trunq.cli.output import Row, out, write_json, write_rows
from trunq.display import attempt as attempt_in_words
from trunq.display import text

app = option.noun(
    "Messages: where each one is, and what became of it.",
    "trunq message list mail --state retrying",
    "trunq message show mail 42",
)

State = Literal["scheduled", "ready", "leased", "retrying", "done", "dead"]
COLUMNS = ("id", "state", "kind", "key", "attempt", "published_at", "worker", "error")
FACTS = ("kind", "key", "published_at", "due_at", "headers", "payload")
COLOURS = {
    "scheduled": "magenta",
    "ready": "cyan",
    "leased": "blue",
    "retrying": "yellow",
    "done": "green",
    "dead": "red",
    "purged": "red",
}


@option.verb(
    app, "show", "trunq message show mail 42", "trunq message show mail 42 --json | jq '.[].attempts'"
)
def show(
    queue: option.Queue,
    id: Annotated[int, typer.Argument(metavar="ID", help="The number that publish returned.")],
    dsn: option.Dsn = None,
    embedded: option.Embedded = None,
    json: option.Json = False,
) -> None:
    """Show one message: its payload, and for each shared subscription its state and every attempt."""
    with client(dsn, embedded) as trunq:
        found = [row._asdict() for row in trunq.show_message(queue, id)]
    if json:
        write_json(found)
        return
    out.print(f"Message [bold]{id}[/bold] of queue [bold]{escape(queue)}[/bold]")
    for fact in FACTS:
        _print_fact(fact.removesuffix("_at"), found[0][fact])
    for row in found:
        _print_progress(row)


@option.verb(
    app,
    "list",
    "trunq message list mail",
    "trunq message list mail --csv > messages.csv",
    "# What is being worked on now, and by whom",
    "trunq message list mail --state leased",
    "# The page after message 1234",
    "trunq message list mail --before 1234",
)
def list_messages(
    queue: option.Queue,
    subscription: option.Subscription = "default",
    state: Annotated[State | None, typer.Option("--state", help="Only messages in this state.")] = None,
    limit: option.Limit = 20,
    before: Annotated[
        int | None, typer.Option("--before", metavar="ID", help="Only messages with smaller ids.")
    ] = None,
    dsn: option.Dsn = None,
    embedded: option.Embedded = None,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List messages of a queue as one subscription sees them, the newest first."""
    with client(dsn, embedded) as trunq:
        rows = trunq.list_messages(
            queue, subscription, state=state, limit=limit, before=before, brief=not (json or csv)
        )
    nothing = f"No message of queue {queue} is {state}." if state else f"Queue {queue} has no messages."
    write_rows((row._asdict() for row in rows), COLUMNS, json, nothing, csv)


def _print_progress(row: Row) -> None:
    colour = COLOURS.get(row["state"], "white")
    out.print(
        f"\nSubscription [bold]{escape(row['subscription'])}[/bold]: [{colour}]{row['state']}[/{colour}]"
    )
    for attempt in row["attempts"] or []:
        _print_fact(f"attempt {attempt['attempt']}", attempt_in_words(attempt))
    _print_fact("result", row["result"])


def _print_fact(name: str, value: Any) -> None:
    if value is not None:
        out.print(f"  [dim]{name:<10}[/dim] {escape(text(value))}")
