"""What the dashboard asks the database: bounded, read-only, and once for all who look at the same moment."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg import AsyncConnection
from psycopg_pool import PoolTimeout

from trunq.client._async import AsyncClient
from trunq.connection.backoff import first_line
from trunq.diagnosis import async_rights, refusal
from trunq.record.look import LOOKED_TO

CONNECTIONS: Final = 4
"""At the same time, whoever looks."""
STATEMENT_WITHIN: Final = "3s"
PATIENT_WITHIN: Final = "20s"
"""For the one question that looks at all queues: a page does not wait for it, and has its answer later."""
LOCK_WITHIN: Final = "1s"
ANSWER_WITHIN: Final = 3.5
"""Seconds that a page waits for all of its looks together: a browser has six connections for all its tabs."""
LEAST_WAIT: Final = 0.05
"""For a look when they are over; it goes on, and the page has it the next time."""
UNTIL: ContextVar[float] = ContextVar("until")
"""Until when the page waits that is being made."""
QUEUE: ContextVar[str | None] = ContextVar("queue", default=None)
"""The queue that the page is about which is being made."""
FRESH_FOR: Final = 1.0
"""Seconds for which an answer is given to others who ask the same."""
PAUSES: Final = 20
"""So many times as long as it took, a look that takes long is not repeated."""
KEPT: Final = 500
"""Answers that are kept, to be shown when the next one does not come."""

# By set_config, in one statement for all of them: a pooler passes no options of a connection on. A standby
# takes no setting that lets it write; what does write there is refused as anywhere that is read-only.
_BOUNDS: Final = """
select set_config('transaction_read_only', case when pg_is_in_recovery() then 'on' else %s end, true),
  set_config('statement_timeout', %s, true), set_config('lock_timeout', %s, true),
  set_config('trunq.who', %s, true), set_config('TimeZone', 'UTC', true), trunq.clock()
"""


class Refused(Exception):
    """The role may not look; the text says what shows it."""


T = TypeVar("T")
Ask = Callable[[AsyncConnection[Any]], Awaitable[T]]


@dataclass(frozen=True, slots=True)
class Panel(Generic[T]):
    """An answer; with `why`, the last one there was (None: there was none), and why no newer came."""

    rows: T | None
    why: str | None = None
    age: float = 0.0
    is_refused: bool = False
    """Whether the role lacks a right; `why` names the grant."""


@dataclass(frozen=True, slots=True)
class Walk(Generic[T]):
    """Rows that a list found, and where a look that ended before them all goes on."""

    rows: list[T]
    to: int | None = None


async def looked_to(connection: AsyncConnection[Any]) -> int | None:
    """Where the list goes on that was asked for in this transaction; None: it looked at all there was."""
    row = await (await connection.execute(LOOKED_TO)).fetchone()
    return row and row[0]


class Turns:
    """One at a time in each event loop, of what takes long: pages have the other connections."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    def turn(self) -> asyncio.Semaphore:
        """What the running loop's are entered by."""
        return self._of.setdefault(asyncio.get_running_loop(), asyncio.Semaphore())


class Database:
    """The client of the dashboard, with bounds."""

    def __init__(self, client: AsyncClient, *, is_read_only: bool) -> None:
        self.client, self.is_read_only = client, is_read_only
        self._ahead = timedelta(0)
        """How far the clock of the database is ahead of ours."""
        self._changed_at = 0.0
        self._known: OrderedDict[object, tuple[float, Any]] = OrderedDict()
        self._took: dict[object, float] = {}
        """Seconds that each answer took."""
        self._failed: dict[object, str] = {}
        """Why the last look failed, of answers that are kept."""
        self._asking: dict[object, asyncio.Task[Any]] = {}

    @property
    def now(self) -> datetime:
        """The time of the database, as of the last answer."""
        return datetime.now(UTC) + self._ahead

    @asynccontextmanager
    async def reading(self, within: str = STATEMENT_WITHIN) -> AsyncIterator[AsyncConnection[Any]]:
        """A transaction that Postgres lets change nothing."""
        async with self.client.transaction() as connection:
            bound = await connection.execute(_BOUNDS, ("on", within, LOCK_WITHIN, ""))
            row = await bound.fetchone()
            assert row is not None
            self._ahead = row[-1] - datetime.now(UTC)
            yield connection

    @asynccontextmanager
    async def changing(self, who: str) -> AsyncIterator[AsyncConnection[Any]]:
        """A transaction for a change that somebody makes. A dashboard that is read-only has none."""
        async with self.client.transaction() as connection:
            refused = "on" if self.is_read_only else "off"
            # 10,000 messages that are requeued take longer than a look may.
            await connection.execute(_BOUNDS, (refused, "60s", LOCK_WITHIN, who))
            yield connection

    async def panel(
        self,
        key: object,
        ask: Ask[T],
        fresh_for: float = FRESH_FOR,
        within: str = STATEMENT_WITHIN,
        meanwhile_for: float = 0,
        wait_for: float = ANSWER_WITHIN,
        linger: float = 0,
    ) -> Panel[T]:
        """The answer to a question: a new one, or the one that somebody got `fresh_for` seconds ago, or, with
        the reason, the last one there was.

        For `meanwhile_for` seconds the last one does while a new one is looked for, unless something was
        changed here: for what takes long; the page waits `linger` seconds for the new one nevertheless. A
        look that took long is also repeated less often. `wait_for` is how long the page waits where the last
        one does not do. Raises what the functions refuse, such as QueueNotFound.
        """
        known, now = self._known.get(key), time.monotonic()
        fresh_for = max(fresh_for, min(meanwhile_for, PAUSES * self._took.get(key, 0)))
        if known is not None and known[0] > max(self._changed_at, now - fresh_for):
            return Panel(known[1])
        if known is not None and known[0] > max(self._changed_at, now - meanwhile_for):
            begun = self._begin(key, ask, within)
            if (left := min(linger, UNTIL.get(now + ANSWER_WITHIN) - now)) > 0:
                await asyncio.wait([begun], timeout=left)
                known = self._known.get(key, known)
            failed = self._failed.get(key)
            return Panel(known[1]) if failed is None else Panel(known[1], failed, now - known[0])
        try:
            async with asyncio.timeout(max(LEAST_WAIT, min(wait_for, UNTIL.get(now + ANSWER_WITHIN) - now))):
                rows: T = await self._ask_once(key, ask, within)
        except (psycopg.OperationalError, Refused, TimeoutError) as error:
            is_refused = isinstance(error, Refused)
            if known is None:
                return Panel(None, _why(error), is_refused=is_refused)
            if isinstance(error, TimeoutError) and known[0] > now - meanwhile_for:
                return Panel(known[1])
            return Panel(known[1], _why(error), time.monotonic() - known[0], is_refused)
        return Panel(rows)

    async def refusal(self, error: psycopg.Error, what: str = "look") -> str:
        """Why the role may not do what it was asked for, and the grant that it lacks."""
        async with self.client.transaction() as connection:
            return refusal(error, await async_rights(connection, QUEUE.get()), what)

    def forget(self) -> None:
        """Have all be asked anew: something was changed. What there was stays, in case no answer comes."""
        self._changed_at = time.monotonic()
        self._asking.clear()

    async def _ask_once(self, key: object, ask: Ask[T], within: str) -> T:
        """Whoever asks while another waits for the same answer waits for that one."""
        # A browser that goes away takes no answer from the others.
        answer: T = await asyncio.shield(self._begin(key, ask, within))
        return answer

    def _begin(self, key: object, ask: Ask[T], within: str) -> asyncio.Task[T]:
        task = self._asking.get(key)
        # A mounted application may be called on another event loop than before.
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            task = self._asking[key] = asyncio.create_task(self._ask(key, ask, within))
            task.add_done_callback(lambda done: self._forget(key, done))
        return task

    def _forget(self, key: object, done: asyncio.Task[Any]) -> None:
        if self._asking.get(key) is done:
            del self._asking[key]
        error = None if done.cancelled() else done.exception()
        if error is None:
            self._failed.pop(key, None)
        elif key in self._known:
            self._failed[key] = _why(error)

    async def _ask(self, key: object, ask: Ask[T], within: str) -> T:
        asked_at = time.monotonic()
        try:
            async with self.reading(within) as connection:
                rows = await ask(connection)
        except psycopg.errors.InsufficientPrivilege as error:
            raise Refused(await self.refusal(error)) from error
        self._known[key] = (asked_at, rows)
        self._took[key] = time.monotonic() - asked_at
        self._known.move_to_end(key)
        if len(self._known) > KEPT:
            oldest, _ = self._known.popitem(last=False)
            self._took.pop(oldest, None)
            self._failed.pop(oldest, None)
        return rows


def _why(error: BaseException) -> str:
    match error:
        case psycopg.errors.QueryCanceled():
            return f"the database did not answer within {STATEMENT_WITHIN.removesuffix('s')} s"
        case TimeoutError():
            return "the database is still looking"
        case PoolTimeout():
            return "all connections of this page are busy"
        case psycopg.errors.LockNotAvailable():
            return "somebody holds a lock that this look waits for"
        case Refused():
            return str(error)
        case _:
            return f"the database is away: {first_line(error)}"
