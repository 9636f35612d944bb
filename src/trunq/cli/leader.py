"""trunq leader: perform the duties."""

from __future__ import annotations

import logging
import shlex
from typing import Annotated

import typer

from trunq.cli import option
from trunq.cli.application import load_ranks
from trunq.cli.database import address
from trunq.cli.logs import LogFormat, LogLevel, Verbose, log_to_stderr
from trunq.cli.output import err, write_json
from trunq.leader import Leader

log = logging.getLogger("trunq.leader")

EXAMPLES = (
    "trunq leader",
    "# shop.py: ranks = Ranks(), functions with @ranks.register('name')",
    "trunq leader shop:ranks",
    "# Where pg_cron is available, this does the same without a process:",
    "select cron.schedule('trunq', '1 second', 'call trunq.perform_each_duty()');",
)


def leader(
    ranks: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:RANKS]",
            help="Functions of yours by which lanes are ranked: a module and the name of its Ranks.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="What it is called; by default host and process.")
    ] = None,
    *,
    database: option.Database,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    verbose: Verbose = False,
    json: Annotated[
        bool, typer.Option("--json", metavar=option.FLAG, help="Print what was done as JSON at the end.")
    ] = False,
) -> None:
    """Stand for election as leader and perform the duties while elected.

    One process at a time promotes delayed messages that fell due, gives back what dead workers held, cuts
    ticks and empties old segments. Workers do this by themselves; run a leader where none are running, or
    to keep it apart from them. One that is given functions that rank lanes calls them, elected or not, for
    the subscriptions that name them (`trunq lane policy`), unless another process does.
    """
    found = None if ranks is None else load_ranks(ranks)
    log_to_stderr(log_level, log_format, is_verbose=verbose)
    with address(database) as dsn:
        elected = Leader(dsn, name, ranks=found)
        if database.embedded:
            err.print(f"The database: export TRUNQ_DSN={shlex.quote(dsn)}", markup=False)
        log.info("%s stands for election; Ctrl-C ends it", elected.name, extra={"leader": elected.name})
        elected.run()
    performed = elected.performed.done
    told = ", ".join(f"{duty} {done:,}" for duty, done in performed.items())
    log.info("ended; what it did: %s", told or "nothing", extra=performed)
    if json:
        write_json(performed)
