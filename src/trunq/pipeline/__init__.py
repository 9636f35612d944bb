"""Pipelines: rows moved from Postgres, files and functions into a table or a queue, each of them once.

`Pipeline` is data; `trunq pipeline create` puts it into the database, a message of the queue `pipelines` runs
it, and `trunq.pipeline.runner` is the worker of that queue. docs/pipelines.md tells the rest.
"""

from __future__ import annotations

from trunq.pipeline.api import HttpSink, HttpSource
from trunq.pipeline.model import (
    DeltaSink,
    FileSource,
    FunctionSource,
    HistorySource,
    ParquetSink,
    Pipeline,
    QueueSink,
    QueueSource,
    TableSink,
    TableSource,
    load,
)
from trunq.pipeline.trigger import Trigger
from trunq.pipeline.work.model import Check

__all__ = [
    "Check",
    "DeltaSink",
    "FileSource",
    "FunctionSource",
    "HistorySource",
    "HttpSink",
    "HttpSource",
    "ParquetSink",
    "Pipeline",
    "QueueSink",
    "QueueSource",
    "TableSink",
    "TableSource",
    "Trigger",
    "load",
]
