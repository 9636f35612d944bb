"""Lists as Postgres' arrays.

Arrays of numbers and intervals travel as text, whose type Postgres takes from the parameter. Arrays of text,
jsonb and bytea travel in Postgres' binary form, which is the quickest way into a table short of COPY.
psycopg's own dumper of lists looks at each element several times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from struct import Struct
from typing import Any, Final

import psycopg
from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper

from trunq.errors import InvalidArgument
from trunq.wire.json import headers_bytes, json_bytes
from trunq.wire.scalar import Interval, Label, content, interval, label, moment, text


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


_header: Final = Struct("!iiiii").pack
_length: Final = Struct("!i").pack
_jsonb_length: Final = Struct("!iB").pack
_NULL: Final = _length(-1)
_read_length: Final = Struct("!i").unpack_from
_HEADER_SIZE: Final = 20
"""Of an array with one dimension: one without elements has none, and is shorter."""


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
    return encoded_jsonb_array([json_bytes(name, value, place) for place, value in enumerate(values, first)])


def headers_array(name: str, values: Sequence[Any], first: int = 0) -> JsonbArray:
    """A jsonb[] of headers; `first` as for `jsonb_array`."""
    raws = [headers_bytes(name, value, place) for place, value in enumerate(values, first)]
    return encoded_jsonb_array(raws)


def encoded_jsonb_array(raws: Sequence[bytes | None]) -> JsonbArray:
    """A jsonb[] of what is encoded already."""
    parts: list[bytes] = []
    for raw in raws:
        # The first byte of a jsonb is the version of its format.
        parts += (_NULL,) if raw is None else (_jsonb_length(len(raw) + 1, 1), raw)
    return JsonbArray(_array(3802, len(raws), parts))


def text_array(name: str, values: Sequence[str | None] | None) -> TextArray | None:
    """A text[]"""
    if values is None:
        return None
    return TextArray(_array(25, len(values), _parts(_texts(name, values))))


def label_array(name: str, values: Sequence[Label | None], first: int = 0) -> TextArray:
    """A text[] of kinds or keys; `first` as for `jsonb_array`."""
    return TextArray(_array(25, len(values), _parts(labels(name, values, first))))


def kind_array(kinds: Iterable[Label] | None) -> TextArray | None:
    """The kinds that a queue takes, as a text[]; the members of an Enum class, say."""
    if kinds is None:
        return None
    if isinstance(kinds, str | bytes) or not isinstance(kinds, Iterable):
        raise InvalidArgument(
            f"kinds is a list of kinds, not {type(kinds).__name__}", "give kinds=['placed']"
        )
    return label_array("kinds", list(kinds))


def name_array(name: str, values: Iterable[str] | None) -> TextArray | None:
    """Names, of columns say, as a text[]; None, which the function refuses, gets there."""
    if values is None:
        return None
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidArgument(
            f"{name} is a list of names, not {type(values).__name__}", f"give {name}=['id']"
        )
    names: list[Any] = list(values)
    for position, each in enumerate(names):
        if each is not None and not isinstance(each, str):
            raise InvalidArgument(f"{name}[{position}] is a name, not {type(each).__name__}")
    return text_array(name, names)


def bytea_array(name: str, values: Sequence[bytes | None], first: int = 0) -> ByteaArray:
    """A bytea[]; `first` as for `jsonb_array`."""
    return ByteaArray(_array(17, len(values), _parts(contents(name, values, first))))


def labels(name: str, values: Sequence[Label | None], first: int) -> Iterator[bytes | None]:
    """Kinds or keys as they are stored; `first` as for `jsonb_array`."""
    for position, value in enumerate(values, first):
        said = label(f"{name}[{position}]", value)
        yield None if said is None else said.encode()


def contents(name: str, values: Sequence[bytes | None], first: int) -> Iterator[bytes | None]:
    """Bodies as they are stored; `first` as for `jsonb_array`."""
    for position, value in enumerate(values, first):
        yield content(f"{name}[{position}]", value)


def literal(array: Array) -> str:
    """The text form of an array, for drivers that send no other."""
    is_jsonb, is_bytea = isinstance(array, JsonbArray), isinstance(array, ByteaArray)
    elements, raw = [], array.raw
    place = _HEADER_SIZE
    while place < len(raw):
        (length,) = _read_length(raw, place)
        place += 4
        if length < 0:
            elements.append("NULL")
            continue
        element = raw[place : place + length]
        place += length
        said = f"\\x{element.hex()}" if is_bytea else element[is_jsonb:].decode()
        elements.append('"' + said.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return _literal(elements)


def _texts(name: str, values: Sequence[str | None]) -> Iterator[bytes | None]:
    for position, value in enumerate(values):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name}[{position}] is a str or None, not {type(value).__name__}")
        yield None if value is None else text(f"{name}[{position}]", value).encode()


def _parts(raws: Iterable[bytes | None]) -> list[bytes]:
    parts: list[bytes] = []
    for raw in raws:
        parts += (_NULL,) if raw is None else (_length(len(raw)), raw)
    return parts


def bigint_array(ids: Iterable[int] | None) -> str | None:
    """A bigint[], as text."""
    return None if ids is None else _literal(map(int.__repr__, ids))


def integer_array(values: Iterable[int | None] | None) -> str | None:
    """An array of whole numbers, some of which may be None, as text."""
    return None if values is None else _literal("NULL" if v is None else int.__repr__(v) for v in values)


def real_array(values: Iterable[float | None] | None) -> str | None:
    """A real[], as text, in millionths: a real holds hardly more, and `repr` takes three times as long."""
    if values is None:
        return None
    return _literal(["NULL" if value is None else f"{value:.6f}" for value in values])


def interval_array(name: str, values: Iterable[Interval | None] | None) -> str | None:
    """An interval[], as text."""
    if values is None:
        return None
    lengths = (interval(f"{name}[{position}]", value) for position, value in enumerate(values))
    return _literal("NULL" if v is None else f"{v // timedelta(microseconds=1)} us" for v in lengths)


def moment_array(name: str, values: Iterable[datetime | None] | None) -> str | None:
    """A timestamptz[], as text."""
    if values is None:
        return None
    times = (moment(f"{name}[{position}]", value) for position, value in enumerate(values))
    return _literal("NULL" if v is None else f'"{v.isoformat()}"' for v in times)


def _literal(elements: Iterable[str]) -> str:
    return "".join(["{", ",".join(elements), "}"])
