"""What Spark calls to write, for every format: tasks write rows, the driver commits what they wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from trunq.spark.errors import SparkError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class TaskResult(WriterCommitMessage):
    """What one task wrote, and for which write of a series."""

    series: Any


class Sink(Protocol):
    """Where rows go; each of Spark's processes has its own copy."""

    def series(self, app: str | None = None, version: int = 0) -> Any:
        """A numbered write of an application, unless options name another; None: of one that repeats none."""

    def write(self, batches: Iterable[pa.RecordBatch], series: Any, partition: int) -> TaskResult:
        """Write the rows of one task, where no reader sees them."""

    def commit(self, written: Sequence[Any], series: Any) -> bool:
        """Take what tasks wrote, and note the series; False if that version was taken before."""

    def abort(self, written: Sequence[Any]) -> None:
        """Remove what the tasks of a job that failed wrote."""


@dataclass
class BatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame."""

    sink: Sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        return self.sink.write(iterator, self.sink.series(), _task().partitionId())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.sink.commit(_written(messages), self.sink.series())

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.sink.abort(_written(messages))


@dataclass
class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    sink: Sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        # Spark tells the id of the query to tasks alone, so it comes to the commit in their messages.
        task = _task()
        query = str(task.getLocalProperty("sql.streaming.queryId"))
        version = int(str(task.getLocalProperty("streaming.sql.batchId")))
        return self.sink.write(iterator, self.sink.series(query, version), task.partitionId())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        if written := _written(messages):
            self.sink.commit(written, written[0].series)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        self.sink.abort(_written(messages))


def _written(messages: Iterable[Any]) -> list[TaskResult]:
    """Of a task that failed, Spark sends None."""
    return [each for each in messages if isinstance(each, TaskResult)]


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise SparkError("this format is written to by Spark only")
    return task
