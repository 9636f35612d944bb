"""Lengths of time as people write them: as Postgres reads intervals, words ("10 minutes", "1h 30m"), a clock
("01:30:00"), ISO 8601 ("PT10M"), or seconds ("90").

Of these, pydantic reads ISO 8601 alone, which is one pattern here. It takes a year for 365 days and a month
for 30; Postgres does not, so months and years are refused, except where a calendar counts them.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

_NUMBER: Final = r"\d+(?:\.\d+)?"
_ISO: Final = re.compile(
    rf"P(?:(?P<weeks>{_NUMBER})W)?(?:(?P<days>{_NUMBER})D)?"
    rf"(?:T(?:(?P<hours>{_NUMBER})H)?(?:(?P<minutes>{_NUMBER})M)?(?:(?P<seconds>{_NUMBER})S)?)?"
)
_SECONDS: Final = re.compile(_NUMBER)
_CLOCK: Final = re.compile(r"(?<![\d.:])(\d+):([0-5]\d)(?::([0-5]\d(?:\.\d+)?))?(?![\d.:])")
_WORDS: Final = re.compile(rf"({_NUMBER})\s*([a-z]+)")
_BETWEEN: Final = re.compile(r"[\s,]|\band\b")
_UNITS: Final = {
    "microseconds": ("us", "usec", "usecs", "microsecond"),
    "milliseconds": ("ms", "msec", "msecs", "millisecond"),
    "seconds": ("s", "sec", "secs", "second"),
    "minutes": ("m", "min", "mins", "minute"),
    "hours": ("h", "hr", "hrs", "hour"),
    "days": ("d", "day"),
    "weeks": ("w", "week"),
}
_MONTHS: Final = re.compile(r"(\d+)\s*(y|years?|yrs?|months?|mons?)(?![a-z])")
_ISO_MONTHS: Final = re.compile(r"P(?:(\d+)Y)?(?:(\d+)M)?(?=[\dT]|$)")
_BY_NAME: Final = {name: unit for unit, names in _UNITS.items() for name in (unit, *names)}
HOW: Final = 'write it as "10 minutes", "1h 30m" or "PT10M"; months and years differ in length'


def read(text: str) -> timedelta:
    """The length that a text says. Raises ValueError for any other, or more than a timedelta holds."""
    said = text.strip()
    try:
        return _read(said)
    except OverflowError:
        raise ValueError(f"{text!r} is no length of time: it is too long") from None


def read_calendar(text: str) -> tuple[int, timedelta]:
    """The months, and the rest, of an interval that may have some: "1 month", "1 year 6 months", "P1M"."""
    said = text.strip()
    if (iso := _ISO_MONTHS.match(said.upper())) and any(iso.groups()):
        years, months = (int(number or 0) for number in iso.groups())
        rest = said[iso.end() :] and f"P{said[iso.end() :]}"
    else:
        found = _MONTHS.findall(said.lower())
        years = sum(int(number) for number, unit in found if unit[0] == "y")
        months = sum(int(number) for number, unit in found if unit[0] == "m")
        rest = _MONTHS.sub(" ", said.lower()) if found else said
    if (count := years * 12 + months) and not rest.strip(" ,"):
        return count, timedelta(0)
    return count, read(rest)


def _read(text: str) -> timedelta:
    if (found := _ISO.fullmatch(text.upper())) and any(found.groupdict().values()):
        return timedelta(**{unit: float(number) for unit, number in found.groupdict().items() if number})
    if _SECONDS.fullmatch(text):
        return timedelta(seconds=float(text))
    rest, span = text.lower(), timedelta(0)
    if clock := _CLOCK.search(rest):
        hours, minutes, seconds = clock.groups(default="0")
        span = timedelta(hours=int(hours), minutes=int(minutes), seconds=float(seconds))
        rest = rest[: clock.start()] + " " + rest[clock.end() :]
    parts = _WORDS.findall(rest)
    is_read = not _BETWEEN.sub("", _WORDS.sub("", rest)) and all(unit in _BY_NAME for _, unit in parts)
    if not is_read or not (parts or clock):
        raise ValueError(f"{text!r} is no length of time: {HOW}")
    for number, unit in parts:
        span += timedelta(**{_BY_NAME[unit]: float(number)})
    return span
