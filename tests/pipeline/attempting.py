"""Attempts at runs, a step at a time, for each way to commit."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import dataset

from pipeline.piping import Bench
from trunq.pipeline import sink as sinks
from trunq.pipeline.control import Run
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.reading import read_definition

ALL = {"changes": "all"}
CHANGES = {"replace": ALL, "replace_partitions": ALL, "apply": {"changes": "capture"}}
"""What a source has to say for a mode."""
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
    "delta history": {**DELTA, "mode": "history", "key": ["id"]},
    "parquet": {"format": "parquet", "path": "moved"},
    "apply": {**TABLE, "mode": "apply", "key": ["id"]},
    "delta apply": {**DELTA, "mode": "apply", "key": ["id"]},
}


FIRST = ("append", "queue", "delta", "parquet")
"""One for each way to commit; the others are modes of the first and the third."""


class Attempt:
    """One of the two, a step at a time."""

    def __init__(self, bench: Bench, pipeline: Pipeline, run: Run, word: str, rows: int) -> None:
        self.control, self.run, self.word, self.rows = bench.executor.control, run, word, rows
        self.sink = sinks.make(pipeline, bench.dsn)
        self.run.attempt = self.control.attempt(run) or 0
        # Keys of a run are its own, and those of its attempts the same.
        ids = pa.array(range(run.number * 100, run.number * 100 + rows), pa.int32())
        table = pa.table({"id": ids, "word": [word] * rows, "run": [f"run {run.number}"] * rows})
        if getattr(pipeline.sink, "mode", "") == "apply":
            table = table.append_column("_op", pa.array(["upsert"] * rows))
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
