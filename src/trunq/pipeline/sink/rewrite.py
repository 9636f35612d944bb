"""A Delta table gets other partitions or wider types: its rows are written anew, in one entry of its log.

Until that entry is there, readers and writers see the table as it was; a process that dies before leaves
files that no entry names. It fails where any entry came first, and begins anew then: a row that came
meanwhile would else stay in a partition that is none, or be lost.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from trunq.arrow.parquet import DataFile
from trunq.arrow.wide import in_columns
from trunq.pipeline.errors import Outrun
from trunq.pipeline.sink.lake import LakeStage
from trunq.pipeline.sink.stored import StoredStage


def rewrite(
    stage: LakeStage | StoredStage, table: DeltaTable, partition_by: list[str], wider: dict[str, pa.DataType]
) -> None:
    """Write the table anew, some columns in wider types.

    Raises CommitFailedError where another entry came first.
    """
    before = table.version()
    found = table.to_pyarrow_dataset().scanner(batch_readahead=1, fragment_readahead=1).to_reader()
    schema = pa.schema([each.with_type(wider.get(each.name, each.type)) for each in found.schema])
    cast = (pa.RecordBatch.from_arrays(in_columns(each, schema).columns, schema=schema) for each in found)
    rows = pa.RecordBatchReader.from_batches(schema, cast) if wider else found
    write_deltalake(
        table,
        rows,
        mode="overwrite",
        schema_mode="overwrite",
        partition_by=partition_by,
        commit_properties=CommitProperties(max_commit_retries=0),
    )
    stage.sync_entries(before, before + 1)


def require_alike(table: DeltaTable, files: Iterable[DataFile]) -> None:
    """Raise Outrun for files of other partitions, or types, than those of the table: it was rewritten
    meanwhile.
    """
    columns = table.metadata().partition_columns
    there = {field.name: str(field.type) for field in pa.schema(table.schema().to_arrow())}
    for file in files:
        if sorted(file.partition) != sorted(columns):
            raise Outrun(
                f"the table is partitioned by ({', '.join(columns)}) since its rows were staged",
                "the run is tried again",
            )
        for name, kind in file.types.items():
            if there.get(name, kind) != kind:
                raise Outrun(
                    f'column "{name}" of the table is {there[name]} since its rows were staged',
                    "the run is tried again",
                )
