"""Rows as their sink holds them: those with a value that it has no place for go to the quarantine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trunq.arrow.batch import for_lake, plain_rows_of
from trunq.arrow.wide import with_names
from trunq.pipeline.definition.change import OP, OWN, gives_changes
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.sink import Sink
from trunq.pipeline.work.column import Refuse
from trunq.pipeline.work.fit import fit, known_type


@dataclass(slots=True)
class Fitting:
    """What becomes of rows with these columns. there None: the sink is made of them."""

    pipeline: Pipeline
    given: pa.Schema
    there: pa.Schema | None
    """Its columns; the type null says that Postgres alone knows what fits."""
    schema: pa.Schema = field(init=False)
    """The columns of what fits."""
    _into: dict[str, pa.Field] = field(init=False)
    _new: list[str] = field(init=False)

    def __post_init__(self) -> None:
        evolve = self.pipeline.evolve
        if self.there is not None:
            renamed = evolve.renamed(self.there.names, self.given.names)
            self.there = with_names(self.there, renamed)
            self.given = pa.schema([self._known(each) for each in self.given], self.given.metadata)
        own = OWN if gives_changes(self.pipeline.source) else ()
        known = None if evolve.columns != "quarantine" or self.there is None else {*self.there.names, *own}
        self._new = [name for name in self.given.names if known is not None and name not in known]
        self._into = {}
        for each in self.given:
            is_sorted = evolve.of_type(each.name) == "quarantine" and each.name not in own
            target = self._target(each) if is_sorted and each.name not in self._new else None
            if target is not None:
                self._into[each.name] = target
        self.schema = pa.schema(
            [self._into.get(each.name, each) for each in self.given if each.name not in self._new],
            self.given.metadata,
        )

    @property
    def notes(self) -> list[str]:
        """What is to be kept out of these rows."""
        changed = [
            f"values of {name} that do not fit {said(into)} go to the quarantine"
            for name, into in self._into.items()
            if said(into) != said(self.given.field(name))
        ]
        return changed + [f"rows with a value in {name}, which is new, go there" for name in self._new]

    @property
    def is_lake(self) -> bool:
        """Whether its columns are those of a lake."""
        return self.pipeline.sink.format not in ("table", "jdbc")

    def each(self, batches: Iterator[pa.RecordBatch], refuse: Refuse) -> Iterator[pa.RecordBatch]:
        """What fits of batches."""
        for batch in batches:
            if (made := self.fit(batch, refuse)).num_rows:
                yield made

    def fit(self, batch: pa.RecordBatch, refuse: Refuse) -> pa.RecordBatch:
        """What fits of a batch with the given columns."""
        return _fitted(self.pipeline, batch, self._into, self._new, self.schema, refuse, is_lake=self.is_lake)

    def refit(self, batch: pa.RecordBatch, refuse: Refuse) -> pa.RecordBatch:
        """A batch that came with other columns than the given ones, where rows that have no place in these
        are kept out.
        """
        if batch.schema.equals(self.given, check_metadata=False):
            return batch
        names, evolve = self.given.names, self.pipeline.evolve
        into = {
            each.name: self.given.field(each.name)
            for each in batch.schema
            if each.name in names
            and each.type != self.given.field(each.name).type
            and not pa.types.is_null(self.given.field(each.name).type)
            and evolve.of_type(each.name) == "quarantine"
        }
        new = [name for name in batch.schema.names if evolve.columns == "quarantine" and name not in names]
        fields = [into.get(each.name, each) for each in batch.schema if each.name not in new]
        return _fitted(self.pipeline, batch, into, new, pa.schema(fields), refuse, is_lake=False)

    def _known(self, given: pa.Field) -> pa.Field:
        """A column whose first rows are null is one of the sink's type."""
        if self.there is None or given.name not in self.there.names or not pa.types.is_null(given.type):
            return given
        there = self.there.field(given.name)
        return given if self.pipeline.evolve.of_type(given.name) != "quarantine" else there

    def _target(self, given: pa.Field) -> pa.Field | None:
        """The column as it is to become; None: as it is."""
        if self.there is not None and given.name in self.there.names:
            there = self.there.field(given.name)
            if pa.types.is_null(there.type):
                return None
            return pa.field(given.name, there.type, metadata=there.metadata)
        if pa.types.is_null(given.type):
            return None
        if not self.is_lake:
            is_text = pa.types.is_string(given.type) and known_type(given) in ("", "text")
            return given if is_text else None
        return for_lake(pa.RecordBatch.from_pylist([], pa.schema([given]))).schema.field(0)


def fitting_of(pipeline: Pipeline, given: pa.Schema, sink: Sink) -> Fitting | None:
    """That of the rows of a run before their sink is made ready; None: any row may go on."""
    return Fitting(pipeline, given, sink.columns()) if pipeline.evolve.sorts else None


def framed(pipeline: Pipeline, batch: pa.RecordBatch, refuse: Refuse) -> pa.RecordBatch:
    """Rows in types that Spark has, without those that have a value which these do not hold."""
    lake = for_lake(batch.slice(0, 0)).schema
    into = {
        each.name: each
        for each in lake
        if pipeline.evolve.of_type(each.name) == "quarantine"
        and not pa.types.is_null(batch.schema.field(each.name).type)
    }
    schema = pa.schema([into.get(each.name, each) for each in batch.schema])
    return _fitted(pipeline, batch, into, [], schema, refuse, is_lake=True)


def _fitted(
    pipeline: Pipeline,
    batch: pa.RecordBatch,
    into: dict[str, pa.Field],
    new: list[str],
    schema: pa.Schema,
    refuse: Refuse,
    *,
    is_lake: bool,
) -> pa.RecordBatch:
    columns: list[pa.Array] = []
    reasons: dict[int, list[str]] = {}
    for each in schema:
        column = batch.column(each.name)
        if each.name in into:
            column, wrong = fit(column, batch.schema.field(each.name), each, is_lake=is_lake)
            for at in wrong:
                reasons.setdefault(at, []).append(f"{each.name} does not fit {said(each)}")
        columns.append(column)
    made = pa.RecordBatch.from_arrays(columns, schema=schema)
    for name in new:
        for at in pc.indices_nonzero(batch.column(name).is_valid()).to_pylist():
            reasons.setdefault(at, []).append(f"{name} is a new column")
    bad = sorted(reasons.keys() - _deleted(pipeline, batch))
    if not bad:
        return made
    refuse(plain_rows_of(batch.take(pa.array(bad))), [reasons[at] for at in bad])
    out = set(bad)
    return made.filter(pa.array([at not in out for at in range(batch.num_rows)], pa.bool_()))


def _deleted(pipeline: Pipeline, batch: pa.RecordBatch) -> set[int]:
    """Which rows say that they are deleted: what does not fit of these is null, or the sink would keep
    them.
    """
    if not gives_changes(pipeline.source) or OP not in batch.schema.names:
        return set()
    return set(pc.indices_nonzero(pc.equal(batch.column(OP), "delete")).to_pylist())


def said(there: pa.Field) -> Any:
    """What people call the type of a column of a sink."""
    return known_type(there) or there.type
