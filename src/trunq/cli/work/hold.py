"""trunq workers: list, show, free. What workers hold; `trunq worker` runs one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from trunq import display
from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.output import Row, err, out, say, write_json, write_rows
from trunq.cli.ground.question import Yes, confirm
from trunq.record import WorkerHold

app = option.noun(
    "Workers: who works, and what they hold. One is run by trunq worker.",
    "trunq workers list",
    "# Its machine is gone: others get its messages at once",
    "trunq workers free shop-3",
)

COLUMNS = ("worker", "queue", "subscription", "slots", "leases", "held", "since", "seen_at", "connections")


@option.verb(app, "list", "trunq workers list", "trunq workers list orders --json | jq '.[].worker'")
def list_workers(
    queue: option.OneQueue = None,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List who works on which subscription, and what each worker holds.

    held is how many messages it has leased and not answered, since is when the first of these leases was
    made, and seen_at is when it last reported, as workers do every few seconds. Whoever holds a message
    is listed, even without a report.
    """
    with client(database) as trunq:
        found: list[Row] = [row._asdict() for row in trunq.list_workers(queue)]
    write_rows(found, COLUMNS, json, "Nobody works, and nobody holds anything.", csv)


REPORTED = (
    "worker",
    "queue",
    "subscription",
    "state",
    "host",
    "pid",
    "version",
    "slots",
    "began",
    "seen",
    "handles",
)


@option.verb(
    app,
    "show",
    "trunq workers show",
    "trunq workers show orders --json | jq '.[] | select(.state == \"lost\")'",
)
def show(
    queue: option.OneQueue = None,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """Show what workers reported within an hour: who they are, and what each slot handles.

    They report every 10 seconds. drained: the worker ended, and had finished its messages. killed: it
    ended before that. lost: it has not reported for 30 seconds; its handlers are those of its last
    report.
    """
    with client(database) as trunq:
        rows = [row._asdict() for row in trunq.list_reports(queue)]
        now = trunq.clock()
    shown = [_reported(row, now) for row in rows] if not json and not csv else rows
    write_rows(shown, REPORTED, json, "No worker has said anything within an hour.", csv)


def _reported(row: Row, now: datetime) -> Row:
    def ago(at: datetime) -> str:
        return f"{display.interval(max(now - at, timedelta(0)))} ago"

    def handled(each: dict[str, Any]) -> str:
        since = display.interval(now - datetime.fromisoformat(each["since"]))
        return f"{each['id']} {each['kind'] or ''} for {since}"

    first = row["handling"][:3]
    told = [handled(each) for each in first]
    if more := len(row["handling"]) - len(first):
        told.append(f"{more} more")
    return {**row, "began": ago(row["began_at"]), "seen": ago(row["seen_at"]), "handles": "; ".join(told)}


@option.verb(
    app, "duties", "trunq workers duties", "trunq workers duties --json | jq '.[] | select(.error != null)'"
)
def duties(*, database: option.Database, json: option.Json = False) -> None:
    """Show who leads, and when each duty of the leader was last done.

    Of a duty that is done for each queue, it is that queue for which it is longest ago.
    """
    with client(database) as trunq:
        rows = [row._asdict() for row in trunq.list_performed()]
    if not json:
        leads = rows[0]["leader"]
        out.print(
            f"{leads} leads, in term {rows[0]['term']}." if leads else "No process leads.", markup=False
        )
    write_rows(rows, ("duty", "every", "done_at", "queue", "failed_at", "error"), json, "There is no duty.")


@option.verb(
    app, "free", "trunq workers free shop-3", "# In a script", "trunq workers free shop-3 --yes --json"
)
def free(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the worker: trunq workers list.")],
    yes: Yes = False,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """End the leases of a worker in all queues, when its machine is gone. It lists them, and asks.

    Others get its messages at once, and the attempt counts. If the worker is alive after all, its answers
    are refused, and what its handlers wrote in transactions is rolled back.
    """
    with client(database) as trunq:
        held = _held(trunq.list_workers(), name)
        for row in held:
            err.print(f"{row.queue}/{row.subscription}: {_describe(row)}", markup=False)
        if held:
            confirm(f"Free what {name} holds?", is_answered=yes)
        leases = 0
        while freed := trunq.free_worker(name):
            leases += freed
        left = _held(trunq.list_workers(), name)
    if json:
        write_json({"worker": name, "leases": leases, "left": sum(row.leases for row in left)})
        return
    if not held:
        say("{name} holds nothing.", name=name)
    else:
        say("Ended {ended} of {name}.", ended=display.counted(leases, "lease"), name=name)
    for row in left:
        say("{queue}/{subscription}: {what}: its answer is under way, or it has leased anew.",
            queue=row.queue, subscription=row.subscription, what=_describe(row))  # fmt: skip


def _held(rows: list[WorkerHold], name: str) -> list[WorkerHold]:
    return [row for row in rows if row.worker == name and row.held]


def _describe(row: WorkerHold) -> str:
    messages, leases = display.counted(row.held, "message"), display.counted(row.leases, "lease")
    since = "" if row.since is None else f", since {row.since.astimezone():%Y-%m-%d %H:%M:%S}"
    seen = "never" if row.seen_at is None else f"{row.seen_at.astimezone():%Y-%m-%d %H:%M:%S}"
    return f"{messages} in {leases}{since}; last seen {seen}"
