"""The engine: one Spark session for all runs of a process, started when the first run needs it.

A run that has `sql`, `transform` or `checks` with `holds` does its work here, and each one of a pipeline with
`engine = "spark"`; others touch no Spark. `stage` blocks the thread that calls it, and all that Spark does
for it is in a job group of that attempt: another thread can follow it (`statusTracker`) and end it
(`cancelJobGroup`) by the name of the group.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from trunq.connection.backoff import first_line
from trunq.pipeline.control import Run
from trunq.pipeline.definition.jdbc import is_jdbc
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.errors import EngineDied, RunCancelled, RunOver, Wait
from trunq.pipeline.sink import Sink, Staged
from trunq.pipeline.source import Context, Source
from trunq.spark.launch.cluster import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("trunq.pipeline")

_SETTINGS: Final = {"spark.scheduler.mode": "FAIR"}
_PATIENCE: Final = 2.0
"""Seconds for which a run waits in place while the session is being warmed."""
_LATE: Final = 60.0
_DYING: Final = 10.0
"""Seconds between the end of a process' connections and its own, at the most."""
_GROUP: Final = (
    "spark.jobGroup.id",
    "spark.job.description",
    "spark.job.interruptOnCancel",
    "spark.scheduler.pool",
)


def group_of(run: Run) -> str:
    """The job group of an attempt."""
    return f"trunq {run.pipeline} {run.run_id} {run.attempt}"


class Engine:
    """Spark for runs. `master` and `memory` are those of `trunq.spark.session`, else of the settings."""

    def __init__(self, master: str | None = None, memory: str | None = None) -> None:
        self._master, self._memory = master, memory
        self._starting = threading.Lock()
        self._session: SparkSession | None = None
        self._handing = threading.Lock()
        self._warming: _Warming | None = None
        self._is_closed = False
        self._is_own = False
        self.is_patient = False
        """Runs that need the session are put off while it starts, whoever was first to need it."""
        self._is_proven = False
        """Python has done a job in this session."""
        self.cold: str | None = None
        """Why runs that need the session wait, or fail; None: they do neither, as far as is known."""
        self._known: set[tuple[str | None, ...]] = set()
        """Statements that Spark can read."""

    def session(self) -> SparkSession:
        """The session, started at the first call. Raises SparkError where there is no Spark, or no Java."""
        with self._starting:
            if (what := self._ended()) is not None:
                log.warning("%s has ended; a new one is started", what)
                self._forget()
            if self._session is None:
                from trunq import spark  # noqa: PLC0415  # slow to import

                self._is_own = not _is_running()
                self._session = spark.session("trunq pipelines", self._master, self._memory, _SETTINGS)
                _share_path(self._session)
                # What is wrong with a statement is told by the run that has it.
                logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
            return self._session

    def check(self, pipeline: Pipeline) -> None:
        """Refuse statements that Spark cannot read. Raises InvalidPipeline."""
        statements = (*pipeline.sql, *(check.holds or "" for check in pipeline.checks), pipeline.transform)
        if statements in self._known:
            return
        session = self.session()
        from trunq.pipeline.work.statement import require_queries  # noqa: PLC0415  # needs pyspark

        require_queries(session, pipeline)
        self._known.add(statements)

    def stage(
        self,
        pipeline: Pipeline,
        run: Run,
        source: Source | None,
        sink: Sink,
        context: Context,
        check: Callable[[], None],
        dsn: str,
    ) -> Staged:
        """Read, transform, check and stage all rows of a run. source None: those of its quarantine.

        `check` raises when the run is to stop.
        """
        session = self.session()
        from trunq.pipeline.work.fused import Fused  # noqa: PLC0415  # needs pyspark
        from trunq.pipeline.work.jdbc import JdbcStaging  # noqa: PLC0415
        from trunq.pipeline.work.staging import Staging, rooted  # noqa: PLC0415

        with self.needed(run, check), self.grouped(run):
            if pipeline.has_frames:
                self.check(pipeline)
            if is_jdbc(pipeline):
                return JdbcStaging(session, pipeline, run, source, sink, context, check, dsn).stage()
            if not pipeline.has_frames:
                fused = Fused(session, rooted(pipeline), run, source, sink, context, check, dsn)
                return fused.stage()
            return Staging(session, pipeline, run, source, sink, context, check, dsn).stage()

    @contextmanager
    def needed(self, run: Run, check: Callable[[], object] = bool) -> Iterator[None]:
        """What an attempt does with the session. Raises EngineDied where it failed since that has ended."""
        try:
            yield
        except (EngineDied, RunCancelled, RunOver):
            raise
        except Exception as error:
            check()
            if (what := self._ended()) is not None:
                raise EngineDied(
                    f"{what} ended during run {run.number} of pipeline {run.pipeline};"
                    " the next attempt starts another"
                ) from error
            raise

    @contextmanager
    def grouped(self, run: Run) -> Iterator[str]:
        """What this thread asks of Spark belongs to the job group of an attempt."""
        spark = self.session().sparkContext
        group = group_of(run)
        spark.setJobGroup(group, f"run {run.number} of pipeline {run.pipeline}", interruptOnCancel=True)
        # Runs beside each other have a pool each, and so a fair share of the cores.
        spark.setLocalProperty("spark.scheduler.pool", f"trunq {run.pipeline}")
        try:
            yield group
        finally:
            # A session that died has no properties.
            with suppress(Exception):
                for name in _GROUP:
                    spark.setLocalProperty(name, None)  # type: ignore[arg-type]

    def warm(self) -> None:
        """Start the session beside whoever calls, and have it do an empty job in which Python has a part: the
        first is slow. On a cluster, that job waits until there is an executor.
        """
        with self._handing:
            self._start_warming()

    def _start_warming(self) -> None:
        self.cold = "Spark starts, or its cluster has no free executor"
        self._warming = _Warming(self._warm)
        self._warming.start()

    def require_warm(self) -> None:
        """Raise Wait while the session that is being warmed has done nothing yet: a run that had to wait for
        executors would keep others, which need no Spark, from its slot. Raises SparkError where executors
        cannot do what tasks are.
        """
        with self._handing:
            if self.is_patient and self._warming is None and not self._is_proven:
                self._start_warming()
            warming = self._warming
        if warming is not None:
            warming.join(_PATIENCE)
            if warming.is_alive():
                raise Wait(_PATIENCE, self.cold or "Spark starts")
            with self._handing:
                # Whoever comes next tries again; all who waited for this one are told the same.
                if self._warming is warming:
                    self._warming = None
            if warming.unfit is not None:
                raise warming.unfit
        elif not self._is_proven and not is_local(str(self.session().sparkContext.master)):
            self._prove()

    def _prove(self) -> None:
        """Have Python do a job in the session. Raises SparkError where it cannot."""
        session = self.session()
        from trunq.pipeline.work.hop import map_batches  # noqa: PLC0415  # needs pyspark
        from trunq.pipeline.work.reason import unfit  # noqa: PLC0415

        one = session.range(1)
        try:
            map_batches(one, lambda batches: batches, one.schema).collect()
        except Exception as error:
            if (what := self._ended()) is not None:
                raise EngineDied(f"{what} ended as it began; the next attempt starts another") from error
            raise unfit(str(session.sparkContext.master), error) from error
        self._is_proven = True
        self.cold = None

    def _warm(self) -> Exception | None:
        """Why it cannot be."""
        late = threading.Timer(
            _LATE,
            log.warning,
            [
                "Spark has not done its first job for a minute (its Java starts, or its cluster has no free"
                " executor): runs that need it wait"
            ],
        )
        late.daemon = True
        late.start()
        try:
            self._prove()
        except Exception as error:
            if not self._is_closed:
                log.error("Spark does not start, so runs that need it will fail: %s", error)
            self.cold = f"Spark does not start: {first_line(error)}"
            return error
        finally:
            late.cancel()
        return None

    def follow(self, run: Run) -> dict[str, int]:
        """How many tasks the jobs of an attempt have, and how many of them are done; {}: no jobs yet."""
        if (session := self._session) is None:
            return {}
        tracker = session.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(id) for id in tracker.getJobIdsForGroup(group_of(run))]
        stages = [tracker.getStageInfo(id) for job in jobs if job is not None for id in job.stageIds]
        known = [stage for stage in stages if stage is not None]
        if not known:
            return {}
        return {
            "tasks": sum(stage.numTasks for stage in known),
            "done": sum(stage.numCompletedTasks for stage in known),
        }

    def end(self, run: Run) -> None:
        """End the jobs of an attempt, tasks that sleep too."""
        if (session := self._session) is not None:
            session.sparkContext.cancelJobGroup(group_of(run))

    def close(self) -> None:
        """End the session, if it was started here."""
        self._is_closed = True
        with self._starting:
            if self._ended() is not None:
                self._forget()
            session, self._session = self._session, None
        if session is not None and self._is_own:
            session.stop()

    def _ended(self) -> str | None:
        """What has ended of Spark, if anything has."""
        if self._session is None:
            return None
        context: Any = self._session.sparkContext
        if self._is_dead(context):
            return "the Java process of Spark"
        try:
            # Its master may end an application whose Java process lives on, and so may the driver's own code.
            is_stopped = context._jsc is None or context._jsc.sc().isStopped()
        except Exception:
            # A process that is killed closes its sockets a moment before it has exited.
            with suppress(subprocess.TimeoutExpired):
                context._gateway.proc.wait(_DYING)
            return "the Java process of Spark" if self._is_dead(context) else None
        return "the application of Spark" if is_stopped else None

    def _is_dead(self, context: Any) -> bool:
        gateway = context._gateway
        return gateway is not None and gateway.proc.poll() is not None

    def _forget(self) -> None:
        """Let go of a session that has ended. One whose Java process has exited cannot be stopped."""
        from pyspark import SparkContext  # noqa: PLC0415  # needs only what the extra spark has
        from pyspark.sql import SparkSession as Session  # noqa: PLC0415

        session, self._session = self._session, None
        self._is_proven = False
        if session is not None and not self._is_dead(session.sparkContext):
            with suppress(Exception):
                session.stop()
            return
        with suppress(Exception):
            SparkContext._gateway.shutdown()  # type: ignore[union-attr]
        SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
        Session._instantiatedSession = None
        Session._activeSession = None


class _Warming(threading.Thread):
    """The session on its way; `unfit`: why it did not arrive."""

    def __init__(self, warm: Callable[[], Exception | None]) -> None:
        super().__init__(name="trunq-warm", daemon=True)
        self._warm = warm
        self.unfit: Exception | None = None

    def run(self) -> None:
        self.unfit = self._warm()


def _is_running() -> bool:
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None


def _share_path(session: SparkSession) -> None:
    """What this process can import, its tasks can: functions of users stand beside their runner."""
    if os.name != "posix" or not str(session.sparkContext.master).startswith("local"):
        return
    own = [each or os.getcwd() for each in sys.path if not each.endswith((".zip", "site-packages"))]
    stdlib = os.path.dirname(os.__file__)
    paths = dict.fromkeys(each for each in own if not each.startswith(stdlib))
    environment: dict[str, Any] = session.sparkContext.environment
    environment["PYTHONPATH"] = os.pathsep.join(paths)
