"""A real standby: what the source does there, and what a query does whose last tick a failover lost."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.sql.streaming.datasource import ReadAllAvailable

from trunq import embedded, install
from trunq.embedded import Embedded
from trunq.spark.errors import DataLoss, NeedsPrimary
from trunq.spark.source.option import Options
from trunq.spark.source.reader import BatchReader
from trunq.spark.source.stream import StreamReader
from waiting import wait_until


@dataclass
class Pair:
    """A primary with the queue `q`, and its standby."""

    primary: Embedded
    standby: Embedded

    @property
    def either(self) -> str:
        """The address of whichever of the two takes writes."""
        hosts = ",".join(str(conninfo_to_dict(server.dsn)["host"]) for server in (self.primary, self.standby))
        return make_conninfo(self.primary.dsn, host=hosts, target_session_attrs="read-write")

    def caught_up(self) -> None:
        """Wait until the standby has replayed all of the primary."""
        end = one(self.primary.dsn, "select pg_current_wal_flush_lsn()::text")
        wait_until(lambda: one(self.standby.dsn, "select pg_last_wal_replay_lsn() >= %s::pg_lsn", end))

    def sever(self) -> None:
        """The standby receives nothing more."""
        with psycopg.connect(self.standby.dsn, autocommit=True) as connection:
            connection.execute("alter system set primary_conninfo = ''")
            connection.execute("select pg_reload_conf()")
        wait_until(lambda: one(self.standby.dsn, "select count(*) = 0 from pg_stat_wal_receiver"))

    def fail_over(self) -> None:
        """The primary dies, the standby takes its place."""
        self.primary.kill()
        assert one(self.standby.dsn, "select pg_promote()")


def one(dsn: str, query: str, *values: Any) -> Any:
    """The first value of the first row."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query, values).fetchone()
    assert row is not None
    return row[0]


@pytest.fixture
def pair() -> Iterator[Pair]:
    directory = Path(tempfile.mkdtemp(prefix="trunq-standby-"))
    try:
        with embedded.start() as primary:
            install.install(primary.dsn)
            one(primary.dsn, "select trunq.create_queue('q')")
            copy = primary.directory / "copy"
            primary._run("pg_basebackup", "-d", primary.dsn, "-D", str(copy), "-R", "--checkpoint=fast")
            copy.rename(directory / "data")
            with embedded.start(directory) as standby:
                yield Pair(primary, standby)
    finally:
        shutil.rmtree(directory)


def publish(dsn: str, count: int) -> int:
    """Messages, and a tick after them; returns its number."""
    one(dsn, "select count(trunq_queue.q_publish('{}')) from generate_series(1, %s)", count)
    return int(one(dsn, "select trunq.tick('q', true)"))


def stream(dsn: str) -> StreamReader:
    options = {"dsn": dsn, "queue": "q", "subscription": "lake", "startingOffsets": "earliest"}
    return StreamReader(Options.parse(options), ("id",))


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
    batch = BatchReader(options, ("id",))
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
