"""The key by which a sink finds a row: null is no key, in any sink."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.pipeline import Pipeline


def with_keys(
    pipeline: Pipeline, key: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The rows, of which none has null in its key. Raises InvalidPipeline.

    No row of a sink would match it, so each run would insert it again.
    """
    for batch in batches:
        empty = [name for name in key if name in batch.schema.names and batch.column(name).null_count]
        if empty:
            raise InvalidPipeline(
                f'pipeline {pipeline.name}: "{empty[0]}" is null in a row, and rows are found by it',
                "keep such rows out by a check or a function, or take another key",
            )
        yield batch
