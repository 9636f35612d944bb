"""When a schedule is due: what a cron text means, by the library cronsim, and time zones by Python's data.

A fixed time, whose minute and hour are numbers, comes once a day where clocks change too: in the first of two
equal hours, and at the end of one that is left out. All else goes by the time that passes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from trunq.errors import InvalidSchedule
from trunq.wire.json import headers_text, json_text
from trunq.wire.scalar import Interval, Label, interval, label, moment
from trunq.word import Missed, Overlap

AHEAD: Final = 1000
"""How many due times of a cron text stand in the database."""

MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_HOW: Final = (
    "five fields, minute hour day month weekday, as in '30 3 * * *' (half past three every day); six with "
    f"seconds in front; or one of {', '.join(MACROS)}"
)
_LONGEST: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One of a list for `sync_schedules`; the fields are the parameters of `create_schedule`."""

    schedule: str
    queue: str
    payload: Any = None
    cron: str | None = None
    zone: str | None = None
    every: Interval | None = None
    start_at: datetime | None = None
    missed: Missed | None = None
    overlap: Overlap | None = None
    kind: Label | None = None
    key: Label | None = None
    headers: Any = None
    priority: int | None = None
    options: Mapping[str, Any] | None = None
    max_age: Interval | None = None

    def given(self, now: datetime) -> dict[str, Any]:
        """The arguments of `create_schedule` as they are sent, with the due times from now on."""
        return {
            "schedule": self.schedule,
            "queue": self.queue,
            "payload": json_text("payload", self.payload),
            "cron": self.cron,
            "zone": self.zone,
            "every": interval("every", self.every),
            "start_at": moment("start_at", self.start_at),
            "missed": self.missed,
            "overlap": self.overlap,
            "kind": label("kind", self.kind),
            "key": label("key", self.key),
            "headers": headers_text(self.headers),
            "priority": self.priority,
            "options": json_text("options", self.options),
            "max_age": interval("max_age", self.max_age),
            "due_times": None if self.cron is None else due_times(self.cron, self.zone, now),
        }


def due_times(
    cron: str, zone: str | None, after: datetime, count: int = AHEAD, now: datetime | None = None
) -> list[datetime]:
    """The next times of a cron text in a time zone (None: UTC), in UTC; fewer where the calendar ends.

    With `now`, a later time than `after`: the newest so many up to it, and as many beyond. Raises
    InvalidSchedule for a text or a zone that cannot be read, or a text that is never due.
    """
    times = _times(cron, _find_zone(zone), after)
    past: deque[datetime] = deque(maxlen=count)
    for time in times:
        if now is None or time > now:
            return [*past, time, *islice(times, count - 1)]
        past.append(time)
    if not past:
        raise InvalidSchedule(f"the cron text {cron!r} is never due", _HOW)
    return list(past)


def steps(every: Interval, start_at: datetime, after: datetime, count: int) -> list[datetime]:
    """The next times of an interval counted from a start, as the database has them."""
    span = interval("every", every) or timedelta(0)
    if span < timedelta(seconds=1):
        raise InvalidSchedule(f"nothing runs every {span}", "give an interval of a second or more")
    first = start_at if after < start_at else start_at + span * ((after - start_at) // span + 1)
    return [first + span * step for step in range(count)]


def _find_zone(name: str | None) -> ZoneInfo:
    try:
        return ZoneInfo("UTC" if name is None else name)
    except (KeyError, ValueError, OSError, TypeError) as error:
        raise InvalidSchedule(
            f"there is no time zone {name!r}",
            "give one as in 'Europe/Prague'; zoneinfo.available_timezones() has them all",
        ) from error


def _times(cron: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    if len(cron) > _LONGEST:
        raise InvalidSchedule(f"the cron text {cron[:40]!r}... is too long: {len(cron)} characters", _HOW)
    last = after.astimezone(UTC)
    try:
        for time in _local_times(MACROS.get(cron.strip().lower(), cron), last.astimezone(zone)):
            # A fixed time looked for in the second of two equal hours is found in the first.
            if (due := time.astimezone(UTC)) > last:
                last = due
                yield due
    except CronSimError as error:
        raise InvalidSchedule(f"the cron text {cron!r} cannot be read: {str(error).lower()}", _HOW) from error
    except OverflowError:
        return


def _local_times(cron: str, after: datetime) -> Iterator[datetime]:
    """cronsim's times; it knows fixed times without seconds only."""
    fields = cron.split()
    times = CronSim(cron, after)
    if len(fields) != 6 or fields[1].startswith("*") or fields[2].startswith("*"):
        yield from times
        return
    seconds = sorted(times.seconds)
    for minute in CronSim(" ".join(fields[1:]), after - timedelta(minutes=1)):
        yield from (minute + timedelta(seconds=second) for second in seconds)
