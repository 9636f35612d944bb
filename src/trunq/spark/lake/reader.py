"""Reading a Delta table as a data source: one version of it, some files a task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import fs
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from trunq.errors import InvalidArgument
from trunq.spark.lake.delta import readable_table

TASK_BYTES = 64 << 20
"""Files are given to a task until it has as much to read."""
BATCH_ROWS = 20_000


@dataclass
class Files(InputPartition):
    """What one task reads; `table` has the columns in pyarrow's types, those of directories included."""

    fragments: list[Any]
    table: pa.Schema


class DeltaReader(DataSourceReader):
    """Reads the columns of a schema, which is the table's or was given with `.schema()`."""

    def __init__(self, path: str, schema: StructType) -> None:
        self._path = path
        self._schema = schema

    def partitions(self) -> Sequence[Files]:
        table = readable_table(self._path)
        directory = fs.SubTreeFileSystem(self._path, fs.LocalFileSystem())
        dataset = table.to_pyarrow_dataset(filesystem=directory)
        self._check(dataset.schema)
        sizes = directory.get_file_info([fragment.path for fragment in dataset.get_fragments()])
        groups: list[list[Any]] = []
        room = 0
        for fragment, info in zip(dataset.get_fragments(), sizes, strict=True):
            size = info.size or 0
            if room < size or not groups:
                groups.append([])
                room = TASK_BYTES
            groups[-1].append(fragment)
            room -= size
        return [Files(group, dataset.schema) for group in groups]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        # Spark passes None when there are no partitions.
        if not isinstance(partition, Files):
            return
        wanted = to_arrow_schema(self._schema, timezone="UTC")
        for fragment in partition.fragments:
            for batch in fragment.to_batches(
                schema=partition.table, columns=self._schema.names, batch_size=BATCH_ROWS
            ):
                yield batch.cast(wanted)

    def _check(self, table: pa.Schema) -> None:
        missing = [name for name in self._schema.names if name not in table.names]
        if missing:
            raise InvalidArgument(
                f'the table {self._path} has no column "{missing[0]}"',
                f"its columns: {', '.join(table.names)}",
            )
