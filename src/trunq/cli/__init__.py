"""The command `trunq`: one file a noun.

Results go to stdout, everything else to stderr. A command that cannot be done ends with one sentence that
says why and what to do, and status 1; one that was not understood with status 2; one that was interrupted
with 130.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its status."""
    try:
        # Imported here: a Ctrl-C while libraries load is a Ctrl-C too.
        _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    raise SystemExit(0)


def _run(arguments: list[str]) -> None:
    try:
        from trunq.cli import option
        from trunq.cli.command import app
        from trunq.cli.failure import Interrupted, explain
        from trunq.cli.output import complain, err
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit("The command trunq needs typer and rich: pip install 'trunq[cli]'.")
    try:
        app(option.spell_out(arguments), prog_name="trunq")
    except Interrupted as error:
        err.print(str(error), markup=False)
        raise SystemExit(130) from None
    except Exception as error:
        sentence = explain(error)
        if sentence is None:
            raise
        complain(sentence)
        raise SystemExit(1) from None
