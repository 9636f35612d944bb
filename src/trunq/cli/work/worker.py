"""trunq worker: run the worker of an application."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from trunq import display
from trunq.cli.application import load, load_ranks
from trunq.cli.ground import completion, option
from trunq.cli.ground.database import address
from trunq.cli.ground.failure import Mistake, explain
from trunq.cli.ground.logs import LogFormat, LogLevel, Verbose, log_to_stderr
from trunq.cli.ground.output import write_json
from trunq.cli.work.ask import Ask
from trunq.cli.work.executor import OnSpark, run_on_spark
from trunq.cli.work.push import Push, worker_of
from trunq.cli.work.supervisor import Supervisor
from trunq.process import signals
from trunq.wire.name import own_name
from trunq.worker import UnknownKinds, Worker

log = logging.getLogger("trunq.worker")

EXAMPLES = (
    "# shop.py: worker = Worker('orders'), functions with @worker.handler('kind')",
    "trunq worker shop:worker",
    "# 50 handlers at a time; its own messages back at once after a restart",
    "trunq worker shop:worker --concurrency 50 --name shop-1",
    "# Four workers, shop-1 to shop-4; one that dies is started again",
    "trunq worker shop:worker --processes 4 --name shop",
    "# In Kubernetes: it has ended before the pod is killed",
    "trunq worker shop:worker --grace 25s --health 8080",
    "# Another queue with the same handlers",
    "trunq worker shop:worker --queue orders_eu --subscription audit",
    "# Only a part of what the others get: each message goes to one of them",
    "trunq worker shop:worker --kind mail --key-prefix eu- --header country=CZ",
    "# As a batch job; status 3: some died, or have no handler",
    "trunq worker shop:worker --until-empty",
    "# The same, waiting for retries and delays too",
    "trunq worker shop:worker --until-idle",
    "# On a Spark cluster, a worker for each core of its executors",
    "trunq worker shop:worker --spark spark://host:7077",
    "# Each message is posted to a URL, and its status is the answer",
    "trunq worker --push https://shop.example/work --queue orders",
    "# For a collector of logs",
    "trunq worker shop:worker --log-format json",
)

UNFINISHED: Final = 3
"""Exit status of a worker that found nothing left, while some messages had not succeeded."""


def worker(
    app: Annotated[
        str | None,
        typer.Argument(metavar="MODULE:APP", help="Where the Worker is: a module and a name in it."),
    ] = None,
    queues: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            "-q",
            metavar="NAME",
            help="A queue to serve; may be repeated (default: those of the Worker in your code).",
            autocompletion=completion.queues,
        ),
    ] = None,
    subscription: Annotated[
        str | None,
        typer.Option(
            "--subscription",
            "-s",
            metavar="NAME",
            help="The subscription it reads (default: that of the Worker in your code).",
            autocompletion=completion.subscriptions,
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", min=1, help="How many handlers run at a time (default: 10)."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="A name only one process has at a time: started again, it gets back what it had leased "
            "(default: one of host and process).",
        ),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            min=1,
            help="How many workers it starts and keeps alive, each with its number after the name "
            "(default: itself alone).",
        ),
    ] = None,
    until_empty: Annotated[
        bool,
        typer.Option(
            "--until-empty",
            metavar=option.FLAG,
            help="End when nothing waits or runs; what is delayed is left for later.",
        ),
    ] = False,
    until_idle: Annotated[
        bool,
        typer.Option(
            "--until-idle", metavar=option.FLAG, help="End when nothing waits, runs or is delayed any more."
        ),
    ] = False,
    poll: Annotated[
        timedelta | None,
        typer.Option(
            "--poll",
            parser=option.interval,
            metavar="INTERVAL",
            help="How often an idle worker polls (default: 5s; 1s where nothing can wake it).",
        ),
    ] = None,
    grace: Annotated[
        timedelta | None,
        typer.Option(
            "--grace",
            parser=option.interval,
            metavar="INTERVAL",
            help="How long a stop may take; handlers that run longer fail (default: it waits for them).",
        ),
    ] = None,
    max_connections: Annotated[
        int | None,
        typer.Option(
            "--max-connections",
            min=1,
            help="How many connections it may open (default: what it needs; it says how many).",
        ),
    ] = None,
    lead: Annotated[
        bool | None,
        typer.Option(
            "--lead/--no-lead",
            metavar=option.FLAG,
            help="Whether it may become the leader (default: yes).",
            show_default=False,
        ),
    ] = None,
    unknown_kinds: Annotated[
        UnknownKinds | None,
        typer.Option(
            "--unknown-kinds",
            help="Messages whose kind has no handler wait for a worker that has one, or are rejected "
            "(default: wait).",
        ),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            "--ranks",
            metavar="MODULE:RANKS",
            help="Functions by which lanes are ranked, as `trunq leader` takes them "
            "(default: those of the Worker in your code).",
        ),
    ] = None,
    health: Annotated[
        str | None,
        typer.Option(
            "--health",
            metavar="[HOST:]PORT",
            help="Answer an orchestrator there: GET /healthz, /readyz (default: nowhere).",
        ),
    ] = None,
    shuffle: Annotated[
        bool | None,
        typer.Option(
            "--shuffle/--no-shuffle",
            metavar=option.FLAG,
            help="Whether it handles messages in random order, the next 1,000 mixed (default: no).",
            show_default=False,
        ),
    ] = None,
    *,
    context: typer.Context,
    ask: Ask,
    on_spark: OnSpark,
    push: Push,
    database: option.Database,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    verbose: Verbose = False,
    json: Annotated[
        bool, typer.Option("--json", metavar=option.FLAG, help="Print what was done as JSON at the end.")
    ] = False,
) -> None:
    """Run a worker: it leases messages, calls your handlers and answers for them.

    SIGTERM or Ctrl-C lets it finish running handlers and give back the other messages; a second one ends
    it at once. Start as many workers as you like, on any machine. Options given here override those of
    the Worker in your code. With --processes it runs several and only watches over them; each prints its
    own --json.

    With --kind, --key-prefix or --header it leases only messages that match, and sets others that it
    finds aside for the other workers of the subscription. With --until-empty or --until-idle it ends when
    no message that it asks for is left.

    With --push you need no code: each message is posted to a URL, signed with the secret in
    TRUNQ_PUSH_SECRET. 2xx is done, 202 waits for a callback, 410 is dead, 429 and 503 run again after
    their Retry-After, and all else runs again by the policy.

    It logs a line for each attempt that did not succeed: attempt, kind, time of the next try, error. With
    --until-empty or --until-idle it ends with status 3 when messages died, or wait for a handler.
    """
    found, app = _found(app, queues, push)
    given = {
        "queues": tuple(queues) if queues else None,
        "subscription": subscription,
        "concurrency": concurrency,
        "name": name,
        "poll": poll,
        "grace": grace,
        "max_connections": max_connections,
        "lead": lead,
        "unknown_kinds": unknown_kinds,
        "shuffle": shuffle,
        "ranks": None if ranks is None else load_ranks(ranks),
        "asks": ask.given(),
        "health": health,
    }
    for attribute, value in given.items():
        if value is not None:
            setattr(found, attribute, value)
    found.until_empty = found.until_empty or until_empty
    found.until_idle = found.until_idle or until_idle
    log_to_stderr(log_level, log_format, is_verbose=verbose)
    if on_spark.spark is not None:
        if push.url is not None:
            raise Mistake("--push posts from here, --spark runs handlers on a cluster: give one of them.")
        if processes is not None:
            raise Mistake("--processes starts workers here, --spark --tasks on a cluster: give one of them.")
        if given.pop("health") is not None:
            raise Mistake("--health is for a worker here; Spark looks after its executors itself.")
        _spread(found, app, on_spark, given, database, json)
        return
    if processes is not None and health is not None:
        raise Mistake("--health is of one process: let the orchestrator start several, without --processes.")
    if processes is not None and signals.orders is None:
        _supervise(found, context.obj, processes, database)
        return
    if found.dsn is not None and not database.is_given:
        _run(found, app, json)
        return
    with address(database) as found.dsn:
        _run(found, app, json)


def _found(app: str | None, queues: list[str] | None, push: Push) -> tuple[Worker, str]:
    if app is not None and push.url is not None:
        raise Mistake("A worker has handlers or posts messages: give MODULE:APP or --push, not both.")
    if app is None and push.url is None:
        raise Mistake("Say which worker to run, MODULE:APP, or with --push where messages are posted.")
    return (load(app), app) if app is not None else (worker_of(push, queues), "--push")


def _spread(
    found: Worker, app: str, on_spark: OnSpark, options: dict[str, Any], database: option.Database, json: bool
) -> None:
    """Run the workers on executors."""
    if options.pop("ranks") is not None:
        raise Mistake("Lanes are ranked by one process: say --ranks to trunq leader.")
    until = {"until_empty": found.until_empty, "until_idle": found.until_idle}
    options["grace"] = found.grace
    done = run_on_spark(app, on_spark, {**options, **until}, found.dsn, database)
    if json:
        write_json(done)
    found.statistics.dead, found.statistics.unhandled = done["dead"], done["unhandled"]
    _end(found)


def _supervise(found: Worker, arguments: list[str], processes: int, database: option.Database) -> None:
    # An embedded database is to be there for all of them.
    ours = nullcontext() if found.dsn is not None and not database.is_given else address(database)
    done = (0, UNFINISHED) if _is_batch(found) else ()
    supervisor = Supervisor(arguments, found.name or own_name(), processes, done)
    with ours:
        statuses: list[int] = []

        async def supervise() -> None:
            statuses.append(await supervisor.run())

        signals.run_with_signals(supervise, supervisor.stop)
    raise typer.Exit(statuses[0])


def _run(found: Worker, app: str, json: bool) -> None:
    try:
        found.run()
    except ValueError as error:
        raise Mistake(f"{app} cannot run: {explain(error) or f'{error}.'}") from None
    statistics = found.statistics
    if json:
        write_json(asdict(statistics))
    _end(found)


def _is_batch(found: Worker) -> bool:
    return found.until_empty or found.until_idle


def _end(found: Worker) -> None:
    statistics = found.statistics
    if _is_batch(found) and statistics.dead + statistics.unhandled > 0:
        _tell_unfinished(found)
        raise typer.Exit(UNFINISHED)


def _tell_unfinished(found: Worker) -> None:
    queues, statistics = " or ".join(found.queues), found.statistics
    if dead := statistics.dead:
        log.error(
            "%s: trunq dead list %s shows why",
            display.counted(dead, "message died", "messages died"),
            queues,
        )
    if waiting := statistics.unhandled:
        log.error(
            "%s for a worker with a handler: trunq message list %s shows the kinds",
            display.counted(waiting, "message waits", "messages wait"),
            queues,
        )
