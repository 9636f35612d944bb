"""Rows about workers."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple


class WorkerHold(NamedTuple):
    """A row of `list_workers`: a worker on a subscription, and what it holds there.

    `slots` and `seen_at` None: it does not tell of itself, or no longer. `since` and `until`: when the first
    of its open leases was made, and when the last ends. `connections`: its sessions in this database now.
    """

    worker: str
    queue: str
    subscription: str
    slots: int | None
    leases: int
    held: int
    since: datetime | None
    until: datetime | None
    seen_at: datetime | None
    connections: int
