"""What the functions that list things return: a named tuple a row, its fields the columns of the function."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple


class Queue(NamedTuple):
    """A row of `list_queues`. `span` is how long one segment of the ring is written to.

    `kinds`, `max_waiting`, `max_per_transaction` None: any, no limit. `paused_until`
    None: until it is resumed.
    """

    queue: str
    queue_id: int
    retention: timedelta
    span: timedelta
    tick_max_count: int
    tick_max_lag: timedelta
    tick_idle_period: timedelta
    kinds: list[str] | None
    max_waiting: int | None
    max_per_transaction: int | None
    announces: bool
    is_closed: bool
    subscriptions: int
    paused: bool
    paused_until: datetime | None
    created_at: datetime


class Announced(NamedTuple):
    """The ids that one statement published: all of it lies between the first and the last."""

    first: int
    last: int


class Lane(NamedTuple):
    """A row of `list_lanes`. `depth` is exact up to 1,000; `is_more`: there are more than that.

    `paused_until` is None also for a lane that is paused until somebody resumes it.
    """

    lane: str
    priority: int
    depth: int
    is_more: bool
    running: int
    oldest_ready: timedelta | None
    is_paused: bool
    paused_until: datetime | None
    max_running: int | None
    rate: float | None
    burst: int | None
    weight: int
    rank: int | None


class Subscription(NamedTuple):
    """A row of `list_subscriptions`. `max_attempts` and `dead_retention` None: for ever.
    `filter` None: it reads every message; `rate`, `max_running` None: no limit; `burst` None: what the rate
    gives in a second, at least one.

    `jitter` is a share of the delay. `paused`, by itself or with its queue; `paused_until` None: until it is
    resumed.
    """

    queue: str
    subscription: str
    subscription_id: int
    mode: str
    max_attempts: int | None
    lease_time: timedelta
    backoff: str
    backoff_base: timedelta
    backoff_cap: timedelta
    jitter: float
    keep_results: bool
    dead_retention: timedelta | None
    filter: Any
    rate: float | None
    rate_interval: timedelta
    burst: int | None
    max_running: int | None
    paused: bool
    paused_until: datetime | None
    created_at: datetime


class Warned(NamedTuple):
    """A row of `list_warnings`: what is wrong, and the way out. `subscription` None: it is the queue."""

    queue: str
    subscription: str | None
    warning: str
    hint: str


class Fate(NamedTuple):
    """A row of `list_fates`: a message runs again after `wait`, or is dead for a `reason`."""

    id: int
    wait: timedelta | None
    reason: str | None


class DeadMessage(NamedTuple):
    """A row of `list_dead`. `reason` is rejected, max_attempts, lease_expired or expired (the message: its
    `expires_at` or `max_age`); `errors` has one entry an attempt,
    {"attempt": 1, "at": "...", "worker": "...", "error": "..."}, and one with "times" for so many
    times in a row that it was put off."""

    dead_id: int
    subscription: str
    id: int
    kind: str | None
    key: str | None
    payload: Any
    headers: Any
    attempts: int
    reason: str
    errors: Any
    created_at: datetime
    died_at: datetime


class Tick(NamedTuple):
    """A row of `list_ticks`. `snapshot` as Postgres writes it, xmin:xmax:list; the difference of two ticks'
    `last_message_id` estimates how many messages lie between them. `reachable`: every message after it is
    still kept."""

    tick_id: int
    snapshot: str
    last_message_id: int
    created_at: datetime
    reachable: bool


class Batch(NamedTuple):
    """What `next_batch` hands out: the messages visible in `to_snapshot` and not in `from_snapshot`.

    `queue` and `subscription` are those it was asked for: `read` and `finish` need no more than the batch.
    """

    batch_id: int
    token: int
    from_tick_id: int
    to_tick_id: int
    from_snapshot: str
    to_snapshot: str
    expires_at: datetime
    queue: str
    subscription: str


class BatchMessage(NamedTuple):
    """A row of `read_batch`."""

    id: int
    kind: str | None
    key: str | None
    payload: Any
    body: bytes | None
    headers: Any
    priority: int
    attempt: int
    created_at: datetime


class MessageState(NamedTuple):
    """A row of `show_message` and `list_messages`: where a message stands for one subscription.

    `state` is scheduled, ready, leased, retrying, done, dead or purged. `attempts` has one entry an attempt:
    {"attempt", "worker", "leased_at", "finished_at", "outcome", "error", "took"}.
    """

    subscription: str
    state: str
    id: int
    kind: str | None
    key: str | None
    payload: Any
    headers: Any
    attempt: int
    attempts: Any
    published_at: datetime | None
    due_at: datetime | None
    worker: str | None
    leased_at: datetime | None
    expires_at: datetime | None
    finished_at: datetime | None
    error: str | None
    result: Any


class Status(NamedTuple):
    """A row of `status`. `estimated` names the numbers that are estimates: those are exact up to 1,000.

    `led`: whether somebody performs the duties.
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


class Duty(NamedTuple):
    """A row of `list_duties`: a duty, and how often it is called.

    One that is not `per_queue` is called once for all queues. One that did `again_from` or more is called
    again at once; one that returned null, because somebody was in the way, `again_after`. It is called at
    least `times_a_span` while one segment of a queue is written to.
    """

    duty: str
    per_queue: bool
    every: timedelta
    again_from: int | None
    times_a_span: int | None
    again_after: timedelta | None


class DutyDone(NamedTuple):
    """A row of `perform_duties`; `done` is None when the duty failed with `error`."""

    duty: str
    queue: str | None
    done: int | None
    error: str | None
