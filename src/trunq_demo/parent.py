"""Ending with the parent process, even if that is killed: the kernel then closes our standard input."""

from __future__ import annotations

import os
import signal
import sys
import threading


class Parent:
    """Reads standard input in a thread: a line sets `told`, the end of input sends this process a SIGTERM."""

    def __init__(self) -> None:
        self.told = threading.Event()
        threading.Thread(target=self._listen, name="parent", daemon=True).start()

    def _listen(self) -> None:
        while sys.stdin.readline():
            self.told.set()
        os.kill(os.getpid(), signal.SIGTERM)
