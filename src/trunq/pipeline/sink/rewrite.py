"""A Delta table gets other partitions, types or names: its rows are written anew, in one entry of its log.

Until that entry is there, readers and writers see the table as it was; a process that dies before leaves
files that no entry names. It fails where any entry came first, and begins anew then: a row that came
meanwhile would else stay in a partition that is none, or be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from trunq.arrow.delta import dataset_of
from trunq.arrow.parquet import DataFile
from trunq.arrow.wide import in_columns
from trunq.pipeline.errors import Outrun, SinkUnwritable
from trunq.pipeline.sink.lake import LakeStage
from trunq.pipeline.sink.stored import StoredStage


def rewrite(
    stage: LakeStage | StoredStage,
    table: DeltaTable,
    partition_by: list[str],
    wider: Mapping[str, pa.DataType],
    renamed: Mapping[str, str],
) -> None:
    """Write the table anew, some columns under other names, and then in wider types.

    Raises CommitFailedError where another entry came first.
    """
    before = table.version()
    found = dataset_of(table).scanner(batch_readahead=1, fragment_readahead=1).to_reader()
    names = [renamed.get(name, name) for name in found.schema.names]
    fields = [
        each.with_name(name).with_type(wider.get(name, each.type))
        for each, name in zip(found.schema, names, strict=True)
    ]
    schema = pa.schema(fields)

    def cast() -> Iterator[pa.RecordBatch]:
        for batch in found:
            made = in_columns(pa.RecordBatch.from_arrays(batch.columns, names), schema)
            yield pa.RecordBatch.from_arrays(made.columns, schema=schema)

    rows = pa.RecordBatchReader.from_batches(schema, cast()) if wider or renamed else found
    write_deltalake(
        table,
        rows,
        mode="overwrite",
        schema_mode="overwrite",
        partition_by=partition_by,
        commit_properties=CommitProperties(max_commit_retries=0),
    )
    stage.sync_entries(before, before + 1)


def require_columns(path: str, table: DeltaTable, names: Iterable[str]) -> None:
    """Raise Outrun where a column is gone that the table had when an attempt began: another pipeline has
    renamed it. A file with the old name would have null under the new one.
    """
    there = {field.name for field in table.schema().fields}
    if gone := sorted(name for name in names if name not in there):
        raise Outrun(
            f'column "{gone[0]}" of {path} has got another name, or is gone, since this run began to write:'
            " nothing of it is there",
            "the run is tried again, with the columns that the table has now",
        )


def require_values(pipeline: str, path: str, there: pa.Schema, rows: pa.RecordBatch) -> None:
    """Raise SinkUnwritable for null in a column that another engine made not null: no reader would expect
    it.
    """
    for field in there:
        if not field.nullable and field.name in rows.schema.names and rows.column(field.name).null_count:
            raise SinkUnwritable(
                f'pipeline {pipeline}: column "{field.name}" of {path} is not null, and is null in a row',
                "keep such rows out by a check or a function, or let the column be null: alter table"
                f" delta.`{path}` alter column {field.name} drop not null",
            )


def require_alike(path: str, table: DeltaTable, files: Iterable[DataFile]) -> None:
    """Raise Outrun for files of other partitions, or types, than those of the table: it was rewritten
    meanwhile.
    """
    columns = table.metadata().partition_columns
    there = {field.name: str(field.type) for field in pa.schema(table.schema().to_arrow())}
    for file in files:
        if sorted(file.partition) != sorted(columns):
            raise Outrun(
                f"{path} is partitioned by ({', '.join(columns)}) since rows were staged for it",
                "the run is tried again",
            )
        for name, kind in file.types.items():
            if there.get(name, kind) != kind:
                raise Outrun(
                    f'column "{name}" of {path} is {there[name]} since rows were staged for it',
                    "the run is tried again",
                )
