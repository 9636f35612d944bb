"""trunq and Apache Spark: queues as a source, lake tables and Postgres tables as sinks.

    from trunq import spark

    session = spark.session()
    flights = (
        session.readStream.format("trunq")
        .option("queue", "flights")
        .option("subscription", "lake")
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        flights.writeStream.format("trunq_delta")
        .option("partitionBy", "kind")
        .option("checkpointLocation", "/data/checkpoint")
        .trigger(availableNow=True)
        .start("/data/flights")
    )
    spark.finish(query)

Importing this package loads no pyspark, which a runner of pipelines need not have: that is imported when it
is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trunq.explanation import explain_spark
from trunq.spark.errors import (
    CheckpointMismatch,
    DatabaseAway,
    DataLoss,
    JavaMissing,
    LakeError,
    LakeMismatch,
    LakeUnwritable,
    NeedsPrimary,
    PythonMismatch,
    SinkMismatch,
    SinkRefused,
    SparkError,
    StageLost,
)
from trunq.spark.launch.java import Java, find_java
from trunq.spark.launch.session import register, session
from trunq.spark.sink.table import write_table
from trunq.spark.source.position import finish, settle

if TYPE_CHECKING:
    from trunq.spark.lake.delta import compact, read_delta, vacuum
    from trunq.spark.statistic import Statistics, attempts, statistics
    from trunq.worker.executor import Spread, spread

_LATE = {
    **dict.fromkeys(("compact", "read_delta", "vacuum"), "trunq.spark.lake.delta"),
    **dict.fromkeys(("Spread", "spread"), "trunq.worker.executor"),
    **dict.fromkeys(("Statistics", "attempts", "statistics"), "trunq.spark.statistic"),
}

__all__ = [
    "CheckpointMismatch",
    "DataLoss",
    "DatabaseAway",
    "Java",
    "JavaMissing",
    "LakeError",
    "LakeMismatch",
    "LakeUnwritable",
    "NeedsPrimary",
    "PythonMismatch",
    "SinkMismatch",
    "SinkRefused",
    "SparkError",
    "Spread",
    "StageLost",
    "Statistics",
    "attempts",
    "compact",
    "explain",
    "find_java",
    "finish",
    "read_delta",
    "register",
    "session",
    "settle",
    "spread",
    "statistics",
    "vacuum",
    "write_table",
]


def explain(error: BaseException) -> str:
    """The reason of an error that came out of Spark, in a sentence or two, without a traceback."""
    return explain_spark(error).line


def __getattr__(name: str) -> Any:
    """The names whose modules import pyspark, or the worker."""
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
