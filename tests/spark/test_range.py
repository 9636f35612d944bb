"""Windows and their parts: together exactly the rows between two ticks, whatever was open meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from typing import Any

import pytest

from spark.conftest import Queue
from trunq.spark.connection import Database
from trunq.spark.source.log import QueueLog, Tick
from trunq.spark.source.range import BEGINNING, Interval, Part, Position, Snapshot, Split, Window, split


@pytest.fixture
def log(queue: Queue) -> Iterator[QueueLog]:
    database = Database(lambda: queue.dsn)
    yield QueueLog(database, "q")
    database.close()


def read(queue: Queue, part: Part) -> list[int]:
    found = []
    for condition in part.conditions():
        rows = queue.connection.execute(f"select id from trunq_log.q where {condition}".encode())
        found += [row[0] for row in rows.fetchall()]
    return found


def expected(queue: Queue, start: Tick, end: Tick) -> list[int]:
    before, after = (f"pg_visible_in_snapshot(txid, '{each.snapshot}')" for each in (start, end))
    return queue.ids(f"not {before} and {after}")


def cut(queue: Queue, log: QueueLog, start: Tick, end: Tick, count: int) -> list[list[int]]:
    """Cuts the window, checks that the parts are exactly its rows, and returns them."""
    parts = split(start.between(end), log, (start.last_message_id, end.last_message_id), Split(10**9, count))
    rows = [read(queue, part) for part in parts]
    assert sorted(chain.from_iterable(rows)) == expected(queue, start, end)
    return rows


def tick(queue: Queue, log: QueueLog) -> Tick:
    found = log.tick(queue.tick())
    assert found is not None
    return found


def test_a_window_is_the_transactions_finished_between_two_snapshots() -> None:
    lo, hi = Snapshot.parse("10:20:12,15"), Snapshot.parse("15:30:15,22,28")
    window = Window.between(lo, hi)
    assert window == Window(late=(12,), low=20, high=30, running=(22, 28))
    assert Window.between(hi, hi).is_empty
    assert Window.between(BEGINNING, lo) == Window(late=(), low=0, high=20, running=(12, 15))


def test_a_part_names_only_the_running_transactions_inside_it() -> None:
    part = Part(intervals=(Interval(Position(5, 0), Position(9, 7)),), running=(4, 6, 12))
    assert part.conditions() == [
        "(txid, id) >= ('5'::xid8, 0) and (txid, id) < ('9'::xid8, 7) and txid <> all('{6}'::xid8[])"
    ]


def test_small_transactions_are_cut_by_their_ids(queue: Queue, log: QueueLog) -> None:
    start = tick(queue, log)
    for _ in range(600):
        queue.publish(5)
    rows = cut(queue, log, start, tick(queue, log), 4)
    assert [len(each) > 500 for each in rows] == [True] * 4


def test_one_huge_transaction_is_cut_by_its_ids(queue: Queue, log: QueueLog) -> None:
    start = tick(queue, log)
    queue.publish(4000)
    rows = cut(queue, log, start, tick(queue, log), 4)
    assert [len(each) for each in rows] == [1000] * 4


def test_loads_at_the_same_time_are_cut_evenly(queue: Queue, log: QueueLog) -> None:
    start = tick(queue, log)
    writers = [queue.connect(autocommit=False) for _ in range(4)]
    for _ in range(20):
        for writer in writers:
            queue.publish(50, connection=writer)
    for writer in writers:
        writer.commit()
    rows = cut(queue, log, start, tick(queue, log), 4)
    assert [len(each) > 500 for each in rows] == [True] * 4


def test_a_huge_late_transaction_is_cut_too(queue: Queue, log: QueueLog) -> None:
    late = queue.connect(autocommit=False)
    queue.publish(4000, connection=late)
    queue.publish(10)
    start = tick(queue, log)
    late.commit()
    queue.publish(10)
    rows = cut(queue, log, start, tick(queue, log), 4)
    assert [len(each) > 900 for each in rows] == [True] * 4


def test_transactions_open_across_ticks_are_in_exactly_one_window(queue: Queue, log: QueueLog) -> None:
    ticks = [tick(queue, log)]
    long, short, rolled_back = (queue.connect(autocommit=False) for _ in range(3))
    queue.publish(3, connection=long)
    queue.publish(2, connection=rolled_back)
    queue.publish(10)
    ticks.append(tick(queue, log))
    queue.publish(3, connection=short)
    queue.publish(3, connection=long)
    rolled_back.rollback()
    queue.publish(10)
    ticks.append(tick(queue, log))
    short.commit()
    ticks.append(tick(queue, log))
    long.commit()
    ticks.append(tick(queue, log))
    for count in (1, 3):
        seen = [id for a, b in pairwise(ticks) for rows in cut(queue, log, a, b, count) for id in rows]
        assert sorted(seen) == queue.ids()
    assert len(cut(queue, log, ticks[0], ticks[-1], 1)[0]) == 29


def test_writers_with_open_transactions_lose_nothing_across_ticks(queue: Queue, log: QueueLog) -> None:
    done = threading.Event()
    ticks = [tick(queue, log)]

    def write(connection: Any, pattern: tuple[int, ...]) -> None:
        while not done.is_set():
            for number, count in enumerate(pattern):
                queue.publish(count, connection=connection)
                if number % 3 == 2:
                    connection.rollback()
            connection.commit()

    writers = [
        threading.Thread(target=write, args=(queue.connect(autocommit=False), pattern))
        for pattern in ((1, 1, 1, 1, 1), (40,), (7, 2, 1), (3, 3))
    ]
    for writer in writers:
        writer.start()
    while len(ticks) < 40:
        ticks.append(tick(queue, log))
    done.set()
    for writer in writers:
        writer.join()
    ticks.append(tick(queue, log))
    seen = [id for a, b in pairwise(ticks) for rows in cut(queue, log, a, b, 2) for id in rows]
    assert sorted(seen) == queue.ids()
    assert any(Snapshot.parse(each.snapshot).running for each in ticks)


def test_reading_a_part_walks_the_index(queue: Queue, log: QueueLog, explain: Callable[[str], str]) -> None:
    start = tick(queue, log)
    queue.publish(3000)
    end = tick(queue, log)
    for part in split(start.between(end), log, (start.last_message_id, end.last_message_id), Split(500, 4)):
        for condition in part.conditions():
            plan = explain(f"select payload from trunq_log.q where {condition} and subscription_id is null")
            assert "Seq Scan" not in plan
            assert "Index Cond: ((ROW(txid, id) >=" in plan


@pytest.fixture
def explain(queue: Queue) -> Callable[[str], str]:
    def plan(query: str) -> str:
        with queue.connection.transaction():
            queue.connection.execute("set local enable_seqscan = off")
            queue.connection.execute("set local enable_bitmapscan = off")
            rows = queue.connection.execute(f"explain {query}".encode()).fetchall()
        return "\n".join(row[0] for row in rows)

    return plan
