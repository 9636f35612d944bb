"""Counting what a run left behind: in the queue, in the tables of its handlers, in the lake."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg
import pyarrow.compute as pc
from deltalake import DeltaTable
from psycopg import sql
from psycopg.rows import namedtuple_row

from trunq.demo.evidence import Cell, Check, Latency, Month, Outcome, Second
from trunq.demo.expectation import Expectation
from trunq.demo.job import QUEUE

Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Found:
    """Numbers of the queue and of the handlers' table; `by_outcome` counts what handled messages came to."""

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
    """Make the temporary tables the other functions count in."""
    (queue_id,) = _row(connection, "select queue_id from trunq.list_queues() where queue = %s", QUEUE)
    script = cast("LiteralString", files("trunq.demo").joinpath("answer.sql").read_text(encoding="utf-8"))
    connection.execute(
        sql.SQL(script).format(
            queue=QUEUE,
            lease=sql.Identifier(f"lease_{queue_id}"),
            receipt=sql.Identifier(f"receipt_{queue_id}"),
        )
    )
    connection.execute(
        "create temporary table published as select id, created_at from trunq_log.flights where subscription_id is null"
    )
    connection.execute(
        """
        create temporary table first_answer as
        select distinct on (a.id) a.id, a.finished_at, p.created_at,
          extract(epoch from a.finished_at - p.created_at) * 1000 - a.took * 1000 as waited
        from answer a join published p on p.id = a.id order by a.id, a.finished_at
        """
    )


def count(connection: Connection) -> Found:
    """Count messages by what became of them."""
    published, answered, retried, failures = _row(
        connection,
        """
        select (select count(*) from published), count(distinct id),
          count(distinct id) filter (where outcome = 'r'), count(*) filter (where outcome = 'r')
        from answer
        """,
    )
    outcomes = connection.execute(
        "select result ->> 'outcome', count(*) from answer where outcome = 'a' group by 1"
    ).fetchall()
    dead = dict(
        connection.execute(
            "select reason, count(*) from trunq.list_dead(%s, p_limit => 1000000) group by 1", (QUEUE,)
        ).fetchall()
    )
    bookings, booked, euros = _row(
        connection,
        "select count(*), count(distinct message_id), coalesce(sum(euros), 0) from demo.compensation",
    )
    return Found(
        published=published,
        answered=answered,
        by_outcome=dict(outcomes),
        retried=retried,
        failures=failures,
        rejected=dead.get("rejected", 0),
        given_up=dead.get("max_attempts", 0),
        bookings=bookings,
        booked=booked,
        euros=euros,
    )


def outcomes(found: Found) -> list[Outcome]:
    """Where the messages ended, for people."""
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
    """How long first attempts waited for their handler.

    The handler's start is taken as the time of the answer less the time the handler ran: the moment the answer
    itself waited to be sent is counted as waiting, so the true figures are a little lower.
    """
    median, p99, longest = _row(
        connection,
        "select percentile_cont(0.5) within group (order by waited), percentile_cont(0.99) within group (order by waited), "
        "max(waited) from first_answer",
    )
    return Latency(float(median), float(p99), float(longest))


def timeline(connection: Connection) -> list[Second]:
    """Messages published and answered in each second since the first; waiting times by the second of publication."""
    rows = connection.execute(
        """
        with start as (select min(created_at) as at from published),
        out as (
          select floor(extract(epoch from p.created_at - start.at))::integer as second, count(*) as published
          from published p, start group by 1),
        back as (
          select floor(extract(epoch from a.finished_at - start.at))::integer as second, count(*) as answered
          from answer a, start where a.outcome <> 'l' group by 1),
        wait as (
          select floor(extract(epoch from f.created_at - start.at))::integer as second,
            percentile_cont(0.5) within group (order by f.waited) as median,
            percentile_cont(0.99) within group (order by f.waited) as p99
          from first_answer f, start group by 1)
        select s.second, coalesce(out.published, 0), coalesce(back.answered, 0), wait.median, wait.p99
        from generate_series(0, (select max(second) from back)) s(second)
        left join out using (second) left join back using (second) left join wait using (second)
        order by 1
        """
    ).fetchall()
    return [
        Second(second, published, answered, _float(median), _float(p99))
        for second, published, answered, median, p99 in rows
    ]


def cells(connection: Connection) -> list[Cell]:
    """The aggregate Spark wrote."""
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        cursor.execute(
            "select carrier, hour, flights, cancellations, mean_delay, p90_delay from demo.punctuality order by carrier, hour"
        )
        return [Cell(*row) for row in cursor]


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


def checks(expected: Expectation, found: Found, lake: Lake, cells: list[Cell]) -> list[Check]:
    """Each number twice: counted in the input, and where the messages ended."""
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


def _float(value: Any) -> float | None:
    return None if value is None else float(value)
