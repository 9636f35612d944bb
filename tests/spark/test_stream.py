"""The streaming reader, called as Spark calls it: offsets, limits, foreign checkpoints, lost ticks."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from spark.conftest import Queue, columns
from trunq.errors import InvalidArgument, WrongMode
from trunq.spark.errors import CheckpointMismatch, DataLoss
from trunq.spark.source.stream import Offset, StreamReader

Make = Callable[..., StreamReader]


@pytest.fixture
def make(queue: Queue) -> Iterator[Make]:
    """Readers as Spark makes them, one for each run of a query."""
    made: list[StreamReader] = []

    def reader(**given: str) -> StreamReader:
        options = queue.options(**{"subscription": "lake", "startingOffsets": "earliest", **given})
        made.append(StreamReader(options, columns("id")))
        return made[-1]

    yield reader
    for each in made:
        each.stop()


def ids(reader: StreamReader, start: Offset, end: Offset) -> list[int]:
    """Reads as workers do, on copies."""
    found: list[int] = []
    for partition in reader.partitions(start, end):
        copy = pickle.loads(pickle.dumps(reader))  # noqa: S301
        for batch in copy.read(pickle.loads(pickle.dumps(partition))):  # noqa: S301
            found += batch["id"].to_pylist()
    return sorted(found)


def test_the_first_offset_is_the_subscriptions_and_stays_so(queue: Queue, make: Make) -> None:
    queue.publish(3)
    queue.tick()
    first = make().initialOffset()
    assert first["tick"] == 1
    assert make(startingOffsets="latest").initialOffset() == first
    queue.connection.execute("select trunq.advance('q', 'lake', 2)")
    assert make().initialOffset()["tick"] == 2


def test_a_new_subscription_starts_where_it_is_told(queue: Queue, make: Make) -> None:
    queue.publish(3)
    queue.tick()
    queue.publish(3)
    newest = queue.tick()
    assert make(subscription="a", startingOffsets="latest").initialOffset()["tick"] > newest
    reader = StreamReader(queue.options(subscription="b", startingTick="2"), columns("id"))
    assert reader.initialOffset()["tick"] == 2
    reader.stop()


def test_offsets_are_the_same_text_every_time(queue: Queue, make: Make) -> None:
    queue.publish(3)
    queue.tick()
    reader = make()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert list(end) == ["queue", "queue_id", "subscription", "tick", "snap"]
    again = make().latestOffset(json.loads(json.dumps(end)), ReadAllAvailable())
    assert json.dumps(again) == json.dumps(end) == json.dumps(reader.reportLatestOffset())


def test_a_limit_is_rounded_to_whole_ticks_and_one_at_least(queue: Queue, make: Make) -> None:
    for count in (32, 64, 320, 32):
        queue.publish(count)
        queue.tick()
    reader = make(maxMessagesPerTrigger="100")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(100)
    offsets = [reader.initialOffset()]
    while (end := reader.latestOffset(offsets[-1], limit)) != offsets[-1]:
        offsets.append(end)
    assert [each["tick"] for each in offsets] == [1, 3, 4, 5]
    assert make().getDefaultReadLimit() == ReadAllAvailable()
    seen = [ids(reader, a, b) for a, b in pairwise(offsets)]
    assert [len(each) for each in seen] == [96, 320, 32]
    assert sorted(chain.from_iterable(seen)) == queue.ids()


def test_available_now_reads_all_that_is_committed_and_nothing_later(queue: Queue, make: Make) -> None:
    late = queue.connect(autocommit=False)
    queue.publish(2, connection=late)
    queue.tick()
    queue.publish(3)
    late.commit()
    reader = make()
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    queue.publish(5)
    queue.tick()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert len(ids(reader, start, end)) == 5
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert reader.reportLatestOffset()["tick"] == end["tick"] + 1


def test_available_now_cuts_no_tick_when_nothing_is_newer(queue: Queue, make: Make) -> None:
    queue.publish(2)
    queue.connect(autocommit=False).execute("select pg_current_xact_id()")
    for _ in range(2):
        reader = make()
        reader.initialOffset()
        reader.prepareForTriggerAvailableNow()
        assert queue.value("select max(tick_id) from trunq.tick") == 2


def test_the_position_follows_commits_and_never_goes_back(queue: Queue, make: Make) -> None:
    reader = make()
    offsets = [reader.initialOffset()]
    for _ in range(2):
        queue.publish(1)
        queue.tick()
        offsets.append(reader.latestOffset(offsets[-1], ReadAllAvailable()))
    reader.commit(offsets[2])
    reader.commit(offsets[1])
    assert queue.value("select trunq.position('q', 'lake')") == offsets[2]["tick"]


def test_a_stream_needs_a_subscription_of_its_own(queue: Queue, make: Make) -> None:
    with pytest.raises(InvalidArgument, match="needs the option subscription"):
        StreamReader(queue.options(), columns("id"))
    with pytest.raises(InvalidArgument, match="endingTick"):
        make(endingTick="3")
    with pytest.raises(WrongMode, match="is shared, not exclusive"):
        make(subscription="default").initialOffset()


def test_a_checkpoint_of_another_queue_is_refused(queue: Queue, make: Make) -> None:
    queue.connection.execute("select trunq.create_queue('other')")
    reader = make()
    start = reader.initialOffset()
    for changed in ({**start, "queue": "other"}, {"topic": {"0": 3}}, {**start, "queue_id": 99}):
        with pytest.raises(CheckpointMismatch, match="checkpointLocation"):
            make().latestOffset(changed, ReadAllAvailable())


def test_a_queue_made_again_is_another_queue(queue: Queue, make: Make) -> None:
    start = make().initialOffset()
    queue.connection.execute("select trunq.drop_queue('q', p_force => true)")
    queue.connection.execute("select trunq.create_queue('q')")
    with pytest.raises(CheckpointMismatch, match="dropped and made again"):
        make().latestOffset(start, ReadAllAvailable())


def test_a_tick_that_is_gone_or_another_is_data_loss(queue: Queue, make: Make) -> None:
    reader = make()
    start = reader.initialOffset()
    queue.publish(4)
    queue.tick()
    end = reader.latestOffset(start, ReadAllAvailable())
    other = {**end, "snap": "3:3:"}
    with pytest.raises(DataLoss, match="not the one this query has read up to"):
        make().partitions(start, other)
    queue.connection.execute("delete from trunq.tick where tick_id = 1")
    for call in (
        lambda: make().partitions(start, end),
        lambda: make().latestOffset(start, ReadAllAvailable()),
    ):
        with pytest.raises(DataLoss, match=r"tick 1 .* is not kept any more"):
            call()
    assert len(ids(make(failOnDataLoss="false"), start, end)) == 4


def test_a_database_set_back_is_noticed(queue: Queue, make: Make) -> None:
    start = make().initialOffset()
    ahead: Any = {**start, "tick": 40, "snap": "99999:99999:"}
    with pytest.raises(DataLoss):
        make().latestOffset(ahead, ReadAllAvailable())


@pytest.mark.parametrize("ticks", [1, 3])
def test_a_tick_replaced_under_a_running_query_is_data_loss(queue: Queue, make: Make, ticks: int) -> None:
    reader, careless = make(), make(failOnDataLoss="false")
    start = reader.initialOffset()
    queue.publish(4)
    number = queue.tick()
    end = reader.latestOffset(start, ReadAllAvailable())
    for each in (reader, careless):
        assert len(ids(each, start, end)) == 4
        assert each.latestOffset(end, ReadAllAvailable())["tick"] == number
    # As a standby takes over that had not received the last tick: it cuts another of that number.
    queue.connection.execute("delete from trunq.tick where tick_id = %s", (number,))
    queue.disconnect_others()
    for count in range(ticks):
        queue.publish(5)
        assert queue.tick() == number + count
    with pytest.raises(DataLoss, match=f"tick {number} .* is not the one this query has read up to"):
        reader.latestOffset(end, ReadAllAvailable())
    assert careless.latestOffset(end, ReadAllAvailable())["tick"] == (number if ticks == 1 else number + 2)


def test_a_reader_survives_the_loss_of_its_connection(queue: Queue, make: Make) -> None:
    reader = make()
    start = reader.initialOffset()
    queue.publish(4)
    queue.tick()
    for _ in range(2):
        assert queue.disconnect_others() > 0
        end = reader.latestOffset(start, ReadAllAvailable())
        assert len(ids(reader, start, end)) == 4


def test_a_new_subscription_that_starts_at_the_latest_says_so_once(
    queue: Queue, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    queue.publish(3)
    make(subscription="all").initialOffset()
    assert caplog.messages == []
    for _ in range(2):
        reader = StreamReader(queue.options(subscription="new"), columns("id"))
        tick = reader.initialOffset()["tick"]
        reader.stop()
    assert caplog.messages == [
        f'subscription "new" of queue "q" is new and starts at the latest tick, {tick}: it will not read '
        "older messages. With startingOffsets=earliest, a new subscription reads all there are."
    ]


def test_a_checkpoint_of_another_subscription_is_refused(make: Make) -> None:
    start = make().initialOffset()
    make(subscription="other").initialOffset()
    with pytest.raises(
        CheckpointMismatch, match='belongs to subscription "lake", this query reads under "other"'
    ):
        make(subscription="other").latestOffset(start, ReadAllAvailable())


def test_of_two_queries_under_one_subscription_the_one_behind_is_refused(queue: Queue, make: Make) -> None:
    ahead, behind = make(), make()
    offsets = [ahead.initialOffset()]
    behind.initialOffset()
    for _ in range(4):
        queue.publish(3)
        queue.tick()
        offsets.append(ahead.latestOffset(offsets[-1], ReadAllAvailable()))
    for reader in (ahead, behind):
        reader.commit(offsets[1])
    ahead.commit(offsets[2])
    ahead.commit(offsets[3])
    with pytest.raises(CheckpointMismatch, match='somebody else reads subscription "lake"'):
        behind.commit(offsets[2])
    ahead.commit(offsets[4])
    # One that goes on from an older checkpoint is alone.
    old = make()
    for offset in offsets:
        old.commit(offset)


def test_a_stream_reads_what_passes_the_filter_of_its_subscription(queue: Queue, make: Make) -> None:
    reader = make()
    start = reader.initialOffset()
    queue.publish(3, kind="it's")
    queue.publish(4, kind="%s")
    queue.tick()
    end = reader.latestOffset(start, ReadAllAvailable())
    for filter, condition in {
        """{"kinds": ["it's"]}""": "kind = 'it''s'",
        """{"not_kinds": ["it's"]}""": "kind <> 'it''s'",
        """{"headers": {"a": 1}}""": "false",
        "{}": "true",
    }.items():
        queue.value("select trunq.subscribe('q', 'lake', 'exclusive', p_filter => %s)", filter)
        assert ids(reader, start, end) == queue.ids(condition)


def test_a_paused_stream_stays_where_it_is(queue: Queue, make: Make) -> None:
    reader = make()
    start = reader.initialOffset()
    queue.publish(3)
    queue.tick()
    queue.value("select trunq.pause_subscription('q', 'lake')")
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    queue.value("select trunq.resume_subscription('q', 'lake')")
    assert reader.latestOffset(start, ReadAllAvailable()) != start
