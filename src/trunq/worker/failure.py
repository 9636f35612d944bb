"""What a worker says of handlers that fail: the first of a kind and error in full, then counts.

Each failure is kept with its message, by the database; a log that repeats them all is read by nobody.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import Any, Final

from trunq.message import Message
from trunq.worker.result import is_short, text_of, traceback_of

log = logging.getLogger("trunq.worker")

EVERY: Final = 60.0
"""Seconds between two counts of the same failure."""
MOST: Final = 500
"""So many different failures are told apart; then the oldest is forgotten."""

Key = tuple[str, str | None, type[BaseException], str, int]


@dataclass(slots=True)
class Known:
    """A failure that was said before."""

    message_id: int
    said_at: float
    more: int = 0
    last: str = ""


class Failures:
    """Tells failures apart by queue, kind, class of the error and the line that raised it."""

    def __init__(self) -> None:
        self._known: dict[Key, Known] = {}

    def note(self, message: Message, error: BaseException, *, is_traced: bool = True) -> None:
        """A handler failed."""
        now, key = monotonic(), _key(message, error)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MOST:
                oldest = next(iter(self._known))
                self._say(oldest, self._known.pop(oldest), now)
            self._known[key] = Known(message.id, now)
            _say_first(message, error, is_traced)
            return
        known.more += 1
        known.last = text_of(error)
        if now - known.said_at >= EVERY:
            self._say(key, known, now)

    def say_rest(self) -> None:
        """Say what was only counted since the last time."""
        for key, known in self._known.items():
            self._say(key, known, monotonic())

    def _say(self, key: Key, known: Known, now: float) -> None:
        if known.more:
            log.warning(
                "%s more of kind %s in %s failed like message %s in %.0f s, the last by %s: %s",
                f"{known.more:,}",
                key[1],
                key[0],
                known.message_id,
                now - known.said_at,
                key[2].__name__,
                known.last,
                extra={"queue": key[0], "kind": key[1], "failed": known.more},
            )
            known.more, known.said_at = 0, now


def _say_first(message: Message, error: BaseException, is_traced: bool) -> None:
    # As an exception, for those who collect them; unless it says too much.
    as_exception = is_traced and is_short(error)
    log.warning(
        "message %s of %s failed: %s%s",
        message.id,
        message.queue,
        text_of(error),
        f"\n{traceback_of(error)}" if is_traced and not as_exception else "",
        exc_info=error if as_exception else None,
        extra=about(message),
    )


def about(message: Message) -> dict[str, Any]:
    """A message in the fields of a log line."""
    return {
        "queue": message.queue,
        "message_id": message.id,
        "kind": message.kind,
        "attempt": message.attempt,
    }


def _key(message: Message, error: BaseException) -> Key:
    place = _last(error.__traceback__)
    file, line = (place.tb_frame.f_code.co_filename, place.tb_lineno) if place else ("", 0)
    return message.queue, message.kind, type(error), file, line


def _last(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace
