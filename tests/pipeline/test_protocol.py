"""Two attempts at one run at once, with different data: the sink has one of them whole, and the state is
its.

Each way to commit meets every order. Modes that commit the same way share the orders; with
TRUNQ_TEST_ORDERS=all, each meets all.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import dataset

from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline import sink as sinks
from trunq.pipeline.control import Run
from trunq.pipeline.errors import StageLost
from trunq.pipeline.model import Pipeline, read_definition

ORDERS = sorted({("A", *order) for order in permutations("AABBB")})
"""In which two attempts that are staged write their rows down, commit and finish."""


class Attempt:
    """One of the two, a step at a time."""

    def __init__(self, bench: Bench, pipeline: Pipeline, run: Run, word: str, rows: int) -> None:
        self.control, self.run, self.word, self.rows = bench.executor.control, run, word, rows
        self.sink = sinks.make(pipeline, bench.dsn)
        self.run.attempt = self.control.attempt(run) or 0
        # Keys of a run are its own, and those of its attempts the same.
        ids = pa.array(range(run.number * 100, run.number * 100 + rows), pa.int32())
        table = pa.table({"id": ids, "word": [word] * rows, "run": [f"run {run.number}"] * rows})
        self.sink.applied(run)
        if self.run.attempt:
            self.sink.begin(run, table.schema)
            assert self.sink.stage(run, word, table.to_batches()) == rows
        self.steps = iter((self.write, self.commit, self.finish))

    def write(self) -> None:
        self.is_staged = self.control.stage(self.run, [self.word], {"by": self.word}, self.rows, 0)

    def commit(self) -> None:
        self.sink.commit(self.run, [self.word], self.rows)

    def finish(self) -> None:
        mark = self.sink.applied(self.run)
        assert mark is not None
        self.control.finish(self.run, mark.number, mark.attempt)


def open_run(bench: Bench, pipeline: str, message: int) -> tuple[Pipeline, dict[str, Any]]:
    opened = bench.executor.control.open(bench.asked(message))
    return read_definition(pipeline, opened["definition"]), opened


def begin(bench: Bench, pipeline: str, slice: Any = None) -> tuple[Pipeline, Any]:
    """A run that is begun, and what makes objects of it."""
    message = bench.client.run_pipeline(pipeline)
    made, opened = open_run(bench, pipeline, message)
    told = bench.executor.control.begin(bench.asked(message), opened, slice or {"of": "test"})
    assert told is not None
    return made, lambda: Run(
        pipeline, opened["identity"], told["run_id"], told["number"], message, told["slice"]
    )


ALL = {"changes": "all"}
TABLE = {"format": "table", "table": "moved"}
DELTA = {"format": "delta", "path": "moved"}
SINKS: dict[str, dict[str, Any]] = {
    "append": TABLE,
    "upsert": {**TABLE, "mode": "upsert", "key": ["id"]},
    "replace": {**TABLE, "mode": "replace"},
    "history": {**TABLE, "mode": "history", "key": ["id"]},
    "queue": {"format": "queue", "queue": "moved"},
    "delta": DELTA,
    "delta upsert": {**DELTA, "mode": "upsert", "key": ["id"]},
    "delta replace": {**DELTA, "mode": "replace"},
    "delta partitions": {**DELTA, "mode": "replace_partitions", "partition_by": ["run"]},
    "parquet": {"format": "parquet", "path": "moved"},
}


FIRST = ("append", "queue", "delta", "parquet")
"""One for each way to commit; the others are modes of the first and the third."""


def orders(kind: str) -> list[tuple[str, ...]]:
    """The orders that attempts at a sink of this kind meet in: of modes, each a third, together all."""
    if kind in FIRST or os.environ.get("TRUNQ_TEST_ORDERS") == "all":
        return ORDERS
    modes = [each for each in SINKS if each not in FIRST]
    return ORDERS[modes.index(kind) % 3 :: 3]


def words(bench: Bench, kind: str) -> list[str]:
    """What the sink has."""
    if kind.startswith("delta"):
        return list(DeltaTable("moved").to_pyarrow_table()["word"].to_pylist())
    if kind == "parquet":
        table = dataset.dataset("moved", format="parquet").to_table()
        return list(table["word"].to_pylist()) if table.column_names else []
    if kind == "queue":
        return [word for (word,) in bench.sql("select payload->>'word' from trunq_log.moved")]
    if not bench.one("select to_regclass('moved') is not null"):
        return []
    return [word for (word,) in bench.sql("select word from moved")]


@pytest.fixture
def made(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """A pipeline into a sink of a kind, whose rows come from the test."""
    monkeypatch.chdir(tmp_path)

    def make(kind: str) -> str:
        bench.sql("create table source (id int, word text, run text)")
        if kind == "queue":
            bench.client.create_queue("moved")
        source = {"format": "table", "table": "source"}
        return bench.make(
            {**source, **(ALL if "replace" in SINKS[kind].get("mode", "") else {})}, SINKS[kind]
        )

    return make


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


@pytest.mark.parametrize("kind", SINKS)
def test_of_two_that_commit_at_the_same_time_one_is_in_the_sink(
    bench: Bench, made: Callable[[str], str], kind: str
) -> None:
    meeting = Meeting(bench, made(kind), kind)
    for round in range(4 if kind in FIRST else 2):
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
    assert kind == "parquet" or words(bench, kind) == []
    assert not [*Path("moved").glob("run-*")]


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
