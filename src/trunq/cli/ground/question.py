"""Asking before something is done that cannot be undone."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.option import FLAG

Yes = Annotated[
    bool, typer.Option("--yes", "-y", metavar=FLAG, help="Do it without asking; scripts have to say so.")
]


def confirm(question: str, *, is_answered: bool) -> None:
    """Go on when the user says yes, or has said so."""
    if is_answered:
        return
    if not sys.stdin.isatty():
        raise Mistake(f"{question} Nobody is here to answer, so nothing was changed: say --yes.")
    if not typer.confirm(question, err=True):
        raise Mistake("Nothing was changed.")
