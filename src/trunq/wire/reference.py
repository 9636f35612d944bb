"""An error as it is kept: the internal text, and in its last line a reference and the public text.

sql/functions/work/reference.sql reads that line, and says why it is as it is.
"""

from __future__ import annotations

import json
from secrets import randbits
from time import time
from typing import Final

LONGEST: Final = 8000
"""Characters of an error that are kept."""
LONGEST_PUBLIC: Final = 1000
"""Characters of a public text that are kept."""

_DIGITS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_STRETCH: Final = 300
"""Seconds that one beginning of a reference stands for."""


def new_reference() -> str:
    """When, to five minutes, in four characters; then six of chance."""
    number = (int(time()) // _STRETCH & (1 << 20) - 1) << 30 | randbits(30)
    return "".join(_DIGITS[number >> shift & 31] for shift in range(45, -5, -5))


def with_reference(error: str, reference: str, public: str | None = None) -> str:
    """An error with its last line, cut to what is kept of it."""
    line = f"reference {reference}"
    if public is not None:
        line += f", public {json.dumps(public[:LONGEST_PUBLIC], ensure_ascii=False)}"
    return f"{error[: LONGEST - len(line) - 1]}\n{line}" if error else line
