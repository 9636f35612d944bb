"""Processes that execute a run and die at a named point of it, by kill -9."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from trunq import Client
from trunq.arrow import mark
from trunq.pipeline import run
from trunq.pipeline.control import Asked, Control
from trunq.pipeline.run import Executor
from trunq.pipeline.sink import delta, directory, parquet, rewrite, table, widening
from trunq.pipeline.sink.delta import DeltaSink
from trunq.pipeline.sink.directory import StageDirectory
from trunq.pipeline.sink.http import HttpSink
from trunq.pipeline.sink.jdbc import JdbcSink
from trunq.pipeline.sink.lake import LakeStage
from trunq.pipeline.sink.parquet import ParquetSink
from trunq.pipeline.sink.published import PublishedSink
from trunq.pipeline.sink.renamed import RenamedSink
from trunq.pipeline.sink.stored import StoredStage
from trunq.pipeline.sink.table import PostgresSink
from trunq.pipeline.source.landing import Landing
from trunq.pipeline.storage.objects import ObjectStorage
from trunq.pipeline.storage.sftp import SftpStorage

POINTS = (
    "planned",
    "begun",
    "tried",
    "staging",
    "staged",
    "written",
    "committing",
    "marked",
    "committed",
    "finished",
)
"""In the order of a run. committing: rows are checked or moved, marked: the mark is written too, and nobody
sees either.
"""

DIRECTORY = "."
"""Where the process works."""

ENVIRONMENT: dict[str, str] = {}
"""What its environment has besides."""

LONG = 900.0
"""Seconds: on a machine that does ten things at once, a Java process takes minutes to start."""

_forkserver = multiprocessing.get_context("forkserver")
_forkserver.set_forkserver_preload(
    [
        "trunq.pipeline.run",
        "trunq.pipeline.sink.apply",
        "trunq.pipeline.sink.delta_apply",
        "trunq.pipeline.sink.parquet",
        "trunq.pipeline.sink.queue",
        "trunq.pipeline.source.capture",
        "trunq.pipeline.source.http",
        "trunq.pipeline.source.table",
        "adbc_driver_postgresql.dbapi",
    ]
)


def execute_and_die(dsn: str, asked: Asked, point: str) -> int:
    """Execute a run in another process, which dies at a point; its exit code."""
    process = start(dsn, asked, point)
    process.join(LONG)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode is not None, f"it neither ended nor died in {LONG} s, on its way to {point!r}"
    return int(process.exitcode)


def start(dsn: str, asked: Asked, point: str = "") -> Any:
    """Begin it. At a point that begins with `frozen`, it stops as if it was in a debugger."""
    process = _forkserver.Process(target=_run, args=(dsn, asked, point, DIRECTORY, ENVIRONMENT), daemon=True)
    process.start()
    return process


def die() -> None:
    """As if the machine was cut off."""
    os.kill(os.getpid(), signal.SIGKILL)


def strikes(rows: Any, context: Any) -> Any:
    """A function of a pipeline: the first task that comes to it dies when it has staged some, or kills the
    Java process of its Spark, as the message says.
    """
    said = context.message or {}
    if said and not (struck := Path(said["struck"])).exists():
        struck.touch()
        kill = _kill_java if said["victim"] == "java" else die
        for owner, name in _AFTER["staging"]:
            _wrap(owner, name, kill=kill)
    return rows


def _freeze() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _kill_java() -> None:
    java = next(each for each in psutil.Process().parents() if "java" in each.name())
    java.kill()
    # Nothing is done meanwhile: whoever lost its Java process is ended by the daemon of Spark's.
    java.wait()
    die()


def _kill_own_java() -> None:
    java = next(each for each in psutil.Process().children(recursive=True) if "java" in each.name())
    java.kill()
    java.wait()


def _run(dsn: str, asked: Asked, point: str, directory: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    os.chdir(directory)
    with Client(dsn, max_connections=4) as client:
        executor = Executor(client, dsn)
        _arm(point)
        executor.execute(asked)


def _arm(point: str) -> None:
    if point.startswith(("fetched", "landed")):
        _at_page(point)
    elif point.startswith("frozen"):
        # Nobody is to wait for a minute.
        mark.PATIENCE = 1  # type: ignore[misc]
        for owner, name in _AFTER[point.removeprefix("frozen ")]:
            _wrap(owner, name, kill=_freeze)
    elif point.startswith("java"):
        _wrap(JdbcSink, {"marked": "_set_mark"}.get(point.split()[1], "commit"), kill=_kill_own_java)
    elif point in _BEFORE:
        _wrap(*_BEFORE[point], before=True)
    elif point in _AFTER:
        for owner, name in _AFTER[point]:
            _wrap(owner, name)


_BEFORE = {
    "found": (Control, "take_tables"),
    "planned": (Control, "begin"),
    "staged": (Control, "stage"),
}
_AFTER: dict[str, list[tuple[Any, str]]] = {
    "looked": [(run, "look")],
    "begun": [(Control, "begin")],
    "tried": [(Control, "attempt")],
    # In the middle of a change of the sink's columns, and behind it.
    "evolving": [(widening, "_alter"), (rewrite, "in_columns")],
    "evolved": [(table, "widen"), (delta, "rewrite")],
    "staging": [(table, "for_stage"), (directory, "sync"), (JdbcSink, "write")],
    "written": [(Control, "stage")],
    "answered": [(HttpSink, "_send")],
    "noted": [(HttpSink, "_note")],
    "committing": [
        (PostgresSink, "_require_all"),
        (JdbcSink, "_take"),
        (LakeStage, "move_in"),
        (StageDirectory, "keep_only"),
        (StoredStage, "move_in"),
        (StoredStage, "staged"),
        (RenamedSink, "_keep_only"),
    ],
    "marked": [
        (PostgresSink, "_set_mark"),
        (JdbcSink, "_set_mark"),
        (DeltaSink, "_marks"),
        (parquet, "sync"),
        (PublishedSink, "_take"),
        (SftpStorage, "rename"),
    ],
    "taken": [(DeltaSink, "_try")],
    "committed": [
        (sink, "commit")
        for sink in (PostgresSink, DeltaSink, ParquetSink, PublishedSink, RenamedSink, JdbcSink)
    ],
    "copied": [(ObjectStorage, "copy")],
    "emptied": [(PublishedSink, "_empty")],
    "told": [(PublishedSink, "_publish")],
    "finished": [(Control, "finish")],
}


def _at_page(point: str) -> None:
    """Before or after a page of an API is on the disk."""
    when, page = point.split()
    original = Landing.land

    def land(self: Landing, number: int, *given: Any) -> None:
        if number == int(page) and when == "fetched":
            die()
        original(self, number, *given)
        if number == int(page):
            die()

    Landing.land = land  # type: ignore[method-assign]


def _wrap(owner: Any, name: str, *, before: bool = False, kill: Callable[[], None] = die) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def wrapped(*given: Any, **named: Any) -> Any:
        result = None if before else original(*given, **named)
        kill()
        return original(*given, **named) if before else result

    setattr(owner, name, wrapped)
