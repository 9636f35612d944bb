"""`python -m trunq.cli.work.member PIPE ARGUMENTS...`: the command `trunq`, for a supervisor."""

from __future__ import annotations

import os
import sys

from trunq.cli import main
from trunq.process import signals

if __name__ == "__main__":
    signals.orders = int(sys.argv[1])
    # Not for what handlers start: the pipe ends when the supervisor does, and only then.
    os.set_inheritable(signals.orders, False)
    main(sys.argv[2:])
