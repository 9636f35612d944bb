"""Columns and checks as data without Spark: the same functions of batches, in the process of the run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from trunq.arrow.batch import like
from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.change import gives_changes
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.source import Context, Source
from trunq.pipeline.work.column import Refuse, Steps, resuming
from trunq.pipeline.work.rule import Sorter
from trunq.pipeline.work.ruling import Ruling, ruling
from trunq.pipeline.work.share import as_before, land
from trunq.pipeline.work.twin import Twins, twins


def given(
    pipeline: Pipeline,
    source: Source,
    slice: dict[str, Any],
    batches: Iterator[pa.RecordBatch],
    refuse: Refuse,
) -> Iterator[pa.RecordBatch]:
    """What a source gave, after the steps of `columns`. Where only reading tells its columns, the first rows
    have all that are named.
    """
    if pipeline.columns is None:
        return batches
    if (schema := source.schema(slice)) is None:
        if (first := next(batches, None)) is None:
            return batches
        schema, batches = first.schema, chain([first], batches)
    return Steps(pipeline, schema).apply(batches, refuse)


def given_again(
    pipeline: Pipeline, of_source: pa.Schema | None, batches: Iterator[pa.RecordBatch], refuse: Refuse
) -> Iterator[pa.RecordBatch]:
    """What the quarantine gave, in the types of its source, where these are known."""
    for batch in batches:
        known, rows = of_source or batch.schema, batch
        if pipeline.columns is not None:
            steps = resuming(pipeline, of_source, batch.schema)
            known = steps.schema
            rows = steps.step(as_before(rows, known, steps.cast), refuse)
        if of_source is not None:
            rows = like(as_before(rows, known), known)
        if rows.num_rows:
            yield rows


def fitted(of_source: pa.Schema | None, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What the quarantine gave, for a function that may have refused rows of its own making: the columns that
    the source has are of its types, where their values can be; others are as JSON has them.
    """
    known = [] if of_source is None else of_source.names
    for batch in batches:
        # JSON has an order of its own.
        names = sorted(
            batch.schema.names, key=lambda name: known.index(name) if name in known else len(known)
        )
        fitting = [_fitted(batch.select([name]), of_source) for name in names]
        fields = [field for each in fitting for field in each.schema]
        yield pa.RecordBatch.from_arrays([each.column(0) for each in fitting], schema=pa.schema(fields))


def _fitted(batch: pa.RecordBatch, of_source: pa.Schema | None) -> pa.RecordBatch:
    [name] = batch.schema.names
    if of_source is None or name not in of_source.names:
        return batch
    schema = pa.schema([of_source.field(name)])
    try:
        fitting = like(as_before(batch, schema), schema)
        # With what its field says beside its type, as of a number with digits.
        return pa.RecordBatch.from_arrays(fitting.columns, schema=schema)
    except (InvalidPipeline, pa.ArrowInvalid, ValueError):
        return batch


@dataclass(frozen=True, slots=True)
class Checking:
    """The rows of a run that break no rule."""

    sorter: Sorter
    good: Iterator[pa.RecordBatch]
    """It ends at the first row that fails the run."""


@contextmanager
def checking(
    pipeline: Pipeline,
    dsn: str,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    refuse: Refuse,
    check: Callable[[], None],
) -> Iterator[Checking]:
    """Check rows, which all have these columns. Raises InvalidPipeline for rules that say nothing of them.

    Where rows have to be unique, all are written into files before the first is yielded.
    """
    sorter = Sorter(pipeline.checks, refuse, gives_changes(pipeline.source))
    with ExitStack() as stack:
        ruler = stack.enter_context(ruling(pipeline, schema, dsn))
        if ruler is None:
            yield Checking(sorter, batches)
            return
        seen = None
        if any(each.unique for each in pipeline.checks):
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trunq_landing_")))
            seen = stack.enter_context(twins(directory))
            landed, slice = land(pipeline.name, _noted(pipeline, batches, ruler, seen), directory)
            batches = landed.read(slice, Context(pipeline.name, 0, check=check))
        yield Checking(sorter, _good(pipeline, batches, sorter, ruler, seen))


def _noted(
    pipeline: Pipeline, batches: Iterator[pa.RecordBatch], ruler: Ruling, seen: Twins
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number, check in enumerate(pipeline.checks):
            if check.unique:
                seen.add(number, ruler.keys(check, batch))
        yield batch


def _good(
    pipeline: Pipeline, batches: Iterator[pa.RecordBatch], sorter: Sorter, ruler: Ruling, seen: Twins | None
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        broken = ruler.wrong(batch)
        for number, check in enumerate(pipeline.checks):
            if check.unique and seen is not None:
                broken[check.name] = seen.wrong(number, ruler.keys(check, batch))
        rows = sorter.sort_by(batch, broken)
        if sorter.failed is not None:
            return
        if rows.num_rows:
            yield rows
