"""The key by which a sink finds a row: null is no key, in any sink."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.change import OP, gives_changes
from trunq.pipeline.definition.pipeline import Pipeline


def with_keys(
    pipeline: Pipeline, key: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The rows, of which none has null in its key. Raises InvalidPipeline.

    No row of a sink would match it, so each run would insert it again. A row that says it is deleted goes:
    the sink has none of a key that cannot be cast, or does not fit.
    """
    for given in batches:
        batch = _without_deleted(pipeline, key, given)
        empty = [name for name in key if name in batch.schema.names and batch.column(name).null_count]
        if empty:
            raise InvalidPipeline(
                f'pipeline {pipeline.name}: "{empty[0]}" is null in a row, and rows are found by it',
                "keep such rows out by a check or a function, or take another key",
            )
        yield batch


def _without_deleted(pipeline: Pipeline, key: Sequence[str], batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows without those that are deleted and have null in their key."""
    names = batch.schema.names
    if not gives_changes(pipeline.source) or OP not in names:
        return batch
    for name in key:
        if name in names and batch.column(name).null_count:
            is_deleted = pc.fill_null(pc.equal(batch.column(OP), "delete"), False)
            batch = batch.filter(pc.invert(pc.and_(is_deleted, batch.column(name).is_null())))
    return batch
