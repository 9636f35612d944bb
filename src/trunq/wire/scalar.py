"""Single values as arguments: lengths of time, moments, numbers and text.

Numbers travel as text, whose type Postgres takes from the parameter: a statement has the same types, and so
one prepared plan, whatever the size of a number.
"""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from enum import Enum
from typing import Any, Final
from uuid import UUID

from psycopg.abc import AdaptContext
from psycopg.types.numeric import Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader

from trunq.errors import InvalidArgument
from trunq.wire import duration

Interval = timedelta | float | str
"""A length of time: a timedelta, seconds, or text that says it as Postgres would read it: "10 minutes"."""

Label = str | int | UUID | Enum
"""A kind or a key: text, a whole number, a UUID, or an Enum with such a value."""

LARGEST: Final = 2**63 - 1
"""Of a bigint, as ids are."""
_DIGITS: Final = len(str(LARGEST))

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
"""Where Postgres starts counting the microseconds of a binary timestamptz."""


def ids_told(payload: str) -> set[int]:
    """The ids in what somebody notified. Whoever is connected may notify, and say what he likes: words that
    cannot be the id of a message are left out.
    """
    ids = {
        int(word) for word in payload.split() if len(word) <= _DIGITS and word.isascii() and word.isdigit()
    }
    return {id for id in ids if id <= LARGEST}


def interval(name: str, value: Interval | None) -> timedelta | None:
    """A length of time given as a timedelta, in seconds, or as text."""
    if value is None or isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        try:
            return duration.read(value)
        except ValueError:
            raise InvalidArgument(f"{name} is no length of time: {value!r}", duration.HOW) from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"{name} is a timedelta, a number of seconds or text such as '10 minutes',"
            f" not {type(value).__name__}"
        )
    try:
        return timedelta(seconds=value)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(f"{name} is not a length of time: {value} seconds") from error


def calendar(name: str, value: Interval | None) -> tuple[int, timedelta] | None:
    """An interval whose months a calendar counts: the months, and the rest."""
    if isinstance(value, str):
        try:
            return duration.read_calendar(value)
        except ValueError:
            raise InvalidArgument(
                f"{name} is no length of time: {value!r}", 'write it as "10 minutes", "2 days" or "1 month"'
            ) from None
    length = interval(name, value)
    return None if length is None else (0, length)


def clock(name: str, value: time | str | None) -> str | None:
    """A time of the day, given as a time without a zone or as text: "09:00"."""
    try:
        read = time.fromisoformat(value) if isinstance(value, str) else value
    except ValueError as error:
        raise InvalidArgument(f"{name} is no time of the day: {value!r}", 'write it as "09:00"') from error
    if read is None:
        return None
    if read.tzinfo is not None:
        raise InvalidArgument(f"{name} is a time without a zone, not {value!r}", "give the zone as zone=")
    return read.isoformat()


def seconds(name: str, value: Interval | None) -> float | None:
    """The same in seconds."""
    length = interval(name, value)
    return None if length is None else length.total_seconds()


def moment(name: str, value: datetime | None) -> datetime | None:
    """A time that knows its zone: without one it would mean something else on the server."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidArgument(
            f"{name} is a datetime with a time zone, not {type(value).__name__}",
            "datetime.fromisoformat() reads one from text"
            + ("; for a time from now, give delay=" if name == "due_at" else ""),
        )
    if value.utcoffset() is None:
        raise InvalidArgument(
            f"{name} has no time zone: {value}", "give it one: datetime.now(UTC), .astimezone()"
        )
    return value


def text(name: str, value: str) -> str:
    """Text that Postgres can store, as a str: one that is an Enum as well shows its name in some places."""
    if type(value) is not str:
        value = str.__str__(value)
    if "\0" in value:
        raise InvalidArgument(
            f"{name} has a NUL character at {value.index(chr(0))}, which Postgres cannot store"
        )
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                f"{name} has half a surrogate pair at {error.start}, which is not a character"
            ) from error
    return value


def label(name: str, value: Any) -> str | None:
    """A kind or a key: text, or what has one form as text (`Label`)."""
    if type(value) is str:
        return text(name, value)
    # Of an Enum the value counts, which may itself be a member of another.
    while isinstance(value, Enum):
        value = value.value
    if value is None:
        return None
    if isinstance(value, str):
        return text(name, value)
    if isinstance(value, int | UUID) and not isinstance(value, bool):
        return str(value)
    raise InvalidArgument(f"{name} is text, not {type(value).__name__}", f"give str({name})")


def content(name: str, value: bytes | bytearray | memoryview | None) -> bytes | None:
    """A body: bytes."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidArgument(f"{name} is bytes, not {type(value).__name__}", "text.encode() makes bytes of text")


_LABELS: Final = ("kind", "key", "unique_key")

YES_OR_NO: Final = frozenset(
    {"accept", "announce", "are_all", "at_once", "brief", "by_kind", "check", "cut", "default_subscription"}
    | {"due_first", "force", "forget"}
    | {"in_order", "keep_results", "moves", "notify", "payload", "tenancy", "tick_external", "warn"}
)
"""Arguments that are true or false: of a bool elsewhere Postgres would say that there is no such function."""


def plain(name: str, value: Any) -> Any:
    """Any other argument in the form it is sent in."""
    if name in _LABELS:
        return label(name, value)
    if isinstance(value, str):
        return text(name, value)
    kind = type(value)
    if kind is int or kind is float or (isinstance(value, (int, float)) and kind is not bool):
        return repr(value)
    if kind is bool and name not in YES_OR_NO:
        raise InvalidArgument(f"{name} is nothing that is true or false, and was given as {value}")
    return value


def decode_timestamp(microseconds: int) -> datetime:
    """Decode a binary timestamptz."""
    return _EPOCH + timedelta(0, 0, microseconds)  # by name it takes twice as long


def adapt_raw(context: AdaptContext) -> None:
    """Make a cursor leave jsonb and timestamps as they are sent, for `Message` to decode when asked."""
    context.adapters.register_loader("jsonb", ByteaBinaryLoader)
    context.adapters.register_loader("timestamptz", Int8BinaryLoader)
