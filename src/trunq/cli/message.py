"""trunq message: show, list."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer
from rich.markup import escape

from trunq.cli import option
from trunq.cli.database import client
from trunq.cli.failure import Mistake
from trunq.cli.output import Row, out, text, write_json, write_rows

app = option.noun(
    "Messages: where each one is, and what became of it.",
    "trunq message list mail --state retrying",
    "trunq message show mail 42",
)

State = Literal["scheduled", "ready", "leased", "retrying", "done", "dead"]
COLOURS = {
    "ready": "cyan",
    "leased": "blue",
    "scheduled": "magenta",
    "retrying": "yellow",
    "done": "green",
    "dead": "red",
}
COLUMNS = ("id", "state", "kind", "key", "attempt", "published_at", "finished_at", "worker", "error")


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
    if not found:
        raise Mistake(
            f"Queue {queue} has no message {id}: it was never published, or is older than what the queue keeps."
        )
    if json:
        write_json(found)
        return
    _print_message(found[0])
    for row in found:
        _print_progress(row)


@option.verb(
    app,
    "list",
    "trunq message list mail",
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
        int | None, typer.Option("--before", metavar="ID", help="Only messages older than this one.")
    ] = None,
    dsn: option.Dsn = None,
    embedded: option.Embedded = None,
    json: option.Json = False,
) -> None:
    """List messages of a queue as one subscription sees them, the newest first."""
    with client(dsn, embedded) as trunq:
        rows = trunq.list_messages(queue, subscription, state=state, limit=limit, before=before)
    write_rows(
        (row._asdict() for row in rows),
        COLUMNS,
        json,
        f"No message of queue {queue} is {state}." if state else f"Queue {queue} is empty.",
    )


def _print_message(row: Row) -> None:
    for name in ("id", "kind", "key", "published_at", "due_at", "headers", "payload"):
        if row[name] is not None:
            out.print(
                f"[dim]{name.replace('_', ' '):>12}[/dim]  {escape(text(row[name]) if name != 'id' else str(row[name]))}"
            )


def _print_progress(row: Row) -> None:
    colour = COLOURS.get(row["state"], "white")
    out.print(f"\n[bold]{escape(row['subscription'])}[/bold]  [{colour}]{row['state']}[/{colour}]")
    for attempt in row["attempts"] or []:
        out.print(f"  {escape(_attempt(attempt))}")
    if row["error"]:
        out.print(f"[dim]{'error':>12}[/dim]  {escape(row['error'])}")
    if row["result"] is not None:
        out.print(f"[dim]{'result':>12}[/dim]  {escape(text(row['result']))}")


def _attempt(attempt: dict[str, Any]) -> str:
    parts = [
        f"attempt {attempt['attempt']}",
        str(attempt.get("outcome") or "running"),
        f"by {attempt.get('worker')}",
    ]
    if attempt.get("took") is not None:
        parts.append(f"in {attempt['took'] * 1000:.1f} ms")
    if attempt.get("error"):
        parts.append(f"({attempt['error']})")
    return " ".join(parts)
