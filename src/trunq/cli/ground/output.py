"""How commands print: results to stdout, for people, as JSON or as CSV; everything else to stderr."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.text import Text

from trunq.cli.ground.table import Column, draw
from trunq.display import FLEXIBLE, cell, interval, label, plain, text

Row = Mapping[str, Any]

WIDE = 1000
"""Width of output that does not go to a terminal: a table in a file or a pipe has all its columns. COLUMNS
overrules it: watch(1) sets it.
"""

IS_PLAIN = os.environ.get("NO_COLOR", "") != ""
"""Neither colours nor bold letters: Rich alone would leave the latter."""

if IS_PLAIN:
    # Typer loads it when it has help or an error to print, which most commands have not.
    import typer.rich_utils

    typer.rich_utils.COLOR_SYSTEM = None


def _console(stderr: bool) -> Console:
    console = Console(
        stderr=stderr, highlight=False, soft_wrap=True, color_system=None if IS_PLAIN else "auto"
    )
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        console.width = WIDE
    return console


out, err = _console(stderr=False), _console(stderr=True)


def say(sentence: str, **facts: Any) -> None:
    """Print a sentence with its facts in bold. The sentence may contain markup, facts are escaped."""
    marked = {name: f"[bold]{escape(str(fact))}[/bold]" for name, fact in facts.items()}
    out.print(sentence.format(**marked))


def write(shown: RenderableType) -> None:
    """Print tables and what stands with them, sentences broken between words."""
    out.print(shown, soft_wrap=False, crop=False)


def print_fact(name: str, value: Any, width: int = 10) -> None:
    """Print one of several facts, in a line of its own; nothing when there is none."""
    if value is not None:
        lines = escape(text(value)).replace("\n", "\n" + " " * (width + 3))
        out.print(f"  [dim]{name:<{width}}[/dim] {lines}")


def print_facts(row: Row) -> None:
    """Print what a row says, a line each, their names as in headings of tables; not what there is none of.

    That a number is no estimate goes without saying.
    """
    facts = {name: value for name, value in row.items() if name != "is_estimate" or value}
    width = max(len(label(name)) for name in facts)
    for name, value in facts.items():
        print_fact(label(name), value, width)


def complain(sentence: str) -> None:
    """Print an error to stderr."""
    err.print(f"[red]error:[/red] {escape(sentence)}")


def tell_rest(looked: int, further: int | None) -> None:
    """Say to stderr that a list ended before it had looked at all there is, and how to go on."""
    if further is not None:
        err.print(f"It looked at {looked:,}; go on with: --before {further}")


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
        write(table(found, columns, out.width))
    else:
        out.print(empty)


def with_age(row: Row, since: str) -> dict[str, Any]:
    """A row with the time since one of its times, in whole seconds, to be shown beside it."""
    then = row[since]
    if then is None:
        return {**row, "age": ""}
    age = timedelta(seconds=max(0, int((datetime.now(UTC) - then).total_seconds())))
    return {**row, "age": interval(age)}


def table(rows: Sequence[Row], columns: Sequence[str], room: int) -> RenderableType:
    """A table without the empty columns."""
    filled = (column for column in columns if any(row[column] not in (None, "") for row in rows))
    return draw([_column(name, [row[name] for row in rows]) for name in filled], room)


def _column(name: str, values: Sequence[Any]) -> Column:
    is_number = all(isinstance(value, int | float | timedelta | None) for value in values)
    cells = [Text(cell(name, value)) for value in values]
    return Column(label(name), cells, is_number, is_flexible=name in FLEXIBLE)
