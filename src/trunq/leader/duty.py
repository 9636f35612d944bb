"""What the leader does, as rows of `trunq.list_duties()`.

Each duty is an SQL function that says how much it did. The leader calls it by `trunq.perform_duty()`, which
keeps why it failed. `trunq.perform_each_duty()` goes by the same rows, for databases that have pg_cron and no
leader.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from trunq.call import Call


@dataclass(frozen=True, slots=True)
class Duty:
    """One duty: its SQL function, every how many seconds, and from what number done on it is called again.

    One that is not `per_queue` is called once for all queues. `times_a_span`: it is called at least so often
    while one segment of a queue is written to. `again_after`: after so many seconds when it returned null,
    because somebody was in the way.
    """

    name: str
    every: float
    again_from: int | None = None
    per_queue: bool = True
    times_a_span: int | None = None
    again_after: float | None = None

    def call(self, queue: str | None) -> Call:
        """The call that performs it once."""
        return Call("perform_duty", {"duty": self.name, "queue": queue}, ("done", "error"))

    def interval(self, span: float | None) -> float:
        """Seconds between two calls for a queue whose segments are written to for `span` seconds each."""
        if span is None or self.times_a_span is None:
            return self.every
        return min(self.every, span / self.times_a_span)


LIST: Final = Call(
    "list_duties", {}, ("duty", "per_queue", "every", "again_from", "times_a_span", "again_after")
)


def duties_of(rows: Iterable[tuple[Any, ...]]) -> tuple[Duty, ...]:
    """The duties that rows of `trunq.list_duties()` say."""
    return tuple(
        Duty(
            name,
            every.total_seconds(),
            again_from,
            per_queue,
            times_a_span,
            None if again_after is None else again_after.total_seconds(),
        )
        for name, per_queue, every, again_from, times_a_span, again_after in rows
    )
