"""A lease as the worker holds it, and what it holds of each queue."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from trunq.client.message import Message
from trunq.client.park import Park
from trunq.errors import LeaseLost
from trunq.worker.answer.outcome import Note
from trunq.worker.handler.policy import Policy

Acked = tuple[int, float, bytes | None]
"""A handled message: its id, the seconds it took, its result as JSON. A bare tuple: there are many."""


class Retried(NamedTuple):
    """A message to run again, after `delay` seconds; None: as the policy says."""

    id: int
    took: float
    note: Note
    error: str | None
    delay: float | None
    policy: Policy | None


class Parked(NamedTuple):
    """A message that waits for the outside."""

    id: int
    took: float
    park: Park


class Rejected(NamedTuple):
    """A message that is to be dead."""

    id: int
    took: float
    note: Note
    reason: str


class PutOff(NamedTuple):
    """A message that was not started, because this worker cannot."""

    id: int
    note: Note
    why: str


class Released(NamedTuple):
    """A message that was not started, to be handed out again after `delay` seconds; None: at once."""

    id: int
    delay: float | None


class Lease:
    """An open lease: what is to be answered, and until when it is ours by this process' own clock.

    `ends` is on the safe side (counted from before the call that made it) and moves with each extension. From
    then on no message of it is started, but what runs goes on: only the database can say that a lease is
    lost.
    """

    __slots__ = (
        "acked",
        "active",
        "asked",
        "ends",
        "is_lost",
        "is_unsent",
        "lease_id",
        "lease_time",
        "leased_at",
        "parked",
        "parkings",
        "policies",
        "put_off",
        "queue",
        "rejected",
        "released",
        "renew_at",
        "retried",
        "size",
        "subscription",
        "time_out",
        "timed_out",
        "token",
        "waiters",
    )

    def __init__(
        self,
        queue: str,
        subscription: str,
        lease_id: int,
        token: int,
        messages: int,
        leased_at: float,
        lease_time: float,
        time_out: float | None = None,
    ) -> None:
        self.queue = queue
        self.subscription = subscription
        self.lease_id = lease_id
        self.token = token
        self.size = messages
        self.active = messages
        """Messages that wait or run."""
        self.lease_time = lease_time
        self.time_out = time_out
        """Seconds that each of its handlers may take, unless handler or message say otherwise."""
        self.leased_at = leased_at
        self.renewed(leased_at, lease_time)
        self.asked: float | None = None
        """An extension by so many seconds is to be asked for."""
        self.waiters: list[asyncio.Future[datetime]] = []
        """Handlers that asked for that extension."""
        self.is_lost = False
        self.is_unsent = False
        """Answers of it wait to be sent."""
        self.acked: list[Acked] = []
        self.retried: list[Retried] = []
        self.timed_out: list[Retried] = []
        self.rejected: list[Rejected] = []
        self.parkings: list[Parked] = []
        self.released: list[Released] = []
        self.put_off: list[PutOff] = []
        self.policies: dict[int, Policy] = {}
        """By message: how it is retried should the database refuse its result."""
        self.parked: list[Message] = []
        """Messages that were not started because the lease had run out by then."""

    @property
    def names(self) -> dict[str, Any]:
        """What an answer names it by, as arguments of a call."""
        return {
            "queue": self.queue,
            "subscription": self.subscription,
            "lease_id": self.lease_id,
            "token": self.token,
        }

    def renewed(self, at: float, seconds: float) -> None:
        """From `at` on it lasts so many seconds."""
        self.ends = at + seconds
        self.renew_at = at + seconds / 3

    @property
    def unsent(self) -> int:
        """Answers that wait to be sent."""
        return sum(map(len, self._answers))

    @property
    def _answers(self) -> tuple[list[Any], ...]:
        answers = self.acked, self.retried, self.timed_out, self.rejected, self.released, self.put_off
        return (*answers, self.parkings)

    def lose(self) -> None:
        """The database said it is lost: nothing of it starts any more, and no answer of it counts."""
        self.is_lost = True
        self.ends = float("-inf")
        self.parked.clear()
        for answers in self._answers:
            answers.clear()
        refuse(self.waiters, LeaseLost(f"lease {self.lease_id} of queue {self.queue} has ended"))

    def __repr__(self) -> str:
        return f"<Lease {self.lease_id} of {self.queue}/{self.subscription}, {self.active} active>"


def refuse(waiters: list[asyncio.Future[datetime]], error: Exception) -> None:
    """Tell handlers that the extension they asked for was not granted."""
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(error)
    waiters.clear()


@dataclass(slots=True)
class Source:
    """One queue a worker serves, and how it sleeps on it."""

    queue: str
    subscription: str
    lease_time: float = 60.0
    """Seconds, as the subscription or the worker's option says."""
    time_out: float | None = None
    """Seconds, as the subscription says."""
    next_look: float = 0.0
    """When to look for messages at the latest."""
    is_rung: bool = False
    """A notification said there may be messages."""
    is_freed: bool = False
    """A notification said that the bell is free."""
    holds_bell: bool = False
    waits_since: float | None = None
    """Since when publishers have kept us from taking the bell."""
    is_limited: bool = False
    """It may be paused, or have a rate: an empty poll asks how long that keeps messages from us."""
    is_strange: bool = False
    """A notification on its channel was no id, and the log has a line about it."""
    has_lost: bool = False
    """It lost messages, and hands out nothing until somebody accepts that."""
    channel: str = field(default="", repr=False)

    @property
    def names(self) -> dict[str, Any]:
        """What it is called by, as arguments of a call."""
        return {"queue": self.queue, "subscription": self.subscription}


@dataclass(slots=True)
class Statistics:
    """What a worker has done since it started, in messages.

    `failed` raised, `put_off` have a kind without a handler, `lost` were given to someone else before their
    answer counted. `dead` are those of the failed, retried and rejected that the database gave up,
    `cancelled` those that somebody cancelled. `looks`
    are calls of `lease`, `empty_looks` those that got nothing. `unhandled` waited for want of a handler when
    `until_empty` or `until_idle` ended the worker.
    """

    leased: int = 0
    handled: int = 0
    retried: int = 0
    rejected: int = 0
    parked: int = 0
    failed: int = 0
    put_off: int = 0
    dead: int = 0
    unhandled: int = 0
    released: int = 0
    lost: int = 0
    cancelled: int = 0
    looks: int = 0
    empty_looks: int = 0
