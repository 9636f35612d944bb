"""How commands speak: results on stdout, as tables for people or JSON for scripts; everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

Row = Mapping[str, Any]

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def say(sentence: str, **facts: Any) -> None:
    """Print one sentence for people; the facts in it stand out. Facts are escaped, the sentence is markup."""
    marked = {name: f"[bold]{escape(str(fact))}[/bold]" for name, fact in facts.items()}
    out.print(sentence.format(**marked))


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
    """A table of the rows' columns, numbers to the right."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        is_number = all(isinstance(row[column], int | float | timedelta | None) for row in rows)
        drawn.add_column(
            column.replace("_", " "), justify="right" if is_number else "left", no_wrap=column != "error"
        )
    for row in rows:
        drawn.add_row(*(_cell(row[column]) for column in columns))
    return drawn


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
            return f"{value:%Y-%m-%d %H:%M:%S}"
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


def _cell(value: Any) -> RenderableType:
    shown = text(value)
    return escape(shown if len(shown) <= 72 else shown[:71] + "…")


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
