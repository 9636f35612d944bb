"""What rotation emptied is never read in silence: by a batch, by a repeated one, or while tasks read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark.conftest import Queue, columns
from trunq.errors import TickNotFound
from trunq.spark.errors import DataLoss
from trunq.spark.source.reader import BatchReader
from trunq.spark.source.stream import StreamReader


@pytest.fixture
def old(queue: Queue) -> Queue:
    """A queue that only Spark reads: ticks 2, 3 and 4 after ten messages each, which now are old."""
    queue.value("select trunq.unsubscribe('q', 'default')")
    for _ in range(3):
        queue.publish(10)
        queue.tick()
    return queue


@pytest.fixture
def stream(old: Queue) -> Iterator[StreamReader]:
    reader = new_stream(old)
    yield reader
    reader.stop()


def new_stream(queue: Queue, **given: str) -> StreamReader:
    options = {"subscription": "lake", "startingOffsets": "earliest", **given}
    return StreamReader(queue.options(**options), columns("id"))


def rotate(queue: Queue) -> None:
    """Empty the old messages; five newer ones stay, with two ticks after them that a stream has read."""
    queue.connection.execute("set trunq.rewrite = on")
    queue.connection.execute("update trunq_log.q set segment = mod(segment + 1, 4)")
    queue.publish(5)
    for tick_id in (queue.tick(), queue.tick()):
        queue.connection.execute("select trunq.advance('q', name, %s) from trunq.subscription", (tick_id,))
    assert queue.value("select trunq.rotate('q')") == 1
    assert len(queue.ids()) == 5


def rows(reader: BatchReader | StreamReader, parts: Any) -> list[int]:
    return sorted(id for part in parts for batch in reader.read(part) for id in batch["id"].to_pylist())


def test_earliest_reads_all_after_the_first_reachable_tick(old: Queue) -> None:
    reader = BatchReader(old.options(), columns("id"))
    assert len(rows(reader, reader.partitions())) == 30
    rotate(old)
    assert rows(reader, reader.partitions()) == old.ids()
    careless = BatchReader(old.options(failOnDataLoss="false"), columns("id"))
    assert rows(careless, careless.partitions()) == old.ids()


@pytest.mark.parametrize("options", [{"startingTick": "2"}, {"endingTick": "3"}])
def test_a_batch_from_or_to_a_tick_that_is_out_of_reach_is_refused(
    old: Queue, options: dict[str, str]
) -> None:
    reader = BatchReader(old.options(**options), columns("id"))
    assert len(rows(reader, reader.partitions())) == 20
    rotate(old)
    with pytest.raises(DataLoss, match=r'messages after tick [23] of queue "q" are gone'):
        reader.partitions()
    careless = BatchReader(old.options(failOnDataLoss="false", **options), columns("id"))
    assert rows(careless, careless.partitions()) == (old.ids() if "startingTick" in options else [])


def test_a_tick_that_is_not_there_is_told_with_those_in_reach(old: Queue) -> None:
    rotate(old)
    with pytest.raises(TickNotFound, match="it keeps ticks 4 to 6"):
        BatchReader(old.options(startingTick="99"), columns("id")).partitions()


@pytest.mark.parametrize("engine", ["psycopg", "adbc"])
def test_a_task_notices_that_its_messages_were_emptied_before_it_read(old: Queue, engine: str) -> None:
    reader = BatchReader(old.options(engine=engine), columns("id"))
    careless = BatchReader(old.options(engine=engine, failOnDataLoss="false"), columns("id"))
    parts, left = reader.partitions(), careless.partitions()
    rotate(old)
    with pytest.raises(DataLoss, match="messages after tick 1"):
        rows(reader, parts)
    assert rows(careless, left) == []


@pytest.mark.parametrize("engine", ["psycopg", "adbc"])
def test_a_tick_that_is_forgotten_while_its_messages_are_read_is_no_loss(old: Queue, engine: str) -> None:
    reader = BatchReader(old.options(engine=engine), columns("id"))
    parts = reader.partitions()
    old.connection.execute("delete from trunq.tick where tick_id < 4")
    assert len(rows(reader, parts)) == 30


def test_a_batch_repeated_after_its_messages_were_emptied_is_data_loss(
    old: Queue, stream: StreamReader
) -> None:
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    assert len(rows(stream, stream.partitions(start, end))) == 30
    stream.commit(end)
    rotate(old)
    assert old.value("select snapshot::text from trunq.tick where tick_id = 1") == start["snap"]
    again, careless = new_stream(old), new_stream(old, failOnDataLoss="false")
    for call in (
        lambda: again.partitions(start, end),
        lambda: again.latestOffset(start, ReadAllAvailable()),
        lambda: stream.partitions(start, end),
    ):
        with pytest.raises(DataLoss, match="messages after tick 1"):
            call()
    assert rows(careless, careless.partitions(start, end)) == []
    # After the first reachable tick, nothing is lost.
    newest = again.latestOffset(end, ReadAllAvailable())
    assert rows(again, again.partitions(end, newest)) == old.ids()
    for each in (again, careless):
        each.stop()


def test_messages_emptied_under_a_running_query_are_data_loss(old: Queue, stream: StreamReader) -> None:
    start = stream.initialOffset()
    parts = stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
    old.value("select trunq.empty_queue('q')")
    with pytest.raises(DataLoss, match="messages after tick 1"):
        rows(stream, parts)
    with pytest.raises(DataLoss, match="messages after tick 1"):
        stream.latestOffset(start, ReadAllAvailable())


def test_a_new_subscription_at_a_tick_that_is_out_of_reach_is_not_created(old: Queue) -> None:
    rotate(old)
    reader = StreamReader(old.options(subscription="lake", startingTick="2"), columns("id"))
    with pytest.raises(DataLoss, match="messages after tick 2"):
        reader.initialOffset()
    reader.stop()
    unknown = StreamReader(old.options(subscription="lake", startingTick="99"), columns("id"))
    with pytest.raises(TickNotFound):
        unknown.initialOffset()
    unknown.stop()
    assert old.value("select count(*) from trunq.subscription") == 0
    reachable = StreamReader(old.options(subscription="lake", startingTick="4"), columns("id"))
    assert reachable.initialOffset()["tick"] == 4
    reachable.stop()
