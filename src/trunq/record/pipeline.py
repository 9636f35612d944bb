"""Rows about pipelines."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID


class PipelineState(NamedTuple):
    """A row of `list_pipelines`.

    `runs`: how many ended; `open_run`: the number of the one that has not. `paused_until` None: until it is
    resumed. `error`: of the newest attempt that failed. `quarantined` counts rows.
    `trigger` None: it runs when somebody asks; `next_due`: when it is due next, with `every` or `cron`.
    """

    pipeline: str
    source: str
    sink: str
    followers: list[str]
    paused: bool
    paused_until: datetime | None
    runs: int
    open_run: int | None
    open_since: datetime | None
    last_outcome: str | None
    last_ended_at: datetime | None
    error: str | None
    quarantined: int
    state: Any
    definition: Any
    created_at: datetime
    trigger: Any
    next_due: datetime | None


class PipelineRun(NamedTuple):
    """A row of `list_runs`; `outcome` None: it is open. Runs that ran one after another have one `chain`."""

    pipeline: str
    number: int
    backfill: int
    message_id: int
    chain: UUID
    started_by: str | None
    begun_at: datetime
    ended_at: datetime | None
    outcome: str | None
    attempts: int
    rows_in: int | None
    rows_out: int | None
    rows_bad: int | None
    error: str | None
    is_cancelled: bool
    progress: Any
    payload: Any
    slice: Any


class Quarantined(NamedTuple):
    """A row of `list_quarantine`; `number` is that of the run that met it."""

    quarantine_id: int
    number: int | None
    reasons: list[str]
    content: Any
    created_at: datetime


class QuarantineReason(NamedTuple):
    """A row of `count_quarantine`."""

    reason: str
    quarantined: int
