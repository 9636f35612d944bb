"""All commands, in one app.

Another package adds a command by an entry point of the group `trunq.commands`: a function that is called with
the app. The demo does.
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from importlib.metadata import version as installed_version
from typing import Annotated

import typer
import typer.rich_utils

from trunq.cli.ground import option
from trunq.cli.keep import archive, statistics, taker
from trunq.cli.lanes import lane
from trunq.cli.log import capture, column, publish, schedule, webhook
from trunq.cli.operate import (
    audit,
    conversion,
    db,
    doctor,
    leader,
    overview,
    role,
    session,
    status,
    subscription,
    web,
)
from trunq.cli.pipeline import backfill as _backfill  # noqa: F401  # commands of pipeline
from trunq.cli.pipeline import compact as _compact  # noqa: F401
from trunq.cli.pipeline import instance as _instance  # noqa: F401
from trunq.cli.pipeline import pipeline
from trunq.cli.pipeline import plan as _plan  # noqa: F401
from trunq.cli.pipeline import schema as _schema  # noqa: F401
from trunq.cli.stream import group, mover
from trunq.cli.work import dead, hold, memo, message, sweep, worker

if os.environ.get("NO_COLOR"):
    typer.rich_utils.COLOR_SYSTEM = None

PLUG_INS = entry_points(group="trunq.commands")
HAS_DEMO = "demo" in PLUG_INS.names
"""Whether its package is installed: who installed the library alone has no `trunq demo`."""

app = typer.Typer(
    name="trunq",
    cls=option.Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=option.examples(
        *(("# Everything at once, on a Postgres it brings along", "trunq demo") if HAS_DEMO else ()),
        "# Step by step, on a Postgres of your own in ./.trunq",
        "# (with TRUNQ_DSN set, leave --embedded out)",
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
    ("publish", publish.publish, publish.EXAMPLES),
    ("worker", worker.worker, worker.EXAMPLES),
    ("leader", leader.leader, leader.EXAMPLES),
    ("status", status.status, status.EXAMPLES),
    ("overview", overview.overview, overview.EXAMPLES),
    ("backlog", overview.backlog, overview.BACKLOG_EXAMPLES),
    ("audit", audit.audit, audit.EXAMPLES),
    ("doctor", doctor.doctor, doctor.EXAMPLES),
    ("web", web.web, web.EXAMPLES),
    ("statistics", statistics.statistics, statistics.EXAMPLES),
):
    option.verb(app, name, *examples, panel=option.panel(name))(function)
for name, noun in (
    ("db", db.app),
    # Those of queue.py, and conversion.
    ("queue", conversion.app),
    ("workers", hold.app),
    ("session", session.app),
    ("subscription", subscription.app),
    # Those of stream.py, and movers.
    ("stream", mover.app),
    ("group", group.app),
    ("lane", lane.app),
    ("schedule", schedule.app),
    ("pipeline", pipeline.app),
    ("webhook", webhook.app),
    ("message", message.app),
    ("dead", dead.app),
    ("sweep", sweep.app),
    ("capture", capture.app),
    ("column", column.app),
    ("archive", archive.app),
    ("taker", taker.app),
    ("memo", memo.app),
    ("role", role.app),
):
    app.add_typer(noun, name=name, rich_help_panel=option.panel(name))
for plug_in in PLUG_INS:
    plug_in.load()(app)
