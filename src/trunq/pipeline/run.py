"""One run: opened or taken up, read, staged, committed, finished. Killed at any line, it loses and doubles
nothing.

The order is all: the slice is fixed before anything is read; the attempt with the state after it is written
down before the sink commits; the sink commits data and mark in one step; the run ends with the attempt that
the sink's mark names. sql/functions/pipeline/run.sql has the other half.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from trunq import Client
from trunq.arrow.batch import batches_of, like
from trunq.errors import InvalidPipeline
from trunq.pipeline import sink as sinks
from trunq.pipeline import source as sources
from trunq.pipeline.control import Asked, Control, Run
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.reading import read_definition
from trunq.pipeline.engine import Engine
from trunq.pipeline.errors import RunCancelled, RunOver, TooManyBad, Wait
from trunq.pipeline.figures import Figures, Newest, timed, timed_each
from trunq.pipeline.isolated import Isolation
from trunq.pipeline.monitor import Monitor
from trunq.pipeline.redact import redact, redacted
from trunq.pipeline.sink import Mark, Sink, Staged
from trunq.pipeline.source import Context, Plan, Source, State
from trunq.pipeline.source.function import find_function, wants_context

_TELL: Final = ("number", "backfill", "outcome", "rows_in", "rows_out", "rows_bad", "chain")


@dataclass
class Executor:
    """Executes what messages ask for, on a client of the database of trunq."""

    client: Client
    dsn: str
    engine: Engine = field(default_factory=Engine)
    isolation: Isolation | None = None
    """Does the runs of isolated pipelines; None: they are done here."""
    running: dict[int, Run] = field(default_factory=dict)
    """What is being done, by its message."""
    control: Control = field(init=False)

    def __post_init__(self) -> None:
        self.control = Control(self.client)

    def execute(self, asked: Asked, lost: threading.Event | None = None) -> dict[str, Any]:
        """What became of the run that a message asks for. Raises Wait, RunOver when `lost` was set."""
        while True:
            opened = self.control.open(asked)
            if opened["action"] == "answer":
                return _answer(opened["run"])
            if opened["action"] == "wait":
                raise Wait(float(opened["seconds"]))
            written = read_definition(asked.pipeline, opened["definition"])
            pipeline = written.expanded()
            with redacted(pipeline):
                if opened["action"] == "take":
                    told = opened["run"]
                elif (told := self._plan(pipeline, asked, opened)) is None:
                    return {"outcome": "nothing new"}
                elif not told:
                    continue
                result = self._take(pipeline, _run(pipeline, opened, told), asked, lost or threading.Event())
            if told["message_id"] == asked.message_id:
                return result

    def _plan(self, pipeline: Pipeline, asked: Asked, opened: dict[str, Any]) -> dict[str, Any] | None:
        """The run over what is new; None: nothing is; empty: another run began meanwhile, or the
        state was set.
        """
        sinks.make(pipeline, self.dsn).check()
        if asked.is_resend:
            reason = (asked.payload or {}).get("reason")
            ids = self.control.quarantined(pipeline.name, reason)
            return self._begin(pipeline, asked, opened, Plan({"quarantine": ids} if ids else None, None))
        source = sources.make(pipeline, self.dsn, self.control)
        if asked.is_backfill:
            return self._begin(pipeline, asked, opened, Plan(source.plan_range(asked.payload), None))
        plan = source.plan(opened["state"])
        if plan.slice is None and plan.state is not None:
            self.control.note_nothing(pipeline.name, opened, plan.state)
            source.release(plan.state)
        return self._begin(pipeline, asked, opened, plan)

    def _begin(
        self, pipeline: Pipeline, asked: Asked, opened: dict[str, Any], plan: Plan
    ) -> dict[str, Any] | None:
        if plan.slice is None:
            return None
        if pipeline.needs_spark and not self._is_elsewhere(pipeline):
            self.engine.require_warm()
            self.engine.check(pipeline)
        after = {} if plan.state is None else {"after": plan.state}
        return self.control.begin(asked, opened, {**plan.slice, **after}) or {}

    def _take(self, pipeline: Pipeline, run: Run, asked: Asked, lost: threading.Event) -> dict[str, Any]:
        self.running[asked.message_id] = run
        try:
            if self.isolation is not None and self._is_elsewhere(pipeline) and not run.is_cancelled:
                done = self.isolation.take(run, asked, lost, self.control)
                if done is not None:
                    return done
                run.is_cancelled = True
            if pipeline.needs_spark and not run.is_cancelled:
                self.engine.require_warm()
            return self._apply(pipeline, run, asked, lost)
        except Exception as error:
            # Others need not wait until our hold is over.
            with suppress(Exception):
                # Given up for another runner, it has not failed.
                is_over = isinstance(error, RunOver)
                why = None if is_over else redact(pipeline, f"{type(error).__name__}: {error}")
                has_failed = not isinstance(error, Wait)
                self.control.let_go(run, asked.message_id, why, has_failed=has_failed)
            raise
        finally:
            self.running.pop(asked.message_id, None)

    def _is_elsewhere(self, pipeline: Pipeline) -> bool:
        """Whether its runs are done in processes of their own."""
        return pipeline.isolate and self.isolation is not None

    def _apply(self, pipeline: Pipeline, run: Run, asked: Asked, lost: threading.Event) -> dict[str, Any]:
        sink = sinks.make(pipeline, self.dsn)
        # To give a run up, its source is not needed: it may be what is wrong.
        is_read = "quarantine" not in run.slice and not run.is_cancelled
        source = sources.make(pipeline, self.dsn, self.control) if is_read else None
        mark = sink.applied(run)
        self._require_not_behind(pipeline, run, mark)
        if mark is None or mark.number < run.number:
            own = 0
            try:
                if run.is_cancelled:
                    raise RunCancelled("cancelled")
                own = self._attempt(pipeline, source, sink, run, asked, lost)
            except RunCancelled:
                run.attempt = 0
                sink.commit(run, [], 0)
            mark = sink.applied(run) or Mark(run.number, own)
        if mark.number < run.number:
            # Others gave it up meanwhile, and whoever comes next has the sink note it.
            raise RunOver(f"run {run.number} of pipeline {run.pipeline} is not ours any more")
        # One who was slow finds that others have ended this run, and taken the next.
        finished = self.control.finish(run, mark.number, mark.attempt)
        if finished.get("is_lost"):
            raise InvalidPipeline(
                f"the sink of pipeline {run.pipeline} holds run {mark.number}"
                + (", or an attempt at it," if mark.number == run.number else "")
                + " that this database knows nothing of: it was set back, or another one writes there",
                f"to go on from the state that this database has: trunq pipeline accept {run.pipeline}; what"
                f" that run brought comes again then, unless trunq pipeline state {run.pipeline} --set says a"
                " later place before the next run",
            )
        if source is not None and not run.backfill and finished["outcome"] == "done":
            source.release(run.slice.get("after", {}))
        return _answer(finished)

    def _require_not_behind(self, pipeline: Pipeline, run: Run, mark: Mark | None) -> None:
        """Refuse a sink that has lost runs. (Directories of Parquet are removed by whoever has read them.)"""
        if mark is None or run.backfill or pipeline.sink.format == "parquet" or mark.number >= run.marked:
            return
        self.control.note_sink(run, mark.number)
        raise InvalidPipeline(
            f"the sink of pipeline {run.pipeline} holds run {mark.number}, and has held run {run.marked}: it"
            " was set back, or is another one",
            f"to go on without what it lacks: trunq pipeline accept {run.pipeline}; to have it again: trunq"
            f" pipeline cancel {run.pipeline}, and trunq pipeline state {run.pipeline} --set",
        )

    def _attempt(
        self,
        pipeline: Pipeline,
        source: Source | None,
        sink: Sink,
        run: Run,
        asked: Asked,
        lost: threading.Event,
    ) -> int:
        """Stage all rows and have the sink take them; the number of this attempt, or 0 if another ended the
        run.
        """
        attempt = self.control.attempt(run)
        if attempt is None:
            return 0
        run.attempt, run.figures = attempt, Figures()
        try:
            with self._watched(pipeline, run, asked.message_id, lost) as check:
                flow = _Flow(pipeline, run, self.control, check, self.dsn)
                if pipeline.needs_spark:
                    staged = flow.stage_in(self.engine, source, sink)
                else:
                    staged = flow.stage(sink, flow.rows(source))
                if pipeline.needs_spark or pipeline.checks:
                    # With what broke which check.
                    self.control.hold(run, asked.message_id)
                parts = [*staged.parts, *staged.kept]
                if not self.control.stage(run, parts, flow.state_after(), staged.rows, flow.bad):
                    raise RunOver(f"run {run.number} of pipeline {run.pipeline} is not ours any more")
                check()
                with timed(run.figures.committed):
                    sink.commit(run, staged.parts, staged.rows)
        except BaseException:
            with suppress(Exception):
                sink.discard(run)
            raise
        return attempt

    @contextmanager
    def _watched(
        self, pipeline: Pipeline, run: Run, holder: int, lost: threading.Event
    ) -> Iterator[Callable[[], None]]:
        """Says each second how far the run is; what it yields raises when the run is to stop."""
        watch = Monitor(self.control, self.engine if pipeline.needs_spark else None, run, holder, lost)
        watch.start()
        try:
            yield watch.check
        except Exception:
            # Drivers make errors of their own of what is raised in the rows that they take.
            watch.check()
            raise
        finally:
            watch.end()


class _Flow:
    """The rows of one attempt on their way."""

    def __init__(
        self, pipeline: Pipeline, run: Run, control: Control, check: Callable[[], None], dsn: str
    ) -> None:
        self._pipeline, self._run, self._control, self._check = pipeline, run, control, check
        self._dsn = dsn
        self.bad = 0
        run.progress = {"rows_in": 0, "rows_out": 0, "rows_bad": 0, "bytes": 0}
        self._context = Context(
            run.pipeline, run.number, message=run.payload, refuse=self._refuse, check=check
        )

    def rows(self, source: Source | None) -> Iterator[pa.RecordBatch]:
        """What is to be written."""
        name = self._pipeline.function
        if name is None:
            yield from self._given(source)
            return
        function = find_function(self._pipeline.name, name)
        what = f"pipeline {self._pipeline.name}: function {name}"
        yield from batches_of(self._transformed(function, source), what)

    def stage_in(self, engine: Engine, source: Source | None, sink: Sink) -> Staged:
        """Read, transform, check and stage the rows in Spark."""
        run = self._run
        staged = engine.stage(self._pipeline, run, source, sink, self._context, self._check, self._dsn)
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
        schema = first.schema
        newest = Newest(self._pipeline, schema)
        part = str(uuid.uuid4())

        def all_alike() -> Iterator[pa.RecordBatch]:
            batch: pa.RecordBatch | None = first
            while batch is not None:
                self._check()
                yield like(batch, schema)
                batch = next(batches, None)

        if self._pipeline.checks:
            return self._stage_checked(sink, part, schema, all_alike(), newest)
        self._run.figures.columns = sink.begin(self._run, schema)
        rows = sink.stage(self._run, part, self._out(all_alike(), newest))
        self._require_good(rows)
        return Staged([part], rows)

    def _stage_checked(
        self,
        sink: Sink,
        part: str,
        schema: pa.Schema,
        batches: Iterator[pa.RecordBatch],
        newest: Newest,
    ) -> Staged:
        """Stage those that break no rule."""
        from trunq.pipeline.work.local import checking  # noqa: PLC0415
        from trunq.pipeline.work.rule import check_failed  # noqa: PLC0415

        figures = self._run.figures
        with ExitStack() as stack:
            checks = checking(self._pipeline, self._dsn, schema, batches, self._refuse, self._check)
            with figures.working():
                checked = stack.enter_context(checks)
            figures.columns = sink.begin(self._run, schema)
            rows = sink.stage(self._run, part, self._out(figures.worked_each(checked.good), newest))
        if checked.sorter.failed is not None:
            raise check_failed(self._run.pipeline, checked.sorter.failed)
        if checked.sorter.broken:
            self._run.progress["broken"] = dict(checked.sorter.broken)
        self._require_good(rows)
        if not rows:
            sink.discard(self._run)
        return Staged([part] if rows else [], rows)

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
        after: State = self._run.slice.get("after", self._context.state)
        return after

    def _counted(self, source: Source | None) -> Iterator[pa.RecordBatch]:
        batches = self._again() if source is None else source.read(self._run.slice, self._context)
        for batch in timed_each(batches, self._run.figures.read):
            self._run.progress["rows_in"] += batch.num_rows
            self._run.progress["bytes"] += batch.nbytes
            yield batch

    def _given(self, source: Source | None) -> Iterator[pa.RecordBatch]:
        """What the source gave, after the steps of `columns`."""
        batches = self._counted(source)
        is_plain = self._pipeline.columns is None and not self._pipeline.checks
        if is_plain and (source is not None or self._pipeline.function is not None):
            return batches
        from trunq.pipeline.work.local import given, given_again  # noqa: PLC0415  # most runs have neither

        if source is None:
            of_source = sources.make(self._pipeline, self._dsn, self._control).schema(self._run.slice)
            return given_again(self._pipeline, of_source, batches, self._refuse)
        return given(self._pipeline, source, self._run.slice, batches, self._refuse)

    def _again(self) -> Iterator[pa.RecordBatch]:
        from trunq.pipeline.work.again import again  # noqa: PLC0415

        def lost(count: int) -> None:
            self._run.progress["rows_in"] += count

        return again(self._pipeline, self._control, self._run.slice["quarantine"], self._refuse, lost)

    def _transformed(self, function: Callable[..., Any], source: Source | None) -> Any:
        batches = list(self._given(source))
        if not batches:
            return []
        first = batches[0].schema
        table = pa.Table.from_batches([like(batch, first) for batch in batches], first)
        return function(table, self._context) if wants_context(function) else function(table)

    def _refuse(self, rows: list[Any], reasons: list[list[str]]) -> None:
        if rows:
            self._control.quarantine(self._run, reasons, rows)
            self.bad += len(rows)
            self._run.progress["rows_bad"] = self.bad

    def _require_good(self, good: int) -> None:
        if self.bad > self._pipeline.max_bad * (good + self.bad):
            raise TooManyBad(
                f"{self.bad} of {good + self.bad} rows of run {self._run.number} of pipeline"
                f" {self._run.pipeline} broke a"
                f" rule, and max_bad is {self._pipeline.max_bad}"
            )


def _run(pipeline: Pipeline, opened: dict[str, Any], told: dict[str, Any]) -> Run:
    return Run(
        pipeline.name,
        str(opened["identity"]),
        told["run_id"],
        told["number"],
        told["message_id"],
        told["slice"],
        told["payload"],
        told["backfill"],
        is_cancelled=told["is_cancelled"],
        sink_hash=opened["sink_hash"],
        marked=opened["marked"],
    )


def _answer(run: dict[str, Any]) -> dict[str, Any]:
    return {name: run[name] for name in _TELL}
