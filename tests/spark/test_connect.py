"""Through Spark Connect, whose client reaches Spark by gRPC alone, and Declarative Pipelines, which use it.

In one file, so in one process: both servers want the same port.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import trunq
from spark.conftest import Queue
from trunq.spark.launch.session import _launch_environment

pytestmark = pytest.mark.timeout(600)

PROGRAM = """
import sys

from pyspark.sql import SparkSession

from trunq.spark.lake.format import TrunqDelta
from trunq.spark.source.format import TrunqSource

folder = sys.argv[1]
session = SparkSession.builder.remote("local[2]").getOrCreate()
session.dataSource.register(TrunqSource)
session.dataSource.register(TrunqDelta)
columns = "id bigint, kind string"
messages = session.read.format("trunq").schema(columns).option("queue", "q").load()
print("batch", messages.count(), messages.where("kind = 'a'").count())
stream = session.readStream.format("trunq").schema(columns)
stream = stream.options(queue="q", subscription="lake", startingOffsets="earliest").load()
query = (
    stream.writeStream.format("trunq_delta")
    .option("checkpointLocation", folder + "/checkpoint")
    .trigger(availableNow=True)
    .start(folder + "/lake")
)
query.awaitTermination()
print("stream", session.read.format("trunq_delta").load(folder + "/lake").distinct().count())
"""


def test_a_queue_is_read_and_a_lake_table_written(queue: Queue, tmp_path: Path) -> None:
    queue.publish(30, "a")
    queue.publish(12, "b")
    queue.tick()
    variables = {**_launch_environment("local[2]"), "TRUNQ_DSN": queue.dsn}
    source = str(Path(trunq.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, **variables, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.stdout.splitlines() == ["batch 42 30", "stream 42"], done.stderr[-5000:]


SPECIFICATION = """
name: orders
libraries:
  - glob:
      include: transformations/**
storage: file://{folder}/storage
"""

DEFINITION = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.table
def orders():
    return (
        spark.readStream.format("trunq")
        .schema("id bigint, kind string")
        .options(queue="q", subscription="declared", startingOffsets="earliest")
        .load()
    )


@dp.materialized_view
def kinds():
    return spark.read.table("orders").groupBy("kind").count()
"""


def test_a_queue_becomes_a_streaming_table(queue: Queue, tmp_path: Path) -> None:
    import pyarrow.dataset  # noqa: PLC0415

    queue.publish(30, "a")
    queue.publish(12, "b")
    queue.tick()
    (tmp_path / "spark-pipeline.yml").write_text(SPECIFICATION.format(folder=tmp_path))
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "orders.py").write_text(DEFINITION)
    variables = {**_launch_environment("local[2]"), "TRUNQ_DSN": queue.dsn}
    done = subprocess.run(
        [str(Path(sys.executable).parent / "spark-pipelines"), "run", "--remote", "local[2]"],
        cwd=tmp_path,
        env={**os.environ, **variables, "PYTHONPATH": str(Path(trunq.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    # Not by its status: this version may end with 1 after it has done all.
    said = f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    table = tmp_path / "spark-warehouse" / "kinds"
    assert table.exists(), said
    rows = pyarrow.dataset.dataset(list(map(str, table.glob("*.parquet")))).to_table().to_pylist()
    assert {row["kind"]: row["count"] for row in rows} == {"a": 30, "b": 12}, said
