"""A runner that halts where it is told to: what the test of the whole chain kills.

A file of the name of a place, in the directory of a pipeline, is the order to halt there until it is gone.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trunq.pipeline.control import Control, Run
from trunq.pipeline.runner import Runner
from trunq.pipeline.source import Context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HALTS_AT = 700
"""The row at which a task halts: those of others are staged by then."""


def halt(directory: Path, place: str) -> None:
    """Say that we are there, and stay as long as we are to."""
    if (directory / place).exists():
        (directory / f"{place}.reached").touch()
    while (directory / place).exists():
        threading.Event().wait(0.02)


def halting(frame: DataFrame, context: Context) -> DataFrame:
    """A task halts while it stages."""
    from pyspark.sql import functions  # noqa: PLC0415  # only tests with Spark call it

    directory = Path(context.message)

    def same(id: int) -> int:
        if id % 1000 == HALTS_AT:
            halt(directory, "staging")
        return id

    return frame.withColumn("id", functions.udf(same, "bigint", useArrow=False)("id"))


def main(dsn: str, directory: str) -> None:
    """Run pipelines; each halts between the row of its attempt and its commit, too."""
    stage = Control.stage

    def halting_stage(self: Control, run: Run, *given: Any) -> bool:
        is_open = stage(self, run, *given)
        halt(Path(directory, run.pipeline), "written")
        return is_open

    Control.stage = halting_stage  # type: ignore[method-assign]
    runner = Runner(dsn)
    # Others take what a killed one had soon.
    runner.lease_time = 10
    runner.run()


if __name__ == "__main__":
    os.chdir(sys.argv[2])
    main(*sys.argv[1:])
