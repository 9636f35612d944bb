"""Lengths of time as people write them: ISO 8601 (`PT10M`) or words (`10 minutes`)."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, PlainSerializer

_ISO: Final = re.compile(
    r"P(?:(?P<weeks>\d+(?:\.\d+)?)W)?(?:(?P<days>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<hours>\d+(?:\.\d+)?)H)?(?:(?P<minutes>\d+(?:\.\d+)?)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_WORDS: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_UNITS: Final = {
    "milliseconds": ("ms", "millisecond"),
    "seconds": ("s", "sec", "secs", "second"),
    "minutes": ("m", "min", "mins", "minute"),
    "hours": ("h", "hour"),
    "days": ("d", "day"),
    "weeks": ("w", "week"),
}
_BY_NAME: Final = {name: unit for unit, names in _UNITS.items() for name in (unit, *names)}
_HOW: Final = 'write it as "10 minutes", "1h 30m" or "PT10M"; months and years differ in length'


def read_span(value: Any) -> timedelta:
    """A length of time from text, a number of seconds or a timedelta; it is not negative.

    Raises ValueError for what is none.
    """
    if isinstance(value, timedelta):
        span = value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        span = timedelta(seconds=value)
    elif isinstance(value, str):
        span = _read(value.strip())
    else:
        raise ValueError(f"{value!r} is no length of time: {_HOW}")
    if span < timedelta(0):
        raise ValueError(f"a length of time is not negative: {value!r}")
    return span


def _read(text: str) -> timedelta:
    if (found := _ISO.fullmatch(text.upper())) and any(found.groupdict().values()):
        return timedelta(**{unit: float(number) for unit, number in found.groupdict().items() if number})
    lower = text.lower()
    parts = _WORDS.findall(lower)
    rest = re.sub(r"[\s,]|\band\b", "", _WORDS.sub("", lower))
    if not parts or rest or any(unit not in _BY_NAME for _, unit in parts):
        raise ValueError(f"{text!r} is no length of time: {_HOW}")
    span = timedelta(0)
    for number, unit in parts:
        span += timedelta(**{_BY_NAME[unit]: float(number)})
    return span


def write_span(span: timedelta) -> str:
    """The length of time in ISO 8601."""
    seconds = span.seconds + span.microseconds / 1_000_000
    days = f"{span.days}D" if span.days else ""
    time = f"T{seconds:.6f}".rstrip("0").rstrip(".") + "S" if seconds or not days else ""
    return f"P{days}{time}"


Span = Annotated[timedelta, BeforeValidator(read_span), PlainSerializer(write_span)]
"""A field of a model."""
