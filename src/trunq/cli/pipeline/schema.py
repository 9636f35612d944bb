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
        # One more: what the last of them changed is seen beside the one before.
        found = trunq.list_schemas(name, limit + 1)
    versions: list[Row] = [each._asdict() for each in found]
    before: list[Row] = [*(each["columns"] for each in versions[1:]), {}]
    shown = list(zip(versions, before, strict=False))[:limit]
    rows = versions[:limit] if json else [row for each in shown for row in _columns_of(*each)]
    write_rows(rows, _COLUMNS, json, "No run has brought rows into a sink with columns yet.")


def _columns_of(version: Row, before: Row) -> list[Row]:
    """A row a column; those that the version brought say so, and of which type they were before."""
    columns, changed = version["columns"], version["changed"]
    gone = {name: None for name in changed if name not in columns}
    return [
        {
            **version,
            "run": version["number"],
            "column": name,
            "type": kind or "",
            "change": _change(kind, before.get(name)) if name in changed else "",
        }
        for name, kind in {**columns, **gone}.items()
    ]


def _change(kind: str | None, before: str | None) -> str:
    if kind is None:
        return "renamed"
    return "new" if before is None else f"was {before}"
