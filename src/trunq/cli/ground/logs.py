"""The log of long-running commands, to stderr: a line for each event, or a JSON object."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, Final, Literal

import typer

from trunq.cli.ground import option
from trunq.cli.ground.failure import Mistake
from trunq.wire.secret import without_password

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["text", "json"]

_PANEL: Final = "What it tells"

LogLevel = Annotated[
    Level | None,
    typer.Option(
        "--log-level",
        rich_help_panel=_PANEL,
        help="info: what did not succeed; debug: all; warning: first failures; error: what died.",
    ),
]
LogFormat = Annotated[
    Format | None,
    typer.Option("--log-format", rich_help_panel=_PANEL, help="Lines for people, or JSON for collectors."),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", metavar=option.FLAG, rich_help_panel=_PANEL, help="As --log-level debug."
    ),
]

_CHATTY: Final = ("asyncio", "psycopg", "httpx", "httpcore", "urllib3")
"""Libraries whose details nobody asks for who wants to see what trunq does. httpx has a line a request."""


class _Text(logging.Formatter):
    """A line for people. On a terminal the date goes without saying, and so does who speaks, if it is us."""

    def __init__(self) -> None:
        super().__init__(
            "%(asctime)s %(levelname)-7s %(who)s%(message)s",
            "%H:%M:%S" if sys.stderr.isatty() else "%Y-%m-%d %H:%M:%S",
        )

    def format(self, record: logging.LogRecord) -> str:
        record.who = "" if record.name.partition(".")[0] == "trunq" else f"{record.name}: "
        return super().format(record)


def log_to_stderr(
    level: Level | None = None, format: Format | None = None, *, is_verbose: bool = False
) -> None:
    """Log to stderr, unless the application has configured logging itself and no format was asked for."""
    wanted = (level or ("debug" if is_verbose else "info")).upper()
    root = logging.getLogger()
    if format is not None or not root.handlers:
        handler = logging.StreamHandler()
        handler.addFilter(_mask)
        handler.setFormatter(_json() if format == "json" else _Text())
        logging.basicConfig(level=wanted, handlers=[handler], force=True)
        for name in _CHATTY:
            logging.getLogger(name).setLevel(
                max(logging.WARNING if name == "httpx" else logging.INFO, root.level)
            )
    elif level is not None or is_verbose:
        root.setLevel(wanted)
    # A pool tells each try of each connection; that the database is away, trunq says in one line.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)


def _mask(record: logging.LogRecord) -> bool:
    """Takes passwords out of a line, and out of the traceback below it."""
    record.msg, record.args = without_password(record.getMessage()), ()
    if record.exc_info and not record.exc_text:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    if record.exc_text:
        record.exc_text = without_password(record.exc_text)
        record.exc_info = None
    return True


def _json() -> logging.Formatter:
    try:
        from pythonjsonlogger.json import JsonFormatter  # noqa: PLC0415  # few ask for it
    except ModuleNotFoundError:
        raise Mistake("Logs as JSON need python-json-logger: pip install 'trunq[cli]'.") from None
    names = {"levelname": "level", "name": "logger", "exc_info": "traceback"}
    return JsonFormatter("%(levelname)s %(name)s %(message)s", rename_fields=names, timestamp="time")
