"""What a queue is: which messages each shared subscription must still get, and where each stands.

Time is a number of seconds that only tests move. Everything is exact: the database must agree in every state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MAX_ATTEMPTS = 2
LEASE_TIME = 50
BACKOFF = 50


@dataclass
class Held:
    """A lease: the attempts of its messages without an answer, and whether it was ended from outside."""

    worker: str
    expires_at: int
    open: dict[int, int]
    answered: set[int] = field(default_factory=set)
    lost: bool = False


@dataclass
class Reader:
    """A shared subscription. Each message is in exactly one of these."""

    ready: dict[int, int] = field(default_factory=dict)
    leases: dict[int, Held] = field(default_factory=dict)
    retrying: dict[int, tuple[int, int]] = field(default_factory=dict)  # id: (attempt, due at)
    dead: dict[int, int] = field(default_factory=dict)
    purged: dict[int, int] = field(default_factory=dict)  # dead, and gone but for their rows in the log
    done: dict[int, int] = field(default_factory=dict)

    def take(self, lease_id: int, worker: str, ids: Iterable[int], expires_at: int) -> None:
        self.leases[lease_id] = Held(worker, expires_at, {id: self.ready.pop(id) for id in ids})

    def answer(self, lease_id: int, ids: Iterable[int], verb: str, delay: int, now: int) -> None:
        held = self.leases[lease_id]
        for id in ids:
            attempt = held.open.pop(id)
            held.answered.add(id)
            self.put(id, attempt, verb, delay, now)

    def put(self, id: int, attempt: int, verb: str, delay: int, now: int) -> None:
        match verb:
            case "ack":
                self.done[id] = attempt
            case "release":
                self.ready[id] = attempt
            case "reject":
                self.dead[id] = attempt
            case "retry" | "expire" if attempt >= MAX_ATTEMPTS:
                self.dead[id] = attempt
            case "retry" if delay > 0:
                self.retrying[id] = (attempt + 1, now + delay)
            case _:
                self.ready[id] = attempt + 1

    def end(self, leases: Iterable[Held], now: int) -> int:
        ended = [held for held in leases if held.open]
        for held in ended:
            for id, attempt in held.open.items():
                self.put(id, attempt, "expire", 0, now)
            held.open, held.lost = {}, True
        return len(ended)

    def leased(self) -> dict[int, int]:
        return {id: attempt for held in self.leases.values() for id, attempt in held.open.items()}

    def states(self) -> dict[int, tuple[str, int]]:
        return {
            **{id: ("done", attempt) for id, attempt in self.done.items()},
            **{id: ("dead", attempt) for id, attempt in (self.purged | self.dead).items()},
            **{id: ("ready", attempt) for id, attempt in self.ready.items()},
            **{id: ("leased", attempt) for id, attempt in self.leased().items()},
            **{id: ("retrying", attempt) for id, (attempt, _) in self.retrying.items()},
        }
