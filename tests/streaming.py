"""One stream, lake, of a queue: its batches and where it stands."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from engine import Engine

READER = {"subscription": "lake", "worker": "ada"}
LAKE = {"subscription": "lake"}


def take(work: Engine, **more: Any) -> Any:
    """The next batch, or None."""
    rows = work.call("next_batch", **{**READER, **more})
    return rows[0] if rows else None


def named(batch: Any) -> dict[str, Any]:
    return {**LAKE, "batch_id": batch.batch_id, "token": batch.token}


def read(work: Engine, batch: Any, **more: Any) -> list[Any]:
    return work.call("read_batch", **{**LAKE, "batch_id": batch.batch_id, **more})


def ids(rows: Collection[Any]) -> list[int]:
    return [row.id for row in rows]


def stream(work: Engine) -> Any:
    (row,) = work.call("list_streams")
    return row


def put_batches(work: Engine, count: int) -> list[list[int]]:
    found = []
    for _ in range(count):
        found.append(work.publish(5))
        work.ask("tick", force=True)
    return found
