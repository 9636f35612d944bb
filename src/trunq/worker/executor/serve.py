"""A worker on an executor: what each task of Spark does."""

from __future__ import annotations

import logging
import pkgutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import psycopg

from trunq.connection.address import address
from trunq.connection.backoff import first_line, retrying
from trunq.errors import TrunqError
from trunq.spark.connection import redact
from trunq.worker import Statistics, Worker
from trunq.worker.executor.line import Line, Number, own_place
from trunq.worker.executor.ship import forget_other

log = logging.getLogger("trunq.worker")

_PATIENCE: Final = 60.0
"""Seconds for which a worker waits for the database at its start, as it does for ever later on."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What every task is told. It names no database: the address travels in the environment of tasks."""

    app: str
    archive: str | None
    options: dict[str, Any]
    has_address: bool
    """Whether that of the environment goes before the one in the user's code."""
    number: Number
    level: int
    """Of what the driver is to hear."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a worker ended, and what it had done."""

    worker: str
    host: str
    process: int
    statistics: dict[str, int]


def serve(plan: Plan, index: int, rows: Iterator[Any]) -> Iterator[Ended]:
    """Run a worker until it has nothing to do, or the driver stops it; what it did.

    What no other try would change is told to the driver. What is raised, such as a connection that was
    lost, Spark tries again.
    """
    del rows
    from pyspark import TaskContext  # noqa: PLC0415

    context = TaskContext.get()
    assert context is not None
    # Each try of Spark's has another number: a new worker, which takes nothing from a former one that lives.
    number = f"{index + 1}-{context.taskAttemptId()}"
    line = Line(plan.number, number)
    try:
        worker = load(plan, number)
        line.attach(worker)
        _run(worker, plan, line)
        yield Ended(number, **own_place(), statistics=asdict(worker.statistics))
    except psycopg.OperationalError:
        raise
    except TrunqError as error:
        line.fail(type(error).__name__, error.message, error.hint)
    except Exception as error:
        line.fail(type(error).__name__, redact(first_line(error), address()), None)
    finally:
        line.hang_up()


def load(plan: Plan, number: str) -> Worker:
    """The worker of the user's module, set up as the plan says. Raises TypeError for anything else."""
    if plan.archive is not None:
        forget_other(plan.app.partition(":")[0].partition(".")[0], plan.archive)
    worker = pkgutil.resolve_name(plan.app)
    if not isinstance(worker, Worker):
        raise TypeError(f"{plan.app} is a {type(worker).__name__}, not a trunq Worker")
    for option, value in plan.options.items():
        setattr(worker, option, value)
    if plan.has_address:
        worker.dsn = None
    if (name := plan.options.get("name")) is not None:
        worker.name = f"{name}-{number}"
    # Spark uses a process, and so the module, for one task after the other.
    worker.statistics = Statistics()
    return worker


def _run(worker: Worker, plan: Plan, line: Line) -> None:
    line.setLevel(plan.level)
    before = log.level
    log.setLevel(min(plan.level, log.getEffectiveLevel()))
    log.addHandler(line)
    tries = retrying(
        also=psycopg.OperationalError,
        within=_PATIENCE,
        is_over=lambda: line.is_stopping,
        say=lambda error, _, pause: log.debug("trying again in %.1f s: %s", pause, first_line(error)),
    )
    try:
        tries(worker.run)
    except psycopg.OperationalError:
        if not line.is_stopping:
            raise
    finally:
        log.removeHandler(line)
        log.setLevel(before)
