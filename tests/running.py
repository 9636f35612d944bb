"""Running the demo as a user does, and seeing what is left of it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx
import psutil

from waiting import wait_until

AT = re.compile(r"live at (http://127\.0\.0\.1:\d+/)")


@dataclass(frozen=True)
class Ran:
    """A run that ended: where, how, what it said, which processes were left, which ran before, and where its
    dashboard was.
    """

    directory: Path
    status: int
    said: str
    left: list[str]
    running: list[str]
    address: str = ""


@contextmanager
def started(directory: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A run of `trunq demo`, in a process group of its own as a terminal would give it."""
    with subprocess.Popen(
        [sys.executable, "-m", "trunq.cli", "demo", *arguments],
        cwd=directory,
        # As a user has it: its Spark lives for minutes.
        env={name: value for name, value in os.environ.items() if not name.startswith(("TRUNQ_", "SPARK_"))},
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


def row_of(queue: str, address: str) -> str:
    """What the overview says of a queue that has figures; empty: nothing yet."""
    page = httpx.get(address, timeout=60).text
    row = page.partition(f'id="of-{queue}-default"')[2].partition("</tr>")[0]
    text = re.sub(r"<[^>]*>", " ", row)
    return "" if "has no sample yet" in text else " ".join(text.split())


def stopped_while_seen(directory: Path) -> Ran:
    """A run with a dashboard, stopped by Ctrl-C when flights are handled and their row there has changed."""
    with started(directory, "--replay", "60", "--web") as run:
        said: list[str] = []
        assert run.stdout is not None
        hearing = threading.Thread(target=_hear, args=[run.stdout, said])
        hearing.start()
        at = wait_until(lambda: AT.search("".join(said)), timeout=200, what="it says where the dashboard is")
        wait_until(lambda: logs_say(directory, "did not answer"), timeout=200, what="flights are handled")
        first = wait_until(lambda: row_of("flights", at[1]))
        wait_until(lambda: row_of("flights", at[1]) not in ("", first), what="the page is live")
        running = processes_of(directory)
        os.killpg(run.pid, signal.SIGINT)
        status = run.wait(timeout=120)
        hearing.join(60)
        return Ran(directory / "demo", status, "".join(said), processes_of(directory), running, at[1])


def _hear(out: IO[str], said: list[str]) -> None:
    while line := out.readline():
        said.append(line)
