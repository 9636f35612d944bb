"""How long the tasks of an attempt have worked, as Spark keeps it of its stages."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATIENCE = 2000


def seconds_of_tasks(spark: SparkSession) -> float | None:
    """Of all jobs of the group that this thread is in, together; None: Spark does not tell."""
    context: Any = spark.sparkContext
    group = context.getLocalProperty("spark.jobGroup.id")
    if group is None:
        return None
    with suppress(Exception):
        java = context._jsc.sc()
        # What has ended is noted there a moment later.
        java.listenerBus().waitUntilEmpty(_PATIENCE)
        tracker = context.statusTracker()
        jobs = [tracker.getJobInfo(id) for id in tracker.getJobIdsForGroup(group)]
        stages = {id for job in jobs if job is not None for id in job.stageIds}
        found = [_milliseconds(java.statusStore(), id) for id in stages]
        return sum(found) / 1000 if found else None
    return None


def _milliseconds(store: Any, stage: int) -> int:
    # One that was left out, since its rows were there, has no attempt.
    with suppress(Exception):
        return int(store.lastStageAttempt(stage).executorRunTime())
    return 0
