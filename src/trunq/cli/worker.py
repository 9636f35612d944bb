"""trunq worker: run the worker of an application."""

from __future__ import annotations

import importlib
import logging
import sys
import traceback
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Final

import typer

from trunq.cli import option
from trunq.cli.database import address
from trunq.cli.failure import Mistake, explain
from trunq.cli.logs import LogFormat, LogLevel, Verbose, log_to_stderr
from trunq.cli.output import write_json
from trunq.worker import UnknownKinds, Worker
from trunq.worker.result import headline, users_frames

log = logging.getLogger("trunq.worker")

EXAMPLES = (
    "# shop.py: worker = Worker('orders'), functions with @worker.handler('kind')",
    "trunq worker shop:worker",
    "# 50 handlers at a time; its own messages back at once after a restart",
    "trunq worker shop:worker --concurrency 50 --name shop-1",
    "# In Kubernetes: it has ended before the pod is killed",
    "trunq worker shop:worker --grace 25s",
    "# Until nothing is left, as a batch job; status 3: some died, or wait",
    "trunq worker shop:worker --until-empty",
    "# For a collector of logs",
    "trunq worker shop:worker --log-format json",
)

UNFINISHED: Final = 3
"""Exit status of a worker that found nothing left, while some messages had not succeeded."""


def worker(
    app: Annotated[
        str, typer.Argument(metavar="MODULE:APP", help="Where the Worker is: a module and a name in it.")
    ],
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "-c", min=1, help="How many handlers run at a time.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="A name only one process has at a time: started again, it gets back what it had leased.",
        ),
    ] = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", metavar=option.FLAG, help="End when nothing is left to do.")
    ] = False,
    poll: Annotated[
        timedelta | None,
        typer.Option(
            "--poll",
            parser=option.interval,
            metavar="INTERVAL",
            help="How often an idle worker looks unasked.",
        ),
    ] = None,
    grace: Annotated[
        timedelta | None,
        typer.Option(
            "--grace",
            parser=option.interval,
            metavar="INTERVAL",
            help="How long a stop may take; handlers that run longer fail. Without it, they are waited for.",
        ),
    ] = None,
    max_connections: Annotated[
        int | None,
        typer.Option("--max-connections", min=1, help="How many connections it may open."),
    ] = None,
    lead: Annotated[
        bool | None,
        typer.Option(
            "--lead/--no-lead",
            metavar=option.FLAG,
            help="Whether it stands for election as leader.",
            show_default=False,
        ),
    ] = None,
    unknown_kinds: Annotated[
        UnknownKinds | None,
        typer.Option(
            "--unknown-kinds",
            help="Messages whose kind has no handler wait for a worker that has one, or are rejected.",
        ),
    ] = None,
    *,
    database: option.Database,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    verbose: Verbose = False,
    json: Annotated[
        bool, typer.Option("--json", metavar=option.FLAG, help="Print what was done as JSON at the end.")
    ] = False,
) -> None:
    """Run a worker: it leases messages, calls your handlers and answers for them.

    SIGTERM or Ctrl-C lets it finish what runs and give back what has not started; a second one ends it at
    once. Start as many as you like, on any machine. Options given here overrule those of the Worker in your
    code.

    It says what did not succeed, a line each: attempt, kind, time of the next try, error. With --until-empty
    it ends with status 3 when messages died, or wait for want of a handler.
    """
    found = load(app)
    given = {
        "concurrency": concurrency,
        "name": name,
        "poll": poll,
        "grace": grace,
        "max_connections": max_connections,
        "lead": lead,
        "unknown_kinds": unknown_kinds,
    }
    for attribute, value in given.items():
        if value is not None:
            setattr(found, attribute, value)
    found.until_empty = found.until_empty or until_empty
    log_to_stderr(log_level, log_format, is_verbose=verbose)
    if found.dsn is not None and not database.is_given:
        _run(found, app, json)
        return
    with address(database) as found.dsn:
        _run(found, app, json)


def _run(found: Worker, app: str, json: bool) -> None:
    try:
        found.run()
    except ValueError as error:
        raise Mistake(f"{app} cannot run: {explain(error) or f'{error}.'}") from None
    statistics = found.statistics
    if json:
        write_json(asdict(statistics))
    if found.until_empty and statistics.dead + statistics.unhandled > 0:
        _tell_unfinished(found)
        raise typer.Exit(UNFINISHED)


def _tell_unfinished(found: Worker) -> None:
    queues, statistics = " or ".join(found.queues), found.statistics
    if dead := statistics.dead:
        log.error(
            "%s %s: trunq dead list %s shows why",
            f"{dead:,}",
            "message died" if dead == 1 else "messages died",
            queues,
        )
    if waiting := statistics.unhandled:
        who = "message waits" if waiting == 1 else "messages wait"
        log.error(
            "%s %s for a worker with a handler: trunq message list %s shows the kinds",
            f"{waiting:,}",
            who,
            queues,
        )


def load(app: str) -> Worker:
    """Import the Worker that MODULE:APP names, from the current directory first."""
    module_name, _, attribute = app.partition(":")
    if not module_name or not attribute:
        raise Mistake(
            f"{app!r} does not name a worker. Write module:name, as in shop:worker for the worker of shop.py."
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise _failed_import(module_name, error) from None
    found = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise Mistake(f"The module {module_name} has no {attribute}.{_those_there(module)}") from None
    if not isinstance(found, Worker):
        raise Mistake(f"{app} is a {type(found).__name__}, not a trunq Worker.{_those_there(module)}")
    return found


def _failed_import(module: str, error: Exception) -> Exception:
    """What to raise in place of the error of an import: a sentence, then the user's own lines."""
    if explain(error) is not None:
        return error
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return Mistake(f"There is no module {error.name} here or installed. Is this the right directory?")
    own = users_frames(error)
    places = [] if own is error.__traceback__ else traceback.format_tb(own)
    if isinstance(error, SyntaxError):
        places += traceback.format_exception_only(error)[:-1]
    said = error.msg if isinstance(error, SyntaxError) else None
    what = f"{type(error).__name__}: {said}" if said else headline(error)
    return Mistake(f"{module} cannot be imported: {what}\n{''.join(places)}".rstrip())


def _those_there(module: object) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, Worker)]
    return (
        f" Workers in it: {', '.join(names)}."
        if names
        else " It has no Worker: worker = Worker('queue') makes one."
    )
