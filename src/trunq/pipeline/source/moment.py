"""Times as APIs have them, in texts and numbers: compared, a while earlier, and as they are asked for."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

from trunq.errors import InvalidPipeline

_PER_SECOND: Final = {"epoch": 1, "epoch_ms": 1000}


def order(value: Any) -> Any:
    """What a value is compared by: times as times, whatever their zone and digits. Raises TypeError."""
    if isinstance(value, str):
        return read(value) or value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise TypeError


def read(text: str) -> dt.datetime | None:
    """The time in a text; without a zone it is of UTC. None: it is none."""
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


def earlier(value: Any, by: dt.timedelta | float, unit: str | None = None) -> Any:
    """A time, or a number, so much before, written as it was. Raises TypeError for what has no such thing."""
    if isinstance(value, bool):
        raise TypeError
    if isinstance(value, int | float):
        if isinstance(by, dt.timedelta):
            if unit not in _PER_SECOND:
                raise TypeError
            by = by.total_seconds() * _PER_SECOND[unit]
        return int(value - by) if isinstance(value, int) and float(by).is_integer() else value - by
    moment = read(value) if isinstance(value, str) else None
    if moment is None or not isinstance(by, dt.timedelta):
        raise TypeError
    return _like(value, moment - by)


def written(pipeline: str, value: Any, format: str | None) -> Any:
    """A time as a parameter has it. Raises InvalidPipeline for a value that is none."""
    if format is None:
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and format in _PER_SECOND:
        return value
    moment = read(value) if isinstance(value, str) else None
    if moment is None:
        raise InvalidPipeline(
            f"pipeline {pipeline}: since.format = {format!r} is for times, and {value!r:.60} is none",
            "leave format out where rows have what the parameter is to have",
        )
    moment = moment.astimezone(dt.UTC)
    if format == "date":
        return moment.date().isoformat()
    if format == "iso":
        return moment.isoformat().replace("+00:00", "Z")
    # Rounded down: who asks from earlier on misses nothing.
    return int(moment.timestamp() * _PER_SECOND[format] // 1)


def _like(text: str, moment: dt.datetime) -> str:
    """A time as another one is written."""
    if "T" not in text and ":" not in text:
        # A day: so much before it begins on an earlier one.
        return moment.date().isoformat()
    made = moment.isoformat(sep="T" if "T" in text else " ")
    if text.endswith("Z"):
        return made.replace("+00:00", "Z")
    return made if dt.datetime.fromisoformat(text).tzinfo else made.removesuffix("+00:00")
