"""Attempts as Arrow batches: what leases and receipts of a queue tell, for lakes (functions/keep/taker.sql).

A slice names leases that are over by their numbers, so it has the same rows whenever it is read, as long as
its taker keeps rotation from emptying them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

from trunq.errors import InvalidPipeline

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa

Transaction = Callable[[], "AbstractContextManager[psycopg.Connection[Any]]"]
"""What makes a transaction, such as `client.transaction`; each page is read in one of its own."""

_PAGE: Final = 10_000
"""Messages read at once."""

_COLUMNS: Final = {
    "queue": "string",
    "subscription": "string",
    "kind": "string",
    "key": "string",
    "id": "int64",
    "attempt": "int32",
    "outcome": "string",
    "error": "string",
    "worker": "string",
    "published_at": "time",
    "leased_at": "time",
    "finished_at": "time",
    "day": "date32",
    "took": "float64",
    "waited": "float64",
    "priority": "int32",
    "subscription_id": "int32",
    "lease_id": "int64",
}
_OF_MESSAGE: Final = ("payload", "headers", "result")


def schema(payload: bool = False) -> pa.Schema:
    """The columns of an attempt; `payload`: also payload, headers and result, as JSON text."""
    import pyarrow as pa  # noqa: PLC0415  # not everybody who imports trunq has it

    kinds = {"string": pa.string(), "time": pa.timestamp("us", "UTC"), "date32": pa.date32()}
    fields = [pa.field(name, kinds.get(kind) or getattr(pa, kind)()) for name, kind in _COLUMNS.items()]
    of_message = [pa.field(name, pa.string(), metadata={b"trunq.type": b"jsonb"}) for name in _OF_MESSAGE]
    return pa.schema(fields + (of_message if payload else []))


def plan(
    transaction: Transaction, queue: str, taker: str, state: dict[str, Any], max_messages: int
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The next slice of a taker (None: nothing is new), and the state after it."""
    with transaction() as connection:
        row = connection.execute(
            "select trunq._plan_history(%s, %s, %s::jsonb, %s)",
            (queue, taker, json.dumps(state), max_messages),
        ).fetchone()
    assert row is not None
    return row[0]["slice"], row[0]["state"]


def untaken(transaction: Transaction, queue: str, taker: str) -> dict[str, Any]:
    """All that is over and that a taker has not said to have taken, as a slice that nothing keeps."""
    with transaction() as connection:
        row = connection.execute("select trunq._untaken_history(%s, %s)", (queue, taker)).fetchone()
    assert row is not None
    found: dict[str, Any] = row[0]
    return found


def take(transaction: Transaction, queue: str, taker: str, state: dict[str, Any]) -> None:
    """All before a state is written elsewhere."""
    with transaction() as connection:
        connection.execute("select trunq._take_history(%s, %s, %s::jsonb)", (queue, taker, json.dumps(state)))


def read(
    transaction: Transaction, queue: str, slice: dict[str, Any], *, payload: bool = False, whole: bool = True
) -> Iterator[pa.RecordBatch]:
    """The attempts of a slice. `whole`: raises InvalidPipeline when leases of it are gone."""
    for part in slice["parts"]:
        number = 0
        for leases, batch in _pages(transaction, queue, slice["queue_id"], part, payload):
            number += len(leases)
            if batch is not None:
                yield batch
        if whole and number != part["leases"]:
            raise InvalidPipeline(
                f'history of queue "{queue}" that was to be read is gone: {part["leases"] - number} of'
                f" {part['leases']} leases, since its taker was dropped or the queue was emptied",
                "cancel the run: trunq pipeline cancel; the next one begins with what is there",
            )


def _pages(
    transaction: Transaction, queue: str, queue_id: int, part: dict[str, Any], payload: bool
) -> Iterator[tuple[list[int], pa.RecordBatch | None]]:
    import pyarrow as pa  # noqa: PLC0415

    made = schema(payload)
    columns = ", ".join(made.names).replace("day", "(finished_at at time zone 'UTC')::date")
    told, after = json.dumps(part), 0
    while True:
        with transaction() as connection:
            row = connection.execute(
                "select trunq._list_leases(%s, %s, %s::jsonb, %s, %s)", (queue, queue_id, told, after, _PAGE)
            ).fetchone()
            leases: list[int] = row[0] if row else []
            if not leases:
                return
            rows = connection.execute(
                f"select {columns} from trunq._read_history(%s, %s, %s::jsonb, %s, %s)".encode(),
                (queue, queue_id, told, leases, payload),
            ).fetchall()
        after = leases[-1]
        arrays = [pa.array(column, field.type) for column, field in zip(zip(*rows), made)] if rows else None  # noqa: B905
        yield leases, None if arrays is None else pa.RecordBatch.from_arrays(arrays, schema=made)
