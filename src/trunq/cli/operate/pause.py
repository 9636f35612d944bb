"""How long a pause lasts: the options, and what commands say of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from trunq import Client, display
from trunq.cli.ground import option
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import Row


@dataclass(frozen=True, slots=True)
class Pause:
    """When a pause ends by itself; nothing given: never."""

    until: Annotated[
        datetime | None,
        typer.Option(
            "--until", parser=option.moment, metavar="TIME",
            help="It ends by itself at this time (ISO 8601).",
        ),
    ] = None  # fmt: skip
    for_: Annotated[
        timedelta | None,
        typer.Option(
            "--for", parser=option.interval, metavar="INTERVAL",
            help="It ends by itself after so long: 30s, 10m, 2h.",
        ),
    ] = None  # fmt: skip

    def end(self, trunq: Client) -> datetime | None:
        """When it ends, by the clock of the database; None: when somebody resumes."""
        if self.until is not None and self.for_ is not None:
            raise Mistake("A pause has either --until or --for, not both.")
        return self.until if self.for_ is None else trunq.clock() + self.for_


def words(row: Row, paused: str = "paused") -> str:
    """A pause in a row: paused, paused until 18:00:00, or nothing."""
    if not row[paused]:
        return ""
    until = row["paused_until"]
    return "paused" if until is None else f"paused until {display.moment(until)}"


def how_long(until: datetime | None) -> str:
    """The same in a sentence."""
    return "until it is resumed" if until is None else f"until {display.text(until)}"


def with_words(row: Row) -> dict[str, Any]:
    """A row for people, whose column `paused` says until when."""
    return {**row, "paused": words(row).removeprefix("paused ").replace("paused", "yes")}
