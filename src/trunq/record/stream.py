"""Rows about ticks, batches and streams."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple


class Tick(NamedTuple):
    """A row of `list_ticks`. `snapshot` as Postgres writes it, xmin:xmax:list; the difference of two ticks'
    `last_message_id` estimates how many messages lie between them. `reachable`: every message after it is
    still kept."""

    tick_id: int
    snapshot: str
    last_message_id: int
    created_at: datetime
    reachable: bool


class Loss(NamedTuple):
    """A row of `list_losses`. `reason` is time or size; `is_more`: `messages` or more.

    Ticks are those from and to which an exclusive subscription was moved; `accepted_at` None: it hands out
    nothing until `accept_loss`.
    """

    queue: str
    subscription: str
    reason: str
    messages: int
    is_more: bool
    from_tick_id: int | None
    to_tick_id: int | None
    from_txid: int | None
    to_txid: int | None
    first_at: datetime | None
    last_at: datetime | None
    lost_at: datetime
    accepted_at: datetime | None


class Batch(NamedTuple):
    """What `next_batch` hands out: the messages visible in `to_snapshot` and not in `from_snapshot`.

    `attempt` is 1 at first; with `is_part`, it has only some of those messages, which `read_batch` knows.
    `queue` and `subscription` are those it was asked for: `read` and `finish` need no more than the batch.
    """

    batch_id: int
    token: int
    from_tick_id: int
    to_tick_id: int
    from_snapshot: str
    to_snapshot: str
    expires_at: datetime
    attempt: int
    is_part: bool
    queue: str
    subscription: str


class BatchMessage(NamedTuple):
    """A row of `read_batch`. `txid` and `id` are its place: where to read on, how far a batch is finished.

    `columns` are those of your own that its queue has, by name, as JSON has them.
    """

    id: int
    kind: str | None
    key: str | None
    payload: Any
    body: bytes | None
    headers: Any
    priority: int
    attempt: int
    created_at: datetime
    txid: int
    columns: Mapping[str, Any]


BATCHED: Final = {
    "id": ("int8", "int64"),
    "kind": ("text", "string"),
    "key": ("text", "string"),
    "payload": ("text", "string"),
    "body": ("bytea", "binary"),
    "headers": ("text", "string"),
    "priority": ("int2", "int16"),
    "attempt": ("int2", "int16"),
    "created_at": ("timestamptz", "timestamp"),
    "txid": ("int8", "int64"),
}
"""What of `read_batch` is copied: the types in Postgres and in Arrow."""


class BatchState(NamedTuple):
    """A row of `show_batch`. `state` is open, overdue, waiting, finished or ended."""

    batch_id: int
    state: str
    worker: str | None
    from_tick_id: int
    to_tick_id: int
    from_snapshot: str
    to_snapshot: str
    is_part: bool
    messages: int | None
    attempt: int
    error: str | None
    opened_at: datetime
    expires_at: datetime | None
    finished_at: datetime | None


class Stream(NamedTuple):
    """A row of `list_streams`: where an exclusive subscription stands, and its open batch."""

    queue: str
    subscription: str
    position_tick_id: int
    newest_tick_id: int
    first_tick_id: int
    pending: int
    is_estimate: bool
    lag: timedelta
    batch_id: int | None
    worker: str | None
    to_tick_id: int | None
    expires_at: datetime | None
    attempt: int | None
    batches: int
    error: str | None
    seen_at: datetime | None
    paused: bool


class Group(NamedTuple):
    """A row of `list_groups`. `slots` None: its members take whole batches; `alive`: how many of them live;
    `position_tick_id` to `lag` are those of the slot that is furthest behind, `pending` of all."""

    queue: str
    group_name: str
    slots: int | None
    members: int
    alive: int
    position_tick_id: int
    newest_tick_id: int
    pending: int
    is_estimate: bool
    lag: timedelta
    batches: int
    created_at: datetime


class Member(NamedTuple):
    """A row of `list_members`: a member of a group, and the batch it has in hand.

    `is_alive`: it asked for a batch within a minute, or the time of its batch is not over.
    """

    member: str
    is_alive: bool
    batch_id: int | None
    slot: int | None
    from_tick_id: int | None
    to_tick_id: int | None
    attempt: int | None
    opened_at: datetime | None
    expires_at: datetime | None
    joined_at: datetime
    seen_at: datetime


class Move(NamedTuple):
    """A row of `begin_move`: the stream, where a batch of it begins and ends, the end of the last one that
    was moved (None: none was). For `receive`."""

    source: str
    subscription_id: int
    from_place: dict[str, Any]
    to_place: dict[str, Any]
    moved_place: dict[str, Any] | None


class MoverState(NamedTuple):
    """A row of `list_movers`. `worker` None: it has ended; `batches` and `messages` were moved so far;
    `pending` wait, the first of them since `lag`; `error`: why the last try failed."""

    queue: str
    subscription: str
    definition: dict[str, Any]
    worker: str | None
    stopping: bool
    started_at: datetime
    batches: int
    messages: int
    moved_at: datetime | None
    position_tick_id: int
    pending: int
    is_estimate: bool
    lag: timedelta
    batch_id: int | None
    error: str | None
    failed_at: datetime | None
