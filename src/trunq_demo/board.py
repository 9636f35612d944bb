"""One definition, three customers: each airport of New York keeps a board of the month's flights, and one
pipeline copies all three.

Newark asks for a run after every few flights, more often than the pipeline's rate lets it; the others ask
seldom, and do not wait for it. In the middle, LaGuardia begins to put the day before the number of a flight:
a column of its board, and of its copy, becomes wider.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

import psycopg
from psycopg import sql

from trunq import Client
from trunq.pipeline import Pipeline
from trunq_demo.flights import Flight

PIPELINE: Final = "boards"
RATE: Final = "1/second"
NO_TAIL_NUMBER: Final = "no tail number"


@dataclass(frozen=True, slots=True)
class Airport:
    """One that writes its month in so many parts, with a pause after each; `widens`: the part from which on
    its numbers are longer.
    """

    code: str
    name: str
    parts: int
    pause: float
    widens: int | None = None

    @property
    def instance(self) -> str:
        """Its name among the pipelines."""
        return f"{PIPELINE}/{self.code}"

    def rows(self, month: Sequence[Flight]) -> list[list[Any]]:
        """The lines of its board."""
        own = [flight for flight in month if flight["origin"] == self.code.upper()]
        return [
            [
                each["row"],
                self.number(each, at * self.parts // len(own)),
                each["carrier"],
                each["tailnum"],
                each["dest"],
            ]
            for at, each in enumerate(own)
        ]

    def number(self, flight: Flight, part: int) -> int:
        """The number of a flight, as it is written in a part."""
        is_long = self.widens is not None and part >= self.widens
        number: int = flight["flight"] + (10_000 * flight["day"] if is_long else 0)
        return number


AIRPORTS: Final = (
    Airport("ewr", "Newark", parts=16, pause=0.25),
    Airport("jfk", "JFK", parts=3, pause=1.6),
    Airport("lga", "LaGuardia", parts=4, pause=1.3, widens=2),
)


def pipeline() -> Pipeline:
    """The one definition."""
    return Pipeline(
        PIPELINE,
        message={"airport": {"pattern": "ewr|jfk|lga"}},
        per="message.airport",
        source={"format": "table", "table": "demo.board_${message.airport}"},
        sink={"format": "table", "table": "demo.copy_${message.airport}"},
        checks=[{"name": NO_TAIL_NUMBER, "column": "tailnum", "not_null": True}],
        evolve="widen",
        limits={"rate": RATE},
    )


class Boards:
    """Context manager in which each airport writes its board, in a thread of its own, and asks for runs."""

    def __init__(self, dsn: str, client: Client, month: Sequence[Flight]) -> None:
        self.dsn, self.client = dsn, client
        self.asked: dict[str, list[int]] = {airport.code: [] for airport in AIRPORTS}
        """The messages of each."""
        self._stopped = threading.Event()
        self._errors: list[Exception] = []
        self._threads = [
            threading.Thread(target=self._run, args=(airport, airport.rows(month)), name=airport.name)
            for airport in AIRPORTS
        ]

    @property
    def are_done(self) -> bool:
        """Whether all is written. Raises what an airport met."""
        if self._errors:
            raise self._errors[0]
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self, airport: Airport, rows: list[list[Any]]) -> None:
        try:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                for part in range(airport.parts):
                    if part == airport.widens:
                        table = sql.Identifier("demo", f"board_{airport.code}")
                        connection.execute(
                            sql.SQL("alter table {} alter number type numeric(6)").format(table)
                        )
                    some = [row for at, row in enumerate(rows) if at * airport.parts // len(rows) == part]
                    write(connection, airport.code, some)
                    self.asked[airport.code].append(
                        self.client.run_pipeline(PIPELINE, {"airport": airport.code})
                    )
                    if self._stopped.wait(airport.pause):
                        return
        except Exception as error:
            self._errors.append(error)

    def __enter__(self) -> Boards:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


def write(connection: psycopg.Connection[Any], airport: str, rows: Sequence[Sequence[Any]]) -> None:
    """Put lines onto a board."""
    table = sql.Identifier("demo", f"board_{airport}")
    query = sql.SQL("copy {} (id, number, carrier, tailnum, dest) from stdin").format(table)
    with connection.cursor().copy(query) as lines:
        for row in rows:
            lines.write_row(row)
