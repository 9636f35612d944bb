"""`format("trunq")` as a sink inside a real Spark; tests/sql/test_spark_*.py have its protocols."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from pyspark_trunq import DefaultSource
from spark.conftest import Queue
from spark.sinking import sink
from spark.test_crash import kill_tree, last
from spark.test_spark import failure
from waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(400)
SINKING = Path(__file__).with_name("sinking.py")
LANDED = "select count(*), count(distinct id), sum(id), sum((payload->>'n')::bigint) from landed"
PUBLISHED = (
    "select count(*), count(distinct id), sum(id), sum((payload->>'n')::bigint) from trunq_log.q"
    " where subscription_id is null"
)


def only(queue: Queue, query: str) -> tuple[Any, ...]:
    row = queue.connection.execute(query).fetchone()
    assert row is not None
    return tuple(row)


def write(frame: DataFrame, bench: Queue, mode: str = "append", /, **given: str) -> None:
    frame.write.format("trunq").options(**{"dsn": bench.dsn, **given}).mode(mode).save()


def test_a_dataframe_becomes_a_table(spark: SparkSession, queue: Queue) -> None:
    frame = spark.range(20_000).selectExpr("id", "id * 1.5d as half", "timestamp'2026-01-01' as at")
    for protocol in ("staged", "partition", "direct"):
        write(frame, queue, table="numbers", commitProtocol=protocol)
    assert only(queue, "select count(*), sum(id), sum(half) from numbers") == (
        60_000,
        599_970_000,
        899_955_000,
    )
    write(frame.limit(5), queue, "overwrite", table="numbers")
    write(frame.limit(5), queue, table="numbers", txnAppId="a", txnVersion="1")
    write(frame.limit(5), queue, table="numbers", txnAppId="a", txnVersion="1")
    assert only(queue, "select count(*) from numbers") == (10,)
    assert only(queue, "select count(*) from pg_class where relname like 'spark_%'") == (0,)


def test_a_dataframe_becomes_messages(spark: SparkSession, queue: Queue) -> None:
    frame = spark.range(1_000).selectExpr("id", "concat('m', id) as word")
    write(frame, queue, queue="q", payloadColumn="*", keyColumn="id", kind="word")
    found = "select count(distinct key), sum((payload->>'id')::int), min(kind) from trunq_log.q"
    assert only(queue, found) == (1_000, 499_500, "word")
    structs = frame.selectExpr("struct(id as n) as payload", "map('h', word) as headers")
    write(structs, queue, queue="q", commitProtocol="direct")
    assert only(queue, "select count(*), min(headers->>'h') from trunq_log.q where kind is null") == (
        1_000,
        "m0",
    )


def test_what_is_told(spark: SparkSession, queue: Queue) -> None:
    frame = spark.range(3)
    queue.connection.execute("create table strict (id integer, word text not null)")
    assert 'column "id" of strict is integer and comes as bigint' in failure(
        lambda: write(frame, queue, table="strict")
    )
    nulls = frame.selectExpr("int(id) as id", "string(null) as word")
    assert 'table strict refused: null value in column "word"' in failure(
        lambda: write(nulls, queue, table="strict")
    )
    assert 'queue "q" cannot be overwritten' in failure(lambda: write(frame, queue, "overwrite", queue="q"))
    assert "say .mode('append')" in failure(lambda: write(frame, queue, "errorifexists", table="t"))
    assert 'there is no queue "nobody"' in failure(lambda: write(frame, queue, queue="nobody"))


def test_a_password_is_in_no_plan_and_no_error(spark: SparkSession, queue: Queue) -> None:
    dsn = "host=127.0.0.1 port=1 password=hunter2 connect_timeout=1"
    with pytest.raises(Exception, match="cannot be reached") as caught:
        write(spark.range(3), queue, dsn=dsn, table="t")
    assert "hunter2" not in str(caught.value)


def test_spark_finds_the_writers_by_itself(queue: Queue) -> None:
    from pyspark.sql.types import LongType, StructField, StructType  # noqa: PLC0415

    schema = StructType([StructField("id", LongType())])
    made: Any = DefaultSource({"dsn": queue.dsn, "table": "found"}).writer(schema, False)
    assert made.sink.target.what == "table found"
    stream: Any = DefaultSource({"dsn": queue.dsn, "table": "found"}).streamWriter(schema, True)
    assert stream.sink.replaces


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.parametrize("protocol", ["staged", "partition"])
def test_a_task_that_fails_and_is_repeated_adds_its_rows_once(
    spark: SparkSession, queue: Queue, tmp_path: Path, protocol: str
) -> None:
    flag = str(tmp_path / "failed")

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if 7_000 in batch.column(0).to_pylist() and not Path(flag).exists():
                Path(flag).touch()
                raise ValueError("once")

    frame = spark.range(0, 12_000, 1, 3).mapInArrow(fail_once, "id bigint")
    write(frame, queue, table="once", commitProtocol=protocol, txnAppId="a", txnVersion="1")
    assert Path(flag).exists()
    assert only(queue, "select count(*), count(distinct id) from once") == (12_000, 12_000)


def test_a_stream_lands_in_a_table_and_a_repeated_batch_adds_nothing(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    queue.connection.execute(
        "create table landed (id bigint, kind text, payload jsonb, created_at timestamptz)"
    )
    for _ in range(3):
        queue.publish(150)
        queue.tick()
    sink(spark, queue.dsn, str(checkpoint))
    # As if Spark was killed between the commit of the sink and its own.
    newest = last(checkpoint / "commits")
    (checkpoint / "commits" / str(newest)).unlink()
    (checkpoint / "commits" / f".{newest}.crc").unlink(missing_ok=True)
    queue.publish(50)
    queue.tick()
    query = sink(spark, queue.dsn, str(checkpoint))
    assert query.recentProgress[0]["batchId"] == newest
    assert only(queue, LANDED) == only(queue, PUBLISHED)
    assert only(queue, LANDED)[0] == 500

    queue.connection.execute("select trunq.create_queue('copied')")
    queue.connection.execute("select trunq.unsubscribe('q', 'lake')")
    sink(spark, queue.dsn, str(tmp_path / "other"), queue="copied")
    assert only(queue, "select count(*), sum((payload->>'n')::int) from trunq_log.copied") == (
        500,
        only(queue, PUBLISHED)[3],
    )


def test_aggregates_of_a_stream(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    options = {"dsn": queue.dsn, "queue": "q", "subscription": "lake", "startingOffsets": "earliest"}
    counts = spark.readStream.format("trunq").options(**options).load().groupBy("kind").count()

    def upsert(frame: DataFrame, batch: int) -> None:
        write(frame, queue, table="b", upsertKey="kind", txnAppId="counts", txnVersion=str(batch))

    for count in (3, 4):
        queue.publish(count)
        queue.tick()
        complete = counts.writeStream.format("trunq").options(dsn=queue.dsn, table="a").outputMode("complete")
        by_batch = counts.writeStream.foreachBatch(upsert).outputMode("update")
        for name, writer in (("a", complete), ("b", by_batch)):
            query = (
                writer.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True).start()
            )
            assert query.awaitTermination(300)
    assert (only(queue, "select * from a"), only(queue, "select * from b")) == (("k", 7), ("k", 7))


@pytest.mark.timeout(1200)
def test_killed_between_stage_and_commit(queue: Queue, spark: SparkSession, tmp_path: Path) -> None:
    queue.connection.execute(
        "create table landed (id bigint, kind text, payload jsonb, created_at timestamptz)"
    )
    late = queue.connect(autocommit=False)
    queue.publish(50, "late", late)
    for _ in range(4):
        queue.publish(150)
        queue.tick()
    late.commit()
    checkpoint = str(tmp_path / "checkpoint")
    with queue.connect(autocommit=False) as holder:
        holder.execute("lock table landed in share mode")
        with (tmp_path / "log").open("ab") as output:
            command = [sys.executable, str(SINKING), queue.dsn, checkpoint]
            process = subprocess.Popen(command, stdout=output, stderr=output)

        def is_committing() -> bool:
            assert process.poll() is None, (tmp_path / "log").read_text()
            condition = "wait_event_type = 'Lock' and query like 'insert%'"
            return only(queue, f"select count(*) from pg_stat_activity where {condition}") == (1,)

        try:
            wait_until(is_committing, 900, "rows are staged, and the commit waits")
        finally:
            kill_tree(process.pid)
            process.wait()
        staged = "select relname from pg_class where relname like 'spark_%'"
        (stage,) = only(queue, staged)
        assert only(queue, f"select count(*) >= 150 from trunq_sink.{stage}") == (True,)
        holder.rollback()
    queue.tick()
    sink(spark, queue.dsn, checkpoint)
    assert only(queue, LANDED) == only(queue, PUBLISHED)
    assert only(queue, LANDED)[:2] == (650, 650)
    assert queue.connection.execute(staged).fetchall() == []
