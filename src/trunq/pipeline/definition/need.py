"""What a pipeline needs of the machine that runs it, and this one has not: said where it is made, since the
runner may be elsewhere.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Final

from trunq.pipeline.definition.part import VARIABLE, directory_of
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.source import FileSource
from trunq.pipeline.definition.storage import Stored, scheme_of

_OF_FORMATS: Final = {
    "table": "adbc_driver_postgresql",
    "queue": "adbc_driver_postgresql",
    "delta": "deltalake",
    "http": "httpx",
}


def missing(pipeline: Pipeline) -> Iterator[str]:
    """A sentence for each thing."""
    formats = (pipeline.source.format, pipeline.sink.format)
    for module in dict.fromkeys(_OF_FORMATS[each] for each in formats if each in _OF_FORMATS):
        if not is_there(module):
            yield f"it needs {module}, which is not here: pip install 'trunq[pipeline]' where it runs"
    if pipeline.needs_spark and not is_there("pyspark"):
        yield "it needs pyspark, which is not here: pip install 'trunq[pipeline,spark]' where it runs"
    source = pipeline.source
    stored = [
        each for each in (source, pipeline.sink, *pipeline.lookups.values()) if isinstance(each, Stored)
    ]
    schemes = [scheme for each in stored if (scheme := scheme_of(each.path)) is not None]
    for module in dict.fromkeys("paramiko" if each == "sftp" else "obstore" for each in schemes):
        if not is_there(module):
            yield f"it needs {module}, which is not here: pip install 'trunq[storage]' where it runs"
    if isinstance(source, FileSource) and scheme_of(source.path) is None and not VARIABLE.search(source.path):
        directory = directory_of(source.path)
        if not os.path.isdir(directory):
            yield f"it reads from {directory}, which is not here: it has to be where it runs"


def is_there(module: str) -> bool:
    """Whether a module is installed."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:
        return False
