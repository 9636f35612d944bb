"""trunq pipeline instances: a pipeline for each value of its `per`."""

from __future__ import annotations

from typing import Final

from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.output import Row, say, write_rows
from trunq.cli.pipeline.pipeline import Name, app

COLUMNS: Final = (
    "pipeline",
    "runs",
    "open_run",
    "failures",
    "last_outcome",
    "last_ended_at",
    "put_off_until",
    "put_off_for",
    "quarantined",
    "paused",
    "error",
    "refused",
)


@option.verb(
    app,
    "instances",
    "trunq pipeline instances orders",
    "# One of them has the name of a pipeline for every command",
    "trunq pipeline show orders/acme",
    "trunq pipeline instances orders --json | jq '.[] | select(.failures > 0)'",
)
def instances(
    name: Name,
    limit: option.Limit = 20,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List the instances of a pipeline with per, the worst first.

    Each value of per has one, from the first message that names it, and each of many tables, once a run of
    the pipeline has found it. Those come first whose run fails the most often, then tables that are not read,
    then those that a limit puts off, then those with an open run.
    """
    with client(database) as trunq:
        found: list[Row] = [row._asdict() for row in trunq.list_instances(name, limit)]
    nothing = f"Pipeline {name} has no instance: a message that names a value of its per begins one."
    write_rows(found, COLUMNS, json, nothing, csv)
    if found and not json and not csv and found[0]["instances"] > len(found):
        say("{shown} of {all}.", shown=len(found), all=found[0]["instances"])
