"""Arrow and Postgres: which type is which, and rows as JSON."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from trunq.errors import InvalidArgument

TYPE: Final = b"trunq.type"
"""In the metadata of a column read from Postgres as text: the type that it has there."""

NESTED: Final = b"trunq.nested"
"""In the metadata of an array or a composite read from Postgres as text: what it is made of (nested.py)."""

OF_ARROW: Final = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.uint8(): "smallint",
    pa.int16(): "smallint",
    pa.uint16(): "integer",
    pa.int32(): "integer",
    pa.uint32(): "bigint",
    pa.int64(): "bigint",
    pa.uint64(): "numeric",
    pa.float16(): "real",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.large_string(): "text",
    pa.string_view(): "text",
    pa.binary(): "bytea",
    pa.large_binary(): "bytea",
    pa.date32(): "date",
    pa.date64(): "date",
}

OF_POSTGRES: Final = {
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "boolean": pa.bool_(),
    "text": pa.string(),
    "character varying": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
    "timestamp without time zone": pa.timestamp("us"),
}
"""Types of Postgres that COPY reads and writes as these of Arrow; others travel as text."""

WIDER: Final = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.date64(): pa.date32(),
    pa.int8(): pa.int16(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.string(),
    pa.float16(): pa.float32(),
}
"""What ADBC does not write."""

_JSON: Final = {b"ARROW:extension:name": b"arrow.json", b"ARROW:extension:metadata": b""}
"""By this ADBC writes a text as jsonb; pyarrow itself knows the type since 19 only."""


def postgres_type(field: pa.Field) -> str | None:
    """The type that a column has in Postgres; None: nothing is known, since it has nothing but nulls."""
    kind = field.type
    if field.metadata and TYPE in field.metadata:
        return str(field.metadata[TYPE].decode())
    if kind in OF_ARROW:
        return str(OF_ARROW[kind])
    if pa.types.is_null(kind):
        return None
    if pa.types.is_timestamp(kind):
        return "timestamp with time zone" if kind.tz else "timestamp without time zone"
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_time(kind):
        return "time without time zone"
    if pa.types.is_dictionary(kind):
        return postgres_type(pa.field(field.name, kind.value_type))
    if pa.types.is_nested(kind):
        return "jsonb"
    raise InvalidArgument(f'column "{field.name}" is {kind}, for which Postgres has no type', "cast it first")


class OfJson(str):
    """A type of Postgres whose values are staged as JSON: a table has that, arrays or composites."""

    __slots__ = ()


def table_type(field: pa.Field) -> str | None:
    """The same in a table that a pipeline writes, where lists are arrays."""
    metadata = field.metadata or {}
    if NESTED in metadata and TYPE not in metadata:
        # A composite: what it is called says nothing in another database.
        return OfJson("jsonb")
    if not pa.types.is_nested(field.type):
        return postgres_type(field)
    if TYPE in metadata:
        return OfJson(metadata[TYPE].decode())
    return OfJson(_array_type(field.type) or "jsonb")


def _array_type(kind: pa.DataType) -> str | None:
    """The array that a list is; None: it is none. Lists in a list may differ in length, and arrays do not."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or pa.types.is_nested(kind.value_type):
        return None
    of = postgres_type(pa.field("", kind.value_type))
    return None if of is None else f"{of}[]"


def for_stage(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows in types that ADBC writes: what is not plain becomes text, which the commit casts."""
    columns, fields = [], []
    for column, field in zip(batch.columns, batch.schema, strict=True):
        made = staged(column)
        columns.append(made)
        fields.append(pa.field(field.name, made.type))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def staged_type(field: pa.Field) -> str:
    """The type of a column in the stage."""
    made = staged(pa.array([], field.type))
    return postgres_type(pa.field(field.name, made.type)) or "text"


def staged(column: pa.Array) -> pa.Array:
    """A column in a type that ADBC writes."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return staged(column.dictionary_decode())
    if pa.types.is_timestamp(kind):
        # Safe: a time with nanoseconds is refused, not cut.
        return column.cast(pa.timestamp("us", "UTC" if kind.tz else None))
    if pa.types.is_nested(kind):
        texts = [None if each is None else to_json(_in_hexadecimal(each)) for each in _values(column)]
        return pa.array(texts, pa.string())
    if (wider := WIDER.get(kind)) is not None:
        return column.cast(wider)
    return column if kind in OF_ARROW else column.cast(pa.string())


def _in_hexadecimal(value: Any) -> Any:
    """Bytes within a value as Postgres reads and writes them."""
    match value:
        case bytes():
            return f"\\x{value.hex()}"
        case dict():
            return {key: _in_hexadecimal(each) for key, each in value.items()}
        case list():
            return [_in_hexadecimal(each) for each in value]
        case _:
            return value


def json_field(name: str) -> pa.Field:
    """A column of JSON texts that COPY writes into jsonb."""
    return pa.field(name, pa.string(), metadata=_JSON)


def to_json(value: Any) -> str:
    """A value as JSON text: times in ISO 8601, bytes in base64, exact numbers as text; NaN and infinity as
    the texts that Postgres makes of them.
    """
    return json.dumps(plain(value), ensure_ascii=False)


def plain(value: Any) -> Any:
    """A value of what JSON has."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else _no_number(value)
        case decimal.Decimal():
            return str(value)
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case _:
            return str(value)


def _no_number(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def json_rows(batch: pa.RecordBatch) -> pa.StringArray:
    """Rows as texts of JSON objects; exact numbers, and JSON that came as text, are what they are."""
    if not batch.num_columns:
        return pa.array(["{}"] * batch.num_rows, pa.string())
    pieces: list[Any] = []
    for place, field in enumerate(batch.schema):
        pieces.append(f"{', ' if place else '{'}{json.dumps(field.name, ensure_ascii=False)}: ")
        pieces.append(_json_texts(batch.column(place), field).fill_null("null"))
    return pc.binary_join_element_wise(*pieces, "}", "")


def _json_texts(column: pa.Array, field: pa.Field) -> pa.Array:
    """A column as JSON, null where it is null; by columns, since by rows it takes ten times as long."""
    kind = column.type
    known = (field.metadata or {}).get(TYPE, b"").partition(b"(")[0]
    if pa.types.is_dictionary(kind):
        return _json_texts(column.dictionary_decode(), field)
    if known in (b"json", b"jsonb") or (NESTED in (field.metadata or {}) and not known):
        return column
    if pa.types.is_nested(kind):
        return _texts_of_plain(column)
    if known == b"numeric" or pa.types.is_decimal(kind):
        texts = column.cast(pa.string())
        return pc.if_else(pc.match_substring_regex(texts, _NUMBER), texts, _quoted(texts))
    return _texts_of_plain(column)


def _texts_of_plain(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return column.cast(pa.string())
    if kind in (pa.float32(), pa.float64()):
        texts = column.cast(pa.string())
        for found, text in ((pc.is_nan(column), "NaN"), (pc.equal(column, math.inf), "Infinity"),
                            (pc.equal(column, -math.inf), "-Infinity")):  # fmt: skip
            texts = pc.if_else(found, f'"{text}"', texts)
        return texts
    if kind == pa.date32():
        return _quoted(endless_texts(column, column.cast(pa.string())))
    if pa.types.is_timestamp(kind):
        zone = "UTC" if kind.tz else None
        times = column.cast(pa.timestamp("us", zone))
        texts = pc.strftime(times, "%Y-%m-%dT%H:%M:%S" + "+00:00" * bool(zone))
        return _quoted(endless_texts(times, pc.replace_substring_regex(texts, r"\.0+(\+|$)", r"\1")))
    if kind in (pa.string(), pa.large_string(), pa.string_view()):
        escaped = column.cast(pa.string())
        for which, instead in _ESCAPES:
            escaped = pc.replace_substring(escaped, which, instead)
        if not pc.any(pc.match_substring_regex(escaped, _CONTROL)).as_py():
            return _quoted(escaped)
    texts = [None if value is None else to_json(value) for value in _values(column)]
    return pa.array(texts, pa.string())


def is_endless(column: pa.Array) -> pa.Array | None:
    """Which times and dates of a column Postgres calls infinity or -infinity; None: it has neither."""
    ends = _ENDS.get(column.type.id)
    if ends is None:
        return None
    whole = column.cast(pa.int32() if column.type == pa.date32() else pa.int64())
    found = pc.is_in(whole, pa.array(ends, whole.type))
    return found if pc.any(found).as_py() else None


def endless_texts(column: pa.Array, texts: pa.Array) -> pa.Array:
    """Texts of times and dates, in which those without end are the words of Postgres."""
    if (found := is_endless(column)) is None:
        return texts
    last, _ = _ENDS[column.type.id]
    whole = column.cast(pa.int32() if column.type == pa.date32() else pa.int64())
    words = pc.if_else(pc.equal(whole, last), "infinity", "-infinity")
    return pc.if_else(found, words, texts)


def from_endless_texts(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Texts of times or dates as these, where one of them is without end; else, and where not all are such,
    as they were.
    """
    if kind != pa.date32() and not (pa.types.is_timestamp(kind) and kind.unit == "us"):
        return column
    last, first = _ENDS[kind.id]
    whole = pa.int32() if kind == pa.date32() else pa.int64()
    at_last, at_first = pc.equal(column, "infinity"), pc.equal(column, "-infinity")
    found = pc.or_(at_last, at_first)
    if not pc.any(found, min_count=0).as_py():
        return column
    try:
        others = pc.if_else(found, None, column).cast(kind).cast(whole)
    except pa.ArrowInvalid:
        return column
    ends = pc.if_else(at_first, pa.scalar(first, whole), others)
    return pc.if_else(at_last, pa.scalar(last, whole), ends).cast(kind)


# As they come by ADBC, which counts them from 1970: past the end of the numbers.
_ENDS: Final = {
    pa.timestamp("us").id: (-9222425352054775809, -9222425352054775808),
    pa.date32().id: (-2147472692, -2147472691),
}


def _values(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
    return values


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


_ESCAPES: Final = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_CONTROL: Final = "[\\x00-\\x1f]"
_NUMBER: Final = r"^-?\d+(\.\d+)?([eE][-+]?\d+)?$"
