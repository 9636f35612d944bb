"""The commands, in one app: the one that a command line names, or all of them.

Who runs one command waits for the libraries of that one alone: those of all take half as long again.

Another package adds a command by an entry point of the group `trunq.commands`: a function that is called with
the app. The demo does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from importlib.metadata import version as installed_version
from typing import Annotated, Final

import typer

from trunq.cli.ground import option

VERBS: Final[Mapping[str, str]] = {
    "publish": "log.publish",
    "worker": "work.worker",
    "leader": "operate.leader",
    "status": "operate.status",
    "overview": "operate.overview",
    "backlog": "operate.backlog",
    "audit": "operate.audit",
    "doctor": "operate.doctor",
    "web": "operate.web",
    "statistics": "keep.statistics",
}
"""The module of each command that is a verb: there, a function of its name, and EXAMPLES."""

NOUNS: Final[Mapping[str, Sequence[str]]] = {
    "db": ("operate.db",),
    "queue": ("operate.queue", "operate.conversion"),
    "workers": ("work.hold",),
    "session": ("operate.session",),
    "subscription": ("operate.subscription",),
    "stream": ("stream.stream", "stream.mover"),
    "group": ("stream.group",),
    "lane": ("lanes.lane",),
    "schedule": ("log.schedule",),
    "pipeline": (
        "pipeline.pipeline",
        "pipeline.backfill",
        "pipeline.compact",
        "pipeline.instance",
        "pipeline.plan",
        "pipeline.schema",
    ),
    "webhook": ("log.webhook",),
    "message": ("work.message",),
    "dead": ("work.dead",),
    "sweep": ("work.sweep",),
    "capture": ("log.capture",),
    "column": ("log.column",),
    "archive": ("keep.archive",),
    "taker": ("keep.taker",),
    "memo": ("work.memo",),
    "role": ("operate.role",),
}
"""The modules of each noun: the first has its app, to which each adds verbs."""


def app_for(words: Sequence[str]) -> typer.Typer:
    """The app for a command line: with the command that its first word names, else with all."""
    named = words[0] if words else ""
    return app([named] if named in VERBS or named in NOUNS else None)


def app(names: Sequence[str] | None = None) -> typer.Typer:
    """The app with some commands, or with all and those of other packages."""
    made = typer.Typer(
        name="trunq",
        cls=option.Group,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    for name in [*VERBS, *NOUNS] if names is None else names:
        (_add_verb if name in VERBS else _add_noun)(made, name)
    plug_ins = () if names is not None else entry_points(group="trunq.commands")
    for plug_in in plug_ins:
        plug_in.load()(made)
    # Who installed the library alone has no `trunq demo`.
    has_demo = any(plug_in.name == "demo" for plug_in in plug_ins)
    made.callback(
        epilog=option.examples(
            *(("# Everything at once, on a Postgres it brings along", "trunq demo") if has_demo else ()),
            "# Step by step, on a Postgres of your own in ./.trunq",
            "# (with TRUNQ_DSN set, leave --embedded out)",
            "trunq queue create mail --embedded",
            """trunq publish mail '{"to": "ada@example.com"}' --kind welcome --embedded""",
            "trunq status --once --embedded",
        )
    )(root)
    return made


def _add_verb(made: typer.Typer, name: str) -> None:
    module = import_module(f"trunq.cli.{VERBS[name]}")
    option.verb(made, name, *module.EXAMPLES, panel=option.panel(name))(getattr(module, name))


def _add_noun(made: typer.Typer, name: str) -> None:
    first, *_ = [import_module(f"trunq.cli.{module}") for module in NOUNS[name]]
    made.add_typer(first.app, name=name, rich_help_panel=option.panel(name))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trunq {installed_version('trunq')}")
        raise typer.Exit


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
