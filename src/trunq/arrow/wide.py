"""Types of a lake that hold the values of two, and columns in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

_MOST_DIGITS: Final = 38
_WHOLE: Final = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
"""The digits of whole numbers."""

_OTHER: Final = {
    (pa.float32(), pa.float64()): pa.float64(),
    (pa.int8(), pa.float32()): pa.float32(),
    (pa.int16(), pa.float32()): pa.float32(),
    (pa.int32(), pa.float32()): pa.float64(),
    (pa.int8(), pa.float64()): pa.float64(),
    (pa.int16(), pa.float64()): pa.float64(),
    (pa.int32(), pa.float64()): pa.float64(),
    (pa.date32(), pa.timestamp("us")): pa.timestamp("us"),
}


def holding(there: pa.DataType, given: pa.DataType) -> pa.DataType | None:
    """The type that holds all values of both; None: there is none."""
    if there == given:
        return there
    if there in _WHOLE and given in _WHOLE:
        return max(there, given, key=lambda kind: _WHOLE[kind])
    if (found := _OTHER.get((there, given)) or _OTHER.get((given, there))) is not None:
        return found
    if (had := _digits(there)) is None or (comes := _digits(given)) is None:
        return None
    scale = max(had[1], comes[1])
    digits = max(had[0] - had[1], comes[0] - comes[1]) + scale
    return pa.decimal128(digits, scale) if digits <= _MOST_DIGITS else None


def _digits(kind: pa.DataType) -> tuple[int, int] | None:
    if pa.types.is_decimal(kind):
        return kind.precision, kind.scale
    return (_WHOLE[kind], 0) if kind in _WHOLE else None


def with_names(schema: pa.Schema, renamed: Mapping[str, str]) -> pa.Schema:
    """A schema of which some columns have other names."""
    return pa.schema([each.with_name(renamed.get(each.name, each.name)) for each in schema], schema.metadata)


def in_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of rows that a schema has, in its types, which hold them."""
    names = [name for name in batch.schema.names if name in schema.names]
    columns = [_cast(batch.column(name), schema.field(name).type) for name in names]
    return pa.RecordBatch.from_arrays(columns, names)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    # A list may call its items otherwise.
    if column.type == kind or pa.types.is_nested(kind):
        return column
    if pa.types.is_integer(column.type) and pa.types.is_decimal(kind):
        # Arrow takes for these as many digits as their type may have alone.
        column = column.cast(pa.decimal128(20, 0))
    return column.cast(kind)
