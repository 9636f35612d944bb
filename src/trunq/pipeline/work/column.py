"""What becomes of the columns of a source, batch by batch, in Spark's tasks as without Spark.

Rows whose value cannot be cast are kept out; in the quarantine they are as these steps leave them, but for
the value itself, so nothing lies there that was to be left out or masked. When they are sent again, and rows
that broke a check later, they have been through these steps: they are cast alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from trunq.arrow.batch import like, plain_rows_of
from trunq.arrow.nested import decoded, nested_type, of_json
from trunq.arrow.value import endless_texts, is_endless
from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.change import OP, gives_changes
from trunq.pipeline.definition.column import DECIMAL, Columns, Kind, require_one_each
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.work.text import hashed, texts

Refuse = Callable[[list[Any], list[list[str]]], None]

_TYPES: Final = {
    "bool": pa.bool_(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date32": pa.date32(),
    "timestamp[us]": pa.timestamp("us"),
    "timestamp[us, UTC]": pa.timestamp("us", "UTC"),
}


_WHOLE: Final = pa.decimal128(20, 0)
"""The digits of any integer."""


class Steps:
    """The steps of a pipeline over rows of a source. `has_passed`: the rows have been through them."""

    def __init__(self, pipeline: Pipeline, schema: pa.Schema, *, has_passed: bool = False) -> None:
        assert pipeline.columns is not None
        self._name, self._columns = pipeline.name, pipeline.columns
        self._has_passed = has_passed
        self._of_changes = gives_changes(pipeline.source)
        # A table is asked only for the columns that are taken, and knows whether they are there.
        self._is_chosen = has_passed or pipeline.source.format == "table"
        self._require_known(schema)
        taken = [field for field in schema if self._is_chosen or self._columns.takes(field.name)]
        self._taken = pa.schema(taken, schema.metadata)
        self._kinds = self._castable()
        self.schema = self._result(pa.RecordBatch.from_pylist([], self._taken))[0].schema
        """The columns after these steps."""

    def apply(self, batches: Iterable[pa.RecordBatch], refuse: Refuse) -> Iterator[pa.RecordBatch]:
        """What becomes of batches."""
        for batch in batches:
            if (made := self.step(batch, refuse)).num_rows:
                yield made

    @property
    def cast(self) -> set[str]:
        """The columns that are cast, as they are called when these steps begin."""
        return set(self._kinds)

    def step(self, batch: pa.RecordBatch, refuse: Refuse) -> pa.RecordBatch:
        """What becomes of a batch."""
        names = batch.schema.names
        if not self._is_chosen and not all(map(self._columns.takes, names)):
            batch = batch.select([name for name in names if self._columns.takes(name)])
        made, wrong = self._result(batch if self._has_passed else like(batch, self._taken_of(batch)))
        if not wrong:
            return made
        bad = sorted({at for places in wrong.values() for at in places} - self._deleted(batch))
        if not bad:
            return made
        rows = plain_rows_of(made.take(pa.array(bad)))
        reasons: list[list[str]] = [[] for _ in bad]
        place = {at: number for number, at in enumerate(bad)}
        for (name, new), places in wrong.items():
            for at in place.keys() & places:
                if new not in self._columns.mask:
                    given = pa.RecordBatch.from_arrays([batch.column(name).slice(at, 1)], [new])
                    rows[place[at]] |= plain_rows_of(given)[0]
                kind = self._columns.cast[self._old(name)]
                said = kind if isinstance(kind, str) else arrow_type(kind)
                reasons[place[at]].append(f"{new} cannot be cast to {said}")
        refuse(rows, reasons)
        keep = pa.array([at not in place for at in range(made.num_rows)], pa.bool_())
        return made.filter(keep)

    def _deleted(self, batch: pa.RecordBatch) -> set[int]:
        """Which rows say that they are deleted: what cannot be cast of these is null, or the sink would keep
        them.
        """
        if not self._of_changes or OP not in batch.schema.names:
            return set()
        return set(pc.indices_nonzero(pc.equal(batch.column(OP), "delete")).to_pylist())

    def _taken_of(self, batch: pa.RecordBatch) -> pa.Schema:
        """What is taken; a column that is cast may be of another type in each batch."""
        made = self._taken
        for name in self._kinds:
            if name in batch.schema.names:
                at = made.get_field_index(name)
                made = made.set(at, batch.schema.field(name).with_metadata(made.field(at).metadata))
        return made

    def _result(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[tuple[str, str], list[int]]]:
        """The rows after all steps, and where a column, by both names, could not be cast."""
        columns, fields = [], []
        wrong: dict[tuple[str, str], list[int]] = {}
        for given, field in zip(batch.columns, batch.schema, strict=True):
            name = self._new(field.name)
            column, metadata = given, field.metadata
            if (kind := self._kinds.get(field.name)) is not None:
                if pa.types.is_nested(kind) and (made_of := nested_type(field)) is not None:
                    given = decoded(given, made_of)  # noqa: PLW2901
                column, places = self._cast(field.name, given, kind)
                # Of which type it was in Postgres says nothing any more.
                metadata = None
                if places:
                    wrong[field.name, name] = places
            how = None if self._has_passed else self._columns.mask.get(name)
            if how == "hash":
                column, metadata = hashed(column, self._columns.salt or ""), None
            elif how == "null":
                column = pa.nulls(batch.num_rows, column.type)
            columns.append(column)
            fields.append(pa.field(name, column.type, metadata=metadata))
        if not self._has_passed:
            for name, value in self._columns.constant.items():
                constant = pa.scalar(value)
                columns.append(pa.repeat(constant, batch.num_rows))
                fields.append(pa.field(name, constant.type))
        if not columns:
            raise InvalidPipeline(f"pipeline {self._name}: columns leaves no column", "exclude fewer of them")
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)), wrong

    def _require_known(self, schema: pa.Schema) -> None:
        """Refuse what names no column of the source, or gives two of them one name."""
        if self._has_passed:
            return
        names = schema.names
        if not self._is_chosen:
            require_known(self._name, self._columns, names)
        after = [self._new(name) for name in names if self._is_chosen or self._columns.takes(name)]
        try:
            require_one_each([*after, *self._columns.constant])
        except ValueError as error:
            raise InvalidPipeline(f"pipeline {self._name}: columns: {error}") from None
        if missing := [name for name in self._columns.mask if name not in after]:
            raise _unknown(self._name, "mask", missing[0], after)

    def _castable(self) -> dict[str, pa.DataType]:
        """To which type each column is cast, which all of them can be."""
        kinds = {}
        for old, text in self._columns.cast.items():
            name = self._columns.renamed(old) if self._has_passed else old
            if self._has_passed and (name in self._columns.mask or name not in self._taken.names):
                continue
            kind, given = arrow_type(text), self._taken.field(name).type
            self._cast(name, pa.array([], given), kind)
            kinds[name] = kind
        return kinds

    def _cast(self, name: str, column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
        try:
            return cast(column, kind)
        except pa.ArrowException:
            raise InvalidPipeline(
                f'pipeline {self._name}: columns.cast: column "{name}" is {column.type}, which cannot be'
                f" cast to {kind}",
                "leave it out of cast, or make another column of it by sql or a function",
            ) from None

    def _new(self, name: str) -> str:
        return name if self._has_passed else self._columns.renamed(name)

    def _old(self, name: str) -> str:
        """By what name cast knows a column."""
        if not self._has_passed:
            return name
        return next((old for old, new in self._columns.rename.items() if new == name), name)


def names_after(pipeline: Pipeline, of_source: pa.Schema | None) -> list[str]:
    """The columns of a source after these steps; of one that is not known, none."""
    if of_source is None:
        return []
    return list((of_source if pipeline.columns is None else Steps(pipeline, of_source).schema).names)


def resuming(pipeline: Pipeline, of_source: pa.Schema | None, of_rows: pa.Schema) -> Steps:
    """The steps of rows that have been through them; of_source None: their columns are not known."""
    known = of_rows if of_source is None else Steps(pipeline, of_source).schema
    return Steps(pipeline, known, has_passed=True)


def require_known(pipeline: str, columns: Columns, names: Iterable[str]) -> None:
    """Refuse columns that name what a source does not have. Raises InvalidPipeline."""
    there = list(names)
    if (found := columns.unknown(there)) is not None:
        raise _unknown(pipeline, *found, there)
    try:
        require_one_each(name for name in there if columns.takes(name) and name not in columns.rename)
    except ValueError as error:
        raise InvalidPipeline(f"pipeline {pipeline}: columns: {error}") from None


def _unknown(pipeline: str, step: str, name: str, names: Iterable[str]) -> InvalidPipeline:
    shown = ", ".join(list(names)[:20])
    return InvalidPipeline(
        f'pipeline {pipeline}: columns.{step} names "{name:.60}", and rows have no such column',
        f"there are {shown}" if shown else None,
    )


def arrow_type(text: Kind) -> pa.DataType:
    """A type as a definition has it."""
    if isinstance(text, list):
        return pa.list_(arrow_type(text[0]))
    if isinstance(text, dict):
        return pa.struct([(name, arrow_type(each)) for name, each in text.items()])
    if (digits := DECIMAL.fullmatch(text)) is not None:
        return pa.decimal128(int(digits[1]), int(digits[2]))
    return _TYPES[text]


def cast(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    """A column in another type, null where a value cannot be cast, and where that is.

    Raises ArrowException where no value could be.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not len(column):
        return _cast(column, kind), []
    try:
        return _cast(column, kind), []
    except pa.ArrowInvalid:
        if len(column) == 1:
            return pa.nulls(1, kind), [0]
    half = len(column) // 2
    first, wrong = cast(column.slice(0, half), kind)
    second, others = cast(column.slice(half), kind)
    return pa.concat_arrays([first, second]), [*wrong, *(half + at for at in others)]


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_nested(column.type):
        # As JSON, of which a text is a text, and a list or an object that of another type.
        column = texts(column)
    if pa.types.is_nested(kind):
        if not pa.types.is_string(column.type) and not pa.types.is_null(column.type):
            raise pa.ArrowNotImplementedError("what is no text has no lists and objects")
        return of_json(column, kind, _cast)
    if pa.types.is_integer(column.type) and pa.types.is_decimal(kind):
        # Arrow takes for these alone as many digits as their type may have.
        return column.cast(_WHOLE).cast(kind)
    if is_endless(column) is not None and column.type.id != kind.id:
        if not pa.types.is_string(kind):
            raise pa.ArrowInvalid("a time without end")
        return endless_texts(column, column.cast(kind))
    if not pa.types.is_string(column.type) or not pa.types.is_timestamp(kind):
        made = column.cast(kind)
        if kind == pa.float32():
            _require_no_larger(column, made)
        return made
    # With a zone where the type has none, or without where it has one: both are UTC.
    has_zone = pc.match_substring_regex(column, r"(Z|[+-]\d\d(:?\d\d)?)$")
    day = pc.match_substring_regex(column, r"^\d{4}-\d\d-\d\d$")
    has_zone = pc.and_(has_zone, pc.invert(day))
    zoned = pc.if_else(has_zone, column, None).cast(pa.timestamp("us", "UTC"))
    plainly = pc.if_else(has_zone, None, column).cast(pa.timestamp("us"))
    return pc.coalesce(zoned.cast(kind), plainly.cast(kind))


def _require_no_larger(column: pa.Array, made: pa.Array) -> None:
    """Refuse what became infinite for want of room. Raises ArrowInvalid."""
    if not pc.any(endless := pc.is_inf(made), min_count=0).as_py():
        return
    given = column.filter(pc.fill_null(endless, False))
    if pa.types.is_string(given.type):
        was = pc.match_substring_regex(given, r"(?i)^\s*[+-]?inf(inity)?\s*$")
    else:
        was = pc.is_inf(given.cast(pa.float64()))
    if not pc.all(was).as_py():
        raise pa.ArrowInvalid("a number that is too large")
