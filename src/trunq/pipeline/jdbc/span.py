"""Values of a cursor: numbers, days and times, as texts of the database, and the ranges that tasks share."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, Final

from trunq.errors import InvalidPipeline

_NUMBERS: Final = frozenset({-7, -6, 5, 4, -5, 2, 3, 6, 7, 8})
FLOATS: Final = frozenset({6, 7, 8})
_DAY: Final = 91
_TIMES: Final = frozenset({93, 2014})
"""Types of java.sql.Types."""

_PLAIN: Final = re.compile(r"[0-9TZEe:+. -]+")
"""Nothing that ends a text in SQL."""

_SMALL: Final = 1000
"""Numbers that one task reads as soon as two."""


class Kind(Enum):
    """What a column holds."""

    NUMBER = "number"
    DAY = "day"
    TIME = "time"


def kind_of(type: int) -> Kind | None:
    """What a column of a type of java.sql.Types holds; None: nothing that has a place in an order of ours."""
    if type in _NUMBERS:
        return Kind.NUMBER
    return Kind.DAY if type == _DAY else Kind.TIME if type in _TIMES else None


def value_of(pipeline: str, text: str) -> Any:
    """A value, to be compared and moved. Raises InvalidPipeline."""
    try:
        if not _PLAIN.fullmatch(text):
            raise InvalidOperation
        number = Decimal(text)
        if number.is_finite():
            return number
    except InvalidOperation:
        try:
            if _PLAIN.fullmatch(text):
                return dt.datetime.fromisoformat(text)
        except ValueError:
            pass
    raise InvalidPipeline(
        f"pipeline {pipeline}: {text!r:.60} is neither a number nor a time that a cursor can have"
    )


def literal(database: str, kind: Kind, text: str) -> str:
    """A value as SQL, exactly as the database wrote it."""
    if kind is Kind.NUMBER:
        return text
    if database in ("postgresql", "mariadb", "mysql"):
        return f"'{text}'"
    return f"{{d '{text}'}}" if kind is Kind.DAY else f"{{ts '{text}'}}"


def shared(least: str, most: str, at_most: int) -> list[str]:
    """The values between shares, one fewer than these: []: it is one share."""
    low, high = value_of("", least), value_of("", most)
    if isinstance(low, Decimal):
        width = high - low
        if width < _SMALL:
            return []
        marks = [str(int(low + width * at / at_most)) for at in range(1, at_most)]
    else:
        width = high - low
        marks = [_written(low + width * at / at_most, len(least)) for at in range(1, at_most)]
    return sorted(set(marks), key=lambda text: value_of("", text))


def _written(value: dt.datetime, length: int) -> str:
    return str(value.date()) if length == 10 else value.replace(microsecond=0).isoformat(" ")
