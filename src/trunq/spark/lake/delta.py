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
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from trunq.arrow.parquet import DataFile, FileSet
from trunq.errors import InvalidArgument
from trunq.spark.errors import LakeError, LakeMismatch, LakeUnwritable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMIT_TRIES = 20
Mode = Literal["append", "overwrite"]

KEPT = {
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 1 days",
}
"""How long a table we create keeps entries of its log that a checkpoint covers, and the names of files that
were replaced. Delta's defaults are 30 and 7 days; a commit every five seconds makes 17,000 entries a day.
"""
READABLE_FEATURES = {"timestampNtz", "variantType"}
PARTITION_TYPES = (
    "string",
    "long",
    "integer",
    "short",
    "byte",
    "date",
    "timestamp",
    "timestamp_ntz",
    "boolean",
)


@dataclass
class WrittenFiles(WriterCommitMessage):
    """The files of one task, which no reader sees until the driver commits them."""

    query_id: str
    files: list[DataFile]


@dataclass
class TableWriter:
    """What writers of streams and batches share; each of Spark's processes has its own copy."""

    path: str
    schema: StructType
    partition_by: Sequence[str]

    def check(self) -> None:
        """Refuses columns that do not fit the table, before a task writes anything."""
        with _told(self.path):
            table = open_table(self.path)
            check_partitioning(self._arrow_schema(), self.partition_by)
            if table is not None:
                check_schema(table, self._arrow_schema(), self.partition_by)

    def write_files(
        self, batches: Iterable[pa.RecordBatch], query_id: str, batch_id: int, part: int
    ) -> WrittenFiles:
        """Writes the files of one task; `write` without Spark's task context."""
        # A random name: attempt numbers start again in each driver and would reuse the file of a killed task.
        stem = f"part-{batch_id:08d}-{part:05d}-{uuid.uuid4()}"
        files = FileSet(Path(self.path), stem, self._arrow_schema(), self.partition_by)
        with _told(self.path):
            try:
                for batch in batches:
                    files.write(batch)
                return WrittenFiles(query_id, files.close())
            except BaseException:
                files.discard()
                raise

    def commit_files(self, files: Sequence[DataFile], mode: Mode, batch: Transaction | None = None) -> bool:
        """Commits files to the table, which is created if it does not exist.

        Returns False if the table already has that batch.
        """
        with _told(self.path):
            return commit(self.path, self._arrow_schema(), self.partition_by, files, mode, batch)

    def remove(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Removes the files of tasks whose job failed."""
        remove_files(self.path, files_of(messages))

    def _arrow_schema(self) -> pa.Schema:
        return to_arrow_schema(self.schema, timezone="UTC")


class DeltaWriter(TableWriter, DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query, each of them once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        task = _task()
        query_id = str(task.getLocalProperty("sql.streaming.queryId"))
        batch_id = int(str(task.getLocalProperty("streaming.sql.batchId")))
        return self.write_files(iterator, query_id, batch_id, task.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        written = [message for message in messages if isinstance(message, WrittenFiles)]
        if not written:
            return
        files = list(files_of(written))
        if not self.commit_files(files, "append", Transaction(written[0].query_id, batchId)):
            remove_files(self.path, files)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        self.remove(messages)


@dataclass
class BatchDeltaWriter(TableWriter, DataSourceArrowWriter):
    """Adds a DataFrame to a table, or puts it in the place of the rows there are, in one commit."""

    overwrite: bool = False

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        return self.write_files(iterator, "", 0, _task().partitionId())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.commit_files(list(files_of(messages)), "overwrite" if self.overwrite else "append")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.remove(messages)


def commit(
    path: str,
    schema: pa.Schema,
    partition_by: Sequence[str],
    files: Sequence[DataFile],
    mode: Mode,
    batch: Transaction | None = None,
) -> bool:
    """Adds files to the table, or puts them in the place of those there; creates the table if necessary.

    Returns False if the table already has that batch of that query.
    """
    actions: list[AddAction | RemoveAction] = [
        AddAction(
            path=file.path,
            size=file.size,
            partition_values=file.partition,
            modification_time=file.modified_at,
            data_change=True,
            stats=file.statistics,
        )
        for file in files
    ]
    mark = CommitProperties(app_transactions=[batch] if batch else None)
    for attempt in range(COMMIT_TRIES):
        table = open_table(path) or create_table(path, schema, partition_by)
        check_schema(table, schema, partition_by)
        applied = table.transaction_version(batch.app_id) if batch else None
        if batch and applied is not None and applied >= batch.version:
            return False
        try:
            table.create_write_transaction(
                actions, mode, table.schema(), partition_by=list(partition_by), commit_properties=mark
            )
        except CommitFailedError:
            if attempt == COMMIT_TRIES - 1:
                raise
        else:
            return True
    raise AssertionError("unreachable")


def open_table(path: str) -> DeltaTable | None:
    """The table at a path; None if there is none yet."""
    try:
        return DeltaTable(path)
    except TableNotFoundError:
        return None


def create_table(path: str, schema: pa.Schema, partition_by: Sequence[str]) -> DeltaTable:
    """Creates an empty table; two processes that do so at once get the same table."""
    try:
        return DeltaTable.create(
            path,
            schema,
            mode="error",
            partition_by=list(partition_by),
            configuration=KEPT,
        )
    except DeltaError:
        # Only one process can write the first entry of the log; the others find it.
        table = open_table(path)
        if table is None:
            raise
        return table


def check_schema(table: DeltaTable, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raises `LakeMismatch`, which names the columns, unless rows of this schema fit the table."""
    have = _types(json.loads(table.schema().to_json()))
    give = _types(json.loads(Schema.from_arrow(schema).to_json()))
    problems = [f'the table has no column "{name}"' for name in give if name not in have]
    problems += [f'column "{name}" is missing' for name in have if name not in give]
    problems += [
        f'column "{name}" is {_say(have[name])} in the table and {_say(give[name])} here'
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


def check_partitioning(schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raises `InvalidArgument` unless the columns exist, have a fitting type, and are not all there are."""
    types = _types(json.loads(Schema.from_arrow(schema).to_json()))
    for name in partition_by:
        if name not in types:
            raise InvalidArgument(
                f'partitionBy names "{name}", which is not a column', f"columns: {', '.join(types)}"
            )
        if types[name] not in PARTITION_TYPES:
            raise InvalidArgument(
                f'column "{name}" is {_say(types[name])}: a table cannot be partitioned by it',
                f"partition by one of these types: {', '.join(PARTITION_TYPES)}",
            )
    if partition_by and len(set(partition_by)) >= len(types):
        raise InvalidArgument("partitionBy names every column: nothing would be left to write")


def files_of(messages: Iterable[WriterCommitMessage | None]) -> Iterator[DataFile]:
    """The files that tasks wrote; Spark sends None for a task that failed."""
    for message in messages:
        if isinstance(message, WrittenFiles):
            yield from message.files


def remove_files(path: str, files: Iterable[DataFile]) -> None:
    """Removes files that belong to no commit."""
    for file in files:
        (Path(path) / file.path).unlink(missing_ok=True)


def compact(path: str) -> int:
    """Joins the small files that batches leave into large ones; returns how many files it replaced.

    You may run it while a query writes. It also writes a checkpoint, and removes the entries of the log that
    are older than the table's log retention. The files that were replaced stay for readers of an earlier
    version; `vacuum` removes them.
    """
    with _told(path):
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
    with _told(path):
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


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise LakeError("trunq_delta is written to by Spark only")
    return task


@contextmanager
def _told(path: str) -> Iterator[None]:
    """Turns errors of the disk and of Delta into `LakeUnwritable` and `LakeError`."""
    try:
        yield
    except OSError as error:
        raise _unwritable(path, error) from error
    except DeltaError as error:
        # deltalake reports a full disk as an error of its own, so try the disk directly.
        try:
            _try_to_write(path)
        except OSError as reason:
            raise _unwritable(path, reason) from error
        raise LakeError(f"the Delta table {path} refused: {error}") from error


def _unwritable(path: str, error: OSError) -> LakeUnwritable:
    reason = os.strerror(error.errno) if error.errno else str(error)
    return LakeUnwritable(
        f"cannot write the lake table {path}: {reason}",
        "nothing of this batch was added to it; free space or allow writing, and start the query again",
    )


def _try_to_write(path: str) -> None:
    directory = Path(path) / "_delta_log"
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(bytes(1 << 16))
        file.flush()


def _types(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {field["name"]: field["type"] for field in schema["fields"]}


def _say(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)
