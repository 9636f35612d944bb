"""Ending with the process that started us, even if that is killed: the kernel closes standard input then."""

from __future__ import annotations

import os
import signal
import sys
import threading


class Parent:
    """Listens on standard input, in a thread: a line sets `told`, its end sends us a SIGTERM."""

    def __init__(self) -> None:
        self.told = threading.Event()
        threading.Thread(target=self._listen, name="parent", daemon=True).start()

    def _listen(self) -> None:
        while sys.stdin.readline():
            self.told.set()
        os.kill(os.getpid(), signal.SIGTERM)
