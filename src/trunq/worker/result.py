"""What a handler returned or raised, as the database keeps it."""

from __future__ import annotations

import traceback
from typing import Any, Final

from trunq.errors import InvalidArgument
from trunq.wire.json import json_bytes

_TAIL: Final = 2
_LONGEST: Final = 2000


def encode(result: Any) -> bytes | None:
    """A result as JSON; None stays none. Raises TypeError, with advice, for what JSON cannot say."""
    try:
        return json_bytes("result", result)
    except InvalidArgument as error:
        raise TypeError(
            f"the handler returned what JSON cannot hold ({error.message});"
            " return JSON, None, Retry or Reject"
        ) from error


def describe(error: BaseException) -> str:
    """An error for the message's history: type and text, then the end of the traceback."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)[-_TAIL:]
    places = [f"  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames]
    return "\n".join([text[:_LONGEST], *places])
