"""Running the command `trunq`, and what it said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
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
