"""When a schedule is due: what a cron text means, by the library cronsim, and time zones by Python's data.

A fixed time, whose minute and hour are numbers, comes once a day where clocks change too: in the first of two
equal hours, and at the end of one that is left out. So does an interval by the calendar of a zone. All else
goes by the time that passes.
"""

from __future__ import annotations

from calendar import monthrange
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from itertools import count as count_from
from itertools import islice
from typing import Any, Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from trunq.errors import InvalidSchedule
from trunq.wire.json import headers_text, json_text
from trunq.wire.scalar import Interval, Label, calendar, clock, interval, label, moment
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
    at: time | str | None = None
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
            "every": _every(self.every),
            "start_at": moment("start_at", self.start_at),
            "at": clock("at", self.at),
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
    for due in times:
        if now is None or due > now:
            return [*past, due, *islice(times, count - 1)]
        past.append(due)
    if not past:
        raise InvalidSchedule(f"the cron text {cron!r} is never due", _HOW)
    return list(past)


def steps(
    every: Interval,
    start_at: datetime,
    after: datetime,
    count: int,
    zone: str | None = None,
    at: time | str | None = None,
) -> list[datetime]:
    """The next times of an interval counted from a start, as the database has them.

    With a zone, for months and years, or at a time of the day, it goes by the calendar of the zone (UTC).
    """
    months, span = calendar("every", every) or (0, timedelta(0))
    if zone is not None or at is not None or months:
        days, rest = divmod(span, timedelta(days=1))
        if rest or days < 0 or not (days or months):
            raise InvalidSchedule(
                f"nothing runs every {every} by the calendar of a zone",
                "give days, months or years; without a zone, hours and seconds count the time that passes",
            )
        daily = None if at is None else time.fromisoformat(clock("at", at) or "")
        later = (due for due in _calendar(months, days, start_at, _find_zone(zone), daily) if due > after)
        return list(islice(later, count))
    if span < timedelta(seconds=1):
        raise InvalidSchedule(f"nothing runs every {span}", "give an interval of a second or more")
    first = start_at if after < start_at else start_at + span * ((after - start_at) // span + 1)
    return [first + span * step for step in range(count)]


def _calendar(
    months: int, days: int, start_at: datetime, zone: ZoneInfo, at: time | None
) -> Iterator[datetime]:
    """Times by the calendar of a zone, counted from the start: the 31st comes again."""
    local = start_at.astimezone(zone).replace(tzinfo=None)
    last = start_at.astimezone(UTC) - timedelta(microseconds=1)
    first = local if at is None else datetime.combine(local, at)
    for number in count_from():
        try:
            due = _clock_time(_add_months(first, months * number) + timedelta(days=days * number), zone)
        except (OverflowError, ValueError):
            return
        if number == 0 and at is None:
            due = start_at.astimezone(UTC)
        if due > last:
            last = due
            yield due


def _add_months(local: datetime, months: int) -> datetime:
    years, month = divmod(local.month - 1 + months, 12)
    year = local.year + years
    return local.replace(year=year, month=month + 1, day=min(local.day, monthrange(year, month + 1)[1]))


def _clock_time(local: datetime, zone: ZoneInfo) -> datetime:
    """When clocks show this: the first time of two; where they leave it out, the moment at which they do."""
    due = local.replace(tzinfo=zone).astimezone(UTC)
    if due.astimezone(zone).replace(tzinfo=None) == local:
        return due
    before, after = due.replace(microsecond=0) - timedelta(days=1), due.replace(microsecond=0)
    while (length := (after - before) // timedelta(seconds=1)) > 1:
        middle = before + timedelta(seconds=length // 2)
        if middle.astimezone(zone).replace(tzinfo=None) > local:
            after = middle
        else:
            before = middle
    return after


def _every(every: Interval | None) -> timedelta | str | None:
    """An interval as it is sent: where it has months, as the text of one."""
    months, rest = calendar("every", every) or (0, None)
    return rest if not months or rest is None else f"{months} months {rest // _MICROSECOND} microseconds"


_MICROSECOND: Final = timedelta(microseconds=1)


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
        for local in _local_times(MACROS.get(cron.strip().lower(), cron), last.astimezone(zone)):
            # A fixed time looked for in the second of two equal hours is found in the first.
            if (due := local.astimezone(UTC)) > last:
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
