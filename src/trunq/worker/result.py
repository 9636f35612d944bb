"""What a handler returned or raised, as the database keeps it."""

from __future__ import annotations

import traceback
from typing import Any, Final

from trunq.errors import InvalidArgument
from trunq.message import Reject, Retry
from trunq.wire.json import json_bytes

_TAIL: Final = 2
_LONGEST: Final = 2000
_FRAMES: Final = 30
_CAUSES: Final = 5


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
    said = text_of(error)
    head = f"{type(error).__name__}: {said}" if said else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)[-_TAIL:]
    places = [f"  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames]
    return "\n".join([head, *places])


def raised_answer(error: Retry | Reject) -> Retry | Reject:
    """A handler's answer that it raised; a Retry without a text of its own has that of its cause."""
    # One that is made once and raised again and again would keep the frames of all times.
    error.__traceback__ = None
    if isinstance(error, Retry) and error.error is None and error.__cause__ is not None:
        return Retry(error.after, describe(error.__cause__))
    return error


def text_of(error: BaseException) -> str:
    """What an error says, cut; some say 50 MB, some fail to say anything."""
    try:
        return cut(str(error))
    except Exception as broken:
        return f"(no text: its __str__ raised {type(broken).__name__})"


def cut(text: str, longest: int = _LONGEST) -> str:
    """A text that somebody may read to its end."""
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text):,} characters)"


def is_short(error: BaseException) -> bool:
    """Whether an error and its causes may be logged with all they say."""
    try:
        return all(len(str(each)) <= _LONGEST for each in _with_causes(error))
    except Exception:
        return False


def traceback_of(error: BaseException) -> str:
    """The traceback of an error that says too much, as text, with that of its causes."""
    parts = []
    for each in _with_causes(error):
        frames = "".join(traceback.format_tb(each.__traceback__)[-_FRAMES:])
        parts.append(f"Traceback (most recent call last):\n{frames}{type(each).__name__}: {text_of(each)}")
    return "\n\n".join(reversed(parts))


def _with_causes(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    seen: BaseException | None = error
    while seen is not None and len(found) < _CAUSES:
        found.append(seen)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return found
