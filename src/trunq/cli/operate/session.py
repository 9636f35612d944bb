"""trunq session: list, end. Sessions of the server that stand in the way."""

from __future__ import annotations

from typing import Annotated

import typer

from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.failure import Mistake, in_shell
from trunq.cli.ground.output import Row, err, say, write_json, write_rows
from trunq.cli.ground.question import Yes, confirm
from trunq.record.operate import HOLDERS

app = option.noun(
    "Sessions of the server that stand in the way: others wait for them.",
    "trunq session list",
    "# What it has open is rolled back",
    "trunq session end 4711",
)

COLUMNS = ("pid", "began_at", "finding")
OTHERS = "trunq doctor names others, or what it may not look at, and says what helps."


@option.verb(app, "list", "trunq session list", "trunq session list --json | jq '.[].pid'")
def list_sessions(
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List sessions that the doctor names as in the way, and that trunq session end ends.

    Whoever asks owns trunq and is a member of pg_read_all_stats, or sees fewer. A prepared transaction is no
    session: rollback prepared ends it, and trunq doctor names it.
    """
    with client(database) as trunq:
        found = trunq.diagnose(1, areas=HOLDERS)
    rows: list[Row] = [
        {"pid": row.session[0], "began_at": row.session[1], "finding": row.finding}
        for row in found
        if row.session is not None
    ]
    others = len(found) - len(rows)
    empty = "No session is in the way." if not others else f"No session that this role ends. {OTHERS}"
    write_rows(rows, COLUMNS, json, empty, csv)


@option.verb(app, "end", "trunq session end 4711", "# In a script", "trunq session end 4711 --yes --json")
def end(
    pid: Annotated[int, typer.Argument(metavar="PID", help="Its process: trunq session list.")],
    yes: Yes = False,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """End a session that stands in the way. It says what that is, and asks.

    What it has open is rolled back, and its locks go; a program connects anew. It needs the grants
    pg_read_all_stats and pg_signal_backend, and for a session of a superuser one of yours.
    """
    with client(database) as trunq:
        found = trunq.diagnose(1, areas=HOLDERS)
        named = [row for row in found if row.session is not None and row.session[0] == pid]
        began_at = next((row.session[1] for row in named if row.session is not None), None)
        if began_at is None:
            if any(row.session is None for row in found):
                raise Mistake(f"Process {pid} is none that this role ends. {OTHERS}")
            raise Mistake(f"Process {pid} is in nobody's way. trunq session list shows who is.")
        for row in named:
            err.print(in_shell(row.finding), markup=False)
        confirm(f"End the session of process {pid}?", is_answered=yes)
        has_ended = trunq.end_session(pid, began_at)
    if json:
        write_json({"pid": pid, "ended": has_ended})
    else:
        say(f"Process {{pid}} {'has ended' if has_ended else 'was told to end, and has not yet'}.", pid=pid)
