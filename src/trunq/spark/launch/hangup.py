"""Runs Spark's Python processes, which end quietly when Spark closes their connection.

    python -m trunq.spark.launch.hangup pyspark.daemon ...

Spark closes the connection to a Python process when it has read enough, when a task has failed and when a
query was stopped. If the process still has something to write, it prints a traceback, which is no news to
the user. This module suppresses that traceback and changes nothing else.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys

from pyspark import daemon

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """The worker that the daemon forks: Spark's own, but quiet when Spark has closed the connection."""
    try:
        return int(_worker(sock, authenticated))
    except ConnectionError:
        os._exit(1)


def main() -> None:
    """Runs the module that the first argument names, with the other arguments."""
    module = sys.argv.pop(1)
    if module == daemon.__name__:
        daemon.worker = worker
        daemon.manager()
        return
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ConnectionError:
        os._exit(1)


if __name__ == "__main__":
    main()
