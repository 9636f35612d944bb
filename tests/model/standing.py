"""Where a stream stands, as its model has it, and a ring that turns by the clock of the test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MOVED_SEGMENT = """
    create or replace function trunq._segment(p_queue trunq.queue) returns text
    language sql immutable set search_path = pg_catalog, pg_temp as $$
      select format($q$(floor(date_part('epoch',
          now() + coalesce(nullif(current_setting('trunq.clock_offset', true), ''), '0')::interval))::bigint
        / %s %% %s)::smallint$q$, extract(epoch from p_queue.span)::bigint, p_queue.segments)
    $$
"""
"""Rows lie in the segment of the time that the test says it is."""


@dataclass
class Stream:
    """Where a stream stands, as the model has it."""

    position: int
    done: list[int] = field(default_factory=list)  # in the order of the effects, since it was made or moved
    skipped: set[int] = field(default_factory=set)  # what lies before the tick it was made at or moved to
    rest: list[tuple[int, int]] | None = None  # of the window that is begun: (id, attempt), in order
    upto: int = 0  # the tick that window ends with
    batch: Any = None  # in hand
    rows: list[Any] = field(default_factory=list)  # of the batch in hand
    held_until: int = 0
    holder: str = ""
    ended: list[Any] = field(default_factory=list)  # batches that it may not finish any more
    retried: set[tuple[int, int]] = field(default_factory=set)  # (id, attempt) that come to it alone
    owed: set[tuple[int, int]] = field(default_factory=set)  # of these that it has not had yet
    dead: set[int] = field(default_factory=set)
