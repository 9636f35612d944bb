"""Delta tables written from Spark without Delta's jar, by a stream exactly once for every reader.

Executors write Parquet files that no reader sees yet, and send the names of the files to the driver. The
driver adds them to the table's log in one commit, which also records "query Q has applied batch N". When
Spark replays a batch after a crash, the driver finds that record, adds nothing and removes the files of the
replay. Files of killed tasks belong to no commit: no reader of the table sees them, and `vacuum` removes
them. A batch write has no such record: each run of it adds its rows, or replaces those there are.

Two drivers may run the same query for a moment (a restart before the old driver is dead). Delta accepts
only one of two concurrent commits with the same application id; the other driver then reads the log again.

By the Delta protocol, an empty string as partition value is null.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from deltalake import DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from trunq.arrow.delta import (
    added,
    again,
    check_partitioning,
    create_table,
    explaining_disk,
    open_table,
    remove_files,
    say,
    types_of,
    write_entry,
)
from trunq.arrow.parquet import DataFile, write_files
from trunq.errors import InvalidArgument
from trunq.spark.errors import LakeError, LakeMismatch, LakeUnwritable
from trunq.spark.writer import TaskResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEPT = {
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}
"""How long a table we create keeps entries of its log that a checkpoint covers, and the names of files that
were replaced. Delta's defaults are 30 and 7 days; a commit every five seconds makes 17,000 entries a day.
"""
READABLE_FEATURES = {"timestampNtz", "variantType"}


class Series(NamedTuple):
    """A batch of a query; None: of a write that nobody repeats."""

    query: str | None
    batch: int


@dataclass
class WrittenFiles(TaskResult):
    """The files of one task, which no reader sees until the driver commits them."""

    files: list[DataFile]


@dataclass
class DeltaSink:
    """Where tasks write files, and the driver adds them to the table; each process has a copy of it."""

    path: str
    schema: StructType
    partition_by: Sequence[str]
    overwrite: bool = False

    def check(self) -> None:
        """Refuses columns that do not fit the table, before a task writes anything."""
        with _explaining_disk(self.path):
            table = open_table(self.path)
            check_partitioning(self.columns, self.partition_by)
            if table is not None:
                check_schema(table, self.columns, self.partition_by)

    def series(self, app: str | None = None, version: int = 0) -> Series:
        """That of a streaming query."""
        return Series(app, version)

    def write(self, batches: Iterable[pa.RecordBatch], series: Series, partition: int) -> WrittenFiles:
        """Writes the files of one task."""
        # A random name: attempt numbers start again in each driver and would reuse the file of a killed task.
        stem = f"part-{series.batch:08d}-{partition:05d}-{uuid.uuid4()}"
        with _explaining_disk(self.path):
            files = write_files(Path(self.path), stem, self.columns, batches, self.partition_by)
        return WrittenFiles(series, files)

    def commit(self, written: Sequence[WrittenFiles], series: Series) -> bool:
        """Adds the files to the table, or puts them in the place of those there; makes it if necessary.

        Removes them, and returns False, if the table already has that batch of that query.
        """
        files = [file for each in written for file in each.files]

        def once() -> bool:
            table = open_table(self.path) or create_table(self.path, self.columns, self.partition_by, KEPT)
            check_schema(table, self.columns, self.partition_by)
            marks = []
            if series.query is not None:
                applied = table.transaction_version(series.query)
                if applied is not None and applied >= series.batch:
                    return False
                marks = [Transaction(series.query, series.batch)]
            write_entry(table, added(files), marks, "overwrite" if self.overwrite else "append")
            return True

        with _explaining_disk(self.path):
            if is_taken := again(once):
                return is_taken
        remove_files(self.path, files)
        return False

    def abort(self, written: Sequence[WrittenFiles]) -> None:
        """Removes the files of tasks whose job failed."""
        remove_files(self.path, [file for each in written for file in each.files])

    @property
    def columns(self) -> pa.Schema:
        """The columns as Arrow has them."""
        return to_arrow_schema(self.schema, timezone="UTC")


def check_schema(table: DeltaTable, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raises `LakeMismatch`, which names the columns, unless rows of this schema fit the table."""
    have = types_of(table.schema())
    give = types_of(Schema.from_arrow(schema))
    problems = [f'the table has no column "{name}"' for name in give if name not in have]
    problems += [f'column "{name}" is missing' for name in have if name not in give]
    problems += [
        f'column "{name}" is {say(have[name])} in the table and {say(give[name])} here'
        for name in give
        if name in have and have[name] != give[name]
    ]
    there = list(table.metadata().partition_columns)
    if there != list(partition_by):
        problems.append(f"it is partitioned by ({', '.join(there)}), not by ({', '.join(partition_by)})")
    if problems:
        raise LakeMismatch(
            f"the rows do not fit the Delta table {table.table_uri}: {'; '.join(problems)}",
            "write to another path, or select the columns as the table has them",
        )


def compact(path: str) -> int:
    """Joins the small files that batches leave into large ones; returns how many files it replaced.

    You may run it while a query writes. It also writes a checkpoint, and removes the entries of the log that
    are older than the table's log retention. The files that were replaced stay for readers of an earlier
    version; `vacuum` removes them.
    """
    with _explaining_disk(path):
        table = DeltaTable(path)
        replaced = int(table.optimize.compact()["numFilesRemoved"])
        table.create_checkpoint()
        table.cleanup_metadata()
        return replaced


def vacuum(path: str, older_than_hours: int = 24) -> list[str]:
    """Removes files in the table's directory that no retained version refers to; returns their names.

    Killed tasks leave such files, and so does compaction. The files of a running batch belong to no commit
    yet: keep `older_than_hours` well above the duration of a batch.
    """
    with _explaining_disk(path):
        return list(
            DeltaTable(path).vacuum(
                older_than_hours, dry_run=False, enforce_retention_duration=False, full=True
            )
        )


def read_delta(spark: SparkSession, path: str) -> DataFrame:
    """The current version of a Delta table as a DataFrame, without Delta's jar.

    Spark's Parquet reader reads the files, and only those columns and partitions that the query needs:
    faster than `format("trunq_delta")`. A table that needs more, with deletion vectors or renamed columns,
    raises `LakeError`.
    """
    table = readable_table(path)
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    root = local_path(path)
    # In the log, paths are percent-encoded once more than the file names on disk.
    logged = pa.table(table.get_add_actions())["path"].to_pylist()
    files = [str(root / unquote(name)) for name in logged]
    if not files:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", str(root))
    return reader.parquet(*files).select(*(f"`{name}`" for name in schema.names))


def readable_table(path: str) -> DeltaTable:
    """The table at a path; raises `LakeError` if there is none, or its Parquet files do not say all."""
    table = open_table(str(local_path(path)))
    if table is None:
        raise LakeError(f"there is no Delta table at {path}")
    features = set(table.protocol().reader_features or [])
    if features - READABLE_FEATURES or table.protocol().min_reader_version == 2:
        used = ", ".join(sorted(features - READABLE_FEATURES)) or "column mapping"
        raise LakeError(
            f"the Delta table {path} uses {used}",
            "read it through the delta-spark package",
        )
    return table


def local_path(path: str) -> Path:
    """The directory of a path or a `file:` URL."""
    if not path:
        raise InvalidArgument("trunq_delta needs a path", 'say .start("/data/table") or .option("path", ...)')
    address = urlsplit(path)
    if address.scheme == "file":
        return Path(unquote(address.path))
    if "://" in path:
        raise InvalidArgument(
            f"trunq_delta writes to a directory that driver and executors share, not to {address.scheme}://",
            "give the path of a local or mounted directory",
        )
    return Path(path).absolute()


@contextmanager
def _explaining_disk(path: str) -> Iterator[None]:
    """Turns errors of the disk and of Delta into `LakeUnwritable` and `LakeError`."""

    def unwritable(reason: str) -> LakeUnwritable:
        return LakeUnwritable(
            f"cannot write the lake table {path}: {reason}",
            "nothing of this batch was added to it; free space or allow writing, and start the query again",
        )

    try:
        with explaining_disk(path, unwritable):
            yield
    except DeltaError as error:
        raise LakeError(f"the Delta table {path} refused: {error}") from error
