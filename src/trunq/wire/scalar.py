"""Single values as arguments: lengths of time, moments, numbers and text.

Numbers travel as text, whose type Postgres takes from the parameter: a statement has the same types, and so
one prepared plan, whatever the size of a number.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from psycopg.abc import AdaptContext
from psycopg.types.numeric import Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader

from trunq.errors import InvalidArgument

Interval = timedelta | float
"""A length of time: a timedelta, or seconds."""

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""Where Postgres starts counting the microseconds of a binary timestamptz."""


def interval(name: str, value: Interval | None) -> timedelta | None:
    """A length of time given as a timedelta or in seconds."""
    if value is None or isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is a timedelta or a number of seconds, not {type(value).__name__}")
    try:
        return timedelta(seconds=value)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(f"{name} is not a length of time: {value} seconds") from error


def moment(name: str, value: datetime | None) -> datetime | None:
    """A time that knows its zone: without one it would mean something else on the server."""
    if value is not None and value.tzinfo is None:
        raise InvalidArgument(
            f"{name} has no time zone: {value}", "give it one: datetime.now(UTC), .astimezone()"
        )
    return value


_TEXTS: Final = ("kind", "key")
"""Arguments that are text, or a whole number to be stored as text."""


def plain(name: str, value: Any) -> Any:
    """Any other argument in the form it is sent in."""
    if isinstance(value, str):
        if "\0" in value:
            raise InvalidArgument(
                f"{name} has a NUL character at {value.index(chr(0))}, which Postgres cannot store"
            )
        return value
    kind = type(value)
    if name in _TEXTS and kind is not int:
        raise InvalidArgument(f"{name} is text, not {kind.__name__}", f"give str({name})")
    if kind is int or kind is float or (isinstance(value, (int, float)) and kind is not bool):
        return repr(value)
    return value


def decode_timestamp(microseconds: int) -> datetime:
    """Decode a binary timestamptz."""
    return _EPOCH + timedelta(microseconds=microseconds)


def adapt_raw(context: AdaptContext) -> None:
    """Make a cursor leave jsonb and timestamps as they are sent, for `Message` to decode when asked."""
    context.adapters.register_loader("jsonb", ByteaBinaryLoader)
    context.adapters.register_loader("timestamptz", Int8BinaryLoader)
