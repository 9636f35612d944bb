"""Shares of a source, and lookups, as DataFrames. The driver names the shares; tasks read them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions

from trunq.arrow.catalog import identifier
from trunq.arrow.delta import open_table
from trunq.connection._sync.opening import open_connection
from trunq.connection.address import complete
from trunq.errors import InvalidPipeline, TrunqError
from trunq.pipeline import source as sources
from trunq.pipeline.control import Control, Run
from trunq.pipeline.definition.check import DeltaLookup, FileLookup, Lookup, TableLookup
from trunq.pipeline.definition.part import is_expanded
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.source import FileSource, TableSource
from trunq.pipeline.definition.storage import is_remote
from trunq.pipeline.sink.stored import explaining
from trunq.pipeline.storage import split
from trunq.pipeline.storage.option import of_deltalake
from trunq.pipeline.work.hop import map_batches
from trunq.pipeline.work.schema import spark_schema
from trunq.pipeline.work.share import Read, Reading, unsliced

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SMALL: Final = 8 << 20
"""Bytes of a lookup that each task is given whole."""

Seen = Callable[[int, Read], None]


def frame_of(session: SparkSession, reading: Reading, seen: Seen | None = None) -> DataFrame:
    """A frame whose tasks read a share each; `seen` is called in the task that has read one to its end."""
    made, plain = spark_schema(reading.pipeline.name, reading.schema)
    ready = replace(reading, schema=plain)

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from ready.read(number, seen)

    count = len(reading.shares)
    return map_batches(session.range(0, count, 1, max(1, count)), read, made)


def lookups(
    session: SparkSession, pipeline: Pipeline, run: Run, control: Control, dsn: str
) -> dict[str, DataFrame]:
    """The lookups of a pipeline as frames, by name."""
    found = {}
    for name, lookup in pipeline.lookups.items():
        try:
            found[name] = _lookup(session, pipeline, run, control, dsn, name, lookup)
        except TrunqError as error:
            before = f"pipeline {pipeline.name}: "
            said = error.message.removeprefix(before)
            raise InvalidPipeline(f"{before}lookup {name}: {said}", error.hint) from None
    return found


def _lookup(
    session: SparkSession, pipeline: Pipeline, run: Run, control: Control, dsn: str, name: str, lookup: Lookup
) -> DataFrame:
    if isinstance(lookup, DeltaLookup):
        from trunq.spark import read_delta  # noqa: PLC0415

        if is_remote(lookup.path):
            return _delta_at_storage(session, pipeline, lookup)
        return read_delta(session, os.path.abspath(lookup.path))
    model = _source(lookup)
    of_lookup = pipeline.model_copy(update={"source": model, "columns": None})
    source = sources.make(of_lookup, dsn, control)
    if isinstance(model, FileSource):
        slice = source.plan_range({"path": model.path})
        size = sum(each[1] for each in slice["files"])
    else:
        slice = source.plan({}).slice or {}
        size = _bytes(complete(model.dsn or dsn, f"trunq pipeline {pipeline.name}"), model.table)
    schema = source.schema(slice)
    assert schema is not None
    shares = source.shares(slice, session.sparkContext.defaultParallelism)
    frame = frame_of(session, Reading(of_lookup, dsn, unsliced(run), shares, schema, name))
    # Of a frame that tasks read, Spark knows no size, and would sort both sides of each join.
    return functions.broadcast(frame) if size <= _SMALL else frame


def _source(lookup: FileLookup | TableLookup) -> FileSource | TableSource:
    if isinstance(lookup, TableLookup):
        return TableSource.model_construct(table=lookup.table, changes="all", dsn=lookup.dsn)
    given = lookup.model_dump()
    token = is_expanded.set(True)
    try:
        return FileSource.model_validate({**given, "settled": 0})
    finally:
        is_expanded.reset(token)


def _delta_at_storage(session: SparkSession, pipeline: Pipeline, lookup: DeltaLookup) -> DataFrame:
    """Read here: Spark has no files of storages without further jars."""
    options = {} if lookup.storage is None else lookup.storage.given
    uri, given = of_deltalake(lookup.path, options)
    with explaining(pipeline.name, split(lookup.path)[0]):
        if (table := open_table(uri, given)) is None:
            raise InvalidPipeline(f"there is no Delta table at {lookup.path}")
        rows = table.to_pyarrow_table()
    frame = session.createDataFrame(rows)
    return functions.broadcast(frame) if rows.nbytes <= _SMALL else frame


def _bytes(dsn: str, table: str) -> int:
    """With what lies beside it, as long texts do; of a view nobody knows."""
    with open_connection(dsn) as connection:
        row = connection.execute(
            "select case when relkind in ('r', 'm') then pg_catalog.pg_table_size(oid) else 1e18::bigint end"
            " from pg_class where oid = to_regclass(%s)",
            (identifier(table).as_string(None),),
        ).fetchone()
    return int(row[0]) if row else 0
