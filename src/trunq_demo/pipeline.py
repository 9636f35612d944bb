"""The Spark side of the demo: from the queue into a lake table, exactly once, and on to an aggregate.

`python -m trunq_demo.pipeline LAKE CHECKPOINT FIGURES` follows the queue until its standard input delivers
a line. Then it reads the remaining messages, computes the aggregate over the lake table, writes the
aggregate to Postgres and its own figures to the file FIGURES. TRUNQ_DSN names the database. Started again
on the same checkpoint, it continues where it stopped, even after kill -9.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from trunq import Client
from trunq.spark import explain, read_delta, session, settle, write_table
from trunq_demo.job import QUEUE
from trunq_demo.parent import Parent

SUBSCRIPTION = "lake"
AGGREGATE = "demo.punctuality"
EVERY = "2 seconds"
LOOK = 0.2
"""Seconds between two looks at how far the query is."""
MOST = 50_000
"""About how many messages a batch holds: the first batch, after Spark's slow start, has a backlog to read."""

PAYLOAD = (
    "row int, year int, month int, day int, carrier string, flight int, tailnum string, origin string, "
    "dest string, hour int, dep_delay int, arr_delay int, air_time int, distance int"
)
KEPT = (
    *("row", "day", "hour", "carrier", "flight", "tailnum", "origin", "dest"),
    *("dep_delay", "arr_delay", "air_time", "distance"),
)


def main() -> None:
    """Follow the queue until told to finish, read the rest, aggregate."""
    lake, checkpoint, figures = map(Path, sys.argv[1:4])
    dsn = os.environ["TRUNQ_DSN"]
    parent = Parent()
    spark = session(app_name="trunq demo")
    query = follow(spark, lake, checkpoint)
    parent.told.wait()
    catch_up(query, dsn)
    query.stop()
    settle(query, dsn)
    write_table(punctuality(read_delta(spark, str(lake))), AGGREGATE, dsn)
    batches = sum(1 for file in (checkpoint / "commits").iterdir() if file.name.isdigit())
    figures.write_text(json.dumps({"batches": batches, "spark": spark.version, "java": java_version(spark)}))
    spark.stop()


def follow(spark: SparkSession, lake: Path, checkpoint: Path) -> StreamingQuery:
    """Start the query that writes each flight into the lake table's partition of its month."""
    messages = (
        spark.readStream.format("trunq")
        .schema("id bigint, kind string, payload string, created_at timestamp")
        .option("queue", QUEUE)
        .option("subscription", SUBSCRIPTION)
        .option("startingOffsets", "earliest")
        .option("maxMessagesPerTrigger", MOST)
        .load()
    )
    return (
        departures(messages)
        .writeStream.format("trunq_delta")
        .option("partitionBy", "month")
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=EVERY)
        .start(str(lake))
    )


def departures(messages: DataFrame) -> DataFrame:
    """The flights in a batch of messages, one row each."""
    flight = messages.select("id", "kind", "created_at", F.from_json("payload", PAYLOAD).alias("flight"))
    month = F.format_string("%d-%02d", "flight.year", "flight.month").alias("month")
    return flight.select("id", "kind", "created_at", month, *(f"flight.{name}" for name in KEPT))


def punctuality(lake: DataFrame) -> DataFrame:
    """Flights, cancellations, mean and 90th percentile of the departure delay, by carrier and hour."""
    return lake.groupBy("carrier", "hour").agg(
        F.count("*").alias("flights"),
        F.count_if(F.col("dep_delay").isNull()).alias("cancellations"),
        F.avg("dep_delay").alias("mean_delay"),
        F.percentile("dep_delay", 0.9).alias("p90_delay"),
    )


def catch_up(query: StreamingQuery, dsn: str) -> None:
    """Wait until the query has written everything published so far; raise the query's error if it fails."""
    with Client(dsn) as client:
        last = client.tick(QUEUE, force=True)
    while _written(query) < (last or 0):
        if (error := query.exception()) is not None:
            raise error
        time.sleep(LOOK)


def _written(query: StreamingQuery) -> int:
    """The tick at which the query's last finished batch ends."""
    progress = query.lastProgress
    if progress is None or progress["sources"][0]["endOffset"] is None:
        return 0
    return int(json.loads(progress["sources"][0]["endOffset"])["tick"])


def java_version(spark: SparkSession) -> str:
    """Version of the Java that Spark runs on."""
    jvm: Any = spark.sparkContext._jvm
    return str(jvm.System.getProperty("java.version"))


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        traceback.print_exc()
        # The last line of the log, which Fleet shows to the user.
        sys.exit(f"error: {explain(error)}")
