"""The airports of the second act as customers of one pipeline: what became of each, counted and compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

import psycopg
from psycopg import sql

from trunq import Client
from trunq.record.pipeline import PipelineRun
from trunq_demo.board import AIRPORTS, NO_TAIL_NUMBER, PIPELINE, THROTTLED, Airport
from trunq_demo.evidence import Check, Customer, PutOff, Span
from trunq_demo.flights import Flight

MANY = 1000


@dataclass(frozen=True, slots=True)
class Copied:
    """The requests of each airport; that which a limit put off, and the one in its place; what was said."""

    asked: Mapping[str, Sequence[int]]
    late: int
    again: int
    warning: str | None


def gather(client: Client, copied: Copied) -> list[Customer]:
    """Each airport, by its own runs and requests; times are seconds since the first request."""
    at = {code: [_published(client, id) for id in ids] for code, ids in copied.asked.items()}
    runs = {airport.code: _runs(client, airport) for airport in AIRPORTS}
    first = min(times[0] for times in at.values())
    last = max(run.ended_at for each in runs.values() for run in each if run.ended_at is not None)
    fresh = {row.value: row.fresh_at for row in client.list_instances(PIPELINE)}
    return [
        Customer(
            name=airport.name,
            asked=[(each - first).total_seconds() for each in at[airport.code]],
            runs=[_span(run, first) for run in runs[airport.code]],
            rows=sum(run.rows_out or 0 for run in runs[airport.code]),
            kept=sum(run.rows_bad or 0 for run in runs[airport.code]),
            waited=median(_waited(each, runs[airport.code]) for each in at[airport.code]),
            age=(last - (fresh[airport.code] or first)).total_seconds(),
            put_off=_put_off(client, copied, first) if airport is THROTTLED else None,
            changes=[
                f"{change.column_name} from {change.type_before} to {change.type} with run {change.number}"
                for change in client.list_schema_changes(airport.instance)
            ],
        )
        for airport in AIRPORTS
    ]


def _published(client: Client, id: int) -> datetime:
    at = client.show_message("pipelines", id)[0].published_at
    assert at is not None
    return at


def _put_off(client: Client, copied: Copied, first: datetime) -> PutOff | None:
    if copied.warning is None:
        return None
    span = [(_published(client, id) - first).total_seconds() for id in (copied.late, copied.again)]
    return PutOff(span[0], span[1], copied.warning)


def _runs(client: Client, airport: Airport) -> list[PipelineRun]:
    return sorted(client.list_runs(airport.instance, limit=MANY), key=lambda run: run.number)


def _span(run: PipelineRun, first: datetime) -> Span:
    ended = run.ended_at or run.begun_at
    return Span((run.begun_at - first).total_seconds(), (ended - first).total_seconds())


def _waited(asked: datetime, runs: list[PipelineRun]) -> float:
    """Seconds until the run began that has what was asked for; where it had begun before, none."""
    began = next((run.begun_at for run in runs if run.begun_at >= asked), asked)
    return (began - asked).total_seconds()


def compare(connection: psycopg.Connection[Any], month: Sequence[Flight]) -> list[Check]:
    """Each number twice: from the input alone, and in the copies and the quarantine."""
    checks = []
    for airport in AIRPORTS:
        rows = airport.rows(month)
        good = [row for row in rows if row[3] is not None]
        table = sql.Identifier("demo", f"copy_{airport.code}")
        query = sql.SQL("select count(*), count(distinct id), sum(number) from {}").format(table)
        found = connection.execute(query).fetchone() or (0, 0, 0)
        checks += [
            Check(f"Flights in the copy of {airport.name}", len(good), found[0]),
            Check("… different ones", len(good), found[1]),
            Check("… the sum of their numbers", sum(row[1] for row in good), int(found[2])),
            Check("… kept out for want of a tail number", len(rows) - len(good), _kept(connection, airport)),
        ]
    return checks


def _kept(connection: psycopg.Connection[Any], airport: Airport) -> int:
    rows = connection.execute(
        "select reasons from trunq.list_quarantine(%s, p_limit => 100000) where pipeline = %s",
        (PIPELINE, airport.instance),
    ).fetchall()
    return Counter(reason for (reasons,) in rows for reason in reasons)[NO_TAIL_NUMBER]
