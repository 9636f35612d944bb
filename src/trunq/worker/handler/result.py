"""What a handler returned or raised, as the database keeps it."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Any, Final

from trunq.client.message import Reject, Retry
from trunq.errors import InvalidArgument
from trunq.wire.json import json_bytes

LARGEST: Final = 16_777_216
"""Bytes of a result, as of a payload."""
_TAIL: Final = 2
_LONGEST: Final = 2000
_LINE: Final = 300
_NOT_THE_USERS: Final = frozenset(
    {"trunq", "psycopg", "psycopg_pool", "asyncio", "threading", "contextlib", "importlib"}
)
_FRAMES: Final = 30
_CAUSES: Final = 5


def encode(result: Any) -> bytes | None:
    """A result as JSON; None stays none. Raises TypeError, with advice, for what JSON cannot say, and
    ValueError for one that is too large: while it is sent, no other answer is.
    """
    try:
        encoded = json_bytes("result", result)
    except InvalidArgument as error:
        raise TypeError(
            f"the handler returned what JSON cannot hold ({error.message});"
            " return JSON, None, Retry, Reject or Park"
        ) from error
    if encoded is not None and len(encoded) > LARGEST:
        raise ValueError(
            f"the handler returned a result of {len(encoded):,} bytes, at most {LARGEST:,} are kept;"
            " store it elsewhere and return where it is"
        )
    return encoded


def describe(error: BaseException) -> str:
    """An error for the message's history: type and text, then the end of the traceback."""
    said = text_of(error)
    head = f"{type(error).__name__}: {said}" if said else type(error).__name__
    frames = traceback.extract_tb(users_frames(error))[-_TAIL:]
    places = [f"  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames]
    return "\n".join([head, *places])


def headline(said: BaseException | str) -> str:
    """An error, or a text, in one line, which every log can write: no lone surrogates."""
    if isinstance(said, BaseException):
        text = text_of(said)
        said = f"{type(said).__name__}: {text}" if text else type(said).__name__
    line = cut(" ".join(cut(said, 2 * _LINE).split()), _LINE)
    return line.encode("utf-8", "backslashreplace").decode()


def users_frames(error: BaseException) -> TracebackType | None:
    """The traceback of an error without the frames of those who called the handler, or were called by it: us,
    psycopg and the event loop. All of it, when nothing else is left; nothing, when it says of itself that it
    has no place in anybody's code.
    """
    if not getattr(error, "has_place", True):
        return None
    frames = []
    trace = error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] not in _NOT_THE_USERS:
            frames.append(trace)
        trace = trace.tb_next
    return _chained(frames) or error.__traceback__


def last_line_of(error: BaseException) -> tuple[str, int]:
    """File and line where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return (trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace else ("", 0)


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
        return all(len(str(each)) <= _LONGEST for each in with_causes(error))
    except Exception:
        return False


def traceback_of(error: BaseException) -> str:
    """The traceback of an error that says too much, as text, with that of its causes."""
    parts = []
    for each in with_causes(error):
        frames = "".join(traceback.format_tb(users_frames(each))[-_FRAMES:])
        parts.append(f"Traceback (most recent call last):\n{frames}{type(each).__name__}: {text_of(each)}")
    return "\n\n".join(reversed(parts))


def shortened(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without its middle, which is the same line again and again where it is deep: pickle fails
    at one of 300 frames.
    """
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    if len(frames) > 2 * _FRAMES:
        frames = frames[:_FRAMES] + frames[-_FRAMES:]
    return _chained(frames)


def _chained(frames: list[TracebackType]) -> TracebackType | None:
    shown: TracebackType | None = None
    for each in reversed(frames):
        shown = TracebackType(shown, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return shown


def with_causes(error: BaseException) -> list[BaseException]:
    """An error and what led to it, a few at most."""
    found: list[BaseException] = []
    seen: BaseException | None = error
    while seen is not None and len(found) < _CAUSES:
        found.append(seen)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return found
