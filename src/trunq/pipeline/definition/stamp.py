"""The columns that say which run brought a row."""

from __future__ import annotations

from typing import Final

STAMPS: Final = ("_run", "_at")
"""The number of the run, and when it began."""

WITH_COLUMNS: Final = ("table", "delta", "parquet", "jdbc")
"""Formats of sinks whose rows can be stamped."""
