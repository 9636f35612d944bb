"""trunq pipeline tables: those of a pipeline of many tables."""

from __future__ import annotations

from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.output import Row, say, write_rows
from trunq.cli.pipeline.pipeline import Name, app
from trunq.cli.pipeline.sight import TABLES


@option.verb(
    app,
    "tables",
    "trunq pipeline tables shop",
    "# Each table has a pipeline of its own, for every command",
    "trunq pipeline show shop__orders",
    "trunq pipeline tables shop --json | jq '.[] | select(.refused)'",
)
def tables(
    name: Name,
    limit: option.Limit = 20,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List the tables of a pipeline of many, the worst first.

    Those come first whose run fails the most often, then those that are stepped over, and gone, then those
    with an open run. A run of the pipeline looks for tables, and asks for a run of each.
    """
    with client(database) as trunq:
        found: list[Row] = [row._asdict() for row in trunq.list_pipeline_tables(name, limit)]
    nothing = f"Pipeline {name} has no tables. Look for them with: trunq pipeline run {name}"
    write_rows(found, TABLES, json, nothing, csv)
    if found and not json and not csv and found[0]["tables"] > len(found):
        say("{shown} of {all} tables: --limit.", shown=len(found), all=found[0]["tables"])
