"""Two attempts at one run at once, with different data: the sink has one of them whole, and the state is
its.

The ways to commit share the orders, and so do the modes of each; with TRUNQ_TEST_ALL, each meets all.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import permutations
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pipeline.attempting import FIRST, SINKS, Attempt, begin, words
from pipeline.piping import Bench
from scope import share, some
from trunq.errors import InvalidPipeline
from trunq.pipeline.errors import StageLost
from trunq.pipeline.sink import Mark
from waiting import wait_until

ORDERS = sorted({("A", *order) for order in permutations("AABBB")})
"""In which two attempts that are staged write their rows down, commit and finish."""


def orders(kind: str) -> Sequence[tuple[str, ...]]:
    """The orders that attempts at a sink of this kind meet in: of ways to commit half of them."""
    if kind in FIRST:
        return share(ORDERS, FIRST.index(kind), 2)
    modes = [each for each in SINKS if each not in FIRST]
    return share(ORDERS, modes.index(kind), len(modes))


class Meeting:
    """Two attempts at each run of a pipeline, and who won."""

    def __init__(self, bench: Bench, pipeline: str, kind: str) -> None:
        self.bench, self.pipeline, self.kind = bench, pipeline, kind
        self.number, self._before = 0, Counter[str]()

    def next(self) -> dict[str, Attempt]:
        """Two attempts at the next run, staged with different data."""
        self.number += 1
        made, run = begin(self.bench, self.pipeline)
        return {word: Attempt(self.bench, made, run(), word, rows) for word, rows in (("A", 3), ("B", 5))}

    def check(self, both: dict[str, Attempt], at: Any) -> None:
        """One of them is there whole, and the state is its."""
        after = Counter(words(self.bench, self.kind))
        before = Counter[str]() if SINKS[self.kind].get("mode") == "replace" else self._before
        assert not before - after, at
        ((winner, rows),) = (after - before).items()
        self._before = after
        assert rows == both[winner].rows, at
        pipeline = self.bench.client.list_pipelines()[0]
        assert (pipeline.state, pipeline.runs) == ({"by": winner}, self.number), at
        assert self.bench.client.list_runs(self.pipeline)[0].rows_out == rows, at


@pytest.mark.slow
@pytest.mark.parametrize("kind", SINKS)
def test_in_whatever_order_two_attempts_meet_the_sink_has_one_whole_and_the_state_is_its(
    bench: Bench, made: Callable[[str], str], kind: str
) -> None:
    meeting = Meeting(bench, made(kind), kind)
    for order in orders(kind):
        both = meeting.next()
        for word in order:
            next(both[word].steps)()
        meeting.check(both, order)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SINKS)
def test_of_two_that_commit_at_the_same_time_one_is_in_the_sink(
    bench: Bench, made: Callable[[str], str], kind: str
) -> None:
    meeting = Meeting(bench, made(kind), kind)
    for round in range(some(1, 4)):
        both = meeting.next()
        at_once, failed = threading.Barrier(2), []

        def go(attempt: Attempt, at_once: threading.Barrier = at_once, failed: Any = failed) -> None:
            try:
                next(attempt.steps)()
                at_once.wait(120)
                for step in attempt.steps:
                    step()
            except BaseException as error:
                failed.append(error)
                raise

        threads = [threading.Thread(target=go, args=[attempt]) for attempt in both.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not failed
        meeting.check(both, round)


@pytest.mark.slow
def test_of_two_that_commit_a_later_run_one_waits_and_finds_it_taken(
    bench: Bench, made: Callable[[str], str]
) -> None:
    """At the first run, the row of the mark is new, and Postgres itself has the second wait."""
    meeting = Meeting(bench, made("append"), "append")
    both = meeting.next()
    for word in ORDERS[0]:
        next(both[word].steps)()
    meeting.check(both, "first")
    both = meeting.next()
    for attempt in both.values():
        next(attempt.steps)()
    waiting = (
        "select count(*) from pg_stat_activity"
        " where datname = current_database() and wait_event_type = 'Lock'"
    )
    with ThreadPoolExecutor(2) as pool, psycopg.connect(bench.dsn) as holder:
        holder.execute("lock table moved in access exclusive mode")
        commits = [pool.submit(next(attempt.steps)) for attempt in both.values()]
        wait_until(lambda: bench.one(waiting) == 2)
        holder.commit()
        for each in commits:
            each.result(120)
    for attempt in both.values():
        next(attempt.steps)()
    meeting.check(both, "second")


@pytest.mark.slow
@pytest.mark.parametrize("kind", SINKS)
def test_a_cancelled_run_that_somebody_still_works_at_brings_nothing(
    bench: Bench, made: Callable[[str], str], kind: str
) -> None:
    name = made(kind)
    opened, run = begin(bench, name)
    late = Attempt(bench, opened, run(), "A", 3)
    next(late.steps)()
    assert bench.client.cancel_pipeline(name)
    bench.sql("insert into source values (1, 'B', 'run 2')")
    bench.sql("update trunq.pipeline_run set held_until = null")
    assert bench.run(name)["number"] == 2
    next(late.steps)()
    next(late.steps)()
    assert words(bench, kind) == ["B"]
    assert [each.outcome for each in bench.client.list_runs(name)] == ["done", "cancelled"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["append", "delta", "parquet"])
def test_a_stage_that_a_crash_emptied_is_noticed(bench: Bench, made: Callable[[str], str], kind: str) -> None:
    opened, run = begin(bench, made(kind))
    attempt = Attempt(bench, opened, run(), "A", 3)
    for (stage,) in bench.sql("select oid::regclass::text from pg_class where relname like 'stage_%%'"):
        bench.sql(f"truncate {stage}")
    for path in Path("moved/_trunq_stage").rglob("*.parquet"):
        path.unlink()
    with pytest.raises(StageLost, match="3 rows of run 1"):
        attempt.commit()
    # Nothing says that the run is there.
    assert attempt.sink.applied(attempt.run) == Mark()
    assert kind == "parquet" or words(bench, kind) == []
    assert not [*Path("moved").glob("run-*")]


@pytest.mark.slow
def test_a_sink_that_is_ahead_of_the_database_is_refused(bench: Bench) -> None:
    bench.sql("create table source (id int); insert into source values (1)")
    name = bench.make({"format": "table", "table": "source"}, {"format": "table", "table": "moved"})
    bench.run(name)
    bench.sql("update trunq_sink.mark set number = 7; insert into source values (2)")
    with pytest.raises(InvalidPipeline, match="holds run 7"):
        bench.run(name)
    bench.sql("update trunq_sink.mark set number = 2, attempt = 99")
    with pytest.raises(InvalidPipeline, match="knows nothing of"):
        bench.run(name)
    assert bench.one("select count(*) from moved") == 1
