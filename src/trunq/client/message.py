"""What a worker receives and what it answers with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Protocol
from uuid import UUID

from typing_extensions import TypeVar

from trunq.client.progress import Progress
from trunq.errors import InvalidArgument
from trunq.wire.json import decode_jsonb, json_bytes
from trunq.wire.scalar import Interval, decode_timestamp, interval

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

_KEPT_RAW: Final = {"max_attempts", "payload", "headers", "created_at", "expires_at", "options"}
"""What is decoded when somebody asks for it."""

_EXTEND: Final = "client.extend(message) extends what a client leased"
_TELL: Final = "client.set_progress(message, ...) tells of what a client leased"

Payload = TypeVar("Payload", default=Any)


class Runner(Protocol):
    """What runs a message's handler, as the message knows it."""

    def time_left(self, message: Message) -> float | None:
        """Seconds until the handler is stopped; None: nobody will."""

    async def extend(self, message: Message, seconds: float) -> datetime:
        """Let the lease of the message end so many seconds from now."""

    def extend_in_thread(self, message: Message, seconds: float) -> datetime:
        """The same, called in the thread of a handler."""

    async def set_progress(self, message: Message, progress: Progress) -> None:
        """Tell the database how far the message is."""

    def set_progress_in_thread(self, message: Message, progress: Progress) -> None:
        """The same, called in the thread of a handler."""


class Message(Generic[Payload]):
    """One message under a lease. A handler that takes a `Message[Order]` finds an Order as the payload.

    `payload`, `headers`, `created_at`, `expires_at` and `deadline` are decoded when first asked for: a
    handler that looks at the key pays for nothing else. `key`, `kind`, `payload`, `body` and `headers` are
    None when the publisher gave none. `attempt` counts from 1; `max_attempts` 0 means for ever.
    """

    __slots__ = (
        *(f"_{name}" if name in _KEPT_RAW else name for name in LEASED),
        "_checkpoint",
        "_is_cancelled",
        "_public_id",
        "_resumed",
        "_runner",
        "queue",
        "subscription",
    )

    lease_id: int
    token: int
    id: int
    attempt: int
    _max_attempts: int | None
    kind: str | None
    key: str | None
    _payload: Any
    body: bytes | None
    _headers: Any
    priority: int
    _public_id: UUID
    _runner: Runner
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
            self._max_attempts,
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

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """What it is pickled by: all but what runs its handler here."""
        names = (name for name in self.__slots__ if name != "_runner" and hasattr(self, name))
        return None, {name: getattr(self, name) for name in names}

    @property
    def payload(self) -> Payload:
        """The JSON payload, decoded."""
        # Decoded JSON is never of type bytes, so the type tells whether this was asked before.
        if type(self._payload) is bytes:
            self._payload = decode_jsonb(self._payload)
        return self._payload  # type: ignore[no-any-return]

    @payload.setter
    def payload(self, value: Payload) -> None:
        self._payload = value

    @property
    def json(self) -> bytes:
        """The payload as JSON text; `null` where there is none."""
        if type(self._payload) is bytes:
            return self._payload[1:]
        return json_bytes("payload", self._payload) or b"null"

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
    def max_attempts(self) -> int:
        """How many attempts it has; 0: for ever."""
        return self._max_attempts or 0

    @max_attempts.setter
    def max_attempts(self, value: int) -> None:
        self._max_attempts = value

    @property
    def deadline(self) -> datetime | None:
        """After this time no lease hands it out (`expires_at` or `max_age` of its publisher)."""
        at = self.option("expires_at")
        return datetime.fromisoformat(at) if at is not None else None

    def option(self, name: str) -> Any:
        """An option that its publisher gave; None when not."""
        if type(self._options) is bytes:
            self._options = decode_jsonb(self._options)
        return self._options.get(name) if self._options else None

    @property
    def columns(self) -> Mapping[str, Any]:
        """The columns of your own that its queue has (`client.add_column`), by name, as JSON has them: a time
        is a text, a number a number. Empty where the queue has none.
        """
        return self.option("columns") or {}

    @property
    def time_out(self) -> float | None:
        """So many seconds a handler may take, as its publisher said."""
        seconds = self.option("time_out")
        return float(seconds) if seconds is not None else None

    @property
    def time_left(self) -> float | None:
        """Seconds until its time-out (its own, the handler's or the subscription's) stops the handler that a
        worker runs now; None: it may go on.
        """
        runner = self._running
        return None if runner is None else runner.time_left(self)

    @property
    def is_cancelled(self) -> bool:
        """Whether its worker heard that somebody cancelled it while it ran. A handler that raises then leaves
        it cancelled, one that returns has done it.
        """
        return getattr(self, "_is_cancelled", False)

    @is_cancelled.setter
    def is_cancelled(self, value: bool) -> None:
        self._is_cancelled = value

    async def extend(self, lease_time: Interval) -> datetime:
        """In a handler that a worker runs: let its lease end `lease_time` from now, later or sooner, and last
        so long at each heartbeat from now on. Returns when it ends.

        The worker extends leases by itself while handlers run: this is for one that keeps the event loop from
        running for long, or that is to be handed out again soon if the worker dies. It is the whole lease, of
        all messages that were leased with this one; it changes no time-out.
        """
        self.expires_at = await self._require_runner(_EXTEND).extend(self, _lease_time(lease_time))
        return self.expires_at

    def extend_sync(self, lease_time: Interval) -> datetime:
        """`extend` in a sync handler."""
        self.expires_at = self._require_runner(_EXTEND).extend_in_thread(self, _lease_time(lease_time))
        return self.expires_at

    @property
    def has_checkpoint(self) -> bool:
        """Whether an earlier attempt left a checkpoint."""
        return self._options is not None and self.option("checkpoint") is True

    @property
    def checkpoint(self) -> Any:
        """The JSON that was last given as a checkpoint, by an attempt before this one or by this; None: none
        was. Raises InvalidArgument where no worker runs the message: then a client shows the checkpoint.
        """
        try:
            checkpoint = self._checkpoint
        except AttributeError:
            if not self.has_checkpoint:
                return None
            raise InvalidArgument(
                f"the checkpoint of message {self.id} was not fetched with its lease",
                "client.show_checkpoint(message.queue, message.id, message.subscription)",
            ) from None
        return None if checkpoint is None else json.loads(checkpoint)

    @checkpoint.setter
    def checkpoint(self, encoded: bytes | None) -> None:
        # A worker's: JSON text. Decoded anew each time, so that nobody changes it by changing what was given.
        self._checkpoint = encoded

    @property
    def is_resumed(self) -> bool:
        """Whether it was parked, and somebody resumed it. So it stays through all attempts that follow.
        Raises InvalidArgument where no worker runs the message: then `client.show_resumed` tells.
        """
        try:
            return self._resumed is not None
        except AttributeError:
            if not self.has_checkpoint:
                return False
            raise InvalidArgument(
                f"whether somebody resumed message {self.id} was not fetched with its lease",
                "client.show_resumed(message.queue, message.id, message.subscription)",
            ) from None

    @property
    def resumed(self) -> Any:
        """The JSON that it was last resumed with; None: without a value, or it was not (`is_resumed`)."""
        return json.loads(self._resumed or b"null") if self.is_resumed else None

    @resumed.setter
    def resumed(self, encoded: bytes | None) -> None:
        # A worker's, as the checkpoint.
        self._resumed = encoded

    async def set_progress(
        self, percent: float | None = None, note: str | None = None, checkpoint: Any = None
    ) -> None:
        """In a handler that a worker runs: say how far it is, 0 to 100 `percent` and a `note`; what is left
        out stays as it was.

        These cost the handler nothing: they are written twice a second at most, the last always, while it
        runs. A `checkpoint` (JSON, up to 1 MB) is written before this returns, and the next attempt finds it
        in `message.checkpoint`, whatever ends this one: an error, a killed worker, a lost lease. Both are
        written beside the handler's transaction: they are seen at once and stand when it is rolled back.
        Raises LeaseLost, MessageTooLarge for a larger checkpoint, and InvalidArgument, also after the handler
        has ended.
        """
        given = Progress.of(percent, note, checkpoint)
        await self._require_runner(_TELL).set_progress(self, given)
        if given.checkpoint is not None:
            self._checkpoint = given.checkpoint

    def set_progress_sync(
        self, percent: float | None = None, note: str | None = None, checkpoint: Any = None
    ) -> None:
        """`set_progress` in a sync handler."""
        given = Progress.of(percent, note, checkpoint)
        self._require_runner(_TELL).set_progress_in_thread(self, given)
        if given.checkpoint is not None:
            self._checkpoint = given.checkpoint

    @property
    def _running(self) -> Runner | None:
        return getattr(self, "_runner", None)

    def _require_runner(self, otherwise: str) -> Runner:
        if (runner := self._running) is None:
            raise InvalidArgument(f"no worker runs message {self.id}", otherwise)
        return runner

    @property
    def public_id(self) -> UUID:
        """What strangers may be shown in the place of `id`; `client.find_public_id` finds the message again.

        In a worker that asks for them: `Worker(..., public_ids=True)`.
        """
        try:
            return self._public_id
        except AttributeError:
            raise InvalidArgument(
                f"nobody asked for the public id of message {self.id}",
                "Worker(..., public_ids=True) does; client.public_id(message.queue, message.id) asks for one",
            ) from None

    @public_id.setter
    def public_id(self, value: UUID) -> None:
        self._public_id = value

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

    `after` (seconds, timedelta or text) stands in for the policy's delay, `error` says why. Raised `from`
    another exception, it is that one's text unless given.
    """

    after: Interval | None = None
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
    """A handler's answer, returned or raised: never again. The message is kept as dead.

    `detail` says why, to those who run the system: in the worker's log and the message's history. `public`
    (at most 1,000 characters) is what users of the application may see: `client.show_public` tells it.
    """

    detail: str
    public: str | None = None

    def __post_init__(self) -> None:
        _require_text("detail", self.detail)
        if self.public is not None:
            _require_text("public", self.public)
        self.args = (self.detail, self.public)

    def __str__(self) -> str:
        return self.detail


def _lease_time(value: Interval) -> float:
    given = interval("lease_time", value)
    if given is None or given <= timedelta(0):
        raise InvalidArgument(
            f"lease_time must be positive, not {value}", "give seconds, a timedelta or text"
        )
    return given.total_seconds()


def _require_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is text, not {type(value).__name__}", f"give str({name})")
