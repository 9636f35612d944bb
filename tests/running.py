"""Running the demo as a user does, and seeing what is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil


@contextmanager
def started(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A run of `trunq demo`, in a process group of its own as a terminal would give it."""
    with subprocess.Popen(
        [sys.executable, "-m", "trunq.cli", "demo", *arguments],
        cwd=directory,
        env={name: value for name, value in os.environ.items() if not name.startswith("TRUNQ_")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        yield process
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def processes_of(directory: Path) -> list[str]:
    """Command lines of the processes that have to do with a directory."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            traces = [*process.cmdline(), process.cwd(), process.environ().get("TRUNQ_DSN", "")]
            if process.pid != os.getpid() and any(str(directory) in trace for trace in traces):
                found.append(" ".join(process.cmdline()))
    return found


def logs_say(directory: Path, what: str) -> bool:
    """Whether the logs of both workers have a text."""
    logs = [directory / "demo" / "log" / f"worker-{number}.log" for number in (1, 2)]
    return all(log.exists() and what in log.read_text() for log in logs)
