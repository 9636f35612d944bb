"""What two features of a queue may do to its messages, whatever is called: a model that fits on a screen.

A message has a fate for each shared subscription. Some things happen when a lease comes by and not before: a
message that was cancelled, replaced or too old becomes dead, replaced or outdated then. Until then either is
right.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_ATTEMPTS = 4
QUEUE: Mapping[str, Mapping[str, Any]] = {
    "lanes": {"lanes": "key"},
    "in_order": {"lanes": "key"},
    "priority": {"lanes": "priority"},
    "refuse": {"unique": "refuse"},
    "replace": {"unique": "replace"},
    "hold_size": {"hold_size": 10**10},
}
"""What features ask of create_queue."""
POLICY: Mapping[str, Any] = {
    "max_attempts": MAX_ATTEMPTS,
    "backoff": "constant",
    "backoff_base": "1 s",
    "jitter": 0,
}
"""Of both subscriptions."""
WAITING = ("ready", "retrying", "scheduled", "parked")
OVER = ("done", "outdated", "dead", "replaced", "purged")


@dataclass
class Fate:
    """Where a message stands for one subscription."""

    key: str | None
    kind: str | None
    unique_key: str | None
    place: int
    """In which order messages of one key are handed out."""
    may_be: tuple[str, ...] = ("ready",)
    attempt: int = 1
    doom: set[str] = field(default_factory=set)
    """What it becomes when a lease finds it waiting: dead, replaced, outdated."""
    ended: int = 0
    """How many attempts are over, and what was never handed out: each is one row of the history."""
    is_cancelled: bool = False
    is_loose: bool = False
    """It was scheduled or requeued: its place among others of its key is not known."""

    @property
    def waits(self) -> bool:
        return set(self.may_be) <= set(WAITING)

    @property
    def is_over(self) -> bool:
        return set(self.may_be) <= set(OVER)

    @property
    def states(self) -> set[str]:
        return {*self.may_be, *(self.doom if self.waits else ())}

    def see(self, state: str, attempt: int) -> None:
        """The database says where it stands: one of the states that are right."""
        assert state in self.states, f"{state}, not one of {self.states}: {self}"
        assert attempt == self.attempt, f"attempt {attempt}: {self}"
        if state not in WAITING:
            self.ended += self.waits
            self.may_be = (state,)
        elif not self.waits:
            self.may_be = tuple(each for each in self.may_be if each in WAITING)
        elif state != "scheduled":
            self.may_be = tuple(each for each in self.may_be if each != "scheduled")

    def lease(self) -> None:
        assert self.waits, f"handed out: {self}"
        assert not {"dead", "outdated"} & self.doom, f"cancelled, or too old, and handed out: {self}"
        assert self.may_be != ("parked",), f"parked, and handed out: {self}"
        self.may_be = ("leased",)

    def end(self, verb: str) -> None:
        """What an answer, or the end of a lease, makes of it."""
        self.ended += 1
        if verb == "ack":
            self.may_be = ("done",)
        elif verb == "reject" or self.is_cancelled or (verb == "retry" and self.attempt >= MAX_ATTEMPTS):
            self.may_be = ("dead",)
        elif verb == "park":
            self.may_be = ("parked",)
        else:
            # Of those whose lease ran out together one is to blame, and the others are spared.
            self.may_be = ("ready", "retrying", *(["dead"] if self.attempt >= MAX_ATTEMPTS else []))
            self.attempt = min(self.attempt + (verb != "release"), MAX_ATTEMPTS)

    def forward(self) -> None:
        self.ended += 1
        self.may_be = ("dead",) if self.is_cancelled else ("done",)

    def come_back(self, is_deleted: bool) -> None:
        """As a retry, in line with others."""
        self.may_be, self.is_loose = (("dead",) if is_deleted else ("retrying", "ready")), True
        self.doom.clear()
        self.attempt += 1

    def resume(self) -> None:
        self.may_be = ("retrying", "ready")

    def cancel(self, *, is_aside: bool = False) -> None:
        """Of one that is set aside: as of what is parked."""
        if is_aside:
            self.may_be = ("parked",)
        if self.may_be == ("parked",):
            # At once, without a row of the history.
            self.may_be = ("dead",)
        elif self.waits:
            self.doom.add("dead")
        self.is_cancelled = not self.is_over

    def delete(self, *, is_aside: bool = False) -> None:
        self.cancel(is_aside=is_aside)
        if self.may_be == ("dead",):
            self.may_be = ("purged",)

    def requeue(self, place: int) -> None:
        self.may_be, self.attempt, self.is_cancelled = ("ready",), 1, False
        self.doom.clear()
        self.place, self.is_loose = place, True


@dataclass
class Reader:
    """A shared subscription: what it must still get, and what became of the rest."""

    in_order: bool = False
    max_running: int | None = None
    per_lane: int | None = None
    fates: dict[int, Fate] = field(default_factory=dict)
    gone: dict[int, Fate] = field(default_factory=dict)
    """Over, and emptied by rotation."""

    def lease(self, ids: Iterable[int]) -> None:
        for id in ids:
            self.fates[id].lease()
        leased = [fate for fate in self.fates.values() if "leased" in fate.may_be]
        assert self.max_running is None or len(leased) <= self.max_running
        for key in {fate.key for fate in leased}:
            running = [fate for fate in leased if fate.key == key]
            assert self.per_lane is None or len(running) <= self.per_lane, key
            if self.in_order:
                (first,) = running
                ahead = [
                    fate
                    for fate in self.fates.values()
                    if fate.key == key and fate.place < first.place and fate.waits and not fate.doom
                ]
                assert first.is_loose or all(fate.is_loose for fate in ahead), (
                    f"{key}: {first} before {ahead}"
                )

    def delete(self, ids: Iterable[int], aside: Container[int] = ()) -> None:
        for id in ids:
            if id in self.fates:
                self.fates[id].delete(is_aside=id in aside)

    def see(self, listed: dict[int, tuple[str, int]]) -> None:
        """The states as the database lists them: those that the model knows, and no others."""
        assert not listed.keys() - self.fates.keys() - self.gone.keys()
        for id, fate in list(self.fates.items()):
            if id in listed:
                fate.see(*listed[id])
            else:
                assert fate.is_over or (fate.waits and fate.doom), f"{id} is gone: {fate}"
                fate.ended += fate.waits
                self.gone[id] = self.fates.pop(id)
