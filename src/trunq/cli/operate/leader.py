"""trunq leader: perform the duties."""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import psycopg
import typer
from psycopg.conninfo import make_conninfo

from trunq import install, settings
from trunq.cli.application import load_ranks
from trunq.cli.ground import option
from trunq.cli.ground.database import address
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.logs import LogFormat, LogLevel, Verbose, log_to_stderr
from trunq.cli.ground.output import err, write_json
from trunq.connection._sync.opening import open_connection
from trunq.connection.address import complete
from trunq.connection.backoff import first_line
from trunq.leader import Leaders
from trunq.leader.several import Find

log = logging.getLogger("trunq.leader")

EXAMPLES = (
    "trunq leader",
    "# Several databases, each with an election of its own",
    "trunq leader --dsn postgresql://one/shop --dsn postgresql://two/mail",
    "# A line of statistics each 30 seconds, as PgQ's daemon has it",
    "trunq leader --statistics 30s",
    "# Where an orchestrator asks whether it is alive and ready",
    "trunq leader --health 8080",
    "# Where Prometheus reads figures of its databases, GET /metrics",
    "trunq leader --metrics 9090",
    "# All of a server that have trunq; SIGHUP looks for those that came or went",
    "trunq leader --dsn postgresql://one/postgres --all-databases",
    "# shop.py: ranks = Ranks(), functions with @ranks.register('name')",
    "trunq leader shop:ranks",
    "# Where pg_cron 1.5 is available, this does the same without a process:",
    "select cron.schedule('trunq', '1 second', 'call trunq.perform_each_duty()');",
)

_EACH = """
select d.datname from pg_catalog.pg_database d
where d.datallowconn and not d.datistemplate and has_database_privilege(d.oid, 'connect') order by 1
"""


@dataclass(frozen=True, slots=True)
class Databases:
    """Which databases are led; nothing given: those of the settings."""

    dsns: Annotated[
        list[str] | None,
        typer.Option(
            "--dsn",
            metavar="DSN",
            rich_help_panel=option.DATABASE,
            help="Address of a database, as libpq takes it; may be repeated. Or set TRUNQ_DSN, or dsns in "
            "the table leader of trunq.toml.",
        ),
    ] = None
    all_databases: Annotated[
        bool,
        typer.Option(
            "--all-databases",
            metavar=option.FLAG,
            rich_help_panel=option.DATABASE,
            help="Every database of the servers named that has trunq in it.",
        ),
    ] = False
    embedded: Annotated[
        bool,
        typer.Option(
            "--embedded",
            metavar=option.FLAG,
            rich_help_panel=option.DATABASE,
            help="Use a Postgres of your own instead; it runs as long as this command does.",
        ),
    ] = False
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory",
            metavar="DIR",
            rich_help_panel=option.DATABASE,
            help=f"Where the embedded one keeps its files (default: {option.EMBEDDED_DIRECTORY}).",
        ),
    ] = None


def leader(
    ranks: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE:RANKS]",
            help="Functions of yours by which lanes are ranked: a module and the name of its Ranks.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Its name; by default host and process.")] = None,
    *,
    databases: Databases,
    statistics: Annotated[
        timedelta | None,
        typer.Option(
            "--statistics",
            parser=option.interval,
            metavar="INTERVAL",
            help="Log so often what was done since the last time (default: never). "
            "Or set statistics (seconds) in the table leader of trunq.toml.",
        ),
    ] = None,
    health: Annotated[
        str | None,
        typer.Option(
            "--health",
            metavar="[HOST:]PORT",
            help="Answer an orchestrator there: GET /healthz, /readyz (default: nowhere).",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="[HOST:]PORT",
            help="Answer GET /metrics there, for Prometheus; may be the port of --health (default: nowhere).",
        ),
    ] = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    verbose: Verbose = False,
    json: Annotated[
        bool, typer.Option("--json", metavar=option.FLAG, help="Print what was done as JSON at the end.")
    ] = False,
) -> None:
    """Stand for election as leader, and perform the duties while elected.

    One process at a time promotes delayed messages that are due, gives back the messages of dead workers,
    cuts ticks and empties old segments. Workers do this by themselves; run a leader where no worker runs,
    or to keep the duties apart from workers. A process with functions that rank lanes calls them, elected
    or not, for the subscriptions that name them (`trunq lane policy`), unless another process does.

    It can lead several databases; if one is away, the others go on. On SIGHUP it reads the settings
    again, and leads the databases that are there now.

    With --health, /healthz answers while its event loop runs, and /readyz while each database answers.
    --metrics is needed in one process for each database: the figures are those of the database.
    """
    found = None if ranks is None else load_ranks(ranks)
    log_to_stderr(log_level, log_format, is_verbose=verbose)
    several = databases.all_databases or len(databases.dsns or ()) > 1 or _is_told_several(databases)
    one = option.Database(
        (databases.dsns or [None])[0],  # type: ignore[list-item]
        databases.embedded,
        databases.directory,
    )
    with nullcontext("") if several else address(one) as dsn:
        if databases.embedded:
            err.print(f"The database: export TRUNQ_DSN={shlex.quote(dsn)}", markup=False)
        elected = Leaders(
            _finder(databases, dsn),
            name,
            ranks=found,
            statistics=_seconds(statistics),
            health=health,
            metrics=metrics,
        )
        log.info("%s stands for election; Ctrl-C ends it", elected.name, extra={"leader": elected.name})
        elected.run()
    _tell(elected.performed, several, json)


def _seconds(statistics: timedelta | None) -> float | None:
    """How often to log statistics, by the option or else the settings."""
    if statistics is None:
        return settings.load().leader.statistics
    if not statistics:
        raise Mistake("Statistics are logged at an interval above 0, as --statistics 30s.")
    return statistics.total_seconds()


def _is_told_several(databases: Databases) -> bool:
    """Whether the settings name databases for the leader."""
    is_told = not databases.dsns and not databases.embedded and bool(settings.load().leader.dsns)
    if databases.embedded and (databases.all_databases or len(databases.dsns or ()) > 1):
        raise Mistake("Give --embedded, or several databases, not both.")
    return is_told


def _finder(databases: Databases, one: str) -> Find:
    """What finds the databases; `one` is the embedded one, or that of the settings at the start."""

    before: dict[str, list[str]] = {}

    async def find() -> list[str]:
        named = [one]
        if databases.dsns:
            named = databases.dsns
        elif not databases.embedded:
            known = settings.load()
            named = known.leader.dsns or ([known.dsn] if known.dsn is not None else named)
        if not databases.all_databases:
            return list(dict.fromkeys(named))
        servers = list(dict.fromkeys(named))
        looks = (asyncio.to_thread(_with_trunq, server, before.get(server, [])) for server in servers)
        for server, found in zip(servers, await asyncio.gather(*looks, return_exceptions=True), strict=True):
            if isinstance(found, BaseException):
                if not isinstance(found, psycopg.Error) or (len(servers) == 1 and server not in before):
                    raise found
                # Those of other servers are led, and those of this one that are known.
                log.error("could not look for databases of a server: %s", first_line(found))
            else:
                before[server] = found
        return list(dict.fromkeys(dsn for server in servers for dsn in before.get(server, ())))

    return find


def _with_trunq(server: str, known: Collection[str] = ()) -> list[str]:
    """Addresses of a server's databases that have trunq in them; of those `known`, all that are there."""
    with open_connection(complete(server, "trunq leader")) as connection:
        names = [name for (name,) in connection.execute(_EACH)]
    found = []
    for name in names:
        dsn = make_conninfo(server, dbname=name)
        try:
            if install.version(dsn) is not None:
                found.append(dsn)
        except (psycopg.OperationalError, psycopg.errors.InsufficientPrivilege) as error:
            # One that is led already may be full for a moment.
            if dsn in known:
                found.append(dsn)
            else:
                log.warning("%s cannot be looked at, and is not led: %s", name, first_line(error))
    return found


def _tell(performed: dict[str, dict[str, int]], several: bool, json: bool) -> None:
    for label, done in performed.items():
        told = ", ".join(f"{duty} {count:,}" for duty, count in done.items())
        of = f"{label}: " if several else ""
        log.info("%sended; what it did: %s", of, told or "nothing", extra=done)
    if json:
        write_json(performed if several else next(iter(performed.values()), {}))
