"""Compaction of a Delta table: small files become larger ones, and files that no reader needs are deleted.

Both leave the rows as they are. The merged files are in an entry of the log that fails where a run has taken
or replaced one of them since: the run is right, and the next compaction merges what is there then. A process
that dies at it leaves files that no entry names, which a later one deletes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from trunq.arrow.delta import open_table
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.sink import DeltaSink
from trunq.pipeline.errors import Outrun
from trunq.pipeline.sink.lake import lake_stage

_TARGET: Final = 128 << 20
"""Bytes of a merged file: of so many the rows are in memory, compressed."""
_COMMIT_EVERY: Final = timedelta(minutes=1)
_OURS: Final = re.compile(r"(run-\d{8}-\d+-|part-\d{5}-).+\.parquet")
"""Names that we, deltalake and Spark give files. Another table may lie below this one: those are its own."""
_RETENTION: Final = "delta.deletedFileRetentionDuration"


@dataclass(frozen=True, slots=True)
class Compacted:
    """How many small files were merged into how many, and how many were deleted."""

    files_merged: int = 0
    files_made: int = 0
    files_deleted: int = 0


def compact_table(pipeline: Pipeline, sink: DeltaSink) -> Compacted:
    """Merge small files, and delete what is older than `vacuum`.

    Raises Outrun where a run was first.
    """
    stage = lake_stage(pipeline.name, sink)
    with stage.explaining():
        if (table := open_table(stage.uri, stage.options)) is None:
            return Compacted()
        before = table.version()
        try:
            told = table.optimize.compact(
                target_size=_TARGET, max_concurrent_tasks=1, min_commit_interval=_COMMIT_EVERY
            )
        except CommitFailedError as error:
            raise Outrun(
                f"a run replaced files of {sink.path} while they were merged: the run is in the table, and"
                " its small files stay for now",
                "the compaction is tried again; what it wrote, vacuum deletes",
            ) from error
        stage.sync_entries(before, table.version())
        old = [] if sink.vacuum is False else _old_files(table, sink.vacuum)
        stage.delete(old)
    return Compacted(told["numFilesRemoved"], told["numFilesAdded"], len(old))


def _old_files(table: DeltaTable, retention: timedelta) -> list[str]:
    """Files of the table that no version within the retention has, and no run that began within it may name.

    Where the table itself says a retention, as other writers go by it, that counts.
    """
    hours = None if _RETENTION in table.metadata().configuration else int(retention.total_seconds() // 3600)
    table.update_incremental()
    found = table.vacuum(hours, dry_run=True, full=True, enforce_retention_duration=False)
    columns = table.metadata().partition_columns
    return [path for path in found if _is_ours(path, columns)]


def _is_ours(path: str, columns: list[str]) -> bool:
    *directories, name = path.split("/")
    is_in_place = [each.partition("=")[0] for each in directories] == columns if directories else True
    return is_in_place and _OURS.fullmatch(name) is not None
