"""Replaying the year: copying flights into the queue at a steady pace."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType

import psycopg

from trunq_demo import flights
from trunq_demo.flights import Flight

COPY = "copy trunq_log.flights (kind, key, payload) from stdin"
STEP = 0.1
"""Seconds between two COPYs, each a transaction of its own."""
LARGEST_COPY = 5_000


class Replay:
    """Context manager that publishes the year in a thread, spread over `seconds` (0: as fast as possible).

    `count` is the number of published flights, `took` the duration of the whole replay, None before its end.
    """

    def __init__(self, dsn: str, year: Sequence[Flight], seconds: float) -> None:
        self.dsn = dsn
        self.year = year
        self.seconds = seconds
        self.count = 0
        self.took: float | None = None
        self.error: Exception | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher")

    def check(self) -> None:
        """Raise the error of the publishing thread, if it failed."""
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Replay:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with psycopg.connect(
                self.dsn, autocommit=True, application_name="trunq demo publisher"
            ) as connection:
                self._publish(connection)
        except Exception as error:
            self.error = error

    def _publish(self, connection: psycopg.Connection) -> None:
        started = time.monotonic()
        while self.count < len(self.year) and not self._stopped.is_set():
            due = self._due(time.monotonic() - started)
            if due > self.count:
                some = self.year[self.count : min(due, self.count + LARGEST_COPY)]
                _copy(connection, some)
                self.count += len(some)
            else:
                self._stopped.wait(STEP)
        self.took = time.monotonic() - started

    def _due(self, elapsed: float) -> int:
        """How many flights should be published by now, one step ahead, so that the last ones are in time."""
        if elapsed + STEP >= self.seconds:
            return len(self.year)
        return int(len(self.year) * (elapsed + STEP) / self.seconds)


def _copy(connection: psycopg.Connection, some: Sequence[Flight]) -> None:
    with connection.cursor() as cursor, cursor.copy(COPY) as copy:
        for flight in some:
            copy.write_row((flights.kind(flight), flight["carrier"], flights.dump(flight)))
