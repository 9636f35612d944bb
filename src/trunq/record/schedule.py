"""Rows about schedules."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import Any, NamedTuple


class ScheduleState(NamedTuple):
    """A row of `list_schedules`: what a schedule publishes, and how far it is.

    `source`: the list of `sync_schedules` that it comes from. `every` is an interval of time that passes,
    `calendar` ("2 days", "1 mon") one of the calendar of `zone`, at the time `at`, or that of `start_at`.
    `paused_until` None: until it is resumed.
    `last_due` is the newest time that was fired or skipped, `last_id` the newest message; `due_times` is how
    many times of a cron text are computed ahead. `error`: why its next time could not be fired.
    """

    schedule: str
    queue: str
    source: str | None
    cron: str | None
    zone: str | None
    every: timedelta | None
    start_at: datetime | None
    missed: str
    overlap: str
    kind: str | None
    key: str | None
    payload: Any
    headers: Any
    priority: int
    options: Any
    max_age: timedelta | None
    paused: bool
    paused_until: datetime | None
    next_due: datetime | None
    last_due: datetime | None
    last_id: int | None
    due_times: int | None
    error: str | None
    created_at: datetime
    calendar: str | None
    at: time | None


class ScheduleRun(NamedTuple):
    """A row of `list_schedule_runs`: a message (`id`), or why there is none.

    `skipped` is missed, overlap or paused. Times skipped one after the other for one reason share a row: so
    many `runs` from `due_at` to `last_due_at`.
    """

    due_at: datetime
    last_due_at: datetime
    runs: int
    fired_at: datetime
    id: int | None
    skipped: str | None
    error: str | None


class ScheduleChange(NamedTuple):
    """A row of `sync_schedules`: a schedule that was created, changed or deleted."""

    schedule: str
    change: str
