"""Where the rows of a run pass: in tasks of Spark or in the process of the run, and why.

`auto` takes Spark where the pipeline needs it, and where its slice is larger than the settings say and can be
read by more than one task. How large it is has to be known before it is read, and cheaply; where it is not,
the process has it.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from trunq import display
from trunq.pipeline.definition.need import is_there
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.source import Size, Source
from trunq.settings import Pipelines, load
from trunq.spark.errors import JavaMissing
from trunq.spark.launch.java import find_java

_TWO: Final = 2
"""Tasks: with one, Spark has nothing to spread."""


class Choice(NamedTuple):
    """An engine, and why, in words."""

    engine: Literal["spark", "process"]
    reason: str


def choose_engine(
    pipeline: Pipeline, source: Source | None, slice: dict[str, Any], settings: Pipelines | None = None
) -> Choice:
    """Which engine has a slice of a pipeline, whose source this is (None: that of its quarantine).

    `settings` None: those of this process. Reads nothing of the slice.
    """
    if (why := pipeline.why_spark) is not None:
        return Choice("spark", why)
    if pipeline.engine == "process":
        return Choice("process", "engine = 'process'")
    if source is None or "quarantine" in slice:
        return Choice("process", "rows of the quarantine are one task")
    if (whole := _why_whole(pipeline)) is not None:
        return Choice("process", f"{whole}: they would be one task")
    known = settings or load().pipeline
    size = source.size(slice)
    if size.rows is None and size.bytes is None:
        return Choice("process", "how large the slice is, only reading tells")
    if (larger := _larger(size, known)) is None:
        return Choice("process", _smaller(size, known))
    if (lacking := _why_not(pipeline, source, slice)) is not None:
        return Choice("process", f"{larger}, but {lacking}")
    return Choice("spark", larger)


def _why_whole(pipeline: Pipeline) -> str | None:
    """Why one task would have all rows."""
    if pipeline.function is not None:
        return "function is given all rows"
    if any(check.unique for check in pipeline.checks):
        return "a check with unique sees all rows"
    return None


def _larger(size: Size, settings: Pipelines) -> str | None:
    """In which way it is larger than the settings say."""
    for found, name, unit in _compared(size):
        limit = getattr(settings, name)
        if found is not None and limit and found >= limit:
            return f"{_about(found, unit)}: pipeline.{name} is {limit:,}"
    return None


def _smaller(size: Size, settings: Pipelines) -> str:
    """That it is not."""
    told = [
        f"{_about(found, unit)} (pipeline.{name} is {getattr(settings, name):,})"
        for found, name, unit in _compared(size)
        if found is not None
    ]
    return " and ".join(told)


def _about(found: int, unit: str) -> str:
    return f"about {display.counted(found, unit.removesuffix('s'))}"


def _compared(size: Size) -> list[tuple[int | None, str, str]]:
    return [(size.rows, "spark_from_rows", "rows"), (size.bytes, "spark_from_bytes", "bytes")]


def _why_not(pipeline: Pipeline, source: Source, slice: dict[str, Any]) -> str | None:
    """Why Spark is not to have it all the same."""
    if pipeline.isolate:
        return "with isolate a session would be started for this run alone"
    if not is_there("pyspark"):
        return "Spark is not installed here"
    try:
        find_java()
    except JavaMissing:
        return "there is no Java here that Spark can run on"
    if source.schema(slice) is None or len(source.shares(slice, _TWO)) < _TWO:
        return "it would be one task"
    return None
