"""The second act: pipelines keep a lake up with a table that is being changed, and the runner is killed.

July's flights are written into a table, the weather comes as files, the register of aircraft answers by HTTP;
pipelines (lake.py) bring them together. In the middle of a run that uses Spark, the runner gets a kill -9.
Another one goes on. One more pipeline has three customers, airports whose boards it copies (board.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from trunq import Client
from trunq.record.pipeline import PipelineRun
from trunq_demo import api, board, customer, flights, lake, month, refund, sums, weather
from trunq_demo.board import Boards
from trunq_demo.customer import Copied
from trunq_demo.evidence import Act, Kept, PipelineLine, Told
from trunq_demo.fleet import Fleet, Member, ProcessDied
from trunq_demo.flights import Flight
from trunq_demo.place import Place
from trunq_demo.screen import Screen
from trunq_demo.sums import Run
from trunq_demo.writer import Writers

PIPELINES = "pipelines"
SPREAD = 8.0
"""Seconds over which the writers write a third: before the pipelines, with them, and after the kill."""
MIDDLE = 10.0
"""Seconds at most until a run that has begun has tasks of Spark, which it says each second."""
LOOK = 0.05
MANY = 1000
"""More runs than there are."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What the steps of the act use."""

    place: Place
    screen: Screen
    dsn: str
    client: Client
    fleet: Fleet


def play(stage: Stage, year: list[Flight]) -> Act:
    """Play the act and return what it left. Raises ProcessDied."""
    some, hours = month.flights_of(year), month.weather()
    started = time.monotonic()
    with api.serving(month.planes()) as register:
        _prepare(stage, register)
        weather.write_in_time(hours, stage.place.incoming)
        runner = _start(stage, 1)
        with Writers(stage.dsn, some, SPREAD) as writers:
            _land(stage, register)
            writers.go_on()
            killed = _kill(stage, runner)
            runner = _start(stage, 2)
            _go_on(stage, killed)
            writers.go_on()
            copied = _copy_boards(stage, some)
            _follow(stage, writers)
            weather.write_late(hours, stage.place.incoming)
            _catch_up(stage)
        with stage.screen.step("Stopping the runner"):
            stage.fleet.stop(runner)
    return _gather(stage, some, killed, register, copied, time.monotonic() - started)


def open_queues(client: Client) -> None:
    """Drop the pipelines of a run before, and make the queue of delays, which the workers serve."""
    if PIPELINES in {queue.queue for queue in client.list_queues()}:
        client.drop_queue(PIPELINES, force=True)
    known = {row.pipeline for row in client.list_pipelines()}
    for name in (board.PIPELINE, "planes", "weather", "departures", "by_airline", "late"):
        if name in known:
            client.drop_pipeline(name)
    refund.open_queue(client)


def _prepare(stage: Stage, register: api.Register) -> None:
    """Make the pipelines; what needs the planes waits until they have landed."""
    with stage.screen.step("Second act: making six pipelines") as facts:
        with psycopg.connect(stage.dsn, autocommit=True) as connection:
            connection.cursor().executemany(
                "insert into demo.airline (carrier, name) values (%s, %s)", [*flights.airlines().items()]
            )
        # The first one has customers: the queue of pipelines is made with lanes, by which they take turns.
        for pipeline in (board.pipeline(), *lake.pipelines(stage.place, register.url)):
            stage.client.create_pipeline(pipeline.name, pipeline.definition)
        stage.client.pause_pipeline("departures")
        stage.fleet.environment[lake.TOKEN] = api.TOKEN
        facts.append(f"{month.NAME}: a table, files and an API into lake, tables and a queue")


def _start(stage: Stage, number: int) -> Member:
    return stage.fleet.start(
        f"runner {number}",
        "trunq_demo.member",
        *("worker", "trunq.pipeline.runner:worker", "--name", "runner", "--grace", "15s"),
    )


def _land(stage: Stage, register: api.Register) -> None:
    """Run what others look up, once."""
    with stage.screen.step("Landing planes and weather, when Spark has started") as facts:
        _await(stage, stage.client.run_pipeline("planes"), stage.client.run_pipeline("weather"))
        facts.append(
            f"the API was called {register.calls} times, refused {register.refused}"
            f" and failed {register.failed}"
        )
        stage.client.resume_pipeline("departures")


def _kill(stage: Stage, runner: Member) -> set[Run]:
    """Kill the runner in the middle of a run that uses Spark; the runs that it leaves open."""
    with stage.screen.step("Killing the runner while it writes the lake") as facts:
        while (run := _newest(stage.client)) is None or not run.attempts:
            _look(stage)
        until = time.monotonic() + MIDDLE
        while run.outcome is None and not (run.progress or {}).get("tasks") and time.monotonic() < until:
            time.sleep(LOOK)
            run = _newest(stage.client) or run
        stage.fleet.kill(runner)
        facts.append(f"kill -9 in run {run.number} of {run.pipeline}")
        left = [run, *(each for each in stage.client.list_runs(limit=MANY) if each.outcome is None)]
    return {(each.pipeline, each.number) for each in left}


def _newest(client: Client) -> PipelineRun | None:
    """The newest run of the pipeline that writes the lake."""
    return next(iter(client.list_runs("departures", limit=1)), None)


def _go_on(stage: Stage, killed: set[Run]) -> None:
    """Until another runner has ended what was left open."""
    with stage.screen.step("Starting another runner, which ends what that one left"):
        while any(
            run.outcome is None
            for run in stage.client.list_runs(limit=MANY)
            if (run.pipeline, run.number) in killed
        ):
            _look(stage)


def _copy_boards(stage: Stage, some: Sequence[Flight]) -> Copied:
    """While the airports write their boards, copy them, until one has brought all that it may on a day."""
    with (
        stage.screen.step("Copying the boards of three airports, customers of one pipeline") as facts,
        Boards(stage.dsn, stage.client, some) as boards,
    ):
        while not boards.are_done:
            _look(stage)
        *most, last = boards.asked[board.THROTTLED.code]
        others = [id for code, ids in boards.asked.items() if code != board.THROTTLED.code for id in ids]
        _await(stage, *most, *others)
        warning = _await_limit(stage, last)
        facts += [f"{row.value} {row.runs} runs" for row in stage.client.list_instances(board.PIPELINE)]
    with stage.screen.step(f"Raising the limit of a day, which {board.THROTTLED.name} has reached"):
        stage.client.create_pipeline(board.PIPELINE, board.pipeline(board.RAISED).definition)
        # What is put off would come by itself, within ten minutes.
        again = stage.client.run_pipeline(board.THROTTLED.instance)
        stage.client.cancel(PIPELINES, [last])
        stage.client.purge(PIPELINES, ids=[last])
        _await(stage, again)
    return Copied(boards.asked, last, again, warning)


def _await_limit(stage: Stage, id: int) -> str | None:
    """Until a request is put off; what is told of it. At midnight the limit begins anew: then nothing is."""
    while stage.client.show_message(PIPELINES, id)[0].state != "done":
        for row in stage.client.list_warnings(PIPELINES):
            if f'"{board.THROTTLED.instance}"' in row.warning:
                return row.warning
        _look(stage)
    return None


def _follow(stage: Stage, writers: Writers) -> None:
    """Until all is written."""
    with stage.screen.step("Following the writers"):
        while not writers.are_done:
            _look(stage)


def _catch_up(stage: Stage) -> None:
    """Until all has arrived, and each delay is compensated."""
    with stage.screen.step("Reading the late file, and what was written last") as facts:
        asked = [stage.client.run_pipeline(name) for name in ("weather", "departures", "late")]
        _await(stage, *asked)
        # What was read last is in the aggregate.
        _await(stage, stage.client.run_pipeline("by_airline"))
        while any(row.ready + row.leased + row.delayed for row in stage.client.status(PIPELINES)):
            _look(stage)
        facts.append(f"{len(stage.client.list_runs(limit=MANY))} runs in all")
    with stage.screen.step("Compensating the delays"):
        refund.await_refunds(stage.client, stage.fleet)


def _await(stage: Stage, *ids: int) -> None:
    """Wait for the runs that messages ask for."""
    for id in ids:
        while stage.client.show_message(PIPELINES, id)[0].state != "done":
            _look(stage)


def _look(stage: Stage) -> None:
    """Between two looks. Raises ProcessDied if a process ended, or a run was given up."""
    stage.fleet.check()
    for message in stage.client.list_dead(PIPELINES, limit=1):
        raise ProcessDied(f"Pipeline {message.kind} failed: {message.errors[-1]['error']}")
    time.sleep(LOOK)


def _gather(
    stage: Stage,
    some: Sequence[Flight],
    killed: set[Run],
    register: api.Register,
    copied: Copied,
    seconds: float,
) -> Act:
    """Count what the act left, and compare it with the input."""
    client = stage.client
    with psycopg.connect(stage.dsn, autocommit=True) as connection:
        checks = sums.compare(sums.expect(some, len(killed)), sums.find(connection, stage.place, killed))
        checks += customer.compare(connection, some)
    every = sorted(client.list_runs(limit=MANY), key=lambda run: run.begun_at)
    runs = [run for run in every if not run.pipeline.startswith(f"{board.PIPELINE}/")]
    first = runs[0].begun_at
    return Act(
        month=month.NAME,
        seconds=seconds,
        api=Told(register.calls, register.refused, register.failed),
        runs=[
            PipelineLine(
                at=(run.begun_at - first).total_seconds(),
                pipeline=run.pipeline,
                number=run.number,
                after=run.started_by,
                attempts=run.attempts,
                rows_in=run.rows_in or 0,
                rows_out=run.rows_out or 0,
                rows_bad=run.rows_bad or 0,
                seconds=((run.ended_at or run.begun_at) - run.begun_at).total_seconds(),
                outcome=run.outcome or "open",
                was_killed=(run.pipeline, run.number) in killed,
            )
            for run in runs
        ],
        kept=[
            Kept(name, row.reason, row.quarantined)
            for name in ("departures", "weather")
            for row in client.count_quarantine(name)
        ],
        customers=customer.gather(client, copied),
        checks=checks,
    )
