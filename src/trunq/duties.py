"""What the leader does, as one table.

Each duty is an SQL function of one queue that says how much it did. `trunq.perform_duties()` does the same
list once, for those who have pg_cron and no leader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Duty:
    """One duty: its SQL function, every how many seconds, and from what number done on it is called again.

    `times_a_span`: it is called at least so often while one segment of a queue is written to. `again_after`:
    after so many seconds when it returned null, because somebody was in the way.
    """

    name: str
    function: str
    every: float
    again_from: int | None = None
    times_a_span: int | None = None
    again_after: float | None = None

    @property
    def statement(self) -> str:
        """The call, with the queue's name as its parameter."""
        return f"select {self.function}(p_queue => %s)"

    def interval(self, span: float) -> float:
        """Seconds between two calls for a queue whose segments are written to for `span` seconds each."""
        return self.every if self.times_a_span is None else min(self.every, span / self.times_a_span)


DUTIES: Final = (
    #    duty         SQL function       every  again from
    Duty("promote", "trunq.promote", 0.5, 1000),  # delayed messages that fell due go into the log
    Duty("reap", "trunq.reap", 1.0, 1),  # leases that ran out: their messages go back, or die
    Duty("tick", "trunq.tick", 1.0),  # cut a tick when the queue's thresholds say so
    Duty("summarize", "trunq.summarize", 60.0),  # keep messages findable by id
    # A segment is old for one span in each turn of the ring: called once a span, rotation would miss some.
    Duty("rotate", "trunq.rotate", 30.0, 1, times_a_span=4, again_after=1.0),  # empty segments nobody needs
)
