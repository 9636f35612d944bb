"""One definition, three customers: each airport of New York keeps a board of the month's flights, and one
pipeline copies all three.

Newark, which has the most flights, passes the rows that a customer may bring on a day: its last part waits
until somebody raises the limit, and nobody waits for it. In the middle, LaGuardia begins to put the day
before the number of a flight: a column of its board, and of its copy, becomes wider.
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
ROWS_A_DAY: Final = 9_950
"""More than the month has at JFK, fewer than at Newark."""
RAISED: Final = 20_000
NO_TAIL_NUMBER: Final = "no tail number"
LOOK: Final = 0.1


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
    Airport("ewr", "Newark", parts=32, pause=0.15),
    Airport("jfk", "JFK", parts=4, pause=1.2),
    Airport("lga", "LaGuardia", parts=4, pause=1.2, widens=2),
)


THROTTLED: Final = AIRPORTS[0]


def pipeline(rows_a_day: int = ROWS_A_DAY) -> Pipeline:
    """The one definition."""
    return Pipeline(
        PIPELINE,
        message={"airport": {"pattern": "ewr|jfk|lga"}},
        per="message.airport",
        source={"format": "table", "table": "demo.board_${message.airport}"},
        sink={"format": "table", "table": "demo.copy_${message.airport}"},
        checks=[{"name": NO_TAIL_NUMBER, "column": "tailnum", "not_null": True}],
        evolve="widen",
        limits={"rows_a_day": rows_a_day},
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
                    if airport is THROTTLED and part == airport.parts - 1:
                        self._await_all(airport)
                    some = [row for at, row in enumerate(rows) if at * airport.parts // len(rows) == part]
                    write(connection, airport.code, some)
                    self.asked[airport.code].append(
                        self.client.run_pipeline(PIPELINE, {"airport": airport.code})
                    )
                    if self._stopped.wait(airport.pause):
                        return
        except Exception as error:
            self._errors.append(error)

    def _await_all(self, airport: Airport) -> None:
        """Until all that was written is in the copy: the next request is one too many for its day."""
        for id in self.asked[airport.code]:
            while self.client.show_message("pipelines", id)[0].state != "done":
                if self._stopped.wait(LOOK):
                    return

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
