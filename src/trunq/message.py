"""What a worker receives and what it answers with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from trunq.errors import InvalidArgument
from trunq.wire.json import decode_jsonb
from trunq.wire.scalar import decode_timestamp, interval

LEASED: Final = (
    "lease_id",
    "token",
    "id",
    "attempt",
    "max_attempts",
    "kind",
    "key",
    "payload",
    "body",
    "headers",
    "priority",
    "created_at",
    "expires_at",
    "options",
)
"""The columns of `trunq.lease`, in the order in which `Message` takes them."""


class Message:
    """One message under a lease.

    `payload`, `headers`, `created_at`, `expires_at` and `deadline` are decoded when first asked for: a
    handler that looks at the key pays for nothing else. `key`, `kind`, `payload`, `body` and `headers` are
    None when the publisher gave none. `attempt` counts from 1; `max_attempts` 0 means for ever.
    """

    __slots__ = (
        "_created_at",
        "_expires_at",
        "_headers",
        "_options",
        "_payload",
        "attempt",
        "body",
        "id",
        "key",
        "kind",
        "lease_id",
        "max_attempts",
        "priority",
        "queue",
        "subscription",
        "token",
    )

    lease_id: int
    token: int
    id: int
    attempt: int
    max_attempts: int
    kind: str | None
    key: str | None
    body: bytes | None
    priority: int
    queue: str
    subscription: str

    def __init__(self, row: Sequence[Any], queue: str, subscription: str) -> None:
        """Take a row of `trunq.lease` as it comes: jsonb and timestamps in binary, or decoded already.

        More than 100,000 of these are made a second, so this is one unpacking and nothing else.
        """
        (
            self.lease_id,
            self.token,
            self.id,
            self.attempt,
            self.max_attempts,
            self.kind,
            self.key,
            self._payload,
            self.body,
            self._headers,
            self.priority,
            self._created_at,
            self._expires_at,
            self._options,
        ) = row
        self.queue = queue
        self.subscription = subscription

    @property
    def payload(self) -> Any:
        """The JSON payload, decoded."""
        # Decoded JSON is never of type bytes, so the type tells whether this was asked before.
        if type(self._payload) is bytes:
            self._payload = decode_jsonb(self._payload)
        return self._payload

    @property
    def headers(self) -> Any:
        """The headers (trace context and the like), decoded."""
        if type(self._headers) is bytes:
            self._headers = decode_jsonb(self._headers)
        return self._headers

    @property
    def created_at(self) -> datetime:
        """When it was published, by the database's clock."""
        if type(self._created_at) is int:
            self._created_at = decode_timestamp(self._created_at)
        return self._created_at  # type: ignore[no-any-return]

    @property
    def expires_at(self) -> datetime:
        """When the lease ends unless it is extended, by the database's clock."""
        if type(self._expires_at) is int:
            self._expires_at = decode_timestamp(self._expires_at)
        return self._expires_at  # type: ignore[no-any-return]

    @expires_at.setter
    def expires_at(self, value: datetime) -> None:
        self._expires_at = value

    @property
    def deadline(self) -> datetime | None:
        """After this time no lease hands it out (`expires_at` or `max_age` of its publisher)."""
        if type(self._options) is bytes:
            self._options = decode_jsonb(self._options)
        at = self._options.get("expires_at") if self._options else None
        return datetime.fromisoformat(at) if at is not None else None

    @property
    def is_last_attempt(self) -> bool:
        """Whether a retry of this attempt would make the message a dead one."""
        return 0 < self.max_attempts <= self.attempt

    def __repr__(self) -> str:
        place = f"{self.queue}/{self.subscription}"
        return f"<Message {self.id} of {place} kind={self.kind!r} key={self.key!r} attempt={self.attempt}>"


@dataclass(unsafe_hash=True)
class Retry(Exception):
    """A handler's answer, returned or raised: again, later.

    `after` (seconds or timedelta) stands in for the policy's delay, `error` says why. Raised `from` another
    exception, it is that one's text unless given.
    """

    after: timedelta | float | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        if self.error is not None:
            _require_text("error", self.error)
        try:
            delay = interval("after", self.after)
        except TypeError as error:
            raise InvalidArgument(str(error), "Retry(after=60, error='why')") from error
        if delay is not None and delay < timedelta(0):
            raise InvalidArgument(f"after cannot be negative, not {self.after}")
        # What an exception is pickled and copied by.
        self.args = (self.after, self.error)

    def __str__(self) -> str:
        return self.error or ("try again" if self.after is None else f"try again after {self.after}")


@dataclass(unsafe_hash=True)
class Reject(Exception):
    """A handler's answer, returned or raised: never again. The message is kept as dead, with this reason."""

    reason: str

    def __post_init__(self) -> None:
        _require_text("reason", self.reason)
        self.args = (self.reason,)

    def __str__(self) -> str:
        return self.reason


def _require_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is text, not {type(value).__name__}", f"give str({name})")
