"""trunq queue convert: what a queue was not told when it was made."""

from __future__ import annotations

from datetime import timedelta
from time import monotonic, sleep
from typing import Annotated, Final

import typer

from trunq import Client
from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import say, write_json
from trunq.cli.operate import queue as queues
from trunq.errors import QueueInUse
from trunq.word import Lanes, UniquePolicy

app = queues.app

PAUSE: Final = 1.0
"""Seconds between two tries while an open transaction uses the queue."""
PATIENCE: Final = timedelta(minutes=1)


@option.verb(
    app,
    "convert",
    "# Fairness between keys, for what waits too",
    "trunq queue convert orders --lanes key",
    "# Unique keys, and two weeks of history",
    "trunq queue convert orders --unique refuse --retention 14d",
)
def convert(
    queue: option.Queue,
    lanes: Annotated[
        Lanes | None,
        typer.Option("--lanes", help="Hand messages out by turns of these, where it has no lanes."),
    ] = None,
    unique: Annotated[
        UniquePolicy | None,
        typer.Option("--unique", help="Messages may have unique keys, where they may not yet."),
    ] = None,
    retention: Annotated[
        timedelta | None,
        typer.Option(
            parser=option.interval,
            metavar="INTERVAL",
            help="How long a message is kept at least, also longer than the queue was made for.",
        ),
    ] = None,
    hold_at_most: queues.HoldAtMost = None,
    wait: Annotated[
        timedelta | None,
        typer.Option(
            "--wait",
            parser=option.interval,
            metavar="INTERVAL",
            help="How long to try again while an open transaction uses the queue (default: a minute).",
        ),
    ] = None,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Give a queue lanes, unique keys or another setting that it was made without; its messages stay.

    Publishers and workers go on: the queue is locked for a moment, and only while no transaction uses it.
    Messages that wait are handed out before new ones; with lanes, within each lane. For a large log, the
    index by lanes is built beforehand, while publishers go on.
    """
    if lanes is None and unique is None and retention is None and hold_at_most is None:
        raise Mistake("Say what the queue is to get: --lanes, --unique, --retention or --hold-at-most.")
    with client(database) as trunq:
        if lanes is not None:
            _prepare(trunq, queue, lanes, quiet=json)
        end = monotonic() + (PATIENCE if wait is None else wait).total_seconds()
        while True:
            try:
                changed = trunq.convert_queue(
                    queue, retention=retention, hold_at_most=hold_at_most, lanes=lanes, unique=unique
                )
                break
            except QueueInUse as error:
                if monotonic() > end or "open transaction" not in str(error):
                    raise
                if not json:
                    say("An open transaction uses queue {queue}: trying again.", queue=queue)
                sleep(PAUSE)
    if json:
        write_json({"queue": queue, "changed": changed})
    elif changed:
        say("Queue {queue} is converted. Its settings: trunq queue set {queue}", queue=queue)
    else:
        say("Queue {queue} is so already.", queue=queue)


def _prepare(trunq: Client, queue: str, lanes: Lanes, *, quiet: bool) -> None:
    preparations = trunq.list_preparations(queue, lanes)
    if not preparations:
        return
    with trunq.connect() as connection:
        for number, preparation in enumerate(preparations, 1):
            if not quiet:
                say(
                    "Index by lanes, step {number} of {count}: {size} MB of log to read.",
                    number=number,
                    count=len(preparations),
                    size=max(1, preparation.bytes >> 20),
                )
            connection.execute(preparation.statement.encode(), prepare=False)
