"""Pipelines: what they are, their runs, and the rows that broke a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from trunq.client._async.access import AsyncAccess
from trunq.connection.given import AsyncGiven
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
    ) -> bool | None:
        """Make a pipeline, or change the one of that name; `definition` is `Pipeline(...).definition`.

        Its state and runs stay. `due_times` stand in for those of a trigger's cron text. Returns True when it
        was made, False when it was changed, None when it was the same before. Raises InvalidPipeline,
        InvalidSchedule.
        """
        if due_times is not None:
            times: list[Any] | None = [moment("due_times", time) for time in due_times]
        elif (cron := cron_of(definition)) is not None:
            times = [*times_after(*cron, await self._value(connection, "clock"))]
        else:
            times = None
        made: bool | None = await self._value(
            connection,
            "create_pipeline",
            pipeline=pipeline,
            definition=json_text("definition", definition),
            due_times=times,
        )
        return made


def cron_of(definition: Any) -> tuple[str, str | None] | None:
    """The cron text of a definition's trigger, and its time zone."""
    trigger = definition.get("trigger") if isinstance(definition, Mapping) else None
    if not isinstance(trigger, Mapping) or not isinstance(trigger.get("cron"), str):
        return None
    return trigger["cron"], trigger.get("time_zone")
