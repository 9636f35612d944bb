"""What a handler returned, as the database keeps it."""

from __future__ import annotations

import json
import traceback
from typing import Any, Final

from trunq.message import RawJson

_TAIL: Final = 2
_LONGEST: Final = 2000


def encode(result: Any) -> str | None:
    """A result as JSON; None stays none. Raises TypeError, with advice, for what JSON cannot say."""
    if result is None:
        return None
    if isinstance(result, RawJson):
        return result.text.decode() if isinstance(result.text, bytes) else result.text
    try:
        return json.dumps(result, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the handler returned what JSON cannot hold ({error}); return JSON, None, Retry or Reject"
        ) from error


def describe(error: BaseException) -> str:
    """An error for the message's history: type and text, then the end of the traceback."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)[-_TAIL:]
    places = [f"  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames]
    return "\n".join([text[:_LONGEST], *places])
