"""Checks as data: which rows of a batch break one, in Spark's tasks as without Spark.

Columns are compared in the types that Spark has of them, in either case. `unique` is about all rows of a run:
twin.py finds those that break it, and where there is Spark, Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from trunq.arrow.batch import NO_DIGITS
from trunq.arrow.value import TYPE, is_endless
from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.change import GONE, OP, gives_changes
from trunq.pipeline.definition.check import Check
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.work.reference import References
from trunq.pipeline.work.schema import for_frame
from trunq.pipeline.work.text import keys, texts

_TEXTS: Final = ("uuid", "character", '"char"', "name", "time without", "inet", "cidr", "macaddr")
"""Types of Postgres that come as texts, and are compared as these."""

_WIDEST: Final = 76


class Ruling:
    """The checks as data of a pipeline over rows with these columns.

    Raises InvalidPipeline for one that says nothing about them.
    """

    def __init__(self, pipeline: Pipeline, schema: pa.Schema, references: References) -> None:
        self._pipeline = pipeline
        self._schema = schema
        self._references = references
        self._checks = [check for check in pipeline.checks if check.of]
        self._values: dict[str, Any] = {}
        for check in self._checks:
            self._ready(check)

    def wrong(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Which rows break which check, without `unique`."""
        return {check.name: self._wrong(check, batch) for check in self._checks if not check.unique}

    def keys(self, check: Check, batch: pa.RecordBatch) -> list[bytes | None]:
        """By which rows are the same to a check that they are unique; None: one that breaks it never, as one
        that is gone, whose place another row may have.
        """
        found = keys(
            [self._texts(name, batch) for name in check.of], [self._schema.field(name) for name in check.of]
        )
        if not gives_changes(self._pipeline.source) or OP not in batch.schema.names:
            return found
        ops = batch.column(OP).to_pylist()
        return [None if op in GONE else key for key, op in zip(found, ops, strict=True)]

    def _wrong(self, check: Check, batch: pa.RecordBatch) -> pa.Array:
        name = check.of[0]
        if check.not_null:
            return pc.is_null(batch.column(name))
        column = self._normal(name, batch)
        if pa.types.is_null(column.type):
            return pa.repeat(pa.scalar(False), batch.num_rows)
        if check.refers_to is not None:
            return self._references.missing(check, self._texts(name, batch))
        if check.one_of is not None:
            holds = pc.is_in(column, self._values[check.name])
        elif check.between is not None:
            least, most = self._values[check.name]
            if pa.types.is_decimal(column.type):
                column = column.cast(least.type)
            holds = pc.and_(pc.greater_equal(column, least), pc.less_equal(column, most))
        else:
            holds = pc.match_substring_regex(column, check.matches)
        wrong = pc.and_(pc.is_valid(column), pc.invert(pc.fill_null(holds, True)))
        beyond = self._beyond(name, batch)
        return wrong if beyond is None or check.matches is not None else pc.or_(wrong, beyond)

    def _normal(self, name: str, batch: pa.RecordBatch) -> pa.Array:
        """A column in the type that Spark has of it, null where that lacks the value."""
        column, beyond = batch.column(name), self._beyond(name, batch)
        if beyond is not None:
            column = pc.if_else(beyond, None, column)
        fields = pa.schema([self._schema.field(name)])
        return for_frame(pa.RecordBatch.from_arrays([column], schema=fields)).column(0)

    def _texts(self, name: str, batch: pa.RecordBatch) -> pa.Array:
        """The texts of a column."""
        found, beyond = texts(self._normal(name, batch)), self._beyond(name, batch)
        return found if beyond is None else pc.if_else(beyond, texts(batch.column(name)), found)

    def _beyond(self, name: str, batch: pa.RecordBatch) -> pa.Array | None:
        """Where values are that Postgres has and Spark lacks: times without end, and NaN and infinity of
        exact numbers. They are outside of each range. None: nowhere.
        """
        column = batch.column(name)
        came_as = (self._schema.field(name).metadata or {}).get(TYPE, b"")
        if came_as.startswith(b"numeric(") and pa.types.is_string(column.type):
            found = pc.is_in(column, pa.array(NO_DIGITS))
            return found if pc.any(found, min_count=0).as_py() else None
        found = is_endless(column)
        return None if found is None else pc.fill_null(found, False)

    def _ready(self, check: Check) -> None:
        """Refuse a check that does not go with its column, and have its values in the column's type."""
        for name in check.of:
            if name not in self._schema.names:
                known = ", ".join(self._schema.names[:20])
                raise self._refused(check, f'there is no column "{name:.60}"', f"there are {known}")
        if check.not_null:
            return
        for name in check.of:
            kind = self._normal(name, pa.RecordBatch.from_pylist([], self._schema)).type
            if pa.types.is_nested(kind):
                hint = "not_null alone is for what is nested; take a part of it by sql or a function"
                raise self._refused(check, f'column "{name}" is {kind}', hint)
        if not check.unique and not pa.types.is_null(kind):
            self._ready_one(check, self._schema.field(check.of[0]), kind)

    def _ready_one(self, check: Check, field: pa.Field, kind: pa.DataType) -> None:
        if check.refers_to is not None:
            self._references.require(check, field, kind)
        elif check.matches is not None:
            if not pa.types.is_string(kind):
                what = f'matches is for text, and column "{field.name}" is {kind}'
                raise self._refused(check, what, _cast(field.name, "string"))
        else:
            came_as = (field.metadata or {}).get(TYPE, b"").decode()
            if pa.types.is_string(kind) and came_as and not came_as.startswith(_TEXTS):
                what = (
                    f'column "{field.name}" is {came_as}, which is here as text and would be compared as that'
                )
                better = "decimal(38,6)" if came_as.startswith("numeric") else "string"
                raise self._refused(check, what, _cast(field.name, better))
            self._values[check.name] = self._readied(check, field.name, kind)

    def _readied(self, check: Check, name: str, kind: pa.DataType) -> Any:
        if check.one_of is not None:
            return pa.array([self._value(check, name, value, kind).as_py() for value in check.one_of], kind)
        if pa.types.is_boolean(kind):
            raise self._refused(check, f'column "{name}" is {kind}, which has no order', "one_of = [true]")
        found = [self._value(check, name, value, kind) for value in check.between or ()]
        if pa.types.is_decimal(kind):
            scale = max(kind.scale, *(value.type.scale for value in found))
            return [value.cast(pa.decimal256(_WIDEST, scale)) for value in found]
        return found

    def _value(self, check: Check, name: str, value: Any, kind: pa.DataType) -> Any:
        """A value of a definition as one of a column; of a range, exact numbers may be larger."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        try:
            if pa.types.is_boolean(kind) and isinstance(value, bool):
                return pa.scalar(value)
            if pa.types.is_integer(kind) and is_number and isinstance(value, int):
                return pa.scalar(value, kind if check.one_of else pa.int64())
            if pa.types.is_floating(kind) and is_number:
                return pa.scalar(float(value), kind)
            if pa.types.is_decimal(kind) and is_number:
                exact = Decimal(str(value))
                return pa.scalar(exact, kind) if check.one_of else pa.scalar(exact)
            if isinstance(value, str):
                if pa.types.is_string(kind):
                    return pa.scalar(value)
                if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
                    from trunq.pipeline.work.column import cast  # noqa: PLC0415

                    made, wrong = cast(pa.array([value]), kind)
                    if not wrong:
                        return made[0]
        except (pa.ArrowException, OverflowError):
            pass
        raise self._refused(
            check,
            f'{value!r:.60} is no value of column "{name}", which is {kind}',
            f"write values of that type, or {_cast(name, '...')}",
        )

    def _refused(self, check: Check, what: str, hint: str) -> InvalidPipeline:
        return InvalidPipeline(f"pipeline {self._pipeline.name}: check {check.name!r}: {what}", hint)


@contextmanager
def ruling(pipeline: Pipeline, schema: pa.Schema, dsn: str) -> Iterator[Ruling | None]:
    """That of a pipeline, with connections that are closed at the end; None: it has no checks as data."""
    if not any(check.of for check in pipeline.checks):
        yield None
        return
    references = References(pipeline, dsn)
    try:
        yield Ruling(pipeline, schema, references)
    finally:
        references.close()


def _cast(name: str, kind: str) -> str:
    return f"cast it first: columns = {{ cast = {{ {name} = '{kind}' }} }}"
