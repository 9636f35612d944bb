"""Records of dead messages, and of sweeps over many."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple


class DeadPolicy(NamedTuple):
    """What `set_dead` returns: how a subscription makes deaths known. `into_queue` None: no other queue."""

    warns: bool
    notifies: bool
    into_queue: str | None
    channel: str


class DeadMessage(NamedTuple):
    """A row of `list_dead`. `reason` is rejected, max_attempts, lease_expired, expired (the message: its
    `expires_at` or `max_age`) or cancelled; `errors` has one entry an attempt,
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


class DeadGroup(NamedTuple):
    """A row of `list_dead_groups`: messages of one queue that died of errors with one `fingerprint`.

    `error` and `id` are those of the newest. `looked`: at how many dead messages, of all groups, back to
    `looked_to_at`; `looked_to` is what `before` of the next look is, None when it saw all.
    """

    fingerprint: str
    queue: str
    messages: int
    subscriptions: list[str]
    kinds: list[str]
    first_died_at: datetime
    last_died_at: datetime
    id: int
    error: str | None
    looked: int
    looked_to: int | None
    looked_to_at: datetime


def look_of(groups: Iterable[DeadGroup]) -> tuple[int, int | None, datetime | None]:
    """How many dead messages a look saw, `before` of the next one and the time back to there; None: it saw
    all. For a role that sees several queues it is a look at each, and they came differently far.
    """
    looks = {(group.looked, group.looked_to, group.looked_to_at) for group in groups}
    further = max(((to, at) for _, to, at in looks if to is not None), default=(None, None))
    return sum(looked for looked, _, _ in looks), *further


class Sweep(NamedTuple):
    """A row of `list_sweeps`: an act on all messages that a filter finds, and how far it came.

    `state` is running, finished, stopped, dropped or refused. `looked`: at how many messages;
    `done`: how many it acted on; `kept`: how many matched and were left as they were.
    """

    sweep_id: int
    queue: str
    act: str
    subscription: str | None
    filter: dict[str, Any]
    counted: int | None
    state: str
    looked: int
    done: int
    kept: int
    who: str
    started_at: datetime
    carried_at: datetime
    ended_at: datetime | None
    stopped_by: str | None
    error: str | None
