"""`format("trunq")`: a queue as a batch or streaming source of Spark.

    spark.readStream.format("trunq").option("queue", "flights").option("subscription", "lake").load()

| option | default | meaning |
| --- | --- | --- |
| `dsn`, `service` | the settings | the database; a service or the settings keep passwords out of plans |
| `queue` | needed | which queue |
| `subscription` | needed by streams | exclusive, created if missing: keeps position and unread messages |
| `startingOffsets` | `latest`; batch: `earliest` | where a new subscription, or a batch, starts |
| `startingTick`, `endingTick` | | the same by tick; the end is for batches only |
| `maxMessagesPerTrigger` | no limit | about this many messages a batch: whole ticks, at least one |
| `minPartitions` | cores, for many rows | at least this many tasks |
| `maxRowsPerPartition` | 500000 | no task reads many more rows than this |
| `engine` | `auto` | `adbc` or `psycopg`; auto chooses by the number of rows |
| `kind`, `key` | all | comma-separated: only messages with one of these |
| `pushdown` | `false` | batch: Postgres applies the query's conditions on kind and key |
| `failOnDataLoss` | `true` | whether a query fails when messages that it should read are gone |

Columns: id, kind, key, payload (JSON text), body, headers (JSON text), priority, attempt, created_at, and
those of your own that the queue has, in their types; what Spark has no type for is text. Spark does not tell
a Python source which columns a query uses. Name them in a schema, such as `.schema("kind string, payload
string")`: reading two columns instead of nine takes half the time.

The source reads the messages that all subscriptions see, not the retries of shared ones. A stream reads up to
the newest tick, which the leader cuts; `trigger(availableNow=True)` and batches cut a tick if there are newer
messages.

A batch begins at the first tick after which every message is still in the log. What was emptied before or
while it is read is an error, or, with failOnDataLoss set to false, left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from trunq.errors import QueueNotFound
from trunq.spark.connection import Database
from trunq.spark.source.column import BY_NAME, Column, choose, ddl
from trunq.spark.source.log import QueueLog
from trunq.spark.source.option import Options
from trunq.spark.source.reader import BatchReader, FilteringReader
from trunq.spark.source.stream import StreamReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class TrunqSource(DataSource):
    """The data source Spark knows as `trunq`."""

    @classmethod
    def name(cls) -> str:
        return "trunq"

    def schema(self) -> str:
        options = Options.parse(self.options)
        try:
            return ddl((*BY_NAME.values(), *self._own(options)))
        except QueueNotFound:
            return ddl(BY_NAME.values())  # whoever reads it says so

    def reader(self, schema: StructType) -> BatchReader:
        options = Options.parse(self.options)
        reader = FilteringReader if options.pushdown else BatchReader
        return reader(options, choose(schema, lambda: self._own(options)))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        options = Options.parse(self.options)
        return StreamReader(options, choose(schema, lambda: self._own(options)))

    def _own(self, options: Options) -> Sequence[Column]:
        database = Database(options.address)
        try:
            return QueueLog(database, options.queue).own_columns()
        finally:
            database.close()
