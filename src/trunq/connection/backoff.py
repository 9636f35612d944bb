"""Trying again: which errors are retryable, how long to wait between tries, and the one policy of both."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Final

import psycopg
from tenacity import AsyncRetrying, RetryCallState, Retrying

from trunq.wire.secret import without_password

_AWAY: Final = ("08", "57P", "25006", "26000")
"""The connection is of no more use: connection exceptions, shutdown and starting up, a server that became
read-only, statements we prepared that it does not have (another server connection, behind a pooler).
"""

_PASSING: Final = ("40", "53", "55P03", "57014", "TQ008")
"""The same again will do: serialization, deadlock, no resources, a lock or statement time-out, a subscription
busy.
"""


_SHORTEST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 3.0
_LASTING: Final = 60.0
"""A try that went on for so many seconds before it failed is the first of a new row."""


def pause_after(failures: int) -> float:
    """Seconds to wait after so many failures in a row: 0.1, doubled with each, at most 3.

    Half to one and a half of that: a fleet that lost its server must not come back as one. After any outage,
    whoever waits is back within 5 s.
    """
    pause = min(_LONGEST_PAUSE, _SHORTEST_PAUSE * 2.0 ** min(failures - 1, 10))
    return pause * (0.5 + random.random())


def is_away(error: BaseException) -> bool:
    """Whether the connection the error came over is of no more use."""
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_AWAY)
    # Without a code it was not the server that spoke, but libpq about the connection.
    return isinstance(error, psycopg.OperationalError)


def is_passing(error: BaseException) -> bool:
    """Whether the same statement may well succeed a moment later."""
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return state is not None and state.startswith(_PASSING)


def is_retryable(error: BaseException) -> bool:
    """Whether the same may succeed later, perhaps over a new connection."""
    return is_away(error) or is_passing(error)


Errors = type[BaseException] | tuple[type[BaseException], ...]
Say = Callable[[BaseException, int, float], None]
"""Hears of a failure, which it is in a row, and after how many seconds the next try follows."""


class AsyncHurry(asyncio.Event):
    """Ends the pauses of tasks, once and for all."""

    async def pause(self, seconds: float | None) -> None:
        """Wait so many seconds (None: for ever), or until it is set."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wait()


class Hurry(threading.Event):
    """The same for threads."""

    def pause(self, seconds: float | None) -> None:
        """Wait so many seconds (None: for ever), or until it is set."""
        self.wait(seconds)


def retrying(
    *,
    also: Errors = (),
    within: float | None = None,
    is_over: Callable[[], bool] | None = None,
    say: Say | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Retrying:
    """Tries again after what is retryable, and after the errors `also`, until `is_over`, or for `within`
    seconds (none: for ever); then it raises the last error. `say` hears of each failure but that.
    """
    return Retrying(**_policy(also, within, is_over, say), sleep=sleep)


def async_retrying(
    *,
    also: Errors = (),
    within: float | None = None,
    is_over: Callable[[], bool] | None = None,
    say: Say | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncRetrying:
    """The same for an event loop."""
    return AsyncRetrying(**_policy(also, within, is_over, say), sleep=sleep)


def _policy(
    also: Errors, within: float | None, is_over: Callable[[], bool] | None, say: Say | None
) -> dict[str, Any]:
    failures, begun = 0, monotonic()

    def retry(state: RetryCallState) -> bool:
        error = _error_of(state)
        return error is not None and (isinstance(error, also) or is_retryable(error))

    def stop(state: RetryCallState) -> bool:
        is_late = within is not None and (state.seconds_since_start or 0.0) >= within
        return is_late or (is_over is not None and is_over())

    def wait(_state: RetryCallState) -> float:
        nonlocal failures, begun
        failures = failures + 1 if monotonic() < begun + _LASTING else 1
        pause = pause_after(failures)
        begun = monotonic() + pause
        return pause

    def tell(state: RetryCallState) -> None:
        error = _error_of(state)
        if say is not None and error is not None:
            say(error, failures, state.upcoming_sleep)

    return {"retry": retry, "stop": stop, "wait": wait, "before_sleep": tell, "reraise": True}


def _error_of(state: RetryCallState) -> BaseException | None:
    """What the try that is over raised."""
    return state.outcome.exception() if state.outcome is not None else None


def first_line(error: BaseException) -> str:
    """The error as one line for a log."""
    return without_password(str(error)).strip().partition("\n")[0] or type(error).__name__
