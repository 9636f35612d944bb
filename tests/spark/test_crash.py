"""kill -9 of the driver and everything it started, in the middle, and what the lake holds in the end."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from spark.conftest import Queue
from spark.follow import follow
from trunq import spark as trunq_spark
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLLOW = Path(__file__).with_name("follow.py")


def last(directory: Path) -> int:
    """The number of the newest entry of a checkpoint's log."""
    numbers = [int(each.name) for each in directory.glob("*") if each.name.isdigit()]
    return max(numbers, default=-1)


def kill_tree(pid: int) -> None:
    """All at once, as a machine that loses its power; nobody gets to clean up."""
    driver = psutil.Process(pid)
    tree = [driver, *driver.children(recursive=True)]
    for process in tree:
        # One of Spark's Python workers may end in this moment.
        with suppress(psutil.NoSuchProcess):
            process.suspend()
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(tree, timeout=30)


def kill_in_a_batch(command: list[str], offsets: Path, commits: Path, log: Path) -> None:
    """Starts the program, and kills it when it has begun another batch than the one it found begun."""
    before = last(offsets)
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)

    def is_in_a_batch() -> bool:
        assert process.poll() is None, log.read_text()
        return last(offsets) > max(before + 1, last(commits))

    try:
        wait_until(is_in_a_batch, 180, "a batch is in flight")
    finally:
        kill_tree(process.pid)
        process.wait()


@pytest.mark.timeout(600)
def test_a_killed_query_goes_on_and_each_message_is_in_the_lake_once(
    queue: Queue, spark: SparkSession, tmp_path: Path
) -> None:
    late = queue.connect(autocommit=False)
    queue.publish(50, "late", late)
    for number in range(40):
        queue.publish(100, "ab"[number % 2])
        queue.tick()
    late.commit()
    offsets, commits = tmp_path / "checkpoint" / "offsets", tmp_path / "checkpoint" / "commits"
    command = [sys.executable, str(FOLLOW), queue.dsn, str(tmp_path)]
    for _ in range(2):
        kill_in_a_batch(command, offsets, commits, tmp_path / "driver.log")
        assert last(offsets) > last(commits)
    follow(spark, queue.dsn, tmp_path)

    lake = tmp_path / "lake"
    table = DeltaTable(lake)
    expected = queue.ids()
    assert len(expected) == 4050
    assert table.count() == 4050
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == expected
    plain = ds.dataset(table.file_uris(), partitioning="hive", partition_base_dir=str(lake))
    assert sorted(plain.to_table()["id"].to_pylist()) == expected
    by_spark = trunq_spark.read_delta(spark, str(lake)).select("id").toArrow()
    assert sorted(by_spark["id"].to_pylist()) == expected
    assert queue.value("select trunq.position('q', 'lake')") == queue.value(
        "select max(tick_id) from trunq.tick"
    )
