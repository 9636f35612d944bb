"""Where servers of tests keep their data: in memory, where there is room.

Thousands of databases are made and dropped. On ext4 that takes two to six times as long: whoever makes a file
passes over the numbers of those that went within minutes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SHARED = Path("/dev/shm")  # noqa: S108  # directories in it are made by tempfile
_ROOM = 4 * 2**30


@contextmanager
def in_memory() -> Iterator[None]:
    """Directories that are made meanwhile by tempfile lie in memory."""
    before = tempfile.tempdir
    if _SHARED.is_dir() and os.access(_SHARED, os.W_OK | os.X_OK) and shutil.disk_usage(_SHARED).free > _ROOM:
        tempfile.tempdir = str(_SHARED)
    try:
        yield
    finally:
        tempfile.tempdir = before
