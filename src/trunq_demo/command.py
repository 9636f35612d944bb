"""trunq demo: the main job and pipelines, end to end, on real input."""

from __future__ import annotations

import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from trunq.cli.ground import option
from trunq.cli.ground.failure import Interrupted, Mistake
from trunq.cli.ground.output import err, out, write_json

if TYPE_CHECKING:
    from rich.console import Console

    from trunq_demo.evidence import Evidence

EXAMPLES = (
    "trunq demo",
    "# The year in 20 seconds, somewhere else",
    "trunq demo /tmp/demo --replay 20",
    "# Live in a browser",
    "trunq demo --web",
)


def register(app: typer.Typer) -> None:
    """Add the command to those of trunq: the entry point of the group `trunq.commands`."""
    option.verb(app, "demo", *EXAMPLES, panel=option.panel("demo"))(demo)


def demo(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Where database, lake table and report go; a run replaces the one before."
        ),
    ] = Path("demo"),
    replay: Annotated[
        float,
        typer.Option(
            "--replay", min=0, metavar="SECONDS", help="How long the year takes; 0: as fast as it goes."
        ),
    ] = 100.0,
    web: Annotated[
        bool,
        typer.Option("--web", metavar=option.FLAG, help="Show it in a browser while it runs: trunq web."),
    ] = False,
    json: option.Json = False,
) -> None:
    """Send 336,776 real flights through a queue, and see what becomes of them.

    On a Postgres of its own, which it starts: every flight that left New York in 2013 is published, two
    worker processes handle them, some fail, are retried and end as dead messages; a Spark query reads the
    same queue exactly once into a lake table and computes an aggregate. In a second act pipelines bring a
    month of them, in a table that writers go on changing, with weather, aircraft and airports into a lake,
    and their runner is killed once. A report shows it all. It takes about four minutes.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        evidence = _run(directory, replay, err if json else out, web)
    except KeyboardInterrupt:
        raise Interrupted(
            f"Stopped, and nothing was left running. trunq demo {directory} starts over."
        ) from None
    if json:
        write_json(asdict(evidence))
    else:
        _tell(evidence)
    if not evidence.holds:
        raise Mistake(
            "Some numbers are not the same in the input and in this run: see the end of the report."
        )


def _run(directory: Path, replay: float, console: Console, web: bool) -> Evidence:
    try:
        from trunq_demo.fleet import ProcessDied
        from trunq_demo.flights import InputMissing
        from trunq_demo.place import PlaceUnusable
        from trunq_demo.run import run
    except ModuleNotFoundError as error:
        raise Mistake(f"The demo needs {error.name}, which is not here: pip install 'trunq[demo]'.") from None
    try:
        return run(directory, replay, console, web)
    except (InputMissing, PlaceUnusable, ProcessDied) as error:
        raise Mistake(str(error)) from None


def _tell(evidence: Evidence) -> None:
    out.print()
    for what, value in evidence.places.items():
        out.print(f"  [bold]{escape(what):<9}[/bold] {escape(value)}")
    out.print("\n  Look further:")
    for command, what in evidence.commands.items():
        out.print(f"\n  [dim]# {escape(what)}[/dim]\n  {escape(command)}")
