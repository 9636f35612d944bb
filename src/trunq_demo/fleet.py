"""The processes of a run. However the run ends, none of them is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

GRACE = 20.0
"""Seconds between SIGTERM and SIGKILL."""


class ProcessDied(Exception):
    """A process of the run ended before its work was done."""


@dataclass(slots=True)
class Member:
    """A process of the run, which prints to the file `log`."""

    name: str
    process: subprocess.Popen[str]
    log: Path

    def tell(self, word: str) -> None:
        """Write a line to the process."""
        if self.process.stdin is not None:
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()


class Fleet:
    """Context manager that ends its processes and their children."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self.environment: dict[str, str] = {**os.environ, **environment}
        self.members: list[Member] = []

    def start(self, name: str, *arguments: str) -> Member:
        """Start a Python module with arguments, in a session of its own, which a Ctrl-C does not reach."""
        log = self.directory / f"{name.replace(' ', '-')}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                # -P: do not import modules from the current directory.
                [sys.executable, "-P", "-m", *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
                text=True,
            )
        member = Member(name, process, log)
        self.members.append(member)
        return member

    def check(self) -> None:
        """Raise ProcessDied, with the end of its log, if a process has failed."""
        for member in self.members:
            status = member.process.poll()
            if status is not None and status != 0:
                raise ProcessDied(f"The {member.name} ended with status {status}.{_end_of(member.log)}")

    def stop(self, *members: Member) -> None:
        """Ask processes to end, wait, and kill those that are left, with their children."""
        leaving = list(members) or self.members
        processes = []
        for member in leaving:
            with suppress(psutil.NoSuchProcess):
                parent = psutil.Process(member.process.pid)
                # Listed before the parent ends: afterwards its children have another parent.
                processes += [parent, *parent.children(recursive=True)]
        for process in processes:
            # Spark's Java too: by itself it takes seconds to notice that Python has ended.
            with suppress(psutil.NoSuchProcess):
                process.terminate()
        for process in _wait(processes):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _wait(processes)
        for member in leaving:
            member.process.wait()
            if member.process.stdin is not None:
                with suppress(BrokenPipeError):
                    member.process.stdin.close()
        self.members = [member for member in self.members if member not in leaving]

    def kill(self, member: Member) -> None:
        """Kill a process and its children by SIGKILL, all at once, as when a machine is cut off."""
        parent = psutil.Process(member.process.pid)
        processes = [parent, *parent.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _wait(processes)
        self.stop(member)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _wait(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Wait at most GRACE until processes have ended; returns those that still run."""
    deadline = time.monotonic() + GRACE
    while (alive := [process for process in processes if is_alive(process)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


def is_alive(process: psutil.Process) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _end_of(log: Path) -> str:
    """The end of a log: its last error, if there is one, else its last lines."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("error: ")]
    if told:
        return f" {told[-1].removeprefix('error: ')} (Its log: {log})"
    return "\n".join([f" The end of its log, {log}:", *(f"  {line}" for line in lines[-8:])])
