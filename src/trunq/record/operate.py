"""Rows about how it goes, for whoever runs it."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from trunq.word import Severity, WorkerState

_TO_END: Final = re.compile(r"select trunq\.end_session\((\d+), '([^']+)'\)")
"""In the hint of a finding: the statement that ends a session."""
HOLDERS: Final = ("sessions", "bells", "transactions")
"""Areas of `diagnose` whose findings may name a session."""


class Warned(NamedTuple):
    """A row of `list_warnings`: what is wrong, and the way out. `subscription` None: it is the queue.

    `severity`: error, messages are lost or soon will be; or warning.
    """

    queue: str
    subscription: str | None
    warning: str
    hint: str
    severity: Severity


class Finding(NamedTuple):
    """A row of `diagnose`. `queue` None: it is the database; `since` None: nobody knows.

    `severity`: error, messages are late, lost or at risk until somebody acts; warning; unseen, the role may
    not look, or it was not looked at. `missing_grant`: the statement that shows it to the role.
    """

    area: str
    severity: Severity
    queue: str | None
    subscription: str | None
    finding: str
    hint: str
    since: datetime | None
    missing_grant: str | None = None

    @property
    def session(self) -> tuple[int, datetime] | None:
        """Of a session that is in the way, as `end_session` takes it: its process id, and when it began."""
        found = _TO_END.search(self.hint)
        try:
            return None if found is None else (int(found[1]), datetime.fromisoformat(found[2]))
        except ValueError:
            return None  # in a name that somebody gave


class Defect(NamedTuple):
    """A row of `list_defects`: what a table of a queue lacks, and the statement that puts it back."""

    queue: str
    object: str
    kind: str
    defect: str
    repair: str


class Status(NamedTuple):
    """A row of `status`. `estimated` names the numbers that are estimates: those are exact up to 1,000.

    `led`: whether somebody performs the duties. `held_for` and `held_bytes` are how long ago the segment of
    the log was last written to that holds its oldest message, and the bytes of the log from there on;
    `lost_at`: when it lost messages, until `accept_loss`. `parked`: those among the delayed that somebody is
    to resume.
    """

    queue: str
    subscription: str
    mode: str
    ready: int
    leased: int
    delayed: int
    dead: int
    oldest_ready: timedelta | None
    workers: int
    done_last_minute: int
    oldest_dead: timedelta | None
    estimated: list[str]
    led: bool
    paused: bool
    paused_until: datetime | None
    held_for: timedelta | None
    held_bytes: int | None
    lost_at: datetime | None
    ticks_paused: bool
    parked: int


class LatestSample(NamedTuple):
    """A row of `latest_samples`: of a subscription, or of a queue (`subscription` None).

    A queue has `published` alone. `sampled_at` is when the figures were looked up. `published`, `answered`
    and `answers` (by outcome) never fall. `lag_messages` and `lag`: of an exclusive subscription. `estimated`
    names the numbers that are estimates.
    """

    queue: str
    subscription: str | None
    sampled_at: datetime
    mode: str | None
    published: int | None
    ready: int | None
    leased: int | None
    delayed: int | None
    dead: int | None
    parked: int | None
    workers: int | None
    done_last_minute: int | None
    oldest_ready: timedelta | None
    oldest_dead: timedelta | None
    lag_messages: int | None
    lag: timedelta | None
    answered: int | None
    answers: dict[str, int] | None
    estimated: list[str] | None
    paused: bool | None
    paused_until: datetime | None
    lost_at: datetime | None


class Sample(NamedTuple):
    """A row of `list_samples`: what a subscription was like at a time; of a queue, `published` alone."""

    at: datetime
    published: int | None
    ready: int | None
    leased: int | None
    delayed: int | None
    dead: int | None
    workers: int | None
    oldest_ready: timedelta | None
    lag_messages: int | None
    lag: timedelta | None
    answered: int | None
    answers: dict[str, int] | None
    estimated: list[str] | None


class Audit(NamedTuple):
    """A row of `list_audit`: who called which function, and how many messages it was done to.

    `who`: for whom a program acted, else `login`, the role of its session.
    """

    audit_id: int
    at: datetime
    who: str
    login: str
    application: str
    address: str | None
    did: str
    queue: str | None
    arguments: dict[str, Any]
    messages: int | None


class WorkerReport(NamedTuple):
    """A row of `list_reports`: what a worker said of itself at `seen_at`, every ten seconds.

    `handling`: id, kind and since of each message in its slots; of one that is gone, what it handled last.
    """

    worker: str
    queue: str
    subscription: str
    state: WorkerState
    host: str
    pid: int
    version: str
    slots: int
    began_at: datetime
    seen_at: datetime
    handling: list[dict[str, Any]]


class Overview(NamedTuple):
    """A row of `overview`: what a subscription is like, the worst first. `subscriptions`: how many there are.

    `sampled_at` None: it has no sample yet, and no figures. Rates are those of the last minute, None where
    no sample tells. `recent`: `ready` in each ten seconds of the last five minutes, None without a sample.
    """

    queue: str
    subscription: str
    mode: str | None
    sampled_at: datetime | None
    ready: int | None
    leased: int | None
    delayed: int | None
    dead: int | None
    parked: int | None
    workers: int | None
    oldest_ready: timedelta | None
    lag_messages: int | None
    lag: timedelta | None
    published_per_second: float | None
    answered_per_second: float | None
    failed_share: float | None
    estimated: list[str] | None
    paused: bool | None
    paused_until: datetime | None
    lost_at: datetime | None
    subscriptions: int
    recent: list[int | None]


class Statistic(NamedTuple):
    """A row of `statistics`. Times are in seconds; None: nobody said them. Percentiles are right within 9 %.

    `at` is the beginning of the interval; None: all together. `kind` None: messages without one, or all of
    them; `(others)`: beyond the fifty most frequent of a minute. `is_sampled`: kinds and times come from a
    part of the messages.
    """

    at: datetime | None
    queue: str
    subscription: str
    kind: str | None
    outcome: str
    messages: int
    is_sampled: bool
    took_mean: float | None
    took_median: float | None
    took_p90: float | None
    took_p99: float | None
    waited_mean: float | None
    waited_median: float | None
    waited_p90: float | None
    waited_p99: float | None


class Duty(NamedTuple):
    """A row of `list_duties`: a duty, and how often it is called.

    One that is not `per_queue` is called once for all queues. One that did `again_from` or more is called
    again at once; one that returned null, because somebody was in the way, `again_after`. It is called at
    least `times_a_span` while one segment of a queue is written to. Duties of one line never wait for those
    of another: messages wait for "quick", disk space for "slow", and figures for "look".
    """

    duty: str
    per_queue: bool
    every: timedelta
    again_from: int | None
    times_a_span: int | None
    again_after: timedelta | None
    line: str


class Performed(NamedTuple):
    """A row of `list_performed`: when a duty was last done, and who leads now; None: nobody.

    `queue`: that of the failure, or for which the duty was done longest ago.
    """

    duty: str
    every: timedelta
    done_at: datetime | None
    queue: str | None
    failed_at: datetime | None
    error: str | None
    leader: str | None
    term: int | None


class DutyDone(NamedTuple):
    """A row of `perform_duties`; `done` is None when the duty failed with `error`."""

    duty: str
    queue: str | None
    done: int | None
    error: str | None
