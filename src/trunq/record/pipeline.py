"""Rows about pipelines."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID


class PipelineState(NamedTuple):
    """A row of `list_pipelines`.

    `fresh_at`: the newest value in its sink of the column `fresh_by`, or, with None there, when the newest
    slice that is in the sink was fixed, or the source had nothing new; `age`: how long ago that is.

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
    fresh_at: datetime | None
    age: timedelta | None
    fresh_by: str | None


class PipelineRun(NamedTuple):
    """A row of `list_runs`; `outcome` None: it is open. Runs that ran one after another have one `chain`.

    Bytes are those of rows in Arrow's memory, times milliseconds, of Spark's tasks all together. `engine`:
    where its rows pass, "spark" or "process", and `engine_reason`: why.
    """

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
    bytes_in: int | None
    bytes_out: int | None
    source_ms: int | None
    work_ms: int | None
    sink_ms: int | None
    newest_at: datetime | None
    engine: str | None
    engine_reason: str | None


class SchemaChange(NamedTuple):
    """A row of `list_schema_changes`; `type_before` None: the column was new with that run; `type` None: it
    was renamed.
    """

    column_name: str
    type_before: str | None
    type: str | None
    number: int
    backfill: int
    noted_at: datetime


class Schema(NamedTuple):
    """A row of `list_schemas`, a version of the columns of a sink; `changed`: what is new in it."""

    version: int
    columns: dict[str, str]
    changed: dict[str, str | None]
    number: int
    backfill: int
    noted_at: datetime


class Backfill(NamedTuple):
    """A row of `list_backfills`, a backfill in shares; `outcome` None: it goes on; `remaining`: about."""

    pipeline: str
    backfill: int
    range: Any
    every: str
    at_once: int
    shares: int
    done: int
    failed: int
    cancelled: int
    running: int
    outcome: str | None
    error: str | None
    created_at: datetime
    ended_at: datetime | None
    remaining: timedelta | None


class BackfillShare(NamedTuple):
    """A row of `list_shares`; `state`: waiting, running, done, failed or cancelled."""

    share: int
    range: Any
    state: str
    message_id: int | None
    asked_at: datetime | None
    ended_at: datetime | None
    rows_out: int | None
    error: str | None


class Quarantined(NamedTuple):
    """A row of `list_quarantine`; `number` is that of the run that met it, of `pipeline`, or the instance."""

    pipeline: str
    quarantine_id: int
    number: int | None
    reasons: list[str]
    content: Any
    created_at: datetime


class QuarantineReason(NamedTuple):
    """A row of `count_quarantine`; `example`: the newest row that broke the rule."""

    reason: str
    quarantined: int
    newest_at: datetime
    example: Any


class PipelineInstance(NamedTuple):
    """A row of `list_instances`: a pipeline for one value of its `per`; `pipeline` is its name.

    `failures`, `failing_since`, `error`: of its open run, or of tries to begin one. `put_off_until`: until
    when its limits let no run begin, and by which of them (`put_off_for`), or a `pause`, with None: until it
    is resumed. `rows_today`, `bytes_today`: what its sink took on this day of UTC, where there is a limit of
    them. `refused`: why its table is not read, `hint`: the way out. `instances`: how many there are.
    """

    pipeline: str
    value: str
    runs: int
    open_run: int | None
    open_since: datetime | None
    failures: int
    failing_since: datetime | None
    error: str | None
    last_outcome: str | None
    last_ended_at: datetime | None
    quarantined: int
    paused: bool
    put_off_until: datetime | None
    put_off_for: str | None
    rows_today: int
    bytes_today: int
    fresh_at: datetime | None
    message: Any
    state: Any
    refused: str | None
    hint: str | None
    instances: int


class Compaction(NamedTuple):
    """A row of `show_compaction`: of the last one. `error` None: it succeeded, or has not ended."""

    began_at: datetime | None
    ended_at: datetime | None
    files_merged: int | None
    files_made: int | None
    files_deleted: int | None
    failures: int
    error: str | None
    retry_at: datetime | None
