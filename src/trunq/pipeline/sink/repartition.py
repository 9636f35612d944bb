"""A Delta table gets other partitions: all its rows are written anew, in one entry of its log.

Until that entry is there, readers and writers see the table as it was; a process that dies before leaves
files that no entry names. It fails where any entry came first, and begins anew then: a row that came
meanwhile would else stay in a partition that is none.
"""

from __future__ import annotations

from collections.abc import Iterable

from deltalake import CommitProperties, DeltaTable, write_deltalake

from trunq.arrow.parquet import DataFile
from trunq.pipeline.errors import Outrun
from trunq.pipeline.sink.lake import LakeStage
from trunq.pipeline.sink.stored import StoredStage


def repartition(stage: LakeStage | StoredStage, table: DeltaTable, partition_by: list[str]) -> None:
    """Write the table anew. Raises CommitFailedError where another entry came first."""
    before = table.version()
    rows = table.to_pyarrow_dataset().scanner(batch_readahead=1, fragment_readahead=1).to_reader()
    write_deltalake(
        table,
        rows,
        mode="overwrite",
        schema_mode="overwrite",
        partition_by=partition_by,
        commit_properties=CommitProperties(max_commit_retries=0),
    )
    stage.sync_entries(before, before + 1)


def require_partitions(table: DeltaTable, files: Iterable[DataFile]) -> None:
    """Raise Outrun for files of other partitions than those of the table: it was rewritten meanwhile."""
    columns = table.metadata().partition_columns
    if any(sorted(file.partition) != sorted(columns) for file in files):
        raise Outrun(
            f"the table is partitioned by ({', '.join(columns)}) since its rows were staged",
            "the run is tried again",
        )
