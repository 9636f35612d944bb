"""trunq stream: list, show, seek; move and moves are in mover.py."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import typer

from trunq import Client
from trunq.cli import completion, option
from trunq.cli.database import client
from trunq.cli.failure import Mistake
from trunq.cli.output import Row, print_fact, say, write_json, write_rows
from trunq.cli.subscription import Name

app = option.noun(
    "Streams, the exclusive subscriptions of queues: where they stand, and how to move them.",
    "trunq stream list",
    "trunq stream show orders ledger",
    "trunq stream seek orders ledger --at 2026-03-01T08:00",
    "trunq stream move orders 'orders_{kind}' --split kind --to-dsn postgresql://reports/shop",
)

COLUMNS = (
    *("queue", "subscription", "position_tick_id", "newest_tick_id", "pending", "lag"),
    *("worker", "expires_at", "attempt", "seen_at"),
)


@option.verb(app, "list", "trunq stream list", "trunq stream list orders --json")
def list_streams(
    queue: option.OneQueue = None,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List the exclusive subscriptions: how far they are, how much waits since when, who has a batch.

    Their positions are ticks. pending is how many messages are not finished, lag since when the first of them
    waits, and seen_at when a reader last took or finished a batch.
    """
    with client(database) as trunq:
        found: list[Row] = [row._asdict() for row in trunq.list_streams(queue)]
    write_rows(found, COLUMNS, json, "There are no streams: no subscription is exclusive.", csv)


@option.verb(app, "show", "trunq stream show orders ledger", "trunq stream show orders ledger --json")
def show(
    queue: option.Queue, subscription: Name, *, database: option.Database, json: option.Json = False
) -> None:
    """Show where one stream stands, and the batch that is open or comes next.

    After failures, batches is how many parts of it are open, and error what the last attempt failed with.
    """
    with client(database) as trunq:
        row = _find(trunq, queue, subscription)
    if json:
        write_json(row)
        return
    for name, value in row.items():
        print_fact(name, value)


@option.verb(
    app,
    "seek",
    "# Everything since eight o'clock once more",
    "trunq stream seek orders ledger --at 2026-03-01T08:00",
    "# All that is kept; nothing of what waits",
    "trunq stream seek orders ledger --start earliest",
    "trunq stream seek orders ledger --start latest",
    "trunq stream seek orders ledger --tick 41",
    "# Exactly where another stream of this queue stands",
    "trunq stream seek orders ledger --like audit",
)
def seek(
    queue: option.Queue,
    subscription: Name,
    tick: Annotated[
        int | None, typer.Option("--tick", metavar="TICK", help="After this tick (trunq stream list).")
    ] = None,
    at: Annotated[
        datetime | None,
        typer.Option(
            "--at", parser=option.moment, metavar="TIME", help="Nothing since this time is left out."
        ),
    ] = None,
    start: Annotated[
        Literal["latest", "earliest"] | None,
        typer.Option("--start", help="earliest: at the oldest message in reach; latest: at those to come."),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            "--like",
            metavar="NAME",
            help="Where this exclusive subscription of the queue stands; neither may have an open batch.",
            autocompletion=completion.subscriptions,
        ),
    ] = None,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Move a stream to a tick, a time, an end of its queue or another stream's place, forward or back.

    It fails where messages after that place are gone. A batch that is open ends: its reader cannot finish it,
    and what it wrote in the same transaction is rolled back.
    """
    if sum(given is not None for given in (tick, at, start, like)) != 1:
        raise Mistake("Seek goes to one place: give --tick, --at, --start or --like.")
    with client(database) as trunq:
        if like is None:
            position = trunq.seek(queue, subscription, tick, at, start)
        else:
            position = trunq.copy_position(queue, subscription, like)
    if json:
        write_json({"queue": queue, "subscription": subscription, "position_tick_id": position})
    else:
        say(
            "Stream {subscription} of {queue} stands at tick {tick}.",
            subscription=subscription,
            queue=queue,
            tick=position,
        )


def _find(trunq: Client, queue: str, subscription: str) -> dict[str, Any]:
    for row in trunq.list_streams(queue):
        if row.subscription == subscription:
            return row._asdict()
    raise Mistake(
        f"Queue {queue} has no exclusive subscription {subscription}."
        f" Those there are: trunq stream list {queue}"
    )
