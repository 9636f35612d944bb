"""A program that follows queue `q` into a lake table until all is read: what the crash test kills.

python follow.py DSN DIRECTORY
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from trunq import spark as trunq_spark


def main(dsn: str, directory: Path) -> None:
    os.environ["TRUNQ_DSN"] = dsn
    session = trunq_spark.session("follow", "local[2,4]", "768m")
    messages = (
        session.readStream.format("trunq")
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
    trunq_spark.finish(query)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
