"""Pipelines: what they are, their runs, and the rows that broke a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from trunq._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
from trunq.record import PipelineRun, PipelineState, Quarantined, QuarantineReason
from trunq.schedule import due_times as times_after
from trunq.wire.json import json_text
from trunq.wire.scalar import moment


class AsyncPipelines(AsyncAccess):
    """Pipelines. `trunq.pipeline` has what they are made of, and the runner."""

    async def create_pipeline(
        self,
        pipeline: str,
        definition: Any,
        *,
        due_times: Sequence[datetime] | None = None,
        connection: AsyncGiven | None = None,
    ) -> bool:
        """Make a pipeline, or change the one of that name; `definition` is `Pipeline(...).definition`.

        Its state and runs stay. `due_times` stand in for those of a trigger's cron text. Returns True when it
        was made. Raises InvalidPipeline, InvalidSchedule.
        """
        if due_times is not None:
            times: list[Any] | None = [moment("due_times", time) for time in due_times]
        elif (cron := cron_of(definition)) is not None:
            times = [*times_after(*cron, await self._value(connection, "clock"))]
        else:
            times = None
        made: bool = await self._value(
            connection,
            "create_pipeline",
            pipeline=pipeline,
            definition=json_text("definition", definition),
            due_times=times,
        )
        return made

    async def drop_pipeline(self, pipeline: str, *, connection: AsyncGiven | None = None) -> None:
        """Drop a pipeline with its state, runs and quarantine; what it wrote stays."""
        await self._value(connection, "drop_pipeline", pipeline=pipeline)

    async def list_pipelines(self, *, connection: AsyncGiven | None = None) -> list[PipelineState]:
        """Pipelines by name, and how far they are."""
        return await self._records(connection, PipelineState, "list_pipelines")

    async def pause_pipeline(
        self, pipeline: str, until: datetime | None = None, *, connection: AsyncGiven | None = None
    ) -> None:
        """Begin no run before a time, or (None) until it is resumed; messages that ask for one wait."""
        await self._value(connection, "pause_pipeline", pipeline=pipeline, until=moment("until", until))

    async def resume_pipeline(self, pipeline: str, *, connection: AsyncGiven | None = None) -> bool:
        """End the pause of a pipeline; False when it was not paused."""
        resumed: bool = await self._value(connection, "resume_pipeline", pipeline=pipeline)
        return resumed

    async def run_pipeline(
        self, pipeline: str, payload: Any = None, *, connection: AsyncGiven | None = None
    ) -> int:
        """Ask for a run: publish a message into the queue `pipelines`; returns its id.

        The functions of the pipeline find `payload` as `context.message`.
        """
        message_id: int = await self._value(
            connection, "run_pipeline", pipeline=pipeline, payload=json_text("payload", payload)
        )
        return message_id

    async def backfill_pipeline(
        self, pipeline: str, range: Any, *, connection: AsyncGiven | None = None
    ) -> int:
        """Ask for a run over a range that was read before, beside the runs going on; returns the message's
        id.

        Of a table: `{"column": "day", "from": "2030-01-01", "to": "2030-02-01"}`. Raises InvalidPipeline
        unless the sink has mode upsert and newest.
        """
        message_id: int = await self._value(
            connection, "backfill_pipeline", pipeline=pipeline, range=json_text("range", range)
        )
        return message_id

    async def set_pipeline_state(
        self, pipeline: str, state: Any, *, connection: AsyncGiven | None = None
    ) -> Any:
        """Set where the next slice begins ({}: at the beginning); returns where it would have begun."""
        return await self._value(
            connection, "set_pipeline_state", pipeline=pipeline, state=json_text("state", state)
        )

    async def cancel_pipeline(
        self, pipeline: str, backfill: int | None = None, *, connection: AsyncGiven | None = None
    ) -> bool:
        """Cancel the open run of a pipeline, or of its `backfill`; False when there is none.

        The state stays, so the next run reads the same and what has come since. A run that nobody is at ends
        at once.
        """
        cancelled: bool = await self._value(
            connection, "cancel_pipeline", pipeline=pipeline, backfill=backfill
        )
        return cancelled

    async def skip_pipeline(self, pipeline: str, *, connection: AsyncGiven | None = None) -> Any:
        """Give up the open run of a pipeline with its rows, for good: the next one begins behind its slice.

        Returns its `number` and `slice`, and the states `before` and `after` it; None when no run is open.
        Raises InvalidPipeline where only the end of a run tells what it has read.
        """
        return await self._value(connection, "skip_pipeline", pipeline=pipeline)

    async def accept_pipeline(self, pipeline: str, *, connection: AsyncGiven | None = None) -> int | None:
        """Go on, though the sink holds another run than this database expects, since one was set back.

        It goes on from the state that this database has: what is lost here comes again. Returns the number
        of the sink's newest run; None when there is nothing to accept.
        """
        held: int | None = await self._value(connection, "accept_pipeline", pipeline=pipeline)
        return held

    async def list_runs(
        self,
        pipeline: str | None = None,
        chain: UUID | None = None,
        limit: int | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> list[PipelineRun]:
        """Runs, newest first, 100 unless told: of a pipeline, of a chain, or all."""
        return await self._records(
            connection, PipelineRun, "list_runs", pipeline=pipeline, chain=chain, limit=limit
        )

    async def list_quarantine(
        self,
        pipeline: str,
        reason: str | None = None,
        limit: int | None = None,
        before: int | None = None,
        *,
        connection: AsyncGiven | None = None,
    ) -> list[Quarantined]:
        """Rows that broke a rule, newest first, 100 unless told; `before`: the smallest `quarantine_id` of
        the page before.
        """
        return await self._records(
            connection,
            Quarantined,
            "list_quarantine",
            pipeline=pipeline,
            reason=reason,
            limit=limit,
            before=before,
        )

    async def count_quarantine(
        self, pipeline: str, *, connection: AsyncGiven | None = None
    ) -> list[QuarantineReason]:
        """How many rows broke which rule, the most frequent first."""
        return await self._records(connection, QuarantineReason, "count_quarantine", pipeline=pipeline)

    async def resend_quarantine(
        self, pipeline: str, reason: str | None = None, *, connection: AsyncGiven | None = None
    ) -> int:
        """Ask for a run that sends rows of the quarantine through the pipeline again; the message's id."""
        message_id: int = await self._value(connection, "resend_quarantine", pipeline=pipeline, reason=reason)
        return message_id

    async def purge_quarantine(
        self, pipeline: str, reason: str | None = None, *, connection: AsyncGiven | None = None
    ) -> int:
        """Delete rows of the quarantine, of one reason or all; returns how many."""
        purged: int = await self._value(connection, "purge_quarantine", pipeline=pipeline, reason=reason)
        return purged


def cron_of(definition: Any) -> tuple[str, str | None] | None:
    """The cron text of a definition's trigger, and its time zone."""
    trigger = definition.get("trigger") if isinstance(definition, Mapping) else None
    if not isinstance(trigger, Mapping) or not isinstance(trigger.get("cron"), str):
        return None
    return trigger["cron"], trigger.get("time_zone")
