"""What a listener gets: messages of a queue, notifications of a channel, and word of what it missed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Generic

from trunq.client.message import Payload
from trunq.client.payload import PayloadType, Unfit
from trunq.errors import InvalidArgument
from trunq.wire.json import decode_jsonb, json_bytes
from trunq.wire.scalar import decode_timestamp

READ: Final = (
    "id",
    "kind",
    "key",
    "payload",
    "body",
    "headers",
    "priority",
    "created_at",
    "columns",
    "place",
)
"""The columns of `trunq.read_on`, in the order in which `Heard` takes them."""

LONGEST_NAME: Final = 63
"""Bytes of a channel's name; Postgres cuts off the rest."""


@dataclass(frozen=True)
class Missed:
    """A listener may have missed something between two times of the database: it goes on from the later
    one; or, where a failover lost what it had heard, from the earlier one, and what is left comes again.

    `count` says how many, where that is known: the oldest of what a slow listener had not taken from a
    channel. None: the connection was lost, or a queue kept its messages no longer. `since` None: it is not
    known.
    """

    since: datetime | None
    until: datetime
    count: int | None = None

    def joined(self, later: Missed) -> Missed:
        """This and another that follows it, as one."""
        count = None if self.count is None or later.count is None else self.count + later.count
        return Missed(self.since, max(self.until, later.until), count)


@dataclass(frozen=True, slots=True)
class Step:
    """A place where a listener to a queue stood, up to when it had read there, and its number."""

    number: int
    place: str
    read_at: datetime


class Steps:
    """Some of the places where a listener stood: the farther back, the farther apart, so that of a million
    there are twenty. A failover loses the newest; which are left their checks say, and no clock.
    """

    def __init__(self) -> None:
        self._count = 0
        self._kept: dict[int, Step] = {}

    def add(self, place: str, read_at: datetime) -> None:
        """It stands here now."""
        self._count += 1
        # The newest of those whose number this power of two divides, and no higher one.
        self._kept[self._count & -self._count] = Step(self._count, place, read_at)

    def go_back(self, step: Step | None = None) -> None:
        """It stands at this one again, or at none; those after it are of a time that is lost."""
        self._count = 0 if step is None else step.number
        self._kept = {power: each for power, each in self._kept.items() if each.number <= self._count}

    def newest_first(self) -> list[Step]:
        """Those there are."""
        return sorted(self._kept.values(), key=lambda step: -step.number)


class Channel(Generic[Payload]):
    """A channel of NOTIFY: its name, and the type of its payloads (none: whatever JSON says).

        prices = Channel("prices", Price)
        client.notify(prices, Price(...))
        for told in client.listen(prices): ...

    Notifications are kept nowhere: who is not listening misses them.
    """

    def __init__(self, name: str, payload_type: type[Payload] | None = None) -> None:
        """Raises InvalidArgument for what is no name, TypeError for what pydantic makes nothing of."""
        if "\0" in name or not 1 <= len(name.encode()) <= LONGEST_NAME:
            raise InvalidArgument(
                f"a channel has a name of 1 to {LONGEST_NAME} bytes, not {name!r}",
                "Postgres cuts off the rest, so that others would hear it too",
            )
        self.name = name
        self.type = None if payload_type is None else PayloadType(payload_type)

    def __repr__(self) -> str:
        return f"<channel {self.name}>"

    def written(self, payload: Payload) -> str:
        """A payload as it is notified. Raises InvalidArgument when it does not fit the channel's type."""
        raw = json_bytes("payload", payload)
        if self.type is not None:
            try:
                self.type.read(b"null" if raw is None else raw, f"the payload for channel {self.name}")
            except Unfit as error:
                raise InvalidArgument(str(error)) from error
        return "" if raw is None else raw.decode()


class Notification(Generic[Payload]):
    """What was notified on a channel. `raw` is the text that came, `pid` the process of the session that
    sent it, `at` about when it came, by the database's clock.
    """

    __slots__ = ("_payload", "at", "channel", "pid", "raw")

    def __init__(self, channel: Channel[Payload], raw: str, pid: int, at: datetime) -> None:
        self.channel = channel
        self.raw = raw
        self.pid = pid
        self.at = at

    @property
    def payload(self) -> Payload:
        """The payload as the type of its channel, or as JSON; None where the text is empty.

        Raises Unfit, with this as its `message`, for a text that is neither: the loop goes on behind it.
        """
        try:
            return self._payload  # type: ignore[no-any-return, has-type]
        except AttributeError:
            pass
        what = f"a notification on channel {self.channel.name}"
        text = self.raw.encode() or b"null"
        if self.channel.type is not None:
            self._payload = _fit(self, self.channel.type, text, what)
        else:
            try:
                self._payload = json.loads(text)
            except ValueError as error:
                raise Unfit(f"{what} is no JSON: {error}", self) from error
        return self._payload  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<notification on {self.channel.name}: {self.raw[:80]!r}>"


class Heard(Generic[Payload]):
    """A message that a listener heard of a queue: as it was published, for whoever reads along.

    It is nobody's to answer. `place` is where the listener stood behind it: `listen(queue, after=place)`
    goes on there. `payload`, `headers`, `created_at` and `columns` are decoded when first asked for.
    """

    __slots__ = (
        "_columns",
        "_created_at",
        "_headers",
        "_payload",
        "_type",
        "_value",
        "body",
        "id",
        "key",
        "kind",
        "place",
        "priority",
        "queue",
    )

    id: int
    kind: str | None
    key: str | None
    body: bytes | None
    priority: int
    place: str

    def __init__(self, row: Sequence[Any], queue: str, wanted: PayloadType | None) -> None:
        """Take a row of `trunq.read_on` as it comes: jsonb and timestamps in binary."""
        (
            self.id,
            self.kind,
            self.key,
            self._payload,
            self.body,
            self._headers,
            self.priority,
            self._created_at,
            self._columns,
            self.place,
        ) = row
        self.queue = queue
        self._type = wanted

    @property
    def json(self) -> bytes:
        """The payload as JSON text; `null` where there is none."""
        return b"null" if self._payload is None else bytes(self._payload[1:])

    @property
    def payload(self) -> Payload:
        """The payload as the type that the listener asked for, else as JSON says.

        Raises Unfit, with this as its `message`, when it does not fit: the loop goes on behind it.
        """
        try:
            return self._value  # type: ignore[no-any-return, has-type]
        except AttributeError:
            pass
        value: Any = None
        if self._type is not None:
            value = _fit(self, self._type, self.json, f"message {self.id} of {self.queue}")
        elif self._payload is not None:
            value = decode_jsonb(self._payload)
        self._value = value
        return value  # type: ignore[no-any-return]

    @property
    def headers(self) -> Any:
        """The headers (trace context and the like), decoded."""
        return None if self._headers is None else decode_jsonb(self._headers)

    @property
    def columns(self) -> Any:
        """The columns of your own that its queue has, by name, as JSON has them; empty where it has none."""
        return {} if self._columns is None else decode_jsonb(self._columns)

    @property
    def created_at(self) -> datetime:
        """When it was published, by the database's clock."""
        return decode_timestamp(self._created_at)

    def __repr__(self) -> str:
        return f"<message {self.id} of {self.queue} kind={self.kind!r} key={self.key!r}>"


def _fit(message: object, wanted: PayloadType, raw: bytes, what: str) -> Any:
    """The payload as this type. Raises Unfit."""
    try:
        return wanted.read(raw, what)
    except Unfit as error:
        error.message = message
        raise
