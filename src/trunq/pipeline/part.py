"""What all parts of a pipeline have in common."""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import Final

from pydantic import BaseModel, ConfigDict

VARIABLE: Final = re.compile(r"\$(\$?)\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""`${NAME}`, or `$${NAME}` for the text itself."""

is_expanded: Final = ContextVar("is_expanded", default=False)
"""Whether what is read is for a run, with its passwords."""


class Part(BaseModel):
    """A part: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
