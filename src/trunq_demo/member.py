"""A command of trunq as a process of the demo.

`python -m trunq_demo.member worker shop:worker` is `trunq worker shop:worker`, and ends when the process that
started it ends.
"""

from __future__ import annotations

import sys

from trunq.cli import main
from trunq_demo.parent import Parent

if __name__ == "__main__":
    Parent()
    main(sys.argv[1:])
