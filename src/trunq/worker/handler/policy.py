"""How often and how soon messages of a kind are tried again, in place of the policy of their subscription."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, get_args

from trunq.client.message import Message
from trunq.errors import InvalidArgument
from trunq.wire.scalar import Interval, interval
from trunq.word import Backoff


@dataclass(frozen=True, slots=True)
class Policy:
    """What the functions `subscribe` and `retry` take under these names; None: as the subscription says."""

    max_attempts: int | None = None
    backoff: Backoff | None = None
    backoff_base: timedelta | None = None
    backoff_cap: timedelta | None = None
    jitter: float | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """It as arguments of a call."""
        return {name: getattr(self, name) for name in self.__slots__}

    def tell(self, message: Message) -> None:
        """Have the message say how many attempts it has; an option of its own goes before the kind's."""
        if self.max_attempts is not None and message.option("max_attempts") is None:
            message.max_attempts = self.max_attempts


def policy(
    max_attempts: int | None,
    backoff: Backoff | None,
    backoff_base: Interval | None,
    backoff_cap: Interval | None,
    jitter: float | None,
) -> Policy | None:
    """A policy; None when nothing is given. Refuses now what the database would at the first failure."""
    if max_attempts is not None:
        require_whole("max_attempts", max_attempts, 0, "0 (for ever) or more")
    if backoff not in (None, *get_args(Backoff)):
        raise InvalidArgument(
            f"backoff is 'constant', 'linear' or 'exponential', not {backoff!r}",
            "backoff_base is the delay before the second attempt, in seconds",
        )
    if jitter is not None and (isinstance(jitter, bool) or not isinstance(jitter, int | float)):
        raise TypeError(f"jitter is a number from 0 to 1, not {type(jitter).__name__}")
    if jitter is not None and not 0 <= jitter <= 1:
        raise InvalidArgument(f"jitter is a number from 0 to 1, not {jitter}")
    made = Policy(
        max_attempts,
        backoff,
        _delay("backoff_base", backoff_base),
        _delay("backoff_cap", backoff_cap),
        jitter,
    )
    return None if made == Policy() else made


def require_names(queues: tuple[object, ...]) -> None:
    """Refuse queues that are given as a list."""
    for each in queues:
        if not isinstance(each, str):
            given = each if isinstance(each, list | tuple | set) else ("...",)
            names = ", ".join(repr(name) for name in given)
            raise TypeError(f"a worker takes the names of its queues one by one: Worker({names})")


def require_whole(name: str, value: object, least: int, range: str) -> None:
    """Refuse what is no whole number, or too small a one."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is a whole number, {range}, not {type(value).__name__}")
    if value < least:
        raise InvalidArgument(f"{name} is a whole number, {range}, not {value}")


def _delay(name: str, value: Interval | None) -> timedelta | None:
    delay = interval(name, value)
    if delay is not None and delay < timedelta(0):
        raise InvalidArgument(f"{name} cannot be negative, not {value}")
    return delay
