"""What starts runs of a pipeline by itself, as data."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, Self

from pydantic import Field, model_validator

from trunq.pipeline.definition.iso_duration import Span
from trunq.pipeline.definition.part import InPostgres, Part
from trunq.schedule import due_times


class Each(InPostgres):
    """The values that a column of a table has; dsn None: in the database of trunq."""

    table: str
    column: str


class Trigger(Part):
    """One of: `every`, a length of time; `cron`, a text with its `time_zone` (UTC); `on`: `message`, each of
    a `queue` asks for a run with its payload, or `webhook`, each request does; `continuous`: the next run
    begins as soon as the source has something new.

    Without a trigger a pipeline runs when somebody asks.
    """

    every: Span | None = None
    cron: str | None = None
    time_zone: str | None = None
    on: Literal["message", "webhook"] | None = None
    queue: str | None = None
    continuous: Literal[True] | None = None
    for_: list[str | int] | Each | None = Field(None, alias="for")
    """Values of `per`, each of which is asked a run for, with every or cron."""
    priority: int = Field(0, ge=-32768, le=32767)
    """Of the messages, in a queue `pipelines` with lanes by priority; the smallest first."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in ("every", "cron", "on", "continuous") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give one of every, cron, on and continuous, not {' and '.join(given) or 'none'}"
            )
        if self.time_zone is not None and self.cron is None:
            raise ValueError("time_zone goes with cron")
        if (self.queue is not None) != (self.on == "message"):
            raise ValueError("on = 'message' and queue = '...' go together")
        if self.every is not None and self.every.total_seconds() < 1:
            raise ValueError("every is a second or more; continuous = true runs again at once")
        if (self.for_ is not None or self.priority) and self.every is None and self.cron is None:
            raise ValueError("for and priority go with every or cron")
        if self.for_ == []:
            raise ValueError("for is empty: it names values of per, or a table and a column that have them")
        if self.cron is not None:
            due_times(self.cron, self.time_zone, datetime.now(UTC), 1)
        return self
