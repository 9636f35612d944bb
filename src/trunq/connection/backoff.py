"""Trying again: which errors are worth it, and how long to wait between."""

from __future__ import annotations

import random
from typing import Final

import psycopg
from tenacity import RetryCallState, retry_if_exception, wait_exponential

from trunq.wire.secret import without_password

_AWAY: Final = ("08", "57P", "25006", "26000")
"""The connection is of no more use: connection exceptions, shutdown and starting up, a server that became
read-only, statements we prepared that it does not have (another server connection, behind a pooler).
"""

_PASSING: Final = ("40", "53", "55P03", "57014", "TQ008")
"""The same again will do: serialization, deadlock, no resources, a lock or statement time-out, a subscription
busy.
"""


class _Spread(wait_exponential):
    """Half to one and a half of the pause: a fleet that lost its server must not come back as one."""

    def __call__(self, retry_state: RetryCallState) -> float:
        return super().__call__(retry_state) * (0.5 + random.random())


BACKOFF: Final = _Spread(multiplier=0.1, max=3.0)
"""0.1 s, doubled with each try, at most 3 s; all spread. After any outage, who waits is back within 5 s."""


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


WORTH_ANOTHER_TRY: Final = retry_if_exception(lambda error: is_away(error) or is_passing(error))


def first_line(error: BaseException) -> str:
    """The error as one line for a log."""
    return without_password(str(error)).strip().partition("\n")[0] or type(error).__name__
