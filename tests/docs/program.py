"""One process that runs the Python programs of several pages, so that they share its Spark.

A program runs as `python file.py` would run it, in the same folder and with the same variables; but
`spark.session()` returns the session of the program before it. The first one starts Java.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import runpy
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

WITH_SPARK = ("spark.md", "spark-writing.md", "pipelines.md", "engine.md")
"""Pages whose programs start a Spark. The command `trunq pipeline run` of the last one starts one of its own,
as it does for its reader.
"""


class Programs:
    """The process: whoever runs programs in it does so one after another, in one folder."""

    def __init__(self, pool: ProcessPoolExecutor, folder: Path) -> None:
        self._pool = pool
        self.folder = folder

    def run(self, file: str, environment: dict[str, str]) -> str:
        """Run a program; what went wrong, or nothing."""
        return self._pool.submit(_run, file, str(self.folder), environment).result(300)


@contextmanager
def starting(folder: Path) -> Iterator[Programs]:
    """Start the process in a folder; in the end it and its Java are gone."""
    # Of one process from the start: a fork would share the test's connections.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield Programs(pool, folder)
        pool.submit(_stop_java).result(120)


def _run(file: str, folder: str, environment: dict[str, str]) -> str:
    # Java is started in this folder and stays there, so that its paths and ours are the same.
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [file]
    sys.path.insert(0, folder)
    said = io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(said):
            runpy.run_path(file, run_name="__main__")
    except BaseException:
        return said.getvalue() + traceback.format_exc()
    finally:
        sys.path.remove(folder)
    return ""


def _stop_java() -> None:
    from pyspark.sql import SparkSession  # noqa: PLC0415  # slow to import

    session = SparkSession.getActiveSession()
    if session is None:
        return
    java: subprocess.Popen[bytes] = session.sparkContext._gateway.proc  # type: ignore[attr-defined,union-attr]
    session.stop()
    assert java.stdin is not None
    java.stdin.close()
    java.wait(100)
