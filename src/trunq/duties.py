"""What the leader does, as one table.

Each duty is an SQL function of one queue that says how much it did. `trunq.perform_duties()` does the same
list once, for those who have pg_cron and no leader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Duty:
    """One duty: its SQL function, every how many seconds, and from what number done on it is called again."""

    name: str
    function: str
    every: float
    again_from: int | None = None

    @property
    def statement(self) -> str:
        """The call, with the queue's name as its parameter."""
        return f"select {self.function}(p_queue => %s)"


DUTIES: Final = (
    #    duty         SQL function       every  again from
    Duty("promote", "trunq.promote", 0.5, 1000),  # delayed messages that fell due go into the log
    Duty("reap", "trunq.reap", 1.0, 1),  # leases that ran out: their messages go back, or die
    Duty("tick", "trunq.tick", 1.0),  # cut a tick when the queue's thresholds say so
    Duty("summarize", "trunq.summarize", 60.0),  # keep messages findable by id
    Duty("rotate", "trunq.rotate", 30.0, 1),  # empty segments nobody needs
)
