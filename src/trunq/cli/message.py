"""trunq message: show, list."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer
from psycopg.errors import Diagnostic
from rich.markup import escape

from trunq.cli import option
from trunq.cli.choice import Choice
from trunq.cli.database import client
from trunq.cli.output import Row, err, out, print_fact, with_age, write_json, write_rows
from trunq.display import attempt as attempt_in_words

app = option.noun(
    "Messages: where each one is, and what became of it.",
    "trunq message list mail --state retrying",
    "trunq message show mail 42",
)

State = Literal["scheduled", "ready", "leased", "retrying", "done", "dead"]
COLUMNS = ("id", "state", "kind", "key", "age", "attempt", "published_at", "worker", "error")
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
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Show one message: its payload, and for each shared subscription its state and every attempt."""
    with client(database) as trunq:
        found = [row._asdict() for row in trunq.show_message(queue, id)]
    if json:
        write_json(found)
        return
    out.print(f"Message [bold]{id}[/bold] of queue [bold]{escape(queue)}[/bold]")
    for fact in FACTS:
        print_fact(fact.removesuffix("_at"), found[0][fact])
    for row in found:
        _print_progress(row)


@option.verb(
    app,
    "list",
    "trunq message list mail",
    "trunq message list mail --csv > messages.csv",
    "# What is being worked on now, and by whom",
    "trunq message list mail --state leased",
    "# What failed with a time-out within the last hour",
    "trunq message list mail --error 'timed out' --newer-than 1h",
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
    *,
    choice: Choice,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List messages of a queue as one subscription sees them, the newest first.

    A filter looks at the newest 100,000 messages, and says so when there are more.
    """
    with client(database) as trunq, trunq.transaction() as connection:
        connection.add_notice_handler(_pass_on)
        rows = trunq.list_messages(
            queue,
            subscription,
            state=state,
            limit=limit,
            before=before,
            brief=not (json or csv),
            connection=connection,
            **asdict(choice),
        )
    found: list[Row] = [row._asdict() for row in rows]
    shown = found if json or csv else [with_age(row, "published_at") for row in found]
    write_rows(shown, COLUMNS, json, _nothing(queue, state, choice), csv)


def _nothing(queue: str, state: State | None, choice: Choice) -> str:
    what = "No such message" if choice.is_given else "No message"
    return (
        f"{what} of queue {queue} is {state}."
        if state
        else f"Queue {queue} has no {'such ' if choice.is_given else ''}messages."
    )


def _pass_on(notice: Diagnostic) -> None:
    """What Postgres says of a list that it did not finish, with the way on."""
    said = str(notice.message_primary).removeprefix("trunq: ")
    hint = str(notice.message_hint or "").replace("p_before => ", "--before ")
    err.print(f"{said}; {hint}" if hint else said, markup=False)


def _print_progress(row: Row) -> None:
    colour = COLOURS.get(row["state"], "white")
    out.print(
        f"\nSubscription [bold]{escape(row['subscription'])}[/bold]: [{colour}]{row['state']}[/{colour}]"
    )
    for attempt in row["attempts"] or []:
        print_fact(f"attempt {attempt['attempt']}", attempt_in_words(attempt))
    print_fact("result", row["result"])
