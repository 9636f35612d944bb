"""trunq queue: create, list, drop."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from trunq.cli import option
from trunq.cli.database import client
from trunq.cli.output import say, write_json, write_rows

app = option.noun(
    "Queues: create, list, drop.", "trunq queue create mail", "trunq queue list", "trunq queue drop mail"
)

Retention = Annotated[
    timedelta | None,
    typer.Option(
        parser=option.interval,
        metavar="INTERVAL",
        help="How long a message is kept after it was published, at least (default: one day).",
    ),
]


@option.verb(
    app,
    "create",
    "trunq queue create mail",
    "# A queue that keeps a week of history, for replays and for looking back",
    "trunq queue create orders --retention 7d",
)
def create(
    queue: option.Queue,
    retention: Retention = None,
    dsn: option.Dsn = None,
    embedded: option.Embedded = None,
    json: option.Json = False,
) -> None:
    """Create a queue, with its shared subscription `default`.

    Messages go into the table trunq_log.QUEUE: publish with `trunq publish`, trunq.publish() or a plain
    INSERT. A name is 1 to 48 of a-z, 0-9 and _, and starts with a letter. Creating a queue that is there
    changes nothing.
    """
    with client(dsn, embedded) as trunq:
        created = trunq.create_queue(queue, retention=retention)
    if json:
        write_json({"queue": queue, "created": created})
    elif created:
        say(
            "Queue {queue} created. Publish with: trunq publish {again} '{payload}'",
            queue=queue,
            again=queue,
            payload='{"n": 1}',
        )
    else:
        say("Queue {queue} is there already.", queue=queue)


@option.verb(app, "list", "trunq queue list", "trunq queue list --json | jq -r '.[].queue'")
def list_queues(
    dsn: option.Dsn = None,
    embedded: option.Embedded = None,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List the queues."""
    with client(dsn, embedded) as trunq:
        write_rows(
            (row._asdict() for row in trunq.list_queues()),
            ("queue", "subscriptions", "retention", "created_at"),
            json,
            "There is no queue yet. Create one with: trunq queue create NAME",
            csv,
        )


@option.verb(app, "drop", "trunq queue drop mail", "# With everything in it", "trunq queue drop mail --force")
def drop(
    queue: option.Queue,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            metavar=option.FLAG,
            help="Also when other subscriptions read it or messages are unfinished.",
        ),
    ] = False,
    dsn: option.Dsn = None,
    embedded: option.Embedded = None,
    json: option.Json = False,
) -> None:
    """Drop a queue with its messages, history and dead messages."""
    with client(dsn, embedded) as trunq:
        trunq.drop_queue(queue, force=force)
    if json:
        write_json({"queue": queue, "dropped": True})
    else:
        say("Queue {queue} dropped.", queue=queue)
