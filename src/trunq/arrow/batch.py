"""Arrow in pipelines: types of Postgres and of lakes, and batches of whatever a function gave."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from trunq.arrow.nested import decoded, nested_type, plain_type
from trunq.arrow.value import TYPE, WIDER, endless_texts, is_endless, plain
from trunq.errors import InvalidPipeline


def for_lake(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows in types that every reader of a lake has: exact numbers of Postgres are decimals, arrays lists,
    and composites structs.
    """
    columns, fields = [], []
    for column, field in zip(batch.columns, batch.schema, strict=True):
        kind = _lake_type(field)
        if (made_of := nested_type(field)) is not None:
            columns.append(_decoded(field.name, column, made_of))
            fields.append(pa.field(field.name, kind))
            continue
        if is_endless(column) is not None:
            raise InvalidPipeline(
                f'column "{field.name}" has a time without end (infinity), which a lake has no value for',
                "put null in its place by sql or function, or keep such rows out by a check",
            )
        columns.append(column if column.type == kind else _cast(field.name, column, kind))
        fields.append(pa.field(field.name, kind))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _lake_type(field: pa.Field) -> pa.DataType:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if (made_of := nested_type(field)) is not None:
        return plain_type(made_of)
    if pa.types.is_nested(kind):
        return _nested_lake_type(kind)
    if (found := _DIGITS.fullmatch((field.metadata or {}).get(TYPE, b"").decode())) is not None:
        digits, scale = int(found[1]), int(found[2])
        # numeric(3,5) holds 0.00999 at most; decimals of a lake have as many digits at least.
        return pa.decimal128(max(digits, scale), scale) if scale <= _MOST_DIGITS else pa.string()
    if pa.types.is_null(kind) or pa.types.is_time(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    return WIDER.get(kind, kind)


def _nested_lake_type(kind: pa.DataType) -> pa.DataType:
    """Lists and structs of types that a lake has."""
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _lake_type(each.with_metadata(None))) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_lake_type(kind.key_field), _lake_type(kind.item_field))
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        return pa.list_(_lake_type(kind.value_field))
    return kind


def _decoded(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Arrays or composites of Postgres. Raises InvalidPipeline for one that is made of something else."""
    try:
        return decoded(column, kind)
    except pa.ArrowInvalid as error:
        raise InvalidPipeline(
            f'column "{name}" has a value that {plain_type(kind)} of a lake cannot hold: {error}',
            f'cast = {{ {name} = "string" }} in columns takes it as text',
        ) from error


def _cast(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        unfit = pc.is_in(column, pa.array(NO_DIGITS)) if pa.types.is_string(column.type) else None
        if unfit is None or not pc.any(unfit).as_py():
            what = f"a value that {kind} cannot hold: {error}"
        else:
            what = f"{column.filter(unfit)[0]}, which {kind} of a lake has no value for"
        raise InvalidPipeline(
            f'column "{name}" has {what}',
            "put null in its place by sql or function, or keep such rows out by a check",
        ) from error


NO_DIGITS: Final = ("NaN", "Infinity", "-Infinity")
"""What numeric holds besides numbers."""

_MOST_DIGITS: Final = 38
_DIGITS: Final = re.compile(r"numeric\((3[0-8]|[12]?\d),(\d+)\)")


def plain_rows(rows: Iterable[Any]) -> list[Any]:
    """Rows as values that JSON has."""
    return [plain(row) for row in rows]


def plain_rows_of(batch: pa.RecordBatch) -> list[Any]:
    """The rows of a batch as values that JSON has; times and dates that Python lacks are texts."""
    columns, texts = [], {}
    for column, name in zip(batch.columns, batch.schema.names, strict=True):
        if (found := _beyond(column)) is not None:
            texts[name] = endless_texts(column, column.cast(pa.string())).filter(found).to_pylist()
            texts[name] = list(zip(pc.indices_nonzero(found).to_pylist(), texts[name], strict=True))
            column = pc.if_else(found, None, column)  # noqa: PLW2901
        columns.append(column)
    given = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    rows = plain_rows(given.to_pylist(maps_as_pydicts="lossy"))
    for name, places in texts.items():
        for at, text in places:
            rows[at][name] = text
    return rows


def _beyond(column: pa.Array) -> pa.Array | None:
    """Which times and dates of a column Python has no value for; None: it has all."""
    if column.type == pa.date32():
        whole, per_day = column.cast(pa.int32()), 1
    elif pa.types.is_timestamp(column.type) and column.type.unit == "us":
        whole, per_day = column.cast(pa.int64()), 86_400_000_000
    else:
        return None
    first, end = (at * per_day for at in _DAYS)
    found = pc.or_(pc.less(whole, first), pc.greater_equal(whole, end))
    return pc.fill_null(found, False) if pc.any(found, min_count=0).as_py() else None


_DAYS: Final = (-719_162, 2_932_897)
"""Those of Python, from 1970: year 1, and behind year 9999."""


def array_of(values: Sequence[Any], *, is_mixed: bool = False) -> pa.Array:
    """Values as Arrow has them. If they may be mixed, those of several types are texts, as JSON has them.

    Raises ArrowInvalid, ArrowTypeError.
    """
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        if not is_mixed:
            raise
        return pa.array([None if value is None else _text(value) for value in values], pa.string())


def _text(value: Any) -> str:
    made = plain(value)
    return made if isinstance(made, str) else json.dumps(made, ensure_ascii=False)


def _table_of(rows: list[dict[str, Any]], what: str, *, is_mixed: bool) -> pa.Table:
    try:
        if not is_mixed:
            return pa.Table.from_pylist(rows)
        return pa.table({name: array_of([row.get(name) for row in rows], is_mixed=True) for name in rows[0]})
    except UnicodeEncodeError as error:
        raise InvalidPipeline(
            f"{what} gave a text with half of a character: {error.object[:60]!a}",
            "text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace') puts another in its place",
        ) from None


def batches_of(
    rows: Any, what: str, size: int = 20_000, *, is_mixed: bool = False
) -> Iterator[pa.RecordBatch]:
    """Arrow batches of whatever a user's function gave: a table, a batch, a reader, or an iterable of these
    and of dicts, whose values may be mixed; `what` names the function.

    Raises InvalidPipeline for anything else.
    """
    if isinstance(rows, pa.Table):
        yield from rows.to_batches(max_chunksize=size)
        return
    if isinstance(rows, pa.RecordBatch):
        yield rows
        return
    if isinstance(rows, dict | str | bytes) or not isinstance(rows, Iterable):
        raise InvalidPipeline(f"{what} gave {type(rows).__name__}, not an Arrow table or rows")
    waiting: list[dict[str, Any]] = []
    for each in rows:
        if isinstance(each, dict):
            waiting.append(each)
            if len(waiting) == size:
                yield from _table_of(waiting, what, is_mixed=is_mixed).to_batches()
                waiting = []
            continue
        if not isinstance(each, pa.Table | pa.RecordBatch):
            raise InvalidPipeline(
                f"{what} gave a {type(each).__name__} among its rows, not a dict or an Arrow table"
            )
        if waiting:
            yield from _table_of(waiting, what, is_mixed=is_mixed).to_batches()
            waiting = []
        yield from batches_of(each, what, size, is_mixed=is_mixed)
    if waiting:
        yield from _table_of(waiting, what, is_mixed=is_mixed).to_batches()


def like(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with the columns and types of an earlier one: what it lacks is null.

    Raises InvalidPipeline for a column that the earlier one had not, or that is of another type.
    """
    if batch.schema.equals(schema, check_metadata=False):
        return batch
    if extra := [name for name in batch.schema.names if name not in schema.names]:
        raise InvalidPipeline(f'column "{extra[0]}" comes in the middle of a run: rows before it had none')
    columns = []
    for field in schema:
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(field.name)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidPipeline(
                f'column "{field.name}" is {field.type} in the first rows of a run and {column.type} later'
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def unify(schemas: Sequence[pa.Schema], *, is_mixed: bool) -> pa.Schema:
    """The columns of all of them, each in a type that holds all; if they may be mixed, text where there is
    none.

    Raises ArrowInvalid, ArrowTypeError.
    """
    try:
        return pa.unify_schemas(schemas, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        if not is_mixed:
            raise
    names = dict.fromkeys(name for schema in schemas for name in schema.names)
    return pa.schema([_unified(name, [each.field(name) for each in schemas if name in each.names])
                      for name in names])  # fmt: skip


def _unified(name: str, fields: list[pa.Field]) -> pa.Field:
    try:
        return pa.unify_schemas([pa.schema([each]) for each in fields], promote_options="permissive").field(0)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.field(name, pa.string())


def unified(pipeline: str, schemas: Sequence[pa.Schema], *, is_mixed: bool = False) -> pa.Schema | None:
    """The columns of all of them, each in a type that holds all; None: there is none.

    Raises InvalidPipeline for a column that is of types that have none in common.
    """
    if not schemas:
        return None
    distinct: list[pa.Schema] = []
    for schema in schemas:
        if not distinct or not schema.equals(distinct[-1]):
            distinct.append(schema)
    try:
        return unify(distinct, is_mixed=is_mixed)
    except (pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise InvalidPipeline(
            f"pipeline {pipeline}: rows do not go together: {error}", "give the column one type in the source"
        ) from error
