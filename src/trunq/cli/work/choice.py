"""Options that choose messages: by kind, key, error and age."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

import typer

from trunq.cli.ground import option
from trunq.wire.json import RawJson

WHICH = "Which messages"

OlderThan = Annotated[
    timedelta | None,
    typer.Option(
        "--older-than", parser=option.interval, metavar="INTERVAL", rich_help_panel=WHICH,
        help="Only those published, or dead, for longer than that: 30m, 2h, 7d.",
    ),
]  # fmt: skip
NewerThan = Annotated[
    timedelta | None,
    typer.Option(
        "--newer-than", parser=option.interval, metavar="INTERVAL", rich_help_panel=WHICH,
        help="Only those published, or dead, for no longer than that.",
    ),
]  # fmt: skip


def contained(value: str) -> RawJson:
    """JSON that a payload, or headers, are to contain."""
    try:
        json.loads(value)
    except ValueError as error:
        raise typer.BadParameter(f"this is not JSON: {error}. A text stands in quotes: '\"text\"'.") from None
    return RawJson(value)


Contains = Annotated[
    RawJson | None,
    typer.Option(
        "--payload", parser=contained, metavar="JSON", rich_help_panel=WHICH,
        help="Only those whose payload contains this.",
    ),
]  # fmt: skip
HeadersContain = Annotated[
    RawJson | None,
    typer.Option(
        "--headers", parser=contained, metavar="JSON", rich_help_panel=WHICH,
        help="Only those whose headers contain this.",
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a queue's messages a command is about; nothing given: all of them."""

    kind: Annotated[
        str | None, typer.Option("--kind", "-k", rich_help_panel=WHICH, help="Only those of this kind.")
    ] = None
    key: Annotated[
        str | None, typer.Option("--key", rich_help_panel=WHICH, help="Only those with this key.")
    ] = None
    error: Annotated[
        str | None,
        typer.Option(
            "--error", metavar="TEXT", rich_help_panel=WHICH,
            help="Only those whose last error contains this, in any case.",
        ),
    ] = None  # fmt: skip
    older_than: OlderThan = None
    newer_than: NewerThan = None

    @property
    def is_given(self) -> bool:
        """Whether it leaves anything out."""
        return any(
            value is not None for value in (self.kind, self.key, self.error, self.older_than, self.newer_than)
        )
