"""`format("trunq")`: a queue as a source, and a table of Postgres or a queue as a sink.

    frame.write.format("trunq").option("table", "report.days").mode("append").save()
    frame.writeStream.format("trunq").option("queue", "orders").option("checkpointLocation", ...).start()

The source has its options in `trunq.spark.source.format`. Those of the sink:

| option | default | meaning |
| --- | --- | --- |
| `dsn`, `service` | the settings | the database; a service or the settings keep passwords out of plans |
| `table`, `queue` | one of them | what is written into; a table may have its schema before it |
| `createTable` | `true` | tables: make one that is missing |
| `upsertKey` | | tables: these columns find a row that is replaced; a unique index is over them |
| `newest` | | with upsertKey: of two rows of a key, the one with the larger value counts |
| `payloadColumn` | `payload` | queues: the column of the payload; `*`: an object of all columns |
| `kindColumn`, `keyColumn`, ... | `kind`, `key`, ... | queues: the columns of the other parts of a message |
| `kind` | | queues: the kind of all messages |
| `txnAppId`, `txnVersion` | streams: query, batch | a version that is repeated adds nothing |
| `commitProtocol` | `staged` | `staged`, `partition` or `direct`: see `trunq.spark.sink.writer` |
| `stageSchema` | `trunq_sink` | where rows are staged and marks are kept |
| `engine` | `auto` | `adbc` or `psycopg`; auto chooses by the number of rows |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.pandas.types import to_arrow_schema

from trunq.spark.sink.option import SinkOptions
from trunq.spark.sink.writer import Sink
from trunq.spark.source.format import TrunqSource
from trunq.spark.writer import BatchWriter, StreamWriter

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class Trunq(TrunqSource):
    """The data source Spark knows as `trunq`."""

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        options = SinkOptions.parse(self.options).for_batch(overwrite)
        return BatchWriter(Sink.plan(options, _arrow(schema), replaces=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        options = SinkOptions.parse(self.options).for_stream(overwrite)
        return StreamWriter(Sink.plan(options, _arrow(schema), replaces=overwrite))


def _arrow(schema: StructType) -> pa.Schema:
    """That of the batches that Spark brings."""
    return to_arrow_schema(schema, timezone="UTC")
