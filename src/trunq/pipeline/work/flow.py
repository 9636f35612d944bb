"""The rows of an attempt on their way from source to sink, in one process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from trunq.arrow.batch import batches_of, like
from trunq.pipeline import source as sources
from trunq.pipeline.control import Control, Run
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.reserved import require_free
from trunq.pipeline.errors import TooManyBad
from trunq.pipeline.figures import Newest, timed, timed_each
from trunq.pipeline.sink import Sink, Staged
from trunq.pipeline.source import Context, Source, State
from trunq.pipeline.source.function import find_function, wants_context

if TYPE_CHECKING:
    from trunq.pipeline.engine import Engine
    from trunq.pipeline.work.fitting import Fitting


class Flow:
    """The rows of one attempt on their way. In a task of Spark: those of its share, all under one part.

    `schema`: the columns to which the sink was made ready beforehand; None: the first rows tell them.
    `there`: those that the sink had before that.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        run: Run,
        control: Control,
        check: Callable[[], None],
        dsn: str,
        *,
        part: str | None = None,
        schema: pa.Schema | None = None,
        there: pa.Schema | None = None,
    ) -> None:
        self._part, self.schema, self._is_begun = part, schema, schema is not None
        self._there = there
        self._pipeline, self._run, self._control, self._check = pipeline, run, control, check
        self._dsn = dsn
        self.bad = 0
        self.failed: dict[str, str] | None = None
        run.progress = {"rows_in": 0, "rows_out": 0, "rows_bad": 0, "bytes": 0}
        self.context = Context(
            run.pipeline, run.number, message=run.message, refuse=self._refuse, check=check
        )

    def rows(self, source: Source | None) -> Iterator[pa.RecordBatch]:
        """What is to be written."""
        name = self._pipeline.function
        if name is None:
            yield from self._given(source)
            return
        function = find_function(self._pipeline.name, name)
        what = f"pipeline {self._pipeline.name}: function {name}"
        is_mixed = self._pipeline.evolve.sorts
        yield from batches_of(self._transformed(function, source), what, is_mixed=is_mixed)

    def stage_in(self, engine: Engine, source: Source | None, sink: Sink) -> Staged:
        """Read, transform, check and stage the rows in Spark."""
        run = self._run
        staged = engine.stage(self._pipeline, run, source, sink, self.context, self._check, self._dsn)
        self.bad += staged.bad
        run.progress["rows_bad"] = self.bad
        self._require_good(staged.rows)
        return staged

    def stage(self, sink: Sink, rows: Iterator[pa.RecordBatch]) -> Staged:
        """Stage them in one part."""
        figures = self._run.figures
        with timed(figures.staged):
            return self._staged(sink, timed_each(rows, figures.pulled))

    def _staged(self, sink: Sink, batches: Iterator[pa.RecordBatch]) -> Staged:
        first = next(batches, None)
        if first is None:
            self._require_good(0)
            return Staged([], 0)
        if self.schema is None:
            require_free(self._pipeline, first.schema.names)
            self.schema = first.schema
        schema = self.schema
        part = self._part or str(uuid.uuid4())
        fitting = self._fitting(sink, schema)
        schema = schema if fitting is None else fitting.given
        newest = Newest(self._pipeline, schema if fitting is None else fitting.schema)

        def all_alike() -> Iterator[pa.RecordBatch]:
            batch: pa.RecordBatch | None = first
            while batch is not None:
                self._check()
                alike = like(batch if fitting is None else fitting.refit(batch, self._refuse), schema)
                yield pa.RecordBatch.from_arrays(alike.columns, schema=schema)
                batch = next(batches, None)

        if self._pipeline.checks:
            return self._stage_checked(sink, part, schema, all_alike(), newest, fitting)
        self._begin(sink, schema, fitting)
        rows = sink.stage(self._run, part, self._out(self._fit(all_alike(), fitting), newest))
        return self._all_staged(sink, part, rows, may_be_none=fitting is not None)

    def _all_staged(self, sink: Sink, part: str, rows: int, *, may_be_none: bool) -> Staged:
        self._require_good(rows)
        if rows or not may_be_none:
            return Staged([part], rows)
        if self._part is None:
            sink.discard(self._run)
        return Staged([], 0)

    def _stage_checked(
        self,
        sink: Sink,
        part: str,
        schema: pa.Schema,
        batches: Iterator[pa.RecordBatch],
        newest: Newest,
        fitting: Fitting | None,
    ) -> Staged:
        """Stage those that break no rule."""
        from trunq.pipeline.work.local import checking  # noqa: PLC0415
        from trunq.pipeline.work.rule import check_failed  # noqa: PLC0415

        figures = self._run.figures
        with ExitStack() as stack:
            checks = checking(self._pipeline, self._dsn, schema, batches, self._refuse, self._check)
            with figures.working():
                checked = stack.enter_context(checks)
            self._begin(sink, schema, fitting)
            good = figures.worked_each(self._fit(checked.good, fitting))
            rows = sink.stage(self._run, part, self._out(good, newest))
        self.failed = checked.sorter.failed
        if self.failed is not None and self._part is None:
            raise check_failed(self._run.pipeline, self.failed)
        if checked.sorter.broken:
            self._run.progress["broken"] = dict(checked.sorter.broken)
        return self._all_staged(sink, part, rows, may_be_none=True)

    def _fitting(self, sink: Sink, schema: pa.Schema) -> Fitting | None:
        if not self._pipeline.evolve.sorts:
            return None
        from trunq.pipeline.work.fitting import Fitting  # noqa: PLC0415  # for few runs

        return Fitting(self._pipeline, schema, self._there if self._is_begun else sink.columns())

    def _fit(self, batches: Iterator[pa.RecordBatch], fitting: Fitting | None) -> Iterator[pa.RecordBatch]:
        return batches if fitting is None else fitting.each(batches, self._refuse)

    def _out(self, batches: Iterator[pa.RecordBatch], newest: Newest) -> Iterator[pa.RecordBatch]:
        figures = self._run.figures
        for batch in batches:
            self._run.progress["rows_out"] += batch.num_rows
            figures.bytes_out += batch.nbytes
            figures.see(newest.of(batch))
            yield batch

    def state_after(self) -> State | None:
        """Where the next slice begins, if the sink takes this attempt; None: where it began before."""
        if "range" in self._run.slice or "quarantine" in self._run.slice:
            return None
        after: State = self._run.slice.get("after", self.context.state)
        return after

    def _counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in timed_each(batches, self._run.figures.read):
            self._run.progress["rows_in"] += batch.num_rows
            self._run.progress["bytes"] += batch.nbytes
            yield batch

    def _given(self, source: Source | None) -> Iterator[pa.RecordBatch]:
        """What the source gave, after the steps of `columns`."""
        is_plain = self._pipeline.columns is None and not self._pipeline.checks
        if is_plain and source is not None:
            return self._counted(source.read(self._run.slice, self.context))
        from trunq.pipeline.work.local import fitted, given, given_again  # noqa: PLC0415  # for few runs

        if source is None:
            of_source = sources.make(self._pipeline, self._dsn, self._control).schema(self._run.slice)
            batches = self._counted(self._again(of_source))
            if is_plain and self._pipeline.function is not None:
                return fitted(of_source, batches)
            return given_again(self._pipeline, of_source, batches, self._refuse)
        batches = self._counted(source.read(self._run.slice, self.context))
        return given(self._pipeline, source, self._run.slice, batches, self._refuse)

    def _again(self, of_source: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        from trunq.pipeline.work.again import again  # noqa: PLC0415
        from trunq.pipeline.work.column import names_after  # noqa: PLC0415

        def lost(count: int) -> None:
            self._run.progress["rows_in"] += count

        names = names_after(self._pipeline, of_source)
        return again(self._pipeline, self._control, self._run.slice["quarantine"], self._refuse, lost, names)

    def _transformed(self, function: Callable[..., Any], source: Source | None) -> Any:
        batches = list(self._given(source))
        if not batches:
            return []
        first = batches[0].schema
        table = pa.Table.from_batches([like(batch, first) for batch in batches], first)
        return function(table, self.context) if wants_context(function) else function(table)

    def _refuse(self, rows: list[Any], reasons: list[list[str]]) -> None:
        if rows:
            self._control.quarantine(self._run, reasons, rows, self._part)
            self.bad += len(rows)
            self._run.progress["rows_bad"] = self.bad

    def _begin(self, sink: Sink, schema: pa.Schema, fitting: Fitting | None) -> None:
        if fitting is not None:
            schema = self.schema = fitting.schema
        if not self._is_begun:
            self._run.figures.columns = sink.begin(self._run, schema)

    def _require_good(self, good: int) -> None:
        # What a task has seen is not all.
        if self._part is None and self.bad > self._pipeline.max_bad * (good + self.bad):
            raise TooManyBad(
                f"{self.bad} of {good + self.bad} rows of run {self._run.number} of pipeline"
                f" {self._run.pipeline} broke a"
                f" rule, and max_bad is {self._pipeline.max_bad}"
            )
