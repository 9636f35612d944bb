"""What all parts of a pipeline have in common."""

from __future__ import annotations

import os
import re
from contextvars import ContextVar
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict

VARIABLE: Final = re.compile(r"\$(\$?)\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""`${NAME}`, or `$${NAME}` for the text itself."""

is_expanded: Final = ContextVar("is_expanded", default=False)
"""Whether what is read is for a run, with its passwords."""


class Part(BaseModel):
    """A part: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def directory_of(pattern: str) -> str:
    """The directory that files of a pattern are in, or below."""
    return os.path.dirname(re.split(r"[*?[]", os.path.abspath(pattern), maxsplit=1)[0])


def _no_address(pattern: str) -> str:
    if "://" in pattern:
        raise ValueError(
            f"{pattern[:60]!r} is an address: files are read from directories of the runner's machine"
        )
    return pattern


Files = Annotated[str, AfterValidator(_no_address)]
"""Paths of files, with * and **."""
