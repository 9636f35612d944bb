"""A command that ends with the process that started it, even if that is killed: the demo's workers.

`python -m trunq.cli.member worker shop:worker` is `trunq worker shop:worker` that gets a SIGTERM when its
standard input is closed. The kernel closes it, whatever happens to the process at the other end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from trunq.cli import main


def follow_parent() -> None:
    """Wait for the end of standard input, then ask ourselves to end."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=follow_parent, daemon=True).start()
    main(sys.argv[1:])
