"""trunq pipeline schema: each version of the columns of a sink."""

from __future__ import annotations

from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.output import Row, write_rows
from trunq.cli.pipeline.pipeline import Name, app

_COLUMNS = ("version", "column", "type", "change", "run", "noted_at")


@option.verb(
    app,
    "schema",
    "trunq pipeline schema orders",
    "# Those of an instance, as JSON",
    "trunq pipeline schema orders/acme --json",
)
def schema(
    name: Name, limit: option.Limit = 10, *, database: option.Database, json: option.Json = False
) -> None:
    """Show each version of the columns that a pipeline's sink has for its rows, the newest first, and which
    run brought it.
    """
    with client(database) as trunq:
        found = trunq.list_schemas(name, limit)
    versions: list[Row] = [each._asdict() for each in found]
    rows = versions if json else [row for each in versions for row in _columns_of(each)]
    write_rows(rows, _COLUMNS, json, "No run has brought rows into a sink with columns yet.")


def _columns_of(version: Row) -> list[Row]:
    """A row a column; those that the version brought say so."""
    columns, changed = version["columns"], version["changed"]
    gone = {name: None for name in changed if name not in columns}
    return [
        {
            **version,
            "run": version["number"],
            "column": name,
            "type": kind or "",
            "change": "" if name not in changed else "renamed" if kind is None else "new",
        }
        for name, kind in {**columns, **gone}.items()
    ]
