"""Options that many commands share, and the parsing of their values."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf, nan
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from trunq.cli.ground import completion
from trunq.cli.ground.spread import spread
from trunq.wire import duration

Function = TypeVar("Function", bound=Callable[..., Any])

DATABASE = "Which database"
EMBEDDED_DIRECTORY = ".trunq"
FLAG = ""
"""Metavar of an option without a value; by default --help would show its type."""


@dataclass(frozen=True, slots=True)
class Database:
    """Which database a command is about; nothing given: that of the settings."""

    dsn: Annotated[
        str | None,
        typer.Option(
            "--dsn",
            metavar="DSN",
            rich_help_panel=DATABASE,
            help="Address of the database, as libpq takes it: postgresql://user@host/name. "
            "Or set TRUNQ_DSN; a password is better kept in ~/.pgpass than on a command line.",
        ),
    ] = None
    embedded: Annotated[
        bool,
        typer.Option(
            "--embedded",
            metavar=FLAG,
            rich_help_panel=DATABASE,
            help="Use a Postgres of your own instead; it is made when it is not there, and runs as long as "
            "a command uses it.",
        ),
    ] = False
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory",
            metavar="DIR",
            rich_help_panel=DATABASE,
            help=f"Where the embedded one keeps its files (default: {EMBEDDED_DIRECTORY}).",
        ),
    ] = None

    @property
    def is_given(self) -> bool:
        """Whether the command line names it."""
        return self.dsn is not None or self.embedded


Json = Annotated[bool, typer.Option("--json", metavar=FLAG, help="Print JSON, for scripts.")]
Csv = Annotated[
    bool, typer.Option("--csv", metavar=FLAG, help="Print CSV with a line of headings, for spreadsheets.")
]
Queue = Annotated[
    str, typer.Argument(metavar="QUEUE", help="Name of the queue.", autocompletion=completion.queues)
]
OneQueue = Annotated[
    str | None, typer.Argument(metavar="QUEUE", help="Only this queue.", autocompletion=completion.queues)
]
Subscription = Annotated[
    str,
    typer.Option(
        "--subscription",
        "-s",
        metavar="NAME",
        help="Name of the subscription.",
        autocompletion=completion.subscriptions,
    ),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")]


def interval(value: str) -> timedelta:
    """Read an interval: 250ms, 30s, 5m, 2h, 1d, several in a row (1h 30m), or plain seconds."""
    if not value.strip():
        raise typer.BadParameter("An interval is missing; write it like 30s, 5m, 2h or 1d.")
    try:
        return duration.read(value)
    except ValueError:
        raise typer.BadParameter(f"{value!r} is not an interval; write it like 30s, 5m, 2h or 1d.") from None


def every(value: str) -> str:
    """Read an interval that may have months: 30s, 2h, 2d, 1 month, 1 year."""
    try:
        months, rest = duration.read_calendar(value)
    except ValueError:
        raise typer.BadParameter(
            f"{value!r} is not an interval; write it like 30s, 5m, 2h, 1d or '1 month'."
        ) from None
    return value if months else f"{rest // timedelta(microseconds=1)} microseconds"


class Rate(NamedTuple):
    """So many in an interval."""

    number: float
    interval: timedelta


def rate(value: str) -> Rate:
    """Read a rate: 10 or 10/s a second, 100/1m or 100/m a minute."""
    said, slash, unit = value.partition("/")
    try:
        number = float(said)
    except ValueError:
        number = nan
    each = interval(unit if unit[:1].isdigit() else f"1{unit}") if slash else timedelta(seconds=1)
    if not 0 <= number < inf or not each or (slash and not unit):
        raise typer.BadParameter(f"{value!r} is not a rate; write it like 10 (a second), 100/1m or 1000/1h.")
    return Rate(number, each)


def moment(value: str) -> datetime:
    """Read a time in ISO 8601; without a time zone it is UTC."""
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        raise typer.BadParameter(
            f"{value!r} is not a time; write it like 2026-01-31T18:00:00+01:00."
        ) from None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def json_object(value: str) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        read = json.loads(value)
    except ValueError as error:
        raise typer.BadParameter(f"this is not JSON: {error}.") from None
    if not isinstance(read, dict):
        raise typer.BadParameter('this must be a JSON object, like {"trace": "4bf92f"}.')
    return read


def examples(*lines: str) -> str:
    """The examples at the end of a command's help. A line that starts with # is a comment."""
    shown = (f"[dim]{escape(line)}[/dim]" if line.startswith("#") else escape(line) for line in lines)
    return "\n".join(["[bold]Examples[/bold]", *(f"  {line}" for line in shown)])


class _Help:
    """Fits the paragraphs of a docstring to the width of the terminal."""

    def get_help_option(self, ctx: Any) -> Any:
        shown = super().get_help_option(ctx)  # type: ignore[misc]
        if shown is not None:
            shown.metavar = FLAG
        return shown

    def format_help(self, ctx: Any, formatter: Any) -> None:
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        self.help = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
        super().format_help(ctx, formatter)  # type: ignore[misc]

    help: str | None


class Command(_Help, TyperCommand):
    """A command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            # What pydantic, which reads the values for Typer, puts before the sentence.
            error.message = error.message.removeprefix("Value error, ")
            raise


_BEHIND = ("--dsn", "--embedded", "--directory", "--json")
_WORDS = {
    "version": "trunq --version",
    "demo": "make demo, in a clone of trunq's repository",
    **dict.fromkeys(("enqueue", "push", "send"), "trunq publish QUEUE PAYLOAD"),
    **dict.fromkeys(("job", "jobs", "task", "tasks"), "trunq message list QUEUE"),
    **dict.fromkeys(("run", "consume", "start"), "trunq worker MODULE:APP"),
    **dict.fromkeys(("retry", "requeue"), "trunq dead requeue QUEUE"),
    **dict.fromkeys(("init", "install", "migrate"), "trunq db install"),
    **dict.fromkeys(("queues", "ls"), "trunq queue list"),
}


class Group(_Help, TyperGroup):
    """A noun with its verbs, or the app with all of them."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for option in self.params:
            if option.name in ("install_completion", "show_completion"):
                option.metavar = FLAG
        super().format_help(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.parent is None and args and (flag := args[0].partition("=")[0]) in _BEHIND:
            # Not repeated with its value, which may have a password.
            takes_value = flag in ("--dsn", "--directory")
            rest = args[2 if takes_value and "=" not in args[0] else 1 :]
            value = f" {flag[2:].upper()}" if takes_value else ""
            ctx.fail(f"{flag} goes behind the command: trunq {shlex.join(rest) or 'COMMAND'} {flag}{value}")
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if ctx.parent is None and args[0] in _WORDS and args[0] not in self.commands:
            ctx.fail(f"No such command '{args[0]}'. Write: {_WORDS[args[0]]}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        # Typer would put nouns after commands; ORDER is the order of use. Commands of plug-ins come first.
        return sorted(super().list_commands(ctx), key=lambda name: ORDER.index(name) if name in ORDER else -1)


PANELS = {
    "Begin, publish, work, watch": (
        "demo",
        "db",
        "queue",
        "publish",
        "worker",
        "workers",
        "session",
        "leader",
        "status",
        "overview",
        "backlog",
        "audit",
        "doctor",
        "web",
        "statistics",
    ),
    "Who reads, and in which order": ("subscription", "stream", "group", "lane"),
    "Where messages come from and go": ("schedule", "pipeline", "webhook", "capture", "column"),
    "Messages, one by one or all": ("message", "dead", "sweep", "archive", "taker", "memo"),
    "Rights": ("role",),
}
"""The commands in the order of use, under the headings of `trunq --help`."""

ORDER = tuple(name for names in PANELS.values() for name in names)


def panel(command: str) -> str:
    """Under which heading a command stands."""
    return next(heading for heading, names in PANELS.items() if command in names)


def noun(help: str, *lines: str) -> typer.Typer:
    """An app for a noun, with examples of its verbs."""
    return typer.Typer(cls=Group, no_args_is_help=True, help=help, epilog=examples(*lines))


def verb(
    app: typer.Typer, name: str, *lines: str, panel: str | None = None
) -> Callable[[Function], Function]:
    """Register a function as a command, with examples."""

    def register(function: Function) -> Function:
        app.command(name, cls=Command, epilog=examples(*lines), rich_help_panel=panel)(spread(function))
        return function

    return register
