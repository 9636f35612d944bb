"""What the functions that list things return: a named tuple a row, its fields the columns of the function."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

from trunq.record.dead import DeadGroup as DeadGroup
from trunq.record.dead import DeadMessage as DeadMessage
from trunq.record.dead import DeadPolicy as DeadPolicy
from trunq.record.dead import Sweep as Sweep
from trunq.record.operate import Audit as Audit
from trunq.record.operate import Defect as Defect
from trunq.record.operate import Duty as Duty
from trunq.record.operate import DutyDone as DutyDone
from trunq.record.operate import Finding as Finding
from trunq.record.operate import LatestSample as LatestSample
from trunq.record.operate import Overview as Overview
from trunq.record.operate import Performed as Performed
from trunq.record.operate import Sample as Sample
from trunq.record.operate import Statistic as Statistic
from trunq.record.operate import Status as Status
from trunq.record.operate import Warned as Warned
from trunq.record.operate import WorkerReport as WorkerReport
from trunq.record.pipeline import Backfill as Backfill
from trunq.record.pipeline import BackfillShare as BackfillShare
from trunq.record.pipeline import Compaction as Compaction
from trunq.record.pipeline import PipelineInstance as PipelineInstance
from trunq.record.pipeline import PipelineRun as PipelineRun
from trunq.record.pipeline import PipelineState as PipelineState
from trunq.record.pipeline import Quarantined as Quarantined
from trunq.record.pipeline import QuarantineReason as QuarantineReason
from trunq.record.pipeline import Schema as Schema
from trunq.record.pipeline import SchemaChange as SchemaChange
from trunq.record.schedule import ScheduleChange as ScheduleChange
from trunq.record.schedule import ScheduleRun as ScheduleRun
from trunq.record.schedule import ScheduleState as ScheduleState
from trunq.record.stream import Batch as Batch
from trunq.record.stream import BatchMessage as BatchMessage
from trunq.record.stream import BatchState as BatchState
from trunq.record.stream import Group as Group
from trunq.record.stream import Loss as Loss
from trunq.record.stream import Member as Member
from trunq.record.stream import Move as Move
from trunq.record.stream import MoverState as MoverState
from trunq.record.stream import Stream as Stream
from trunq.record.stream import Tick as Tick
from trunq.record.webhook import Webhook as Webhook
from trunq.record.worker import WorkerHold as WorkerHold


class Queue(NamedTuple):
    """A row of `list_queues`. `span` is how long one segment of the ring is written to.

    `kinds`, `max_waiting`, `max_per_transaction` None: any, no limit; `max_per_transaction` 0: it takes
    nothing; `lanes` None: a plain queue; `unique_policy` None: it has no unique keys; `unique_on` None: none
    but those that are given. `paused_until` None: until it is resumed. `hold_at_most`, `hold_size`,
    `retain_size` None: for ever, no limit; sizes are bytes. With `tick_paused` nobody cuts ticks, with
    `tick_external` only `cut_tick` does.
    """

    queue: str
    queue_id: int
    retention: timedelta
    span: timedelta
    tick_max_count: int
    tick_max_lag: timedelta
    tick_idle_period: timedelta | None
    kinds: list[str] | None
    unique_policy: str | None
    max_waiting: int | None
    max_per_transaction: int | None
    lanes: str | None
    announces: bool
    is_closed: bool
    subscriptions: int
    paused: bool
    paused_until: datetime | None
    created_at: datetime
    hold_at_most: timedelta | None
    hold_size: int | None
    retain_size: int | None
    tick_paused: bool
    tick_external: bool
    unique_on: str | None


class Role(NamedTuple):
    """A row of `list_roles`. `payload`: whether a reader sees payloads; None for other roles."""

    queue: str
    role: str
    grantee: str
    payload: bool | None


class Capture(NamedTuple):
    """A row of `list_captures`.

    `published_as` is what messages call the table: its name when it was captured. `key` None: messages have
    none; `columns` None: all; `condition` is what was given as `where`. `warning` says what is wrong: the
    table was dropped, a partition was attached since, a column is gone.
    """

    table_name: str
    queue: str
    kind: str
    key: list[str] | None
    columns: list[str] | None
    ignore: list[str] | None
    condition: dict[str, Any] | None
    deny: list[str] | None
    format: str
    published_as: str
    warning: str | None
    created_at: datetime


class Published(NamedTuple):
    """What became of a message with a unique key: it `is_new`; or it was left out, and `id` is that of the
    message that holds the key."""

    id: int
    is_new: bool


class Reply(NamedTuple):
    """A row of `list_replies`: the final answer to a message that was published with `awaited`.

    `outcome`: success, rejected, failed, timed_out, lease_expired, expired, cancelled, outdated or replaced.
    `error` with success: why the result is not here. `reference` and `public` are those of the error.
    """

    id: int
    outcome: str
    result: Any
    error: str | None
    reference: str | None
    public: str | None
    replied_at: datetime
    expires_at: datetime


class Memo(NamedTuple):
    """A row of `list_memos`, and what `get_memo` finds. `expires_at` None: it stays."""

    scope: str
    name: str
    value: Any
    version: int
    updated_at: datetime
    expires_at: datetime | None


class Column(NamedTuple):
    """A row of `list_columns`. `preset` is the expression that is its default; None: null."""

    name: str
    type: str
    preset: str | None


class Preparation(NamedTuple):
    """A row of `list_preparations`: a statement to be run outside of a transaction, and how much it reads."""

    statement: str
    bytes: int


class Place(NamedTuple):
    """The row of `find_place`: where a listener may begin, and from when that is."""

    place: str
    created_at: datetime


class LogMessage(NamedTuple):
    """A row of `read_on`. The last row of all there is has no `id`: its `place` is where to read on."""

    id: int | None
    kind: str | None
    key: str | None
    payload: Any
    body: bytes | None
    headers: Any
    priority: int | None
    created_at: datetime
    columns: Any
    place: str


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


class Ranking(NamedTuple):
    """A row of `list_rankings`: a subscription whose lanes a function ranks.

    `ranker` is the process that calls it; None: no process does, and the last ranks stay. `error` is why the
    function could not rank the last time.
    """

    queue: str
    subscription: str
    function: str
    ranker: str | None
    ranked_at: datetime | None
    error: str | None
    failed_at: datetime | None


class Fleet(NamedTuple):
    """What `fleet` returns: the workers of a subscription, how many messages they handle at a time, and how
    many more they could begin at once.
    """

    queue: str
    subscription: str
    workers: int
    slots: int
    free_slots: int


class Subscription(NamedTuple):
    """A row of `list_subscriptions`. `max_attempts` and `dead_retention` None: for ever.
    `time_out`, `rate`, `max_running`, `max_age` None: no limit; `filter` None: it reads every message;
    `burst` None: what the rate gives in a second, at least one.

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
    time_out: timedelta | None
    keep_results: bool
    dead_retention: timedelta | None
    filter: Any
    rate: float | None
    rate_interval: timedelta
    burst: int | None
    max_running: int | None
    in_order: bool
    max_age: timedelta | None
    due_first: bool
    paused: bool
    paused_until: datetime | None
    created_at: datetime


class Fate(NamedTuple):
    """A row of `list_fates`: a message runs again after `wait`, or is dead for a `reason`."""

    id: int
    wait: timedelta | None
    reason: str | None


class NotLeased(NamedTuple):
    """What `lease_ids` says of a message that it did not get.

    `state`: what the message is; None: it is nowhere, or of a transaction that has not committed. A leased
    one is `worker`'s until `expires_at`, one that is scheduled or retrying waits until `due_at`. `reason`
    says why one that is ready was not to be had (paused, limit, bytes, alone, expired, cancelled), and why a
    dead one died.
    """

    id: int
    state: str | None
    reason: str | None
    worker: str | None
    due_at: datetime | None
    expires_at: datetime | None


class Extension(NamedTuple):
    """What `extend` says: when the lease ends now, and which of its messages somebody cancelled."""

    expires_at: datetime
    cancelled: list[int]


class Cancelled(NamedTuple):
    """A row of `cancel`: the `state` in which a message was when it was cancelled.

    scheduled, retrying, ready: it will not run; leased: its worker is told; done, outdated, dead, replaced,
    purged: it was over. `subscription` None: scheduled, and no shared subscription reads it.
    """

    subscription: str | None
    id: int
    state: str


class Deletion(NamedTuple):
    """A row of `list_deletions`: who erased which messages.

    `ids`: those of which something was there, `messages` of them. `running`: how many a worker held then.
    """

    deletion_id: int
    queue: str
    deleted_at: datetime
    deleted_by: str
    messages: int
    running: int
    ids: list[int]


class ProgressState(NamedTuple):
    """A row of `list_progress`: what the handler of a message last said, and which worker ran it.

    `is_running` False: it waits for its next attempt, or is dead. `checkpoint_bytes` None: no checkpoint.
    """

    subscription: str
    id: int
    is_running: bool
    percent: float | None
    note: str | None
    checkpoint_bytes: int | None
    worker: str | None
    reported_at: datetime


class MessageState(NamedTuple):
    """A row of `show_message` and `list_messages`: where a message stands for one subscription.

    `state` is scheduled, ready, leased, retrying, done, outdated, dead, replaced or purged. `attempts` has
    one entry an attempt: {"attempt", "worker", "leased_at", "finished_at", "outcome", "error", "took"}; its
    outcome is success, failed, timed_out, rejected, released, lease_expired, expired, cancelled, outdated or
    replaced, None while it runs, overdue when its lease ran out and no leader has reaped it yet.
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


class Found(NamedTuple):
    """A row of `find_public_id`: the message that a public id stands for."""

    queue: str
    id: int


class Referred(NamedTuple):
    """A row of `find_reference`: an attempt that failed, `error` as it is kept.

    `kind`, `attempt` and `worker` None: no longer known, since the log has gone; `subscription` None: it has
    ended.
    """

    reference: str
    queue: str
    subscription: str | None
    id: int
    kind: str | None
    attempt: int | None
    failed_at: datetime
    worker: str | None
    error: str
    public: str | None


class PublicState(NamedTuple):
    """A row of `show_public`: what users may see. `state` is as in `show_message`."""

    subscription: str
    state: str
    reference: str | None
    public: str | None


class Wait(NamedTuple):
    """A row of `explain_wait`: why a message that is ready waits, and what helps; None: only time does."""

    subscription: str
    reason: str
    explanation: str
    hint: str | None


class Taker(NamedTuple):
    """A row of `list_takers`: who takes the history of a queue elsewhere.

    `behind`: how long ago the first attempt ended that is not taken yet; None: all are. `open`: leases that
    were passed while they were open.
    """

    queue: str
    taker: str
    behind: timedelta | None
    open: int
    taken_at: datetime | None
    created_at: datetime


class Archive(NamedTuple):
    """A row of `list_archives`. `archive_for` None: for ever; `is_filled` False: its queue is gone.

    Months are those of `finished_at`, in UTC; None: it is empty. With `at_once` answers write it.
    """

    queue: str
    archive_for: timedelta | None
    is_filled: bool
    first_month: date | None
    last_month: date | None
    bytes: int
    at_once: bool
