"""A real standby: what the source does there, and what a query does whose last tick a failover lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark.conftest import columns
from standby import Pair, one, primary_and_standby
from trunq import embedded
from trunq.spark.errors import DataLoss, NeedsPrimary
from trunq.spark.source.option import Options
from trunq.spark.source.reader import BatchReader
from trunq.spark.source.stream import StreamReader


@pytest.fixture
def pair() -> Iterator[Pair]:
    with primary_and_standby(embedded.majors()[0]) as pair:
        yield pair


def publish(dsn: str, count: int) -> int:
    """Messages, and a tick after them; returns its number."""
    one(dsn, "select count(trunq_queue.q_publish('{}')) from generate_series(1, %s)", count)
    return int(one(dsn, "select trunq.tick('q', true)"))


def stream(dsn: str) -> StreamReader:
    options = {"dsn": dsn, "queue": "q", "subscription": "lake", "startingOffsets": "earliest"}
    return StreamReader(Options.parse(options), columns("id"))


def test_a_stream_needs_the_primary_and_a_batch_does_not(pair: Pair) -> None:
    end = publish(pair.primary.dsn, 3)
    begun = stream(pair.primary.dsn)
    start = begun.initialOffset()
    begun.stop()
    pair.caught_up()
    for call in (
        StreamReader.initialOffset,
        StreamReader.prepareForTriggerAvailableNow,
        lambda reader: reader.latestOffset(start, ReadAllAvailable()),
    ):
        reader = stream(pair.standby.dsn)
        with pytest.raises(NeedsPrimary, match="a stream needs the primary"):
            call(reader)
        reader.stop()
    options = Options.parse({"dsn": pair.standby.dsn, "queue": "q", "endingTick": str(end)})
    batch = BatchReader(options, columns("id"))
    assert sum(rows.num_rows for part in batch.partitions() for rows in batch.read(part)) == 3


def test_a_query_notices_that_a_failover_lost_its_last_tick(pair: Pair) -> None:
    publish(pair.primary.dsn, 3)
    pair.caught_up()
    pair.sever()
    reader = stream(pair.either)
    start = reader.initialOffset()
    lost = publish(pair.primary.dsn, 4)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end["tick"] == lost
    assert reader.partitions(start, end)
    pair.fail_over()
    assert publish(pair.standby.dsn, 5) == lost
    publish(pair.standby.dsn, 5)
    with pytest.raises(DataLoss, match=f"tick {lost} .* is not the one this query has read up to"):
        reader.latestOffset(end, ReadAllAvailable())
    reader.stop()
