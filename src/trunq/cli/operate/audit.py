"""trunq audit: who did what to how many."""

from __future__ import annotations

from typing import Annotated

import typer

from trunq.cli.ground import option
from trunq.cli.ground.database import client, looked_to
from trunq.cli.ground.output import tell_rest, write_rows
from trunq.record.look import LOOKED_AT_MOST

COLUMNS = ("at", "who", "did", "queue", "arguments", "messages", "application", "address")

EXAMPLES = (
    "trunq audit",
    "trunq audit orders --did purge",
    "trunq audit --who ada --json | jq '.[].did'",
    "# In whose name a program acts",
    "select set_config('trunq.who', 'ada', true)",
)


def audit(
    queue: option.OneQueue = None,
    who: Annotated[str | None, typer.Option("--who", metavar="NAME", help="What this person did.")] = None,
    did: Annotated[
        str | None, typer.Option("--did", metavar="FUNCTION", help="Only this: purge, pause_queue, seek ...")
    ] = None,
    limit: option.Limit = 100,
    before: Annotated[
        int | None,
        typer.Option("--before", metavar="ID", help="Older ones: the last audit_id of the page before."),
    ] = None,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """Show who did what to how many, newest first: pauses, requeues, purges, seeks, drops, rights.

    Each act is recorded in its own transaction, whether it came from a page, the shell, a client or psql.
    Records are kept for 90 days, or as long as the setting trunq.audit_retention of the leader says. With
    --who or --did it looks at 100,000 records at most, and says where to go on when there are more.
    """
    with client(database) as trunq, trunq.transaction() as connection:
        done = trunq.list_audit(queue, limit, before, who, did, connection=connection)
        further = looked_to(connection)
    nothing = "Nobody has done such a thing." if who or did else "Nobody has done anything by hand."
    write_rows([row._asdict() for row in done], COLUMNS, json, nothing, csv)
    tell_rest(LOOKED_AT_MOST, further)
