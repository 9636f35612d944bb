"""How commands print: results to stdout, for people, as JSON or as CSV; everything else to stderr."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trunq.display import cell, label, plain

Row = Mapping[str, Any]

WIDE = 1000
"""Width of output that does not go to a terminal: a table in a file or a pipe is never cut."""


def _console(stderr: bool) -> Console:
    # By itself rich leaves bold and dim to who wants no colour.
    system: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    console = Console(stderr=stderr, highlight=False, soft_wrap=True, color_system=system)
    if not console.is_terminal:
        console.width = WIDE
    return console


out, err = _console(stderr=False), _console(stderr=True)


def say(sentence: str, **facts: Any) -> None:
    """Print a sentence with its facts in bold. The sentence may contain markup, facts are escaped."""
    marked = {name: f"[bold]{escape(str(fact))}[/bold]" for name, fact in facts.items()}
    out.print(sentence.format(**marked))


def complain(sentence: str) -> None:
    """Print an error to stderr."""
    err.print(f"[red]error:[/red] {escape(sentence)}")


def write_json(value: Any) -> None:
    """Print one JSON document: times as ISO 8601, intervals in seconds."""
    json.dump(value, sys.stdout, default=plain, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None)
    sys.stdout.write("\n")


def write_csv(rows: Sequence[Row]) -> None:
    """Print rows as CSV: values as in JSON, objects as their JSON text, null as nothing."""
    if rows:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(rows[0])
        writer.writerows([_field(value) for value in row.values()] for row in rows)


def _field(value: Any) -> Any:
    match value:
        case bool() | dict() | list():
            return json.dumps(value, default=plain, ensure_ascii=False)
        case None | str() | int() | float():
            return value
        case _:
            return plain(value)


def write_rows(
    rows: Iterable[Row], columns: Sequence[str], as_json: bool, empty: str, as_csv: bool = False
) -> None:
    """Print rows as a table of these columns, or with all columns as a JSON array or as CSV."""
    found = list(rows)
    if as_csv:
        write_csv(found)
    elif as_json:
        write_json(found)
    elif found:
        out.print(table(found, columns))
    else:
        out.print(empty)


def table(rows: Sequence[Row], columns: Sequence[str]) -> Table:
    """A table without the empty columns; where space is short, only `error` becomes narrower."""
    columns = [column for column in columns if any(row[column] not in (None, "") for row in rows)]
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold")
    for column in columns:
        is_number = all(isinstance(row[column], int | float | timedelta | None) for row in rows)
        shown = [cell(column, row[column]) for row in rows]
        least = None if column == "error" else max(map(len, [label(column), *shown]))
        drawn.add_column(
            label(column), justify="right" if is_number else "left", min_width=least, overflow="fold"
        )
    for row in rows:
        drawn.add_row(*(escape(cell(column, row[column])) for column in columns))
    return drawn
