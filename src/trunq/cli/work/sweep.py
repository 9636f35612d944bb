"""trunq sweep: list, stop."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Annotated, Any, Final

import typer

from trunq import Client
from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.failure import Interrupted
from trunq.cli.ground.output import Row, say, with_age, write_json, write_rows
from trunq.display import matching
from trunq.errors import TrunqError
from trunq.record import Sweep
from trunq.word import SweepAct, SweepState

app = option.noun(
    "Sweeps: acts on all messages that a filter finds, which go on by themselves.",
    "trunq sweep list",
    "trunq sweep stop mail 7",
)

COLUMNS = (
    "sweep_id",
    "queue",
    "act",
    "filter",
    "state",
    "done",
    "kept",
    "counted",
    "looked",
    "age",
    "who",
    "error",
)
SOON: Final = 0.2
"""Seconds until it is tried again, when a leader does a part at this moment."""


@option.verb(
    app,
    "list",
    "trunq sweep list",
    "trunq sweep list --state running",
    "trunq sweep list mail --json | jq '.[0].done'",
)
def list_sweeps(
    queue: option.OneQueue = None,
    limit: option.Limit = 20,
    before: Annotated[
        int | None, typer.Option("--before", metavar="ID", help="Only those with smaller ids.")
    ] = None,
    state: Annotated[SweepState | None, typer.Option("--state", help="Only those in this state.")] = None,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List sweeps, which requeue, purge or cancel many messages in parts: of which messages, and how far.

    kept is how many matched and were left as they were: deleted, finished, held by somebody else, or with
    a unique key that another message has. A refused sweep was started by a role that has lost its rights.
    """
    with client(database) as trunq:
        found: list[Row] = [row._asdict() for row in trunq.list_sweeps(queue, limit, before, state)]
    shown = found if json or csv else [_in_words(row) for row in found]
    write_rows(shown, COLUMNS, json, "There are no sweeps.", csv)


@option.verb(app, "stop", "trunq sweep stop mail 7")
def stop(
    queue: option.Queue,
    sweep_id: Annotated[int, typer.Argument(metavar="ID", help="Which: trunq sweep list.")],
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Stop a sweep before its next part of 10,000 messages. What it did stays done."""
    with client(database) as trunq:
        did = trunq.stop_sweep(queue, sweep_id)
    if json:
        write_json({"sweep_id": sweep_id, "stopped": did})
    else:
        say(
            f"Sweep {{sweep_id}} of {{queue}} {'stops' if did else 'had ended'}.",
            sweep_id=sweep_id,
            queue=queue,
        )


def _in_words(row: Row) -> Row:
    what = ", ".join(filter(None, (row["subscription"], matching(row["filter"]))))
    return {**with_age(row, "started_at"), "filter": what}


def sweep_all(trunq: Client, queue: str, act: SweepAct, given: dict[str, Any]) -> Sweep:
    """Start a sweep, and carry it on to its end, beside a leader or without one. Ctrl-C stops it."""
    sweep_id = trunq.start_sweep(queue, act, **given)
    try:
        while (more := trunq.carry_sweep(queue, sweep_id)) is not False:
            if more is None:
                time.sleep(SOON)
    except KeyboardInterrupt:
        with suppress(TrunqError):
            trunq.stop_sweep(queue, sweep_id)
        raise Interrupted(f"Stopped. How far it came: trunq sweep list {queue}") from None
    (row,) = trunq.list_sweeps(queue, 1, sweep_id + 1)
    return row
