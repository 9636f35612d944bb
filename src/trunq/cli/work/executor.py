"""trunq worker --spark: workers on the executors of a Spark cluster."""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from trunq.cli.ground.database import address
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.option import Database
from trunq.process import signals

PANEL: Final = "On a Spark cluster"

log = logging.getLogger("trunq.worker")


@dataclass(frozen=True, slots=True)
class OnSpark:
    """Whether the workers run on Spark, and how."""

    spark: Annotated[
        str | None,
        typer.Option(
            "--spark",
            metavar="MASTER",
            rich_help_panel=PANEL,
            help="Run workers on its executors: spark://host:7077, k8s://..., local[4].",
        ),
    ] = None
    tasks: Annotated[
        int | None,
        typer.Option(
            "--tasks",
            min=1,
            rich_help_panel=PANEL,
            help="How many workers (default: as many as executors have cores).",
        ),
    ] = None
    archives: Annotated[
        str | None,
        typer.Option(
            "--archives",
            metavar="FILE#NAME",
            rich_help_panel=PANEL,
            help="The environment for executors, packed by venv-pack (default: that of the same path).",
        ),
    ] = None
    py_files: Annotated[
        list[Path] | None,
        typer.Option(
            "--py-files",
            metavar="FILE",
            rich_help_panel=PANEL,
            help="Another .py or .zip that your module imports; may be repeated.",
        ),
    ] = None
    spark_conf: Annotated[
        list[str] | None,
        typer.Option(
            "--spark-conf",
            metavar="NAME=VALUE",
            rich_help_panel=PANEL,
            help="A setting of Spark, such as spark.executor.memory=2g; may be repeated.",
        ),
    ] = None


def run_on_spark(
    app: str, asked: OnSpark, options: dict[str, Any], own_address: str | None, database: Database
) -> dict[str, Any]:
    """Run workers on a cluster until they are stopped, or have nothing to do. Returns what they have done."""
    try:
        from trunq.spark import session  # noqa: PLC0415  # an extra
        from trunq.spark.launch.cluster import is_local  # noqa: PLC0415
        from trunq.worker import executor  # noqa: PLC0415

        logging.getLogger("py4j").setLevel(logging.WARNING)
        conf = {"spark.task.maxFailures": str(executor.TRIES), **_conf(asked.spark_conf or ())}
        master = str(asked.spark)
        if not is_local(master) and database.embedded:
            raise Mistake("An embedded Postgres is there for this machine alone: give --dsn to executors.")
        ours = nullcontext() if own_address is not None and not database.is_given else address(database)
        with ours as dsn:
            spark = session(f"trunq worker {app}", master, conf=conf, archives=asked.archives)
            try:
                files = [str(file) for file in asked.py_files or ()]
                workers = executor.spread(
                    app, spark, tasks=asked.tasks, py_files=files, dsn=dsn or None, **options
                )
                _follow(workers)
                done = asdict(workers.wait())
                return {"workers": len(workers.members), "hosts": workers.by_host, **done}
            finally:
                spark.stop()
    except ModuleNotFoundError as error:
        if error.name not in {"pyspark", "py4j"}:
            raise
        raise Mistake("Workers on Spark need pyspark: pip install 'trunq[spark]'.") from None


def _follow(workers: Any) -> None:
    """Wait for the end of all; signals mean what they mean to a worker."""

    async def until_over() -> None:
        while not workers.is_over:  # noqa: ASYNC110  # a thread knows
            await asyncio.sleep(0.1)

    def stop() -> None:
        log.info("stopping: the workers finish what they do; Ctrl-C again ends them")
        workers.stop()

    try:
        signals.run_with_signals(until_over, stop)
    except SystemExit:
        workers.cancel()
        raise
    told = ", ".join(f"{host} {count:,}" for host, count in sorted(workers.by_host.items()))
    log.info("ended: %s handled", told or "none", extra=workers.by_host)


def _conf(given: list[str] | tuple[str, ...]) -> dict[str, str]:
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name.startswith("spark."):
            raise Mistake(f"{each!r} is no setting of Spark: write --spark-conf spark.executor.memory=2g.")
        found[name] = value
    return found
