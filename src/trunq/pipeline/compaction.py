"""When the table of a pipeline is compacted, and what is noted of it. Nothing of it stops a run."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from trunq.errors import InvalidPipeline
from trunq.pipeline.control import Asked, Control
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.reading import read_definition
from trunq.pipeline.definition.sink import DeltaSink
from trunq.pipeline.instance import expanded_for
from trunq.pipeline.redact import redact, redacted

if TYPE_CHECKING:
    from trunq.pipeline.sink.compacting import Compacted

log = logging.getLogger("trunq.pipeline")


def compact_if_due(control: Control, pipeline: Pipeline) -> None:
    """Compact the table of an expanded pipeline, where it is time; errors are noted, and none is raised."""
    sink = pipeline.sink
    if not isinstance(sink, DeltaSink) or sink.compact is False:
        return
    try:
        _compact(control, pipeline, sink, sink.compact)
    except Exception as error:
        log.warning("compaction of pipeline %s failed: %s", pipeline.name, redact(pipeline, str(error)))


def compact_now(control: Control, name: str) -> Compacted | None:
    """Compact the table of a pipeline, or an instance; None: another process is at it.

    Raises InvalidPipeline where it writes no such table, and what went wrong.
    """
    opened = {"action": "begin", **control.told(name)}
    written = read_definition(name.partition("/")[0], opened["definition"])
    if not isinstance(written.sink, DeltaSink):
        raise InvalidPipeline(
            f"pipeline {name}: of a sink of format {written.sink.format!r} there is nothing to compact",
            "compaction is for Delta tables",
        )
    if written.per is not None and "/" not in name:
        raise InvalidPipeline(
            f"pipeline {name} has instances, and each writes into a table: name one of them",
            f"trunq pipeline instances {name}",
        )
    pipeline = expanded_for(written, Asked(name, 0), opened)
    assert isinstance(pipeline.sink, DeltaSink)
    with redacted(pipeline):
        return _compact(control, pipeline, pipeline.sink, None)


def _compact(control: Control, pipeline: Pipeline, sink: DeltaSink, after: int | None) -> Compacted | None:
    if (holder := control.begin_compaction(pipeline.name, after)) is None:
        return None
    from trunq.pipeline.sink.compacting import compact_table  # noqa: PLC0415  # most runs do none

    try:
        done = compact_table(pipeline, sink)
    except BaseException as error:
        with suppress(Exception):
            told = redact(pipeline, f"{type(error).__name__}: {error}")
            control.end_compaction(pipeline.name, holder, error=told)
        raise
    control.end_compaction(pipeline.name, holder, **asdict(done))
    return done
