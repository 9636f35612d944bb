"""The log of long-running commands: one line for each event, with its time, to stderr."""

from __future__ import annotations

import logging


def log_to_stderr() -> None:
    """Log to stderr, unless the application has configured logging itself."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    # A pool tells each try of each connection; that the database is away, trunq says in one line.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
