"""Values as people read them, and as JSON: how commands and dashboard show messages and queues."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

LONGEST = 48
"""Characters of a text in a table; a longer one is cut."""
FLEXIBLE = ("error", "finding", "reasons", "content", "example")
"""Columns whose text is as long as there is room."""
AT_MOST = 500
"""Characters of a value in such a column that is no text: a row that was kept out may be large."""
HIDDEN = "(hidden here)"
_PLACES = ("table", "tables", "queue", "path", "query", "url", "function")
FILTERS = {
    "state": "{}",
    "kind": "kind {}",
    "key": "key {}",
    "reason": "dead because {}",
    "fingerprint": "fingerprint {}",
    "error": 'error contains "{}"',
    "payload": "payload contains what was given",
    "headers": "headers contain what was given",
    "older_than": "older than {}",
    "newer_than": "newer than {}",
}
"""Filters of a sweep, in words."""


def cell(column: str, value: Any) -> str:
    """A value in a table: an id without separators, a long text cut."""
    if value is not None and (column in ("id", "pid") or column.endswith("_id")):
        return str(value)
    shown = text(value)
    if column in FLEXIBLE:
        # The other lines say where in the code it happened; `trunq message show` prints them all.
        line = shown.partition("\n")[0]
        return line if isinstance(value, str) or len(line) <= AT_MOST else line[: AT_MOST - 1] + "…"
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def label(column: str) -> str:
    """The name of a column as a heading: `died_at` is shown as `died`."""
    return column.removesuffix("_at").replace("_", " ")


def place(part: Mapping[str, Any]) -> str:
    """Where a source of a pipeline reads, or a sink writes: its format, and table, queue, path or address."""
    where = next((part[key] for key in _PLACES if part.get(key)), None)
    named = ", ".join(where) if isinstance(where, list) else where
    return str(part["format"]) if named is None else f"{part['format']} {' '.join(str(named).split())}"


def text(value: Any) -> str:
    """A value in full."""
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
            return json.dumps(value, default=plain, ensure_ascii=False)


def moment(value: datetime) -> str:
    """A time in the reader's time zone; without its date when that is today."""
    here = value.astimezone()
    return (
        f"{here:%H:%M:%S}" if here.date() == datetime.now().astimezone().date() else f"{here:%Y-%m-%d %H:%M}"
    )


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


def count(number: int, is_estimate: bool) -> str:
    """A number; `~10,000` where it is an estimate."""
    return f"{'~' if is_estimate else ''}{number:,}"


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number of things: 1 queue, 2 queues, 1,000 queues; `many` where that is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def troubles(severities: Iterable[str]) -> str:
    """How many of each there are: 1 error, 2 warnings."""
    counts = Counter(severities)
    return ", ".join(counted(counts[each], each) for each in ("error", "warning") if counts[each])


def matching(filter: Mapping[str, Any], hidden: Collection[str] = ()) -> str:
    """What a sweep is about besides its queue and subscription; `hidden`: parts that nobody is to see."""
    veiled = {"error", "fingerprint"} if "error" in hidden else set()
    told = [
        said.format(HIDDEN if name in veiled else text(filter[name]))
        for name, said in FILTERS.items()
        if name in filter
    ]
    return ", ".join(told) or "all"


def attempt(told: Mapping[str, Any]) -> str:
    """One attempt of `show_message` in a line: its outcome, worker, time, duration and error."""
    said = f"{told.get('outcome') or 'running'}, by {told.get('worker')}"
    if told.get("leased_at"):
        said += f" at {moment(datetime.fromisoformat(told['leased_at']))}"
    if told.get("took") is not None:
        took = told["took"]
        said += f", in {took * 1000:,.3g} ms" if took < 0.9995 else f", in {took:,.3f} s"
    return f"{said}: {told['error']}" if told.get("error") else said


def plain(value: Any) -> Any:
    """What JSON has no type for (`default` of json.dump): times as ISO 8601, intervals in seconds."""
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return value.hex()
        case _:
            return str(value)
