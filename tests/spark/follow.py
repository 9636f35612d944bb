"""A program that follows queue `q` into a lake table until all is read: what the crash test kills.

python follow.py DSN DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from trunq import spark as trunq_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def follow(session: SparkSession, dsn: str, directory: Path) -> None:
    """Reads all there is, some 700 messages a batch, in two tasks each."""
    messages = (
        session.readStream.format("trunq")
        .option("dsn", dsn)
        .option("queue", "q")
        .option("subscription", "lake")
        .option("startingOffsets", "earliest")
        .option("maxMessagesPerTrigger", 700)
        .option("minPartitions", 2)
        .load()
    )
    query = (
        messages.writeStream.format("trunq_delta")
        .option("partitionBy", "kind")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "lake"))
    )
    trunq_spark.finish(query, dsn)


if __name__ == "__main__":
    follow(trunq_spark.session("follow", "local[2,4]", "768m"), sys.argv[1], Path(sys.argv[2]))
