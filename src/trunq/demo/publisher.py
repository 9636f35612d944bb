"""The year replayed: flights copied into the queue at a steady pace."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import psycopg

from trunq.demo import flights
from trunq.demo.flights import Flight

COPY = "copy trunq_log.flights (kind, key, payload) from stdin"
STEP = 0.1
"""Seconds between two COPYs; each is a transaction of its own, and visible to the workers when it commits."""
LARGEST_COPY = 5_000


def replay(
    dsn: str,
    year: Sequence[Flight],
    seconds: float,
    wait: Callable[[float], None],
    published: Callable[[int], None],
) -> float:
    """Publish the year within so many seconds (0: as fast as possible) and return how long it took.

    `wait` is called with the seconds to pause, `published` with the number of flights each COPY committed.
    """
    started = time.monotonic()
    done = 0
    with psycopg.connect(dsn, autocommit=True, application_name="trunq demo: publisher") as connection:
        while done < len(year):
            due = _due(len(year), time.monotonic() - started, seconds)
            if due <= done:
                wait(STEP)
                continue
            some = year[done : min(due, done + LARGEST_COPY)]
            _copy(connection, some)
            done += len(some)
            published(len(some))
    return time.monotonic() - started


def _due(total: int, elapsed: float, seconds: float) -> int:
    # One step ahead: the first COPY is not empty, and the last comes at the end of the time, not after it.
    return total if elapsed + STEP >= seconds else int(total * (elapsed + STEP) / seconds)


def _copy(connection: psycopg.Connection, some: Sequence[Flight]) -> None:
    with connection.cursor() as cursor, cursor.copy(COPY) as copy:
        for flight in some:
            copy.write_row((flights.kind(flight), flight["carrier"], flights.dump(flight)))
