"""The answer of a handler whose message waits for the outside."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from trunq.errors import InvalidArgument
from trunq.wire.scalar import Interval, interval, moment, text

LONGEST: Final = 1000
"""Bytes of a token."""


@dataclass(frozen=True)
class Park:
    """A handler's answer, returned: the message waits for the outside, without a worker and without an
    attempt, until somebody calls `client.resume(queue, token, value)`. Its next attempt finds the value in
    `message.resumed`. What a handler in a transaction wrote commits with it.

    `token` is a secret of this message alone, up to 1,000 bytes of text: whoever has it may resume it.
    `until` says how long it waits at the most: seconds, a timedelta, text, or a datetime with a time zone.
    Past that the attempt has failed as one that took too long.
    """

    token: str = field(repr=False)
    until: Interval | datetime

    def __post_init__(self) -> None:
        if not isinstance(self.token, str):
            raise InvalidArgument(
                f"a token is text, not {type(self.token).__name__}", "secrets.token_urlsafe()"
            )
        if not 1 <= len(text("token", self.token).encode()) <= LONGEST:
            raise InvalidArgument(f"a token has 1 to {LONGEST:,} bytes", "secrets.token_urlsafe()")
        if self.until is None:
            raise InvalidArgument("a message is parked for a time that ends", "until='7 days'")
        _ = self.delay, self.moment

    @property
    def delay(self) -> timedelta | None:
        """How long from now; None: until a moment."""
        return None if isinstance(self.until, datetime) else interval("until", self.until)

    @property
    def moment(self) -> datetime | None:
        """Until when; None: for a time from now."""
        return moment("until", self.until) if isinstance(self.until, datetime) else None
