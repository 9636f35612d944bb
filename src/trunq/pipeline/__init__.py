"""Pipelines: rows moved from Postgres, files and functions into a table or a queue, each of them once.

`Pipeline` is data; `trunq pipeline create` puts it into the database, a message of the queue `pipelines` runs
it, and `trunq.pipeline.runner` is the worker of that queue. docs/pipeline/pipelines.md tells the rest.
"""

from __future__ import annotations

from trunq.pipeline.definition.api import HttpSink, HttpSource
from trunq.pipeline.definition.check import Check, Reference
from trunq.pipeline.definition.column import Columns
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.reading import load
from trunq.pipeline.definition.sink import DeltaSink, ParquetSink, QueueSink, TableSink
from trunq.pipeline.definition.source import (
    FileSource,
    FunctionSource,
    HistorySource,
    QueueSource,
    TableSource,
)
from trunq.pipeline.definition.trigger import Trigger

__all__ = [
    "Check",
    "Columns",
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
    "Reference",
    "TableSink",
    "TableSource",
    "Trigger",
    "load",
]
