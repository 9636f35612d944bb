"""The lake sink: a Delta table written from Spark without Delta's jar, exactly once for every reader.

    query = (df.writeStream.format("trunq_delta").option("partitionBy", "month")
               .option("checkpointLocation", ...).trigger(availableNow=True).start("/data/flights"))

Executors write Parquet files that no reader sees yet, and send the names of the files to the driver. The
driver adds them to the table's log in one commit, which also records "query Q has applied batch N". When
Spark replays a batch after a crash, the driver finds that record, adds nothing and removes the files of the
replay. Files of killed tasks belong to no commit: no reader of the table sees them, and `vacuum` removes
them.

Two drivers may run the same query for a moment (a restart before the old driver is dead). Delta accepts
only one of two concurrent commits with the same application id; the other driver then reads the log again.

The option `partitionBy` is a comma-separated list of columns, because Spark does not pass
`DataStreamWriter.partitionBy()` on to a Python sink. By the Delta protocol, an empty string as partition
value is null.
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
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from trunq.errors import InvalidArgument
from trunq.spark.errors import LakeError, LakeMismatch, LakeUnwritable
from trunq.spark.lake.parquet import DataFile, FileSet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMIT_TRIES = 20
LOG_KEPT = "interval 1 days"
"""How long a table we create keeps the entries of its log that a checkpoint covers. Delta's default is 30
days, in which a commit every five seconds makes half a million entries.
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


class TrunqDeltaSink(DataSource):
    """`format("trunq_delta")`. Options: the path (of a local or shared directory), `partitionBy`."""

    @classmethod
    def name(cls) -> str:
        return "trunq_delta"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DeltaWriter:  # noqa: N802
        if overwrite:
            raise InvalidArgument(
                'trunq_delta appends; output mode "complete" would replace the table with each batch',
                'use outputMode("append"), or trunq.spark.write_table() for an aggregate',
            )
        path = local_path(self.options.get("path", ""))
        names = self.options.get("partitionBy", "").split(",")
        partition_by = [name.strip() for name in names if name.strip()]
        writer = DeltaWriter(str(path), schema, partition_by)
        writer.check()
        return writer


@dataclass
class WrittenFiles(WriterCommitMessage):
    """The files of one task, which no reader sees until the driver commits them."""

    query_id: str
    files: list[DataFile]


@dataclass
class DeltaWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query; each process has its own copy."""

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

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:
        task = TaskContext.get()
        if task is None:
            raise LakeError("trunq_delta is written to by a streaming query only")
        query_id = str(task.getLocalProperty("sql.streaming.queryId"))
        batch_id = int(str(task.getLocalProperty("streaming.sql.batchId")))
        return self.write_files(iterator, query_id, batch_id, task.partitionId())

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

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        written = [message for message in messages if isinstance(message, WrittenFiles)]
        if not written:
            return
        files = [file for message in written for file in message.files]
        with _told(self.path):
            if not append(
                self.path, self._arrow_schema(), self.partition_by, files, written[0].query_id, batchId
            ):
                remove_files(self.path, files)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        for message in messages:
            if isinstance(message, WrittenFiles):
                remove_files(self.path, message.files)

    def _arrow_schema(self) -> pa.Schema:
        return to_arrow_schema(self.schema, timezone="UTC")


def append(
    path: str,
    schema: pa.Schema,
    partition_by: Sequence[str],
    files: Sequence[DataFile],
    query_id: str,
    batch_id: int,
) -> bool:
    """Adds files to the table as a batch of a query, and creates the table if necessary.

    Returns False if the table already has that batch.
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
    mark = CommitProperties(app_transactions=[Transaction(query_id, batch_id)])
    for attempt in range(COMMIT_TRIES):
        table = open_table(path) or create_table(path, schema, partition_by)
        check_schema(table, schema, partition_by)
        applied = table.transaction_version(query_id)
        if applied is not None and applied >= batch_id:
            return False
        try:
            table.create_write_transaction(
                actions, "append", table.schema(), partition_by=list(partition_by), commit_properties=mark
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
            configuration={"delta.logRetentionDuration": LOG_KEPT},
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

    Spark's Parquet reader reads the files. A table that needs more, with deletion vectors or renamed columns,
    raises `LakeError`.
    """
    table = open_table(path)
    if table is None:
        raise LakeError(f"there is no Delta table at {path}")
    features = set(table.protocol().reader_features or [])
    if features - READABLE_FEATURES or table.protocol().min_reader_version == 2:
        used = ", ".join(sorted(features - READABLE_FEATURES)) or "column mapping"
        raise LakeError(
            f"the Delta table {path} uses {used}",
            "read it through the delta-spark package",
        )
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    root = local_path(path)
    # In the log, paths are percent-encoded once more than the file names on disk.
    logged = pa.table(table.get_add_actions())["path"].to_pylist()
    files = [str(root / unquote(name)) for name in logged]
    if not files:
        return spark.createDataFrame([], schema)
    reader = spark.read.schema(schema).option("basePath", str(root))
    return reader.parquet(*files).select(*(f"`{name}`" for name in schema.names))


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
