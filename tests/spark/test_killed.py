"""Processes of Spark that somebody kills, as the kernel does when memory runs out: what the user is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from spark.conftest import Queue
from trunq import spark as trunq_spark
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON_WAS_KILLED = "one of Spark's Python processes was killed"
WITHOUT_JAVA = """
from trunq import spark
session = spark.session("killed", "local[1]", "512m")
java = session.sparkContext._gateway.proc
java.kill()
java.wait()
try:
    session.range(3).count()
except Exception as error:
    print(spark.explain(error))
"""


def test_a_worker_that_was_killed(spark: SparkSession) -> None:
    def die(_: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(Exception, match="exited unexpectedly") as caught:
        spark.sparkContext.parallelize([1]).map(die).collect()
    assert PYTHON_WAS_KILLED in trunq_spark.explain(caught.value)


def source_runners(spark: SparkSession) -> Iterator[psutil.Process]:
    """The processes in which the readers of streams live."""
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[attr-defined,union-attr]
    for process in psutil.Process(java).children(recursive=True):
        # A worker of the test before may be dead and not yet buried.
        with suppress(psutil.NoSuchProcess):
            if any("python_streaming_source_runner" in word for word in process.cmdline()):
                yield process


def test_the_reader_of_a_stream_that_was_killed(queue: Queue, spark: SparkSession, tmp_path: Path) -> None:
    queue.publish(3)
    queue.tick()
    messages = (
        spark.readStream.format("trunq")
        .options(dsn=queue.dsn, queue="q", subscription="lake", startingOffsets="earliest")
        .load()
    )
    query = (
        messages.writeStream.format("trunq_delta")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(str(tmp_path / "lake"))
    )
    wait_until(lambda: query.lastProgress, timeout=120)
    for process in source_runners(spark):
        process.kill()
    with pytest.raises(Exception, match="STREAM_FAILED") as caught:
        query.awaitTermination(60)
    assert PYTHON_WAS_KILLED in trunq_spark.explain(caught.value)


def test_the_java_process_that_was_killed() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_JAVA], capture_output=True, text=True, check=False)
    assert "Spark's Java process was killed" in done.stdout
