"""How commands speak: results on stdout, as tables for people or JSON for scripts; everything else on
stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

Row = Mapping[str, Any]

WIDE = 1000
"""Width of what is not written to a terminal: a table in a file or a pipe is never cut."""
LONGEST = 48


def _console(stderr: bool) -> Console:
    console = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = WIDE
    return console


out, err = _console(stderr=False), _console(stderr=True)


def say(sentence: str, **facts: Any) -> None:
    """Print one sentence for people; the facts in it stand out. Facts are escaped, the sentence is markup."""
    marked = {name: f"[bold]{escape(str(fact))}[/bold]" for name, fact in facts.items()}
    out.print(sentence.format(**marked))


def complain(sentence: str) -> None:
    """Say on stderr what went wrong."""
    err.print(f"[red]error:[/red] {escape(sentence)}")


def write_json(value: Any) -> None:
    """Print one JSON document: times as ISO 8601, intervals in seconds."""
    json.dump(
        value, sys.stdout, default=_plain, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None
    )
    sys.stdout.write("\n")


def write_rows(rows: Iterable[Row], columns: Sequence[str], as_json: bool, empty: str) -> None:
    """Print rows as a table of some columns, or all of them as a JSON array."""
    found = list(rows)
    if as_json:
        write_json(found)
    elif found:
        out.print(table(found, columns))
    else:
        out.print(empty)


def table(rows: Sequence[Row], columns: Sequence[str]) -> Table:
    """A table of those columns that hold something; only `error` gives way when it is narrow."""
    columns = [column for column in columns if any(row[column] not in (None, "") for row in rows)]
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, header_style="bold")
    for column in columns:
        is_number = all(isinstance(row[column], int | float | timedelta | None) for row in rows)
        shown = [cell(column, row[column]) for row in rows]
        least = None if column == "error" else max(map(len, [_label(column), *shown]))
        drawn.add_column(
            _label(column), justify="right" if is_number else "left", min_width=least, overflow="fold"
        )
    for row in rows:
        drawn.add_row(*(escape(cell(column, row[column])) for column in columns))
    return drawn


def cell(column: str, value: Any) -> str:
    """A value in a table: ids as one types them, times short, long texts cut."""
    if column == "id":
        return str(value)
    if isinstance(value, datetime):
        return moment(value)
    shown = text(value)
    if column == "error":
        # The rest says where in the code it happened; `trunq message show` has all of it.
        return shown.partition("\n")[0]
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def moment(value: datetime) -> str:
    """A time where the reader is: without its date when that is today."""
    here = value.astimezone()
    return (
        f"{here:%H:%M:%S}" if here.date() == datetime.now().astimezone().date() else f"{here:%Y-%m-%d %H:%M}"
    )


def text(value: Any) -> str:
    """A value as people read it."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case timedelta():
            return interval(value)
        case datetime():
            return f"{value.astimezone():%Y-%m-%d %H:%M:%S}"
        case str():
            return value
        case _:
            return json.dumps(value, default=_plain, ensure_ascii=False)


def interval(value: timedelta) -> str:
    """An interval in its two largest units: 1d 4h, 3m 20s, 250ms."""
    if timedelta(0) <= value < timedelta(seconds=1):
        return f"{value / timedelta(milliseconds=1):.0f}ms"
    sign, rest = ("-", -value) if value < timedelta(0) else ("", value)
    parts = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, timedelta(seconds=size))
        if count:
            parts.append(f"{count}{unit}")
    return sign + " ".join(parts[:2])


def _label(column: str) -> str:
    return column.removesuffix("_at").replace("_", " ")


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return value.hex()
        case _:
            return str(value)
