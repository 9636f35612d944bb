"""Servers of a test's own, that it may restart, kill and configure: copies of one with trunq in its database.

To make a cluster and install trunq takes ten times as long as to copy the result. Copies have one system
identifier: a test about two clusters starts one of them by itself.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psycopg

from memory import in_memory
from trunq import embedded, install
from trunq.embedded import Embedded


@contextmanager
def copied_server(
    major: int | None = None, settings: Mapping[str, str | int | bool] | None = None
) -> Iterator[Embedded]:
    """A server of a version, else the newest. Its database `postgres` has trunq; `template1` is empty."""
    chosen = major or embedded.majors()[0]
    with in_memory():
        directory = Path(tempfile.mkdtemp(prefix="trunq-copy-"))
    try:
        subprocess.run(["cp", "-a", _original(chosen) / "data", directory / "data"], check=True)
        with embedded.start(directory, chosen, settings) as server:
            yield server
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@cache
def _original(major: int) -> Path:
    """The directory of a server that has stopped, and is copied: one a process of the tests."""
    with in_memory():
        directory = Path(tempfile.mkdtemp(prefix="trunq-original-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    with embedded.start(directory, major, {"fsync": "off"}) as server:
        install.install(server.dsn)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("select trunq.let_clock_move()")
    return directory
