"""The process Spark forks its Python workers from, less its last words.

When Spark has what it wants, or a task has failed, it hangs up on its worker, which then may have something
left to write. Spark's own daemon prints a Python traceback for that, after the real reason was told or
where there is nothing to tell. Everything else is Spark's.
"""

from __future__ import annotations

import os
import socket

from pyspark import daemon

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Spark's, but it ends in silence when nobody listens any more."""
    try:
        return int(_worker(sock, authenticated))
    except ConnectionError:
        os._exit(1)


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
