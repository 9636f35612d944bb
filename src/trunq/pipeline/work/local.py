"""Checks as data without Spark: the same rules over the same batches, in the process of the run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.source import Context
from trunq.pipeline.work.column import Refuse
from trunq.pipeline.work.rule import Sorter
from trunq.pipeline.work.ruling import Ruling, ruling
from trunq.pipeline.work.share import land
from trunq.pipeline.work.twin import Twins, twins


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
    sorter = Sorter(pipeline.checks, refuse)
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
