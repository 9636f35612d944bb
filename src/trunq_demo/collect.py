"""Counting what a run left behind: in the queue, in the tables of its handlers, in the lake."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from psycopg import sql

from trunq_demo.evidence import Cell, Check, Latency, Month, Outcome, Second
from trunq_demo.expectation import Expectation
from trunq_demo.job import QUEUE
from trunq_demo.office import SCHEDULE, Books

Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Found:
    """Numbers of the queue and of the handlers' table; `by_outcome` counts handled messages by outcome."""

    published: int
    answered: int
    by_outcome: dict[str, int]
    retried: int
    failures: int
    rejected: int
    given_up: int
    bookings: int
    booked: int
    euros: int
    fired: int
    counted: int
    most_unanswered: int

    @property
    def handled(self) -> int:
        return sum(self.by_outcome.values())


@dataclass(frozen=True, slots=True)
class Lake:
    """Numbers of the lake table, read by pyarrow."""

    rows: int
    messages: int
    cancelled: int
    delay_minutes: int
    files: int
    months: list[Month]


def prepare(connection: Connection) -> None:
    """Make the temporary tables and views that the other functions read."""
    script: Any = files("trunq_demo").joinpath("evidence.sql").read_text(encoding="utf-8")
    connection.execute(
        sql.SQL(script).format(
            queue=QUEUE,
            schedule=SCHEDULE,
            lease=sql.Identifier(f"{QUEUE}_lease"),
            receipt=sql.Identifier(f"{QUEUE}_receipt"),
        )
    )


def count(connection: Connection) -> Found:
    """Count messages by their outcome."""
    published, answered, retried, failures = _row(connection, "table tally")
    bookings, booked, euros = _row(connection, "table booking")
    fired, counted, most_unanswered = _row(connection, "table office")
    dead = dict(connection.execute("table dead").fetchall())
    return Found(
        published=published,
        answered=answered,
        by_outcome=dict(connection.execute("table outcome").fetchall()),
        retried=retried,
        failures=failures,
        rejected=dead.get("rejected", 0),
        given_up=dead.get("max_attempts", 0),
        bookings=bookings,
        booked=booked,
        euros=euros,
        fired=fired,
        counted=counted,
        most_unanswered=most_unanswered or 0,
    )


def outcomes(found: Found) -> list[Outcome]:
    """The outcomes of the messages, as the report names them."""
    done = found.by_outcome
    return [
        Outcome("on time", done.get("on time", 0), "good"),
        Outcome("delayed by 15 minutes or more", done.get("delayed", 0), "good"),
        Outcome("three hours late: compensated", done.get("compensated", 0), "good"),
        Outcome("diverted", done.get("diverted", 0), "good"),
        Outcome("dead, rejected: cancelled", found.rejected, "warn"),
        Outcome("dead, three attempts: no tail number", found.given_up, "bad"),
    ]


def latency(connection: Connection) -> Latency:
    """How long first attempts waited for their handler."""
    return Latency(*_row(connection, "table latency"))


def timeline(connection: Connection) -> list[Second]:
    """The run, second by second."""
    return [Second(*row) for row in connection.execute("table timeline")]


def cells(connection: Connection) -> list[Cell]:
    """The aggregate Spark wrote."""
    return [Cell(*row) for row in connection.execute("table cell")]


def lake_rows(path: Path) -> int:
    """How many rows the lake table has so far, from its log, without reading a file."""
    if not DeltaTable.is_deltatable(str(path)):
        return 0
    files = pa.table(DeltaTable(str(path)).get_add_actions())
    return sum(files["num_records"].to_pylist())


def lake(path: Path) -> Lake:
    """Read the lake table with pyarrow, which knows nothing of Spark."""
    table = DeltaTable(str(path))
    rows = table.to_pyarrow_table(columns=["id", "month", "dep_delay"])
    cancelled = pc.is_null(rows["dep_delay"])
    by_month = rows.append_column("cancelled", cancelled).group_by("month")
    months = by_month.aggregate([("id", "count"), ("cancelled", "sum")]).sort_by("month").to_pylist()
    return Lake(
        rows=rows.num_rows,
        messages=pc.count_distinct(rows["id"]).as_py(),
        cancelled=pc.sum(cancelled).as_py(),
        delay_minutes=pc.sum(rows["dep_delay"]).as_py(),
        files=len(table.file_uris()),
        months=[Month(month["month"], month["id_count"], month["cancelled_sum"]) for month in months],
    )


def checks(expected: Expectation, found: Found, books: Books, lake: Lake, cells: list[Cell]) -> list[Check]:
    """Each number twice: counted in the input, and counted where the messages ended."""
    done = found.by_outcome
    return [
        Check("Messages published", expected.flights, found.published),
        Check("Messages answered", expected.flights, found.answered),
        Check("Handled", expected.handled, found.handled),
        Check("… on time", expected.on_time, done.get("on time", 0)),
        Check("… delayed", expected.delayed, done.get("delayed", 0)),
        Check("… compensated", expected.compensated, done.get("compensated", 0)),
        Check("… diverted", expected.diverted, done.get("diverted", 0)),
        Check("Messages of which an attempt failed", expected.retried, found.retried),
        Check("Attempts that failed", expected.failures, found.failures),
        Check("Dead: rejected", expected.rejected, found.rejected),
        Check("Dead: given up after three attempts", expected.given_up, found.given_up),
        Check("Compensations booked", expected.compensated, found.bookings),
        Check("… for different messages", expected.compensated, found.booked),
        Check("Compensation in euros", expected.euros, found.euros),
        Check("Euros in the books", expected.euros, books.euros),
        Check("… of so many carriers", expected.carriers, books.carriers),
        Check("… before the checkpoint that was left", expected.carriers // 2, books.went_on_from),
        Check("Counts that the schedule had taken", found.fired, found.counted),
        Check("Rows in the lake table", expected.flights, lake.rows),
        Check("… of different messages", expected.flights, lake.messages),
        Check("… of cancelled flights", expected.cancelled, lake.cancelled),
        Check("Minutes of delay in the lake table", expected.delay_minutes, lake.delay_minutes),
        Check("Rows of the aggregate (carrier and hour)", expected.cells, len(cells)),
        Check("Flights in the aggregate", expected.flights, sum(cell.flights for cell in cells)),
        Check(
            "Cancellations in the aggregate", expected.cancelled, sum(cell.cancellations for cell in cells)
        ),
    ]


def _row(connection: Connection, query: LiteralString, *parameters: Any) -> Any:
    row = connection.execute(query, parameters or None).fetchone()
    assert row is not None
    return row
