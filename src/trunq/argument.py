"""How Python values become arguments of the functions: checked here, before the database is asked.

Numbers, arrays of numbers and intervals travel as text, whose type Postgres takes from the parameter: a
statement has the same types, and so one prepared plan, whatever the size of a number. Arrays of text, jsonb
and bytea travel in Postgres' binary form, which is the quickest way into a table short of COPY.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from struct import Struct
from typing import Any, Final

import psycopg
from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper
from psycopg.types.numeric import Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader

from trunq.errors import InvalidArgument, InvalidName, MessageTooLarge
from trunq.message import RawJson

Interval = timedelta | float
"""A length of time: a timedelta, or seconds."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")

_HOPELESS: Final = 64 * 1024 * 1024
"""JSON text of this size is over the limit of 16 MB in any form; the database knows the limit itself."""

_ELSEWHERE: Final = "keep large content elsewhere and publish where it is"

_encode: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def unreadable(error: psycopg.DataError) -> InvalidArgument:
    """What the database cannot read as the type it wants: RawJson that is no JSON, a number too large."""
    diagnosis = error.diag
    parts = [diagnosis.message_primary or str(error), diagnosis.message_detail, diagnosis.context]
    return InvalidArgument(". ".join(part.rstrip(".").partition("\n")[0] for part in parts if part))


def too_large(error: psycopg.errors.CheckViolation) -> MessageTooLarge | None:
    """What the log's own limit refuses; None when it is another rule that does."""
    if "_at_most_" not in (error.diag.constraint_name or ""):
        return None
    where = (error.diag.context or "").partition("\n")[0][:100]
    return MessageTooLarge(
        "a message is too large: at most 16777216 bytes each for payload, body and headers,"
        f" 1000 for kind and key ({where})",
        _ELSEWHERE,
    )


@lru_cache(maxsize=1024)
def check_name(what: str, name: str) -> None:
    """Refuse what cannot be the name of a queue or subscription."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a {what} is a str, not {type(name).__name__}")
    if not _NAME.fullmatch(name):
        raise InvalidName(
            f'"{name}" cannot be the name of a {what}', "1 to 48 of a-z, 0-9 and _, starting with a letter"
        )


def interval(name: str, value: Interval | None) -> timedelta | None:
    """A length of time given as a timedelta or in seconds."""
    if value is None or isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is a timedelta or a number of seconds, not {type(value).__name__}")
    try:
        return timedelta(seconds=value)
    except (ValueError, OverflowError) as error:
        raise InvalidArgument(f"{name} is no length of time: {value} seconds") from error


def moment(name: str, value: datetime | None) -> datetime | None:
    """A time that knows its zone: without one it would mean something else on the server."""
    if value is not None and value.tzinfo is None:
        raise InvalidArgument(
            f"{name} has no time zone: {value}", "give it one: datetime.now(UTC), .astimezone()"
        )
    return value


def plain(name: str, value: Any) -> Any:
    """Any other argument in the form it is sent in."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str) and "\0" in value:
        raise InvalidArgument(
            f"{name} has a NUL character at {value.index(chr(0))}, which Postgres cannot store"
        )
    return value


def json_text(name: str, value: Any) -> str | None:
    """JSON text of a value; None stays None. The error says where in the value the trouble is."""
    raw = json_bytes(name, value)
    return None if raw is None else raw.decode()


def json_bytes(name: str, value: Any, position: int | None = None) -> bytes | None:
    """As `json_text`, in UTF-8; the value is the one at `position` of a list, where there is one."""
    if value is None:
        return None
    if type(value) is RawJson:
        return value.text.encode() if isinstance(value.text, str) else value.text
    try:
        raw = _encode(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        where = _where(name, position)
        raise InvalidArgument(_json_trouble(where, value) or f"{where} is not JSON: {error}") from error
    if b"\\u0000" in raw and (trouble := _json_trouble(_where(name, position), value)):
        raise InvalidArgument(trouble)
    if len(raw) > _HOPELESS:
        raise MessageTooLarge(
            f"{_where(name, position)} is too large: {len(raw)} bytes of JSON, at most 16777216",
            _ELSEWHERE,
        )
    return raw


def _where(name: str, position: int | None) -> str:
    return name if position is None else f"{name}[{position}]"


def _json_trouble(where: str, value: Any, depth: int = 0) -> str | None:
    """Say which part of a value cannot be sent as jsonb, and why; None when each could."""
    if depth > 150:
        return f"{where[:60]}... is nested too deeply, or contains itself"
    if value is None or isinstance(value, bool | int):
        return None
    if isinstance(value, str):
        return _text_trouble(where, value)
    if isinstance(value, float):
        return None if value - value == 0 else f"{where} is {value}, which is not JSON"
    if isinstance(value, dict):
        return _first(_pair_trouble(where, key, part, depth) for key, part in value.items())
    if isinstance(value, list | tuple):
        return _first(_json_trouble(f"{where}[{i}]", part, depth + 1) for i, part in enumerate(value))
    hint = "; send bytes as body=" if isinstance(value, bytes | bytearray | memoryview) else ""
    return f"{where} is a {type(value).__name__}, which is not JSON{hint}"


def _text_trouble(where: str, text: str) -> str | None:
    if "\0" in text:
        return f"{where} has a NUL character, which jsonb cannot hold"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return f"{where} has half a surrogate pair, which is no character"
    return None


def _pair_trouble(where: str, key: Any, part: Any, depth: int) -> str | None:
    if not isinstance(key, str | int | float | bool | None):
        return f"{where} has a key that is a {type(key).__name__}; keys of JSON objects are strings"
    return _json_trouble(f"{where}[{key!r}]", key, depth + 1) or _json_trouble(
        f"{where}[{key!r}]", part, depth + 1
    )


def _first(troubles: Iterable[str | None]) -> str | None:
    return next((trouble for trouble in troubles if trouble), None)


class Array:
    """An array in Postgres' binary form."""

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


class TextArray(Array):
    """text[]"""

    __slots__ = ()


class JsonbArray(Array):
    """jsonb[]"""

    __slots__ = ()


class ByteaArray(Array):
    """bytea[]"""

    __slots__ = ()


class _ArrayDumper(Dumper):
    format = psycopg.pq.Format.BINARY

    def dump(self, obj: Array) -> bytes:
        return obj.raw


class _TextArrayDumper(_ArrayDumper):
    oid = 1009


class _JsonbArrayDumper(_ArrayDumper):
    oid = 3807


class _ByteaArrayDumper(_ArrayDumper):
    oid = 1001


def adapt_arrays(context: AdaptContext) -> None:
    """Make a cursor know the arrays above."""
    adapters = context.adapters
    adapters.register_dumper(TextArray, _TextArrayDumper)
    adapters.register_dumper(JsonbArray, _JsonbArrayDumper)
    adapters.register_dumper(ByteaArray, _ByteaArrayDumper)


def adapt_raw(context: AdaptContext) -> None:
    """Make a cursor leave jsonb and timestamps as they are sent, for `Message` to decode when asked."""
    context.adapters.register_loader("jsonb", ByteaBinaryLoader)
    context.adapters.register_loader("timestamptz", Int8BinaryLoader)


_header: Final = Struct("!iiiii").pack
_length: Final = Struct("!i").pack
_jsonb_length: Final = Struct("!iB").pack
_NULL: Final = _length(-1)


def _array(element_oid: int, count: int, parts: list[bytes]) -> bytes:
    if count == 0:
        return Struct("!iii").pack(0, 0, element_oid)
    return _header(1, 1, element_oid, count, 1) + b"".join(parts)


def jsonb_array(name: str, values: Sequence[Any] | None, first: int = 0) -> JsonbArray | None:
    """A jsonb[]: values to be encoded, RawJson, or None.

    `first` is the position of the first value in what the caller gave, for errors.
    """
    if values is None:
        return None
    if isinstance(values, str | bytes):
        raise TypeError(f"{name} is a list of values, not {type(values).__name__}")
    parts: list[bytes] = []
    for position, value in enumerate(values, first):
        raw = json_bytes(name, value, position)
        # The first byte of a jsonb is the version of its format.
        parts += (_NULL,) if raw is None else (_jsonb_length(len(raw) + 1, 1), raw)
    return JsonbArray(_array(3802, len(values), parts))


def text_array(name: str, values: Sequence[str | None] | None, first: int = 0) -> TextArray | None:
    """A text[]; `first` as for `jsonb_array`."""
    if values is None:
        return None
    return TextArray(_array(25, len(values), _parts(elements(name, values, str, str.encode, first))))


def bytea_array(name: str, values: Sequence[bytes | None] | None, first: int = 0) -> ByteaArray | None:
    """A bytea[]; `first` as for `jsonb_array`."""
    if values is None:
        return None
    return ByteaArray(_array(17, len(values), _parts(elements(name, values, bytes, bytes, first))))


def elements(
    name: str, values: Sequence[Any], kind: type, encode: Callable[[Any], bytes], first: int
) -> Iterator[bytes | None]:
    """The elements of a list as they are stored; `first` as for `jsonb_array`."""
    for position, value in enumerate(values, first):
        if value is None:
            yield None
        elif isinstance(value, kind):
            yield encode(plain(f"{name}[{position}]", value))
        else:
            raise TypeError(f"{name}[{position}] is a {kind.__name__} or None, not {type(value).__name__}")


def _parts(raws: Iterable[bytes | None]) -> list[bytes]:
    parts: list[bytes] = []
    for raw in raws:
        parts += (_NULL,) if raw is None else (_length(len(raw)), raw)
    return parts


def bigint_array(ids: Iterable[int] | None) -> str | None:
    """A bigint[], as text."""
    return None if ids is None else _literal(map(int.__repr__, ids))


def real_array(values: Iterable[float | None] | None) -> str | None:
    """A real[], as text."""
    return None if values is None else _literal("NULL" if v is None else repr(float(v)) for v in values)


def interval_array(name: str, values: Iterable[Interval | None] | None) -> str | None:
    """An interval[], as text."""
    if values is None:
        return None
    lengths = (interval(f"{name}[{position}]", value) for position, value in enumerate(values))
    return _literal("NULL" if v is None else f"{v // timedelta(microseconds=1)} us" for v in lengths)


def _literal(elements: Iterable[str]) -> str:
    return "".join(["{", ",".join(elements), "}"])
