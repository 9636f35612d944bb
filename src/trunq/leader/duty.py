"""What the leader does, as rows of `trunq.list_duties()`.

Each duty is an SQL function that says how much it did. The leader calls it by `trunq.perform_duty()`, which
keeps why it failed. `trunq.perform_each_duty()` goes by the same rows, for databases that have pg_cron and no
leader.
"""

from __future__ import annotations

from typing import Final

from trunq.record import Duty
from trunq.wire.call import Call

LIST: Final = Call("list_duties", {}, Duty._fields)

QUICK: Final = "quick"
SLOW: Final = "slow"
LOOK: Final = "look"
LINES: Final = (QUICK, SLOW, LOOK)
"""The lines of duties (line.py)."""

FIRE: Final = "fire"
"""The duty that is called when the next schedule is due (schedule.py)."""


def call(duty: Duty, queue: str | None) -> Call:
    """The call that performs a duty once."""
    return Call("perform_duty", {"duty": duty.duty, "queue": queue}, ("done", "error"))


def pause(duty: Duty, span: float | None) -> float:
    """Seconds between two calls for a queue whose segments are written to for `span` seconds each."""
    every = duty.every.total_seconds()
    if span is None or duty.times_a_span is None:
        return every
    return min(every, span / duty.times_a_span)
