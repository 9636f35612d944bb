"""One run: opened or taken up, read, staged, committed, finished. Killed at any line, it loses and doubles
nothing.

The order is all: the slice is fixed before anything is read; the attempt with the state after it is written
down before the sink commits; the sink commits data and mark in one step; the run ends with the attempt that
the sink's mark names. sql/functions/pipeline/run.sql has the other half.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from trunq import Client
from trunq.errors import InvalidPipeline
from trunq.pipeline import sink as sinks
from trunq.pipeline import source as sources
from trunq.pipeline.choice import choose_engine
from trunq.pipeline.compaction import compact_if_due
from trunq.pipeline.control import Asked, Control, Run
from trunq.pipeline.definition.change import require_all
from trunq.pipeline.definition.jdbc import is_jdbc
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.reading import read_definition
from trunq.pipeline.engine import Engine, group_of
from trunq.pipeline.errors import MessageRefused, RunCancelled, RunOver, Wait
from trunq.pipeline.figures import Figures, freshness_of, timed
from trunq.pipeline.instance import expanded_for, values_of_trigger
from trunq.pipeline.isolated import Isolation
from trunq.pipeline.left import remove_left
from trunq.pipeline.lineage import Lineage
from trunq.pipeline.lineage import told as told_to
from trunq.pipeline.look import has_key, is_known, look
from trunq.pipeline.monitor import Monitor
from trunq.pipeline.redact import redact, redacted
from trunq.pipeline.sink import Mark, Sink
from trunq.pipeline.sink.contract import require_there
from trunq.pipeline.source import Plan, Source
from trunq.pipeline.traced import Tracing
from trunq.pipeline.work.flow import Flow

_TELL: Final = ("number", "backfill", "outcome", "rows_in", "rows_out", "rows_bad", "chain")


@dataclass
class Executor:
    """Executes what messages ask for, on a client of the database of trunq."""

    client: Client
    dsn: str
    engine: Engine = field(default_factory=Engine)
    isolation: Isolation | None = None
    """Does the runs of isolated pipelines; None: they are done here."""
    tracing: Tracing = field(default_factory=Tracing)
    lineage: Lineage | None = None
    running: dict[int, Run] = field(default_factory=dict)
    """What is being done, by its message."""
    control: Control = field(init=False)

    def __post_init__(self) -> None:
        self.control = Control(self.client)

    def execute(self, asked: Asked, lost: threading.Event | None = None) -> dict[str, Any]:
        """What became of the run that a message asks for. Raises Wait, RunOver when `lost` was set."""
        if asked.left is not None:
            return remove_left(self.control, self.dsn, asked.left)
        has_looked = False
        while True:
            opened = self._open(asked)
            if opened["action"] == "asked":
                return dict(opened["answer"])
            if opened["action"] == "answer":
                return _answer(opened["run"])
            if opened["action"] == "wait":
                raise Wait(float(opened["seconds"]), put_off=opened.get("why"))
            asked = replace(asked, pipeline=opened["pipeline"])
            is_open = opened["action"] == "take"
            with self._noting(asked, _run(opened, opened["run"]) if is_open else None):
                written = _written(asked, opened)
                is_to_look = not is_open and not (
                    is_known(written, opened) and (has_looked or self._has_key(written, opened))
                )
                pipeline = written if is_to_look else expanded_for(written, asked, opened)
            if is_to_look:
                has_looked = self._look_again(asked, written, opened, has_looked=has_looked)
                continue
            with redacted(pipeline):
                told = opened["run"] if is_open else self._planned(pipeline, asked, opened)
                if told is None:
                    return {"outcome": "nothing new"}
                if not told:
                    continue
                run = _run(opened, told)
                with (
                    self.tracing.run(run) as span,
                    redacted(pipeline, self.dsn),  # before a span sees an error
                    told_to(self.lineage, pipeline, run) as ending,
                ):
                    result = self._take(pipeline, run, asked, lost or threading.Event())
                    span.ended(result)
                    ending.ended(result)
                compact_if_due(self.control, pipeline)
            if told["message_id"] == asked.message_id:
                return result

    def _open(self, asked: Asked) -> dict[str, Any]:
        """What is to be done; asked: runs of instances were asked for."""
        opened = self.control.open(asked)
        if opened["action"] != "begin":
            return opened
        with self._noting(asked):
            answer = self._ask_each(asked, _written(asked, opened))
        if answer is None:
            return self._open_new(asked, _written(asked, opened))
        return {"action": "asked", "answer": answer}

    def _ask_each(self, asked: Asked, written: Pipeline) -> dict[str, Any] | None:
        """What became of a message that asks for runs of all instances; None: it does not."""
        if written.has_tables and asked.payload is None and not (asked.is_backfill or asked.is_resend):
            found = look(self.control, asked.pipeline, self.dsn, asks=True)
            self.control.note_plan(asked.pipeline)
            return {"outcome": "asked", **found}
        if (each := values_of_trigger(written, asked, self.dsn)) is None:
            return None
        return {"outcome": "asked", "instances": self.control.ask_each(asked.pipeline, *each)}

    def _look_again(
        self, asked: Asked, written: Pipeline, opened: dict[str, Any], *, has_looked: bool
    ) -> bool:
        """Look once whether a table can be read by now; true. Raises MessageRefused."""
        if has_looked:
            raise MessageRefused(
                f"pipeline {asked.pipeline} stands still: {opened['refused']}", opened["hint"]
            )
        look(self.control, written.name, self.dsn, asks=False)
        return True

    def _has_key(self, written: Pipeline, opened: dict[str, Any]) -> bool:
        return not written.has_tables or has_key(written, self.dsn, opened["message"])

    def _planned(self, pipeline: Pipeline, asked: Asked, opened: dict[str, Any]) -> dict[str, Any] | None:
        """As `_plan`; whether that failed is known of the pipeline."""
        with self._noting(asked, pipeline=pipeline):
            told = self._plan(pipeline, asked, opened)
        if told is None and opened["failures"]:
            self.control.note_plan(asked.pipeline)
        return told

    @contextmanager
    def _noting(
        self, asked: Asked, run: Run | None = None, pipeline: Pipeline | None = None
    ) -> Iterator[None]:
        """Notes why a run could not begin, or the open one not go on: nobody else has seen it."""
        try:
            yield
        except (Wait, RunOver, MessageRefused):
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            # A database that is away for a moment is the worker's to tell.
            with suppress(Exception):
                if run is not None:
                    self.control.let_go(run, asked.message_id, why)
                elif not asked.is_backfill:
                    told = why if pipeline is None else redact(pipeline, why)
                    self.control.note_plan(asked.pipeline, told)
            raise

    def _open_new(self, asked: Asked, written: Pipeline) -> dict[str, Any]:
        """What is to be done once the instance of a message has begun."""
        message = written.of_message(asked.payload)
        if written.has_tables:
            # Of a table it begins with a look.
            look(self.control, asked.pipeline, self.dsn, asks=False)
        opened = self.control.open(asked, None if written.has_tables else message)
        if opened["action"] == "begin" and written.has_tables:
            raise MessageRefused(
                f"pipeline {asked.pipeline} has no table {message['table']}",
                f"trunq pipeline instances {asked.pipeline} shows those it has",
            )
        if opened["action"] == "begin":
            raise MessageRefused(
                f"pipeline {asked.pipeline} has no rows of its own that could be sent again: each instance"
                f" has, and a message names it, as {asked.pipeline}/VALUE"
            )
        return opened

    def _plan(self, pipeline: Pipeline, asked: Asked, opened: dict[str, Any]) -> dict[str, Any] | None:
        """The run over what is new; None: nothing is; empty: another run began meanwhile, or the
        state was set.
        """
        self._warm_for(pipeline)
        sink = sinks.make(pipeline, self.dsn)
        sink.check()
        require_there(pipeline, sink)
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
        message = {"message": pipeline.given} if pipeline.given else {}
        return self.control.begin(asked, opened, {**plan.slice, **after, **message}) or {}

    def _take(self, pipeline: Pipeline, run: Run, asked: Asked, lost: threading.Event) -> dict[str, Any]:
        self.running[asked.message_id] = run
        try:
            if self.isolation is not None and self._is_elsewhere(pipeline) and not run.is_cancelled:
                done = self.isolation.take(run, asked, lost, self.control)
                if done is not None:
                    return done
                run.is_cancelled = True
            with self._in_java(pipeline, run):
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
            # Once a lease is lost, its message may have come again meanwhile.
            if self.running.get(asked.message_id) is run:
                del self.running[asked.message_id]

    def _warm_for(self, pipeline: Pipeline) -> None:
        """Of JDBC, Spark's Java process asks what the database is asked. Raises Wait while it starts."""
        if is_jdbc(pipeline):
            self.engine.require_warm()
            self.engine.session()

    def _is_elsewhere(self, pipeline: Pipeline) -> bool:
        """Whether its runs are done in processes of their own."""
        return pipeline.isolate and self.isolation is not None

    def _apply(self, pipeline: Pipeline, run: Run, asked: Asked, lost: threading.Event) -> dict[str, Any]:
        self._warm_for(pipeline)
        if not run.is_cancelled:
            require_all(pipeline, run.slice, run.backfill)
        sink = sinks.make(pipeline, self.dsn)
        # To give a run up, its source is not needed: it may be what is wrong.
        is_read = "quarantine" not in run.slice and not run.is_cancelled
        source = sources.make(pipeline, self.dsn, self.control) if is_read else None
        mark = sink.applied(run)
        self._require_not_behind(pipeline, run, mark)
        if mark.number < run.number:
            own = 0
            try:
                if run.is_cancelled:
                    raise RunCancelled("cancelled")
                self._choose(pipeline, source, run)
                own = self._attempt(pipeline, source, sink, run, asked, lost)
            except RunCancelled:
                run.attempt = 0
                sink.commit(run, [], 0)
            mark = sink.applied(run)
            if own and mark.number < run.number and pipeline.sink.format == "parquet":
                # Whoever reads it was quick, and has removed the directory.
                mark = Mark(run.number, own)
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
        if mark.attempt not in (0, run.attempt):
            # Whoever committed it may have been killed before it tidied up.
            with suppress(Exception):
                sink.clear(replace(run, number=run.number + 1))
        if source is not None and not run.backfill and finished["outcome"] == "done":
            source.release(run.slice.get("after", {}))
        return _answer(finished)

    def _choose(self, pipeline: Pipeline, source: Source | None, run: Run) -> None:
        """Where its rows are to pass. Raises Wait while Spark is not ready for them."""
        run.engine, run.engine_reason = choose_engine(pipeline, source, run.slice)
        if run.engine == "spark":
            self.engine.require_warm()

    def _require_not_behind(self, pipeline: Pipeline, run: Run, mark: Mark) -> None:
        """Refuse a sink that has lost runs. (Directories of Parquet are removed by whoever has read them.)"""
        if run.backfill or pipeline.sink.format == "parquet" or mark.number >= run.marked:
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
        """Stage all rows and have the sink take them; the number of this attempt, or 0 if another was first,
        or ended the run.
        """
        attempt = self.control.attempt(run)
        if attempt is None:
            return 0
        run.attempt, run.figures = attempt, Figures(newest_by=freshness_of(pipeline))
        try:
            with self._watched(run, asked.message_id, lost) as check:
                run.goes_on = check
                flow = Flow(pipeline, run, self.control, check, self.dsn)
                if run.engine == "spark":
                    with self.tracing.spark(run, group_of(run)):
                        staged = flow.stage_in(self.engine, source, sink)
                else:
                    staged = flow.stage(sink, flow.rows(source))
                if run.engine == "spark" or pipeline.checks:
                    # With what broke which check.
                    self.control.hold(run, asked.message_id)
                parts = [*staged.parts, *staged.kept]
                if not self.control.stage(run, parts, flow.state_after(), staged.rows, flow.bad):
                    raise RunOver(f"run {run.number} of pipeline {run.pipeline} is not ours any more")
                check()
                with timed(run.figures.committed):
                    is_taken = sink.commit(run, staged.parts, staged.rows)
        except BaseException:
            with suppress(Exception):
                sink.discard(run)
            with suppress(Exception):
                self.control.drop_attempt(run)
            raise
        return attempt if is_taken else 0

    def _in_java(self, pipeline: Pipeline, run: Run) -> AbstractContextManager[None]:
        """Of JDBC, Spark's Java process asks and commits."""
        return self.engine.needed(run) if is_jdbc(pipeline) else nullcontext()

    @contextmanager
    def _watched(self, run: Run, holder: int, lost: threading.Event) -> Iterator[Callable[[], None]]:
        """Says each second how far the run is; what it yields raises when the run is to stop."""
        watch = Monitor(self.control, self.engine if run.engine == "spark" else None, run, holder, lost)
        watch.start()
        try:
            yield watch.check
        except Exception:
            # Drivers make errors of their own of what is raised in the rows that they take.
            watch.check()
            raise
        finally:
            watch.end()


def _written(asked: Asked, opened: dict[str, Any]) -> Pipeline:
    return read_definition(asked.pipeline.partition("/")[0], opened["definition"])


def _run(opened: dict[str, Any], told: dict[str, Any]) -> Run:
    return Run(
        opened["pipeline"],
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
        begun_at=told["begun_at"],
    )


def _answer(run: dict[str, Any]) -> dict[str, Any]:
    return {name: run[name] for name in _TELL}
