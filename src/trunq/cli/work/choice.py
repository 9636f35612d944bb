"""Options that choose messages: by kind, key, error and age."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

import typer

from trunq.cli.ground import option

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
