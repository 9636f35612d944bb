"""Rows about webhooks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple


class Webhook(NamedTuple):
    """A row of `list_webhooks`. `secret` is the name of a variable in the environment of the server.

    `is_unique`: whether its queue has unique keys, by which a delivery becomes one message.
    """

    webhook: str
    queue: str
    kind: str | None
    secret: str
    scheme: str
    header: str | None
    prefix: str | None
    timestamp_header: str | None
    tolerance: timedelta
    id_header: str | None
    headers: list[str]
    body: str
    max_bytes: int
    is_unique: bool
    created_at: datetime
