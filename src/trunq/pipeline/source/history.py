"""The history of a queue of trunq: an attempt a row, in the order of its leases.

The state says of each subscription up to which lease its attempts are taken, and which were still open. The
queue keeps them until a run that has them has ended: the pipeline is a taker of it (trunq/arrow/history.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa

from trunq import Client
from trunq.arrow import history
from trunq.errors import InvalidPipeline, QueueNotFound
from trunq.pipeline.control import Control
from trunq.pipeline.definition.pipeline import Pipeline
from trunq.pipeline.definition.source import HistorySource as Model
from trunq.pipeline.source import Context, Foreseen, Plan, Size, Source, State


class HistorySource(Source):
    """What became of the messages of a queue."""

    def __init__(self, pipeline: Pipeline, dsn: str, control: Control) -> None:  # noqa: ARG002  # as all sources
        assert isinstance(pipeline.source, Model)
        self._name = pipeline.name
        self._model = pipeline.source
        self._taker = self._model.taker or pipeline.name
        self._dsn = self._model.dsn or dsn

    def plan(self, state: State) -> Plan:
        with Client(self._dsn, max_connections=1) as client:
            slice, after = history.plan(
                client.transaction, self._model.queue, self._taker, state, self._model.max_messages
            )
        return Plan(slice, after)

    def foresee(self, state: State) -> Foreseen | None:
        """By what the taker has not said to have taken; a run sets its marks first."""
        if not state:
            return None
        with Client(self._dsn, max_connections=1) as client:
            slice = history.untaken(client.transaction, self._model.queue, self._taker)
        leases = sum(part["leases"] for part in slice["parts"])
        # A lease has one message or more.
        return Foreseen(slice if leases else None, leases)

    def has_new(self, state: State) -> bool:
        """By the marks, which `plan` would write; they are the state, or a run behind it."""
        if not state:
            return True
        with Client(self._dsn, max_connections=1) as client:
            takers = client.list_takers(self._model.queue)
        mine = next((row for row in takers if row.taker == self._taker), None)
        # Of a taker that is gone, a run says what is wrong.
        return mine is None or mine.behind is not None

    def plan_range(self, range: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002  # as all sources
        raise InvalidPipeline(
            f"pipeline {self._name} reads the history of a queue, which is emptied when it is taken",
            "a new pipeline begins with what the queue still has",
        )

    def read(self, slice: dict[str, Any], context: Context) -> Iterator[pa.RecordBatch]:
        with Client(self._dsn, max_connections=1) as client:
            for batch in history.read(
                client.transaction, self._model.queue, slice, payload=self._model.payload
            ):
                context.check()
                yield batch

    def schema(self, slice: dict[str, Any]) -> pa.Schema:  # noqa: ARG002  # as all sources
        """That of the batches which `read` gives."""
        return history.schema(self._model.payload)

    def size(self, slice: dict[str, Any]) -> Size:
        """A lease has a message or more."""
        return Size(rows=sum(part["leases"] for part in slice["parts"]))

    def shares(self, slice: dict[str, Any], at_most: int) -> list[dict[str, Any]]:
        """By subscriptions."""
        parts = slice["parts"]
        wanted = max(1, min(at_most, len(parts)))
        return [{**slice, "parts": parts[at::wanted]} for at in range(wanted)]

    def release(self, state: State) -> None:
        # Of a queue that is gone nothing is kept.
        with Client(self._dsn, max_connections=1) as client, suppress(QueueNotFound):
            history.take(client.transaction, self._model.queue, self._taker, state)
