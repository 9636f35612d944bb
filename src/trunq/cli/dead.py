"""trunq dead: list, requeue, purge."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from trunq.cli import option
from trunq.cli.database import client
from trunq.cli.failure import Mistake
from trunq.cli.output import say, write_json, write_rows

app = option.noun(
    "Dead messages: rejected, or given up after their last attempt (others say dead-letter queue).",
    "trunq dead list mail",
    "trunq dead requeue mail 42 43",
    "trunq dead purge mail --older-than 30d",
)

COLUMNS = ("id", "subscription", "kind", "key", "reason", "attempts", "died_at", "error")

Subscription = Annotated[
    str | None, typer.Option("--subscription", "-s", metavar="NAME", help="Only those of this subscription.")
]
Ids = Annotated[list[int] | None, typer.Argument(metavar="ID...", help="Ids of messages.")]
Everything = Annotated[
    bool,
    typer.Option(
        "--all", metavar=option.FLAG, help="All dead messages of the queue, or of the subscription."
    ),
]


@option.verb(app, "list", "trunq dead list mail", "trunq dead list mail --json | jq '.[].errors'")
def list_dead(
    queue: option.Queue,
    subscription: Subscription = None,
    limit: option.Limit = 20,
    before: Annotated[
        int | None, typer.Option("--before", metavar="DEAD_ID", help="Only those listed after this dead_id.")
    ] = None,
    dsn: option.Dsn = None,
    embedded: option.Embedded = None,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List the dead messages of a queue, the newest first, each with its last error."""
    with client(dsn, embedded) as trunq:
        rows = trunq.list_dead(queue, subscription, limit=limit, before=before, brief=not (json or csv))
        found = [row._asdict() for row in rows]
    shown = found if json or csv else [row | {"error": _last_error(row)} for row in found]
    write_rows(shown, COLUMNS, json, f"Queue {queue} has no dead messages.", csv)


@option.verb(
    app,
    "requeue",
    "trunq dead requeue mail 42 43",
    "# Everything, after the cause is mended",
    "trunq dead requeue mail --all",
)
def requeue(
    queue: option.Queue,
    ids: Ids = None,
    everything: Everything = False,
    subscription: Subscription = None,
    dsn: option.Dsn = None,
    embedded: option.Embedded = None,
    json: option.Json = False,
) -> None:
    """Give dead messages another life: their subscription leases them again, with all attempts."""
    chosen = _choose(ids, everything, "requeue")
    with client(dsn, embedded) as trunq:
        count = trunq.requeue(queue, subscription, ids=chosen)
    _tell("requeued", queue, count, json)


@option.verb(
    app,
    "purge",
    "trunq dead purge mail 42",
    "trunq dead purge mail --older-than 30d",
    "trunq dead purge mail --all",
)
def purge(
    queue: option.Queue,
    ids: Ids = None,
    everything: Everything = False,
    older_than: Annotated[
        timedelta | None,
        typer.Option(
            "--older-than", parser=option.interval, metavar="INTERVAL", help="Only those dead for so long."
        ),
    ] = None,
    subscription: Subscription = None,
    dsn: option.Dsn = None,
    embedded: option.Embedded = None,
    json: option.Json = False,
) -> None:
    """Remove dead messages for good."""
    chosen = _choose(ids, everything or older_than is not None, "purge")
    with client(dsn, embedded) as trunq:
        count = trunq.purge(queue, subscription, ids=chosen, older_than=older_than)
    _tell("purged", queue, count, json)


def _choose(ids: list[int] | None, everything: bool, verb: str) -> list[int] | None:
    """The given ids, or None for all messages, which the user must ask for."""
    if ids and everything and verb == "requeue":
        raise Mistake("Give ids or --all, not both.")
    if not ids and not everything:
        raise Mistake(f"Say which messages to {verb}: their ids, or --all.")
    return ids or None


def _tell(done: str, queue: str, count: int, json: bool) -> None:
    if json:
        write_json({"queue": queue, done: count})
    else:
        messages = "message" if count == 1 else "messages"
        say(f"{{count}} dead {messages} of {{queue}} {done}.", count=f"{count:,}", queue=queue)


def _last_error(row: dict[str, Any]) -> str:
    errors = row["errors"] or []
    return str(errors[-1].get("error") or "") if errors else ""
