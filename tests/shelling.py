"""Running the command `trunq`, and what it said."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Done:
    """How a command ended and what it said."""

    status: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Everything, in one line: where lines break depends on the terminal."""
        return " ".join((self.out + self.err).replace("│", " ").split())

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Shell = Callable[..., Done]


def start(*arguments: str, directory: Path, **environment: str) -> subprocess.Popen[str]:
    """Start `trunq` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "trunq.cli", *arguments],
        cwd=directory,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def at_a_terminal(
    *arguments: str, columns: int, directory: Path, answer: str = "", **environment: str
) -> tuple[int, str]:
    """Run `trunq` on a terminal of so many columns, where somebody types an answer: status, what is on it."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    os.write(ours, answer.encode())
    bare = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "trunq.cli", *arguments],
        cwd=directory,
        env={**bare, "TERM": "xterm-256color", **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    # The end of a terminal that nobody has open any more is an error.
    with suppress(OSError):
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    return process.wait(timeout=120), shown.decode().replace("\r\n", "\n")
