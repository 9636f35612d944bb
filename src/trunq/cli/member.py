"""A command as a process of the demo: `python -m trunq.cli.member worker shop:worker` is `trunq worker
shop:worker` that ends with the process that started it.
"""

from __future__ import annotations

import sys

from trunq.cli import main
from trunq.demo.parent import Parent

if __name__ == "__main__":
    Parent()
    main(sys.argv[1:])
