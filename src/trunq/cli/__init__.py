"""The command `trunq`: one file a noun.

Commands print results to stdout and everything else to stderr. A command that fails prints one sentence
that says why and what to do, and exits with status 1. Wrong usage exits with status 2, an interrupted
command with 130.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its status."""
    try:
        # _run imports the libraries, so that a Ctrl-C while they load is handled too.
        _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    raise SystemExit(0)


def _run(arguments: list[str]) -> None:
    try:
        from trunq.cli.command import app_for
        from trunq.cli.ground.failure import Interrupted, explain
        from trunq.cli.ground.output import complain, err
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit("The command trunq needs typer and rich: pip install 'trunq[cli]'.")
    try:
        app_for(arguments)(arguments, prog_name="trunq", obj=arguments)
    except Interrupted as error:
        err.print(str(error), markup=False)
        raise SystemExit(130) from None
    except Exception as error:
        sentence = explain(error)
        if sentence is None:
            raise
        complain(sentence)
        raise SystemExit(1) from None
