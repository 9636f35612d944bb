"""A run of the demo from beginning to end."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console

from trunq import Client, display, embedded, install
from trunq.errors import SchemaNewer
from trunq_demo import act, collect, expectation, flights, office, pipeline, report
from trunq_demo.evidence import Act, Evidence
from trunq_demo.expectation import Expectation
from trunq_demo.fleet import Fleet, Member
from trunq_demo.flights import Flight
from trunq_demo.job import MAX_ATTEMPTS, QUEUE
from trunq_demo.place import ELSEWHERE, Place, PlaceUnusable
from trunq_demo.publisher import Replay
from trunq_demo.screen import Bars, Screen

WORKERS = 2
WHERE = re.compile(r'"host": "(?P<host>[^"]+)",\s*"port": (?P<port>\d+)')
"""What `trunq web --json` prints."""
LOOK = 0.7
"""Seconds between two updates of the progress bars."""


@dataclass(slots=True)
class Run:
    """What all steps of a run use."""

    place: Place
    screen: Screen
    seconds: float
    dsn: str
    client: Client
    fleet: Fleet


def run(directory: Path, seconds: float, console: Console, web: bool = False) -> Evidence:
    """Run the demo in a directory, with the year replayed in `seconds`, and return its results; with `web`, a
    dashboard shows the database meanwhile.

    Raises InputMissing, PlaceUnusable, ProcessDied, or an error of trunq. However the run ends, no process of
    it is left.
    """
    flights.data_directory()
    place, screen = Place(directory), Screen(console)
    started_at = datetime.now(UTC)
    with place.taken():
        with screen.step("Starting Postgres") as facts:
            server = embedded.start(place.database)
            facts.append(f"in {place.database}")
        environment = {"TRUNQ_DSN": server.dsn, "PYTHONUNBUFFERED": "1"}
        with server, Client(server.dsn) as client, Fleet(place.logs, environment) as fleet:
            job = Run(place, screen, seconds, server.dsn, client, fleet)
            try:
                evidence = work(job, started_at, web)
            except KeyboardInterrupt:
                # Only the clean-up is left, which another Ctrl-C must not interrupt.
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                screen.console.print("Stopping …")
                raise
        with screen.step("Writing the report"):
            report.write(evidence, place.report)
    return evidence


def work(job: Run, started_at: datetime, web: bool) -> Evidence:
    """The steps of the run, from the first that needs the database."""
    prepare(job)
    if web:
        show(job)
    spark, workers = start(job)
    year, expected = read(job.screen)
    await_query(job)
    replay_seconds = replay(job, year, spark)
    close_books(job)
    second = act.play(act.Stage(job.place, job.screen, job.dsn, job.client, job.fleet), year)
    with job.screen.step("Stopping the workers"):
        job.fleet.stop(*workers)
    return gather(job, expected, second, started_at, replay_seconds)


def prepare(job: Run) -> None:
    """Install trunq, and create the queue, its subscriptions and the table that the handlers write to."""
    with job.screen.step("Making the queues") as facts:
        try:
            install.install(job.dsn)
        except SchemaNewer as error:
            raise PlaceUnusable(
                f"{job.place.directory} was made by a newer trunq. Remove it, or {ELSEWHERE}."
            ) from error
        with psycopg.connect(job.dsn, autocommit=True) as connection:
            connection.execute(files("trunq_demo").joinpath("tables.sql").read_bytes())
        if QUEUE in {queue.queue for queue in job.client.list_queues()}:
            job.client.drop_queue(QUEUE, force=True)
        job.client.create_queue(QUEUE)
        job.client.subscribe(QUEUE, "default", max_attempts=MAX_ATTEMPTS, backoff="constant", backoff_base=1)
        job.client.subscribe(QUEUE, pipeline.SUBSCRIPTION, mode="exclusive", start="earliest")
        office.open_office(job.client)
        act.open_queues(job.client)
        facts.append("flights, read by the workers and by Spark; and one for the office")


def start(job: Run) -> tuple[Member, list[Member]]:
    """Start Spark and the workers."""
    place = job.place
    spark = job.fleet.start(
        "spark pipeline", "trunq_demo.pipeline", str(place.lake), str(place.checkpoint), str(place.figures)
    )
    workers = [
        job.fleet.start(f"worker {number}", "trunq_demo.member", "worker", "trunq_demo.job:worker")
        for number in range(1, WORKERS + 1)
    ]
    job.screen.done(f"Started {WORKERS} workers and a Spark query")
    return spark, workers


def show(job: Run) -> None:
    """Start a dashboard, on any port that is free, and say where it is."""
    with job.screen.step("Starting the dashboard") as facts:
        member = job.fleet.start("dashboard", "trunq_demo.member", "web", "--port", "0", "--json")
        while not (said := WHERE.search(member.log.read_text())):
            job.fleet.check()
            time.sleep(LOOK / 4)
        facts.append(f"live at http://{said['host']}:{said['port']}/ until the database stops")


def await_query(job: Run) -> None:
    """Wait until the Spark query runs, so that it follows the replay from the beginning."""
    # It takes half a minute: somebody who watches should know what for.
    with job.screen.step("Waiting for Spark: it starts a Java machine, opens the queue and plans its query"):
        while not (job.place.checkpoint / "metadata").exists():
            job.fleet.check()
            time.sleep(LOOK / 4)


def read(screen: Screen) -> tuple[list[Flight], Expectation]:
    """Read the input and compute the expected numbers in plain Python."""
    with screen.step("Reading the flights of 2013") as facts:
        year = flights.in_time_order(flights.read())
        expected = expectation.expect(year)
        facts.append(f"{len(year):,}")
    return year, expected


def replay(job: Run, year: list[Flight], spark: Member) -> float:
    """Replay the year and wait until every message is answered and in the lake; returns its seconds."""
    office.count_from_now(job.client)
    with job.screen.bars(len(year)) as bars, Replay(job.dsn, year, job.seconds) as publisher:
        while publisher.took is None:
            publisher.check()
            look(job, publisher.count, bars)
            time.sleep(LOOK)
        spark.tell("finish")
        while not look(job, publisher.count, bars) or spark.process.poll() is None:
            time.sleep(LOOK)
        bars.show("in the lake", collect.lake_rows(job.place.lake))
    return publisher.took


def close_books(job: Run) -> None:
    """Have a handler add up what is owed: one attempt fails on the way, the next goes on from there."""
    with job.screen.step("Closing the books") as facts:
        id = job.client.publish(office.OFFICE, kind="books")
        failed_at = office.await_books(job.client, id)
        books = office.books(job.client)
        facts.append(f"{books.carriers} carriers")
        if failed_at is not None:
            facts.append(f"the first attempt failed at {failed_at:.0f} %, the second went on from there")
    with job.screen.step("Ending the schedule") as facts:
        office.await_counts(job.client)
        facts.append(f"it had the flights counted {office.counts(job.client):,} times")


def look(job: Run, published: int, bars: Bars) -> bool:
    """Update the progress bars; returns whether all messages are answered. Raises if a process died."""
    job.fleet.check()
    queue = next(row for row in job.client.status(QUEUE) if row.subscription == "default")
    unanswered = queue.ready + queue.leased + queue.delayed
    bars.show("published", published)
    bars.show("answered", published - unanswered)
    in_lake = collect.lake_rows(job.place.lake)
    bars.show("in the lake", in_lake)
    bars.tell(
        waiting=display.count(queue.ready, "ready" in queue.estimated),
        for_up_to=span(queue.oldest_ready),
        put_off=f"{queue.delayed:,}",
        dead=f"{queue.dead:,}",
        counted_by_schedule=f"{office.counts(job.client):,} times",
        **({} if in_lake else {"spark": "is writing its first batch"}),
    )
    return unanswered == 0


def gather(
    job: Run, expected: Expectation, second: Act, started_at: datetime, replay_seconds: float
) -> Evidence:
    """Collect the results and compare them with the expected numbers."""
    place = job.place
    with job.screen.step("Counting") as facts, psycopg.connect(job.dsn, autocommit=True) as connection:
        collect.prepare(connection)
        found, lake, cells = collect.count(connection), collect.lake(place.lake), collect.cells(connection)
        timeline = collect.timeline(connection)
        books = office.books(job.client)
        checks = collect.checks(expected, found, books, lake, cells)
        figures = json.loads(place.figures.read_text())
        evidence = Evidence(
            started_at=started_at,
            seconds=(datetime.now(UTC) - started_at).total_seconds(),
            replay_seconds=replay_seconds,
            published=found.published,
            handled=found.handled,
            retried=found.retried,
            rejected=found.rejected,
            given_up=found.given_up,
            compensated=found.bookings,
            compensation=found.euros,
            counted=found.counted,
            most_unanswered=found.most_unanswered,
            carriers=books.carriers,
            went_on_from=books.went_on_from,
            workers=WORKERS,
            latency=collect.latency(connection),
            peak_answered=max(second.answered for second in timeline),
            lake_rows=lake.rows,
            lake_files=lake.files,
            lake_batches=figures["batches"],
            timeline=timeline,
            outcomes=collect.outcomes(found),
            cells=cells,
            months=lake.months,
            checks=checks,
            act=second,
            airlines=flights.airlines(),
            versions=versions(connection, figures),
            places={
                "Report": short(place.report),
                "Lake": f"{short(place.lake)}, a Delta table, partitioned by month; and {short(place.month)}",
                "Database": f"{short(place.database)}, stopped now; a command below starts it, at",
                "": job.dsn,
            },
            commands=commands(place),
        )
        compared = [*checks, *second.checks]
        holding = sum(check.holds for check in compared)
        facts.append(f"{holding} of {len(compared)} numbers are the same in the input and in this run")
    return evidence


def versions(connection: psycopg.Connection[Any], figures: dict[str, Any]) -> dict[str, str]:
    """The versions of the software in the run."""
    server = connection.info.parameter_status("server_version") or ""
    return {
        "trunq": version("trunq"),
        "Postgres": server.split(" ")[0],
        "Spark": str(figures["spark"]),
        "Java": str(figures["java"]),
    }


def commands(place: Place) -> dict[str, str]:
    """Commands that show the results, with paths as they work here, and what each shows."""
    programs = Path(sys.executable).parent
    trunq, python = (_typed(programs / name) for name in ("trunq", "python"))
    where = f"--embedded --directory {short(place.database)}"
    lake = f"from deltalake import DeltaTable; print(DeltaTable('{short(place.lake)}').to_pyarrow_table())"
    return {
        f"{trunq} web {where}": "all of it in a browser; the database runs until Ctrl-C",
        f"{trunq} status {where}": "the queue and its readers; the database runs meanwhile",
        f"{trunq} dead list {QUEUE} {where}": "what was given up, and why",
        f"{trunq} message list {QUEUE} {where}": "what became of each message",
        f'{python} -c "{lake}"': "the lake table",
        f"{trunq} pipeline show departures {where}": "the pipeline whose runner was killed, and its runs",
        f"{trunq} pipeline quarantine departures {where}": "what it kept out, and why",
        f"{trunq} pipeline instances boards {where}": "the airports, customers of one pipeline",
    }


def _typed(program: Path) -> str:
    """The shortest way to start a program from here: its name, if the PATH finds this very program."""
    return program.name if shutil.which(program.name) == str(program) else short(program)


def short(path: Path) -> str:
    """The path, relative to the current directory where possible."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def span(waited: timedelta | None) -> str:
    """How long the oldest waiting message has waited."""
    seconds = waited.total_seconds() if waited is not None else 0.0
    return f"{seconds:.1f} s" if seconds >= 1 else f"{max(seconds, 0) * 1000:.0f} ms"
