"""Minutes of the statistics, at the clock of a test."""

from __future__ import annotations

from engine import Engine

MINUTE = 60


def seconds(work: Engine, minutes: int, second: int = 30) -> str:
    """The offset of the clock that makes it that second of the minute so many ahead."""
    now = work.fetch("select extract(epoch from clock_timestamp())::float8")
    return f"{(now // MINUTE + minutes) * MINUTE + second - now} seconds"


def roll_up(work: Engine, minutes: int) -> None:
    """When so many minutes more are over."""
    with work.clock(seconds(work, minutes + 1, 15)):
        while work.ask("roll_up"):
            pass
