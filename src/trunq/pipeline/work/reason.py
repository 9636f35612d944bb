"""What Spark says went wrong, in a sentence."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from trunq import errors
from trunq.errors import TrunqError
from trunq.explanation import explain_spark, recognise_spark
from trunq.pipeline import errors as of_pipelines
from trunq.pipeline.errors import WorkFailed
from trunq.spark.errors import PythonMismatch, SparkError

_CONDITION: Final = re.compile(r"\[[A-Z][A-Z0-9_.]+\] ")
_STATE: Final = re.compile(r" ?SQLSTATE: \w{5};?")
_PYTHON: Final = "Traceback (most recent call last):\n"


_VERSIONS: Final = re.compile(
    r"(?:different version:|is Python) ([\d.]+)(?: than that in driver:|, and the driver has) ([\d.]*\d)"
)


def unfit(master: str, error: Exception) -> SparkError:
    """Why executors cannot do Python's tasks."""
    if (found := _VERSIONS.search(str(error))) is not None:
        return PythonMismatch(
            f"executors of {master} have Python {found[1]}, and the runner has {found[2]}: nothing was run",
            f"install Python {found[2]} with trunq on each machine, at the path of the runner's"
            f" ({sys.executable}), or start the runner with Python {found[1]}",
        )
    return SparkError(f"{master} cannot run tasks of Python: {explain_spark(error).line}")


def first_line(error: BaseException) -> str:
    """The first line of an error of Spark, without its names for it, and where it is."""
    line = _STATE.sub("", _CONDITION.sub("", str(error).strip().partition("\n")[0], count=1))
    return line.rstrip("; .").replace(". (line", " (line")


@contextmanager
def translating(pipeline: str) -> Iterator[None]:
    """Raises what comes out of Spark as what it began as: an error of trunq, else WorkFailed."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        found = recognise_spark(error)
        name = (found and found.kind) or ""
        kind = getattr(of_pipelines, name, None) or getattr(errors, name, None)
        if found is not None and isinstance(kind, type) and issubclass(kind, TrunqError):
            raise kind(found.reason, found.advice) from None
        if found is not None:
            raise WorkFailed(f"pipeline {pipeline}: {found.reason}", found.advice) from None
        said = explain_spark(error).line if _PYTHON in str(error) else first_line(error)
        raise WorkFailed(f"pipeline {pipeline}: {said}") from None
