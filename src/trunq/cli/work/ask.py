"""trunq worker --kind, --key-prefix, --header: a worker that asks for a part of its subscription."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from trunq.cli.operate.policy import Header, header, headers_of

PANEL: Final = "A part of the subscription: what it leases; others get the rest"


@dataclass(frozen=True, slots=True)
class Ask:
    """What it asks for: all of what is given must hold."""

    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            rich_help_panel=PANEL,
            help="Messages of this kind; again for another one.",
        ),
    ] = None
    key_prefix: Annotated[
        str | None,
        typer.Option(
            "--key-prefix", metavar="TEXT", rich_help_panel=PANEL, help="Messages whose key begins so."
        ),
    ] = None
    headers: Annotated[
        list[Header] | None,
        typer.Option(
            "--header", parser=header, metavar="NAME=VALUE", rich_help_panel=PANEL,
            help="Messages with this header; again: with all of them. "
            "true, 1 and other JSON are read as JSON, anything else is text.",
        ),
    ] = None  # fmt: skip

    def given(self) -> dict[str, Any] | None:
        """What a lease asks for; None: what the Worker in the code says."""
        made: dict[str, Any] = {}
        if self.kinds:
            made["kinds"] = sorted(set(self.kinds))
        if self.key_prefix:
            made["key_prefix"] = self.key_prefix
        if self.headers:
            made["headers"] = headers_of("--header", self.headers)
        return made or None
