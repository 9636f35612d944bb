"""A program that follows queue `q` into the table `landed` until all is read: what a test of the sink kills.

python sinking.py DSN CHECKPOINT
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from trunq import spark as trunq_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def sink(session: SparkSession, dsn: str, checkpoint: str, **given: str) -> StreamingQuery:
    """Reads all there is, and writes it into `landed`, or what the options say."""
    messages = (
        session.readStream.format("trunq")
        .schema("id bigint, kind string, payload string, created_at timestamp")
        .option("dsn", dsn)
        .option("queue", "q")
        .option("subscription", "lake")
        .option("startingOffsets", "earliest")
        .option("maxMessagesPerTrigger", 200)
        .option("minPartitions", 2)
        .load()
    )
    if "queue" in given:
        messages = messages.select("kind", "payload")
    query = (
        messages.writeStream.format("trunq")
        .options(**{"dsn": dsn, **(given or {"table": "landed"})})
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    trunq_spark.finish(query, dsn, timeout=300)
    return query


if __name__ == "__main__":
    sink(trunq_spark.session("sinking", "local[2,4]", "768m"), *sys.argv[1:])
