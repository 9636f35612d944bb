"""What a pipeline lets become of the columns of a lake, and of a sink that is not there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import pyarrow as pa

from trunq.arrow.wide import holding, in_columns
from trunq.errors import InvalidPipeline
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.sink import Sink


def require_there(pipeline: Pipeline, sink: Sink) -> None:
    """Refuse to make what the pipeline says is there. Raises InvalidPipeline."""
    if pipeline.evolve.tables == "add" or sink.columns() is not None:
        return
    name = getattr(pipeline.sink, "table", None) or getattr(pipeline.sink, "path", "")
    raise InvalidPipeline(
        f'pipeline {pipeline.name}: {name} is not there, and evolve says tables = "refuse"',
        'make it, or write tables = "add" and the next run does',
    )


def agreed(
    pipeline: Pipeline, path: str, there: pa.Schema, lake: pa.Schema, own: Collection[str] = ()
) -> pa.Schema:
    """The columns that a lake is to have for rows with these. Raises InvalidPipeline for what the pipeline
    does not let become of them. `own`: columns that the sink writes itself, which it gets whatever `evolve`
    says.
    """
    fields = []
    evolve = pipeline.evolve
    for field in lake:
        if field.name not in there.names:
            is_own = field.name in own
            if evolve.columns in ("refuse", "quarantine") and not is_own:
                raise InvalidPipeline(
                    f'pipeline {pipeline.name}: column "{field.name}" is new: {path} has none',
                    'evolve = "add" adds it',
                )
            if evolve.columns == "add" or is_own:
                fields.append(field)
            continue
        kind = there.field(field.name).type
        to = holding(kind, field.type)
        if to is None or (to != kind and evolve.of_type(field.name) != "widen"):
            raise InvalidPipeline(
                f'pipeline {pipeline.name}: column "{field.name}" of {path} is {kind} and comes as'
                f" {field.type}",
                'evolve = "quarantine" keeps out what does not fit; or cast the column'
                if to is None
                else f'evolve = "widen" makes it {to}; or cast the column',
            )
        fields.append(pa.field(field.name, to))
    return pa.schema(fields)


def in_agreed(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows with the columns that a lake has for them."""
    return (in_columns(batch, schema) for batch in batches)
