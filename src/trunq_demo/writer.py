"""Writers that go on changing a table of flights: each flight is scheduled, leaves and lands.

There are two of them, each with every second flight. Landings are a transaction that commits a step after it
has been written, behind others that began later; some are rolled back and written again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import psycopg

from trunq_demo import flights
from trunq_demo.flights import Flight

WRITERS = 2
CHUNK = 250
"""Flights that a writer moves on in a step."""
ROLLED_BACK = 10
"""Of so many transactions with landings, one is rolled back first."""
PARTS = 3
"""Each part but the first is written when it is let."""

_COPY = "copy demo.flight (id, carrier, flight, tailnum, origin, dest, time_hour, distance) from stdin"
_LEAVE = "update demo.flight set status = %s, dep_delay = %s, revision = revision + 1 where id = %s"
_LAND = "update demo.flight set status = %s, arr_delay = %s, revision = revision + 1 where id = %s"

Connection = psycopg.Connection[Any]


class Writers:
    """Context manager that writes the flights in threads, each part spread over `seconds`.

    It writes a third at once, and another each time that it is told to `go_on`.
    """

    def __init__(self, dsn: str, month: Sequence[Flight], seconds: float) -> None:
        self.dsn = dsn
        self.seconds = seconds
        self.error: Exception | None = None
        self._stopped = threading.Event()
        self._gates = [threading.Event() for _ in range(PARTS)]
        self.go_on()
        self._threads = [
            threading.Thread(target=self._run, args=(month[number::WRITERS],), name=f"writer {number}")
            for number in range(WRITERS)
        ]

    @property
    def are_done(self) -> bool:
        """Whether all is written. Raises what a writer met."""
        if self.error is not None:
            raise self.error
        return not any(thread.is_alive() for thread in self._threads)

    def go_on(self) -> None:
        """Have the next part written."""
        next(gate for gate in self._gates if not gate.is_set()).set()

    def _run(self, own: Sequence[Flight]) -> None:
        try:
            with (
                psycopg.connect(self.dsn, autocommit=True) as connection,
                psycopg.connect(self.dsn) as late,
            ):
                self._write(connection, late, [own[at : at + CHUNK] for at in range(0, len(own), CHUNK)])
        except Exception as error:
            self.error = error

    def _write(self, connection: Connection, late: Connection, chunks: list[Sequence[Flight]]) -> None:
        steps = len(chunks) + 2
        for step in range(steps):
            self._gates[step * PARTS // steps].wait()
            if step < len(chunks):
                schedule(connection, chunks[step])
            if 0 < step <= len(chunks):
                leave(connection, chunks[step - 1])
            late.commit()
            if step > 1:
                land(late, chunks[step - 2])
                if step % ROLLED_BACK == 0:
                    late.rollback()
                    land(late, chunks[step - 2])
            if self._stopped.wait(self.seconds * PARTS / steps):
                return
        late.commit()

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        for gate in self._gates:
            gate.set()
        for thread in self._threads:
            thread.join()


def schedule(connection: Connection, some: Sequence[Flight]) -> None:
    """Flights as they are planned."""
    names = ("row", "carrier", "flight", "tailnum", "origin", "dest", "time_hour", "distance")
    with connection.cursor().copy(_COPY) as copy:
        for flight in some:
            copy.write_row([flight[name] for name in names])


def leave(connection: Connection, some: Sequence[Flight]) -> None:
    """They leave, or are cancelled."""
    kinds = [(flights.kind(flight), flight) for flight in some]
    rows = [
        ("cancelled" if kind == "cancelled" else "departed", flight["dep_delay"], flight["row"])
        for kind, flight in kinds
    ]
    with connection.transaction():
        connection.cursor().executemany(_LEAVE, rows)


def land(connection: Connection, some: Sequence[Flight]) -> None:
    """Those that left land, or were diverted; the caller commits."""
    kinds = [(flights.kind(flight), flight) for flight in some]
    rows = [
        ("diverted" if kind == "diverted" else "landed", flight["arr_delay"], flight["row"])
        for kind, flight in kinds
        if kind != "cancelled"
    ]
    connection.cursor().executemany(_LAND, rows)
