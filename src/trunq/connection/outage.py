"""What a process says of a database that is away, and of what fails again and again: one line."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from time import monotonic
from typing import Final

from trunq.connection.backoff import first_line

log = logging.getLogger("trunq.link")

LONG: Final = 10.0
"""Seconds after which an outage is said while it lasts; a shorter one is said when it is over."""

_AGAIN: Final = 60.0
"""Seconds after which the same is said again."""


class Said:
    """What was said of each thing: a line that is new, then the same once a minute."""

    def __init__(self) -> None:
        self._said: dict[Hashable, tuple[str, float]] = {}

    def is_new(self, about: Hashable, text: str) -> bool:
        """Whether to say this now."""
        before = self._said.get(about)
        if before is not None and before[0] == text and monotonic() < before[1] + _AGAIN:
            return False
        self._said[about] = (text, monotonic())
        return True

    def forget(self, about: Hashable) -> None:
        """It went well: whatever is said next is new."""
        self._said.pop(about, None)


class Outage:
    """Shared by the connections of one process, which each tell what they meet, and since when they were
    open, or tried to be. What was open before the last outage ended broke in it: that is no news.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._began = self._ended = float("-inf")
        self._why = ""
        self._is_said = False

    def notice(self, error: BaseException, opened_at: float) -> None:
        """The database did not answer on a connection."""
        now = monotonic()
        if opened_at < self._ended:
            return
        if not self.is_on:
            self.is_on, self._began, self._is_said = True, now, False
            self._why = first_line(error)
        elif not self._is_said and now - self._began >= LONG:
            self._is_said = True
            log.warning("the database has been away for %.0f s: %s", now - self._began, first_line(error))

    def answered(self, opened_at: float) -> None:
        """The database did what was asked on a connection."""
        now = monotonic()
        if self.is_on and opened_at >= self._began:
            self.is_on, self._ended = False, now
            log.warning("connected again, the database was away for %.1f s: %s", now - self._began, self._why)
