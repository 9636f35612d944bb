"""What a queue is: which messages each shared subscription must still get, and where each stands.

Time is a number of seconds that only tests move. Everything is exact: the database must agree in every state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MAX_ATTEMPTS = 2
LEASE_TIME = 50
BACKOFF = 50
SOON = 1
"""What comes back scattered or in line does so within seconds, which is nothing for a step of time."""

Moment = tuple[int, int]
"""Seconds, and what came first among things of one second."""


@dataclass
class Held:
    """A lease: the attempts of its messages without an answer, and whether it was ended from outside."""

    lease_id: int
    worker: str
    leased_at: Moment
    expires_at: int
    open: dict[int, int]
    is_suspect: bool
    answered: set[int] = field(default_factory=set)
    expired: set[int] = field(default_factory=set)
    lost_at: Moment | None = None

    @property
    def lost(self) -> bool:
        return self.lost_at is not None

    @property
    def ids(self) -> set[int]:
        return self.open.keys() | self.answered | self.expired

    def is_beside(self, other: Held) -> bool:
        """Whether the end of the other may have the same cause."""
        return (
            self.worker == other.worker
            and self.lease_id != other.lease_id
            and abs(self.expires_at - other.expires_at) <= LEASE_TIME
            and (self.lost_at is None or self.lost_at > other.leased_at)
            and bool(self.open or self.expired)
            and self.ids.isdisjoint(other.ids)
        )


@dataclass
class Reader:
    """A shared subscription. Each message is in exactly one of these."""

    ready: dict[int, int] = field(default_factory=dict)
    leases: dict[int, Held] = field(default_factory=dict)
    retrying: dict[int, tuple[int, int]] = field(default_factory=dict)  # id: (attempt, due at)
    dead: dict[int, int] = field(default_factory=dict)
    purged: dict[int, int] = field(default_factory=dict)  # dead, and gone but for their rows in the log
    done: dict[int, int] = field(default_factory=dict)
    expiries: dict[int, int] = field(default_factory=dict)  # how many leases in a row ran out
    expires: dict[int, int] = field(default_factory=dict)  # when they may no longer be handed out

    def take(self, lease_id: int, worker: str, ids: list[int], now: Moment) -> None:
        is_suspect = any(self.expiries.get(id, 0) > 1 for id in ids)
        assert not is_suspect or len(ids) == 1, "a suspect is leased alone"
        open = {id: self.ready.pop(id) for id in ids}
        self.leases[lease_id] = Held(lease_id, worker, now, now[0] + LEASE_TIME, open, is_suspect)

    def answer(self, lease_id: int, ids: Iterable[int], verb: str, delay: int, now: int) -> None:
        held = self.leases[lease_id]
        for id in ids:
            attempt = held.open.pop(id)
            held.answered.add(id)
            self.put(id, attempt, verb, delay, now)

    def put(self, id: int, attempt: int, verb: str, delay: int, now: int) -> None:
        if verb not in ("release", "put off"):
            self.expiries.pop(id, None)
        match verb:
            case "ack":
                self.done[id] = attempt
            case "release":
                self.ready[id] = attempt
            case "put off":
                self.retrying[id] = (attempt, now + SOON)
            case "reject":
                self.dead[id] = attempt
            case "retry" if attempt >= MAX_ATTEMPTS:
                self.dead[id] = attempt
            case "retry" if delay > 0:
                self.retrying[id] = (attempt + 1, now + delay)
            case _:
                self.ready[id] = attempt + 1

    def end(self, leases: Iterable[Held], now: Moment) -> int:
        ended = [held for held in leases if held.open]
        for held in ended:
            beside = [other for other in self.leases.values() if other.is_beside(held)]
            for id, attempt in held.open.items():
                self.expire(id, attempt, held, beside, now[0])
            held.expired, held.open, held.lost_at = set(held.open), {}, now
        return len(ended)

    def expire(self, id: int, attempt: int, held: Held, beside: list[Held], now: int) -> None:
        suspects = [other.lease_id for other in beside if other.is_suspect]
        together = len(beside) + len(held.open) > 1
        spared = suspects and (not held.is_suspect or max(suspects) > held.lease_id)
        shared = together and not (held.is_suspect and self.expiries.get(id, 0) > MAX_ATTEMPTS)
        if attempt >= MAX_ATTEMPTS and not spared and not shared:
            self.expiries.pop(id, None)
            self.dead[id] = attempt
            return
        attempt = attempt if spared else min(attempt + 1, MAX_ATTEMPTS)
        self.expiries[id] = self.expiries.get(id, 0) + 1
        if self.expiries[id] > 1:
            line = [due_at for each, (_, due_at) in self.retrying.items() if self.expiries.get(each, 0) > 1]
            self.retrying[id] = (attempt, max(now, *line, now) + SOON)
        elif together:
            self.retrying[id] = (attempt, now + SOON)
        else:
            self.ready[id] = attempt

    def forget(self) -> None:
        """What is left of everything is what is dead."""
        self.ready, self.leases, self.retrying, self.purged, self.done = {}, {}, {}, {}, {}
        self.expiries = {id: count for id, count in self.expiries.items() if id in self.dead}

    def leased(self) -> dict[int, int]:
        return {id: attempt for held in self.leases.values() for id, attempt in held.open.items()}

    def states(self) -> dict[int, tuple[str, int]]:
        return {
            **{id: ("done", attempt) for id, attempt in self.done.items()},
            **{id: ("purged", attempt) for id, attempt in self.purged.items()},
            **{id: ("dead", attempt) for id, attempt in self.dead.items()},
            **{id: ("ready", attempt) for id, attempt in self.ready.items()},
            **{id: ("leased", attempt) for id, attempt in self.leased().items()},
            **{id: ("retrying", attempt) for id, (attempt, _) in self.retrying.items()},
        }
