"""What long-running commands write to stderr: a line an event, with its time."""

from __future__ import annotations

import logging


def log_to_stderr() -> None:
    """Send logs to stderr, unless the application has seen to its logs itself."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
