"""What sinks that delete rows have in common: what they refuse."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.change import OP, key_of, require_unmasked
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.errors import TooManyMissing


def require_op(pipeline: Pipeline, schema: pa.Schema, slice: dict[str, Any]) -> None:
    """Refuse rows that do not say what became of them, or of which row. Raises InvalidPipeline."""
    require_unmasked(pipeline, key_of(pipeline, slice))
    if OP not in schema.names:
        raise InvalidPipeline(
            f'pipeline {pipeline.name}: the rows have no column "{OP}", which says whether a row is deleted',
            f"sql, transform and function pass it on: select *, or select {OP}, ...",
        )


def require_key(pipeline: Pipeline, key: list[str], schema: pa.Schema) -> None:
    """Refuse rows without the columns that name them. Raises InvalidPipeline."""
    if lacking := [name for name in key if name not in schema.names]:
        raise InvalidPipeline(
            f'pipeline {pipeline.name}: there is no column "{lacking[0]}" in the rows, and they are found by'
            f" it; there are {', '.join(schema.names)}",
            "columns, sql, transform and function pass the key on",
        )


def require_few_missing(pipeline: Pipeline, at_most: float, gone: int, there: int) -> None:
    """Raise TooManyMissing where a run would delete more of a sink than it may."""
    if gone > at_most * there:
        raise TooManyMissing(
            f"the source of pipeline {pipeline.name} lacks {gone} of the {there} rows of its sink, and"
            f" max_missing is {at_most}: nothing was written",
            "if they are to go, write max_missing = 1 in sink",
        )
