"""What becomes of a handler that takes longer than it may, or is called off."""

from __future__ import annotations

from trunq.client.message import Reject
from trunq.worker.handler.result import describe
from trunq.worker.slot.work import AckRefused


class TimedOut(TimeoutError):
    """A handler took longer than it may."""

    has_place = True
    """Whether its traceback says where."""


class CalledOff(Exception):
    """A handler was cancelled because somebody cancelled its message."""


def late(limit: float, *, has_place: bool = True) -> TimedOut:
    """A handler ran longer than `limit` seconds."""
    made = TimedOut(f"the handler ran longer than the {limit:g} seconds it was given")
    made.has_place = has_place
    return made


def raise_late(limit: float, error: Exception) -> None:
    """A handler that was stopped raised something: it timed out, unless that refuses the message for good."""
    if not isinstance(error, Reject | AckRefused | TimedOut):
        raise TimedOut(f"{late(limit)}, and raised {describe(error)}") from error
