"""Spark's Python processes, less their last words.

    python -m trunq.spark.launch.hangup pyspark.daemon ...

When Spark has what it wants, when a task has failed or a query was stopped, it hangs up on its Python
process, which then may have something left to write. Left alone, that prints a traceback after the real
reason was told, or where there is nothing to tell. Everything else is Spark's own.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys

from pyspark import daemon

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """What the daemon forks: Spark's, but it ends in silence when nobody listens any more."""
    try:
        return int(_worker(sock, authenticated))
    except ConnectionError:
        os._exit(1)


def main() -> None:
    """Runs the module named first, with the arguments after it."""
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
