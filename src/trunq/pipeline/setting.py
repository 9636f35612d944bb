"""Settings of Postgres on which the text of a value depends, as it is read and as it is cast."""

from __future__ import annotations

from typing import Final

READING: Final = {
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lc_monetary": "C",
    "timezone": "UTC",
}

WRITING: Final = {"intervalstyle": "postgres", "lc_monetary": "C"}
"""Others do not matter for text that was read so; defaults and triggers of the table may depend on them."""
