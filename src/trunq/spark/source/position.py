"""Moving the subscriptions of a streaming query to the position it has reached."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trunq.connection.address import address
from trunq.spark.connection import LATER, Database
from trunq.spark.errors import translating
from trunq.spark.source.log import QueueLog

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def finish(query: StreamingQuery, dsn: str | None = None, timeout: int | None = None) -> bool:
    """Waits for a query to end, then moves its subscriptions to its position, even if the query failed.

    Spark tells a source that a batch is done only when the next one begins. Without `finish`, the
    subscription would keep the last batch of a run as unread until the query runs again. Returns False if
    the query still runs after `timeout` seconds. `dsn` is the database of the queues, by default that of
    the settings. If the query failed for a reason that trunq knows, `finish` raises trunq's error, such as
    `DataLoss`, in the place of Spark's.
    """
    try:
        with translating():
            ended = query.awaitTermination(timeout) if timeout is not None else query.awaitTermination()
    except BaseException:
        # Why the query failed is more worth telling than why its position stays.
        with suppress(Exception):
            settle(query, dsn)
        raise
    settle(query, dsn)
    return ended is not False


def settle(query: StreamingQuery, dsn: str | None = None) -> dict[str, int]:
    """Moves a query's subscriptions to the end of its last finished batch; returns their positions."""
    known = address(dsn)
    with translating():
        progress = query.lastProgress
    positions: dict[str, int] = {}
    for source in progress["sources"] if progress else ():
        offset = _parse(source["endOffset"])
        if {"queue", "subscription", "tick"} <= offset.keys():
            database = Database(lambda: known, LATER)
            try:
                log = QueueLog(database, offset["queue"])
                positions[offset["subscription"]] = log.advance(offset["subscription"], offset["tick"])
            finally:
                database.close()
    return positions


def _parse(offset: Any) -> Mapping[str, Any]:
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    return offset if isinstance(offset, Mapping) else {}
