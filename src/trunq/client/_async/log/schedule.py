"""Schedules: messages published at the times of a cron text, or every so often."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, time, timedelta
from typing import Any, Final

from trunq.client._async.log.publish import AsyncPublishing
from trunq.connection.given import AsyncGiven
from trunq.errors import InvalidSchedule
from trunq.record import ScheduleChange
from trunq.schedule import AHEAD, Schedule, due_times
from trunq.wire.call import Call
from trunq.wire.json import json_text
from trunq.wire.scalar import Interval, Label, moment
from trunq.word import Missed, Overlap


class AsyncSchedules(AsyncPublishing):
    """Schedules. Whoever performs the duties fires them: a worker that leads, a leader, or pg_cron."""

    async def create_schedule(
        self,
        schedule: str,
        queue: str,
        payload: Any = None,
        *,
        cron: str | None = None,
        zone: str | None = None,
        every: Interval | None = None,
        start_at: datetime | None = None,
        missed: Missed | None = None,
        overlap: Overlap | None = None,
        kind: Label | None = None,
        key: Label | None = None,
        headers: Any = None,
        priority: int | None = None,
        options: Mapping[str, Any] | None = None,
        max_age: Interval | None = None,
        due_times: Sequence[datetime] | None = None,
        at: time | str | None = None,
        connection: AsyncGiven | None = None,
    ) -> bool:
        """Publish a message at the times of a cron text, or every so often; change the schedule of that name.

        `cron` has five fields, six with seconds in front, or is a macro such as `@daily`; its times are
        those of `zone` (UTC). `every` counts from `start_at` (now); with a `zone`, or as "1 month", it
        counts days, months and years by the calendar there, at the time `at` ("09:00"; that of the start).
        `missed`, of times that are over when somebody fires again: `skip`, `one` (the last of them; this is
        the default) or `all`. `overlap="skip"` leaves a time out while a shared subscription has not
        finished the message before. The rest is as in `publish`; the message has the headers `schedule` and
        `due_at`. `due_times` stand in for those of `cron`.

        What you leave out gets its default. A pause stays, and so does the next time where cron, zone, every
        and start are as before. Returns True when it was made. Raises InvalidSchedule.
        """
        wanted = Schedule(
            schedule=schedule,
            queue=queue,
            payload=self._checked(kind, payload),
            cron=cron,
            zone=zone,
            every=every,
            start_at=start_at,
            at=at,
            missed=missed,
            overlap=overlap,
            kind=kind,
            key=key,
            headers=headers,
            priority=priority,
            options=options,
            max_age=max_age,
        )
        if due_times is None:
            given = wanted.given(await self._now(connection, [wanted]))
        else:
            times = [moment("due_times", time) for time in due_times]
            given = {**wanted.given(_LONG_AGO), "due_times": times}
        created: bool = await self._value(connection, "create_schedule", **given)
        return created

    async def sync_schedules(
        self,
        schedules: Iterable[Schedule],
        source: str | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> list[ScheduleChange]:
        """Make the schedules of a `source` ("code") equal to a list in your code; returns what changed.

        Those that a former list of this source had are deleted; those made otherwise, or by the list of
        another source, are left alone. Raises InvalidSchedule, also for a name that one of them has.
        """
        wanted: list[Any] = list(schedules)
        if other := [each for each in wanted if not isinstance(each, Schedule)]:
            raise InvalidSchedule(f"{other[0]!r:.100} is no schedule", "give a list of trunq.Schedule(...)")
        wanted = [replace(each, payload=self._checked(each.kind, each.payload)) for each in wanted]
        now = await self._now(connection, wanted)
        given = f"[{','.join(_object(each.given(now)) for each in wanted)}]"
        return await self._records(
            connection, ScheduleChange, "sync_schedules", schedules=given, source=source
        )

    async def fill_schedules(self, *, connection: AsyncGiven | None = None) -> int:
        """Compute the next 1,000 times of every cron text anew; returns how many schedules that were.

        A leader does it by itself. Where pg_cron alone performs the duties, do it now and then.
        """
        found = await self._execute(connection, list_fillable(is_all=True))
        for schedule, cron, zone, after, now in found:
            times = due_times(cron, zone, after, now=now)
            await self._execute(connection, fill(schedule, cron, zone, after, times))
        return len(found)

    def _checked(self, kind: Label | None, payload: Any) -> Any:
        """The payload as it is sent, which fits its kind. Nothing is injected: each message is of its own
        time.
        """
        return payload if self._outgoing is None else self._outgoing.payload(kind, payload)

    async def _now(self, connection: AsyncGiven | None, wanted: Sequence[Schedule]) -> datetime:
        """The database's time, if it is needed."""
        if all(each.cron is None for each in wanted):
            return _LONG_AGO
        now: datetime = await self._value(connection, "clock")
        return now


_LONG_AGO: Final = datetime.fromisoformat("2000-01-01T00:00:00+00:00")
_FEW: Final = 500


def list_fillable(*, is_all: bool) -> Call:
    """The call that lists schedules whose times are to be computed: those with few left, or all."""
    return Call("_list_fillable", {"fewer_than": AHEAD + 1 if is_all else _FEW}, _FILLABLE)


def fill(schedule: str, cron: str, zone: str, after: datetime, times: list[datetime]) -> Call:
    """The call that replaces the times of a schedule after one time."""
    arguments = {"schedule": schedule, "cron": cron, "zone": zone, "after": after, "due_times": times}
    return Call("_fill_schedule", arguments)


_FILLABLE: Final = ("schedule", "cron", "zone", "after", "now")


def _object(given: dict[str, Any]) -> str:
    """Arguments as the text of a JSON object."""
    return f"{{{','.join(f'{json_text(name, name)}:{_json(name, each)}' for name, each in given.items())}}}"


def _json(name: str, value: Any) -> str:
    if name in ("payload", "headers", "options") and value is not None:
        return str(value)
    if isinstance(value, timedelta):
        # What Postgres reads whatever its style of intervals.
        value = f"{value // timedelta(microseconds=1)} microseconds"
    return json_text(name, value) or "null"
