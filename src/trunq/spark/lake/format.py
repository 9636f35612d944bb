"""`format("trunq_delta")`: a Delta table without Delta's jar, to write by a stream or a batch, and to read.

    frame.writeStream.format("trunq_delta").option("checkpointLocation", ...).start("/data/flights")
    frame.write.format("trunq_delta").mode("append").save("/data/flights")
    session.read.format("trunq_delta").load("/data/flights")

| option | meaning |
| --- | --- |
| `path` | a directory that driver and executors share; `start`, `save` and `load` set it |
| `partitionBy` | comma-separated columns, a directory for each value; the same at every write |
| `checkpointLocation` | streams: where Spark keeps the query's position |
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from trunq.errors import InvalidArgument
from trunq.spark.lake.delta import DeltaSink, local_path, readable_table
from trunq.spark.lake.reader import DeltaReader
from trunq.spark.option import a_list, refuse_unknown
from trunq.spark.writer import BatchWriter, StreamWriter

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader

KNOWN = ("path", "partitionBy", "checkpointLocation")


class TrunqDelta(DataSource):
    """The data source Spark knows as `trunq_delta`."""

    @classmethod
    def name(cls) -> str:
        return "trunq_delta"

    def schema(self) -> StructType:
        table = readable_table(self._path())
        return StructType.fromJson(json.loads(table.schema().to_json()))

    def reader(self, schema: StructType) -> DeltaReader:
        return DeltaReader(self._path(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002
        raise InvalidArgument(
            "trunq_delta cannot be followed by a stream",
            'follow the queue itself, readStream.format("trunq"), under a subscription of its own',
        )

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(self._sink(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        if overwrite:
            raise InvalidArgument(
                'a stream appends to trunq_delta; output mode "complete" would replace the table each batch',
                'use outputMode("append"), or trunq.spark.write_table() for an aggregate',
            )
        return StreamWriter(self._sink(schema, overwrite))

    def _sink(self, schema: StructType, overwrite: bool) -> DeltaSink:
        sink = DeltaSink(self._path(), schema, a_list(self.options, "partitionBy"), overwrite)
        sink.check()
        return sink

    def _path(self) -> str:
        refuse_unknown(self.options, KNOWN, of="trunq_delta")
        return str(local_path(self.options.get("path", "")))
