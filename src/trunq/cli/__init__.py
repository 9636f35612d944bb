"""The command `trunq`: one file a noun.

Results go to stdout, everything else to stderr. A command that cannot be done ends with one sentence that
says why and what to do, and status 1; one that was not understood with status 2; one that was interrupted
with 130.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version as installed_version
from typing import Annotated, NoReturn

try:
    import typer
except ModuleNotFoundError:
    sys.exit("The command trunq needs typer and rich: pip install 'trunq[cli]'.")

from rich.markup import escape

from trunq.cli import db, dead, demo, leader, message, option, publish, queue, status, worker
from trunq.cli.failure import Interrupted, explain
from trunq.cli.output import err

app = typer.Typer(
    name="trunq",
    cls=option.Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=option.examples(
        "# Everything at once, on a Postgres it brings along",
        "trunq demo",
        "# Step by step, on a Postgres of your own in ./.trunq (or set TRUNQ_DSN and leave --embedded out)",
        "trunq queue create mail --embedded",
        """trunq publish mail '{"to": "ada@example.com"}' --kind welcome --embedded""",
        "trunq status --once --embedded",
    ),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trunq {installed_version('trunq')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", metavar=option.FLAG, callback=_print_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    """A queue and event-stream system that lives inside Postgres.

    The database is named by --dsn or TRUNQ_DSN, or is one of your own with --embedded. Each command has
    --help with examples.
    """


for name, function, examples in (
    ("demo", demo.demo, demo.EXAMPLES),
    ("publish", publish.publish, publish.EXAMPLES),
    ("worker", worker.worker, worker.EXAMPLES),
    ("leader", leader.leader, leader.EXAMPLES),
    ("status", status.status, status.EXAMPLES),
):
    option.verb(app, name, *examples)(function)
for name, group in (("db", db.app), ("queue", queue.app), ("message", message.app), ("dead", dead.app)):
    app.add_typer(group, name=name)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(option.spell_out(given), prog_name="trunq", standalone_mode=True)
    except KeyboardInterrupt:
        _end(130)
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _end(1)
    except Exception as error:  # what is not explained is raised again
        sentence = explain(error)
        if sentence is None:
            raise
        interrupted = isinstance(error, Interrupted)
        err.print(escape(sentence) if interrupted else f"[red]error:[/red] {escape(sentence)}")
        _end(130 if interrupted else 1)
    _end(0)


def _end(status: int) -> NoReturn:
    raise SystemExit(status)
