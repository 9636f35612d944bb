"""What each task does with its rows: it keeps broken ones out, and stages the others under its own part."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from trunq.arrow.batch import like
from trunq.pipeline import sink as sinks
from trunq.pipeline.control import Run
from trunq.pipeline.definition.change import gives_changes
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.figures import Figures, Newest, timed, timed_each
from trunq.pipeline.redact import redacted
from trunq.pipeline.work.column import Refuse
from trunq.pipeline.work.fitting import Fitting
from trunq.pipeline.work.rule import Sorter
from trunq.pipeline.work.ruling import Ruling, ruling
from trunq.pipeline.work.share import refusing


@dataclass(frozen=True, slots=True)
class Stager:
    """All that a task needs to stage its rows."""

    pipeline: Pipeline
    dsn: str
    run: Run
    schema: pa.Schema
    """The columns as they come."""
    fitting: Fitting | None = None
    """What becomes of them; None: nothing."""

    def stage(self, batches: Iterable[pa.RecordBatch]) -> dict[str, Any]:
        """What became of the rows: counts, and the part under which they are staged."""
        sink = sinks.make(self.pipeline, self.dsn)
        with redacted(self.pipeline, self.dsn), refusing(self.dsn, self.run) as refusal:
            sorter = Sorter(self.pipeline.checks, refusal, gives_changes(self.pipeline.source))
            figures = Figures()
            with timed(figures.staged), ExitStack() as stack:
                with figures.working():
                    ruler = stack.enter_context(ruling(self.pipeline, self.schema, self.dsn))
                pulled = timed_each(batches, figures.pulled)
                written = self._written(pulled, sorter, ruler, figures, refusal)
                rows = sink.stage(self.run, refusal.part, written)
        return {
            "part": refusal.part,
            "rows": rows,
            "bad": refusal.count,
            "broken": dict(sorter.broken),
            "failed": sorter.failed,
            "bytes": figures.bytes_out,
            "seconds": figures.sink,
            "newest": None if figures.newest is None else figures.newest.isoformat(),
        }

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same, as a function of Spark's: one row of JSON text."""
        yield pa.RecordBatch.from_pydict({"told": [json.dumps(self.stage(batches))]})

    def _written(
        self,
        batches: Iterable[pa.RecordBatch],
        sorter: Sorter,
        ruler: Ruling | None,
        figures: Figures,
        refuse: Refuse,
    ) -> Iterator[pa.RecordBatch]:
        newest = Newest(self.pipeline, self.schema if self.fitting is None else self.fitting.schema)
        for batch in batches:
            with figures.working():
                rows = self._sorted(batch, sorter, ruler)
                if sorter.failed is None and rows.num_rows:
                    rows = pa.RecordBatch.from_arrays(like(rows, self.schema).columns, schema=self.schema)
                    rows = rows if self.fitting is None else self.fitting.fit(rows, refuse)
            if sorter.failed is not None:
                # It fails whenever it is tried: no reason for Spark to repeat the task.
                return
            if rows.num_rows:
                figures.bytes_out += rows.nbytes
                figures.see(newest.of(rows))
                yield rows

    def _sorted(self, batch: pa.RecordBatch, sorter: Sorter, ruler: Ruling | None) -> pa.RecordBatch:
        if ruler is None:
            return sorter.sort(batch) if self.pipeline.is_marked else batch
        names, rows = None, batch
        if self.pipeline.is_marked:
            names = batch.column(batch.num_columns - 1)
            rows = batch.select(list(range(batch.num_columns - 1)))
        rows = pa.RecordBatch.from_arrays(like(rows, self.schema).columns, schema=self.schema)
        return sorter.sort_by(rows, ruler.wrong(rows), names)
