"""trunq web: the dashboard."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import psycopg
import typer

from trunq.cli.ground import option
from trunq.cli.ground.database import address
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.logs import LogFormat, LogLevel, Verbose, log_to_stderr
from trunq.cli.ground.output import err, write_json

EXAMPLES = (
    "trunq web",
    "# For others; TRUNQ_WEB_TOKEN is set",
    "trunq web --host 0.0.0.0",
    "# A screen on the wall: no changes, and no data of customers",
    "trunq web --read-only --hide payload,headers,error",
    "# Behind a proxy on 10.0.0.7 that knows who it is",
    "trunq web --host 0.0.0.0 --trusted-proxy 10.0.0.7 --trust-user-header X-User",
)
SIGN_IN = "Who signs in"


@dataclass(frozen=True, slots=True)
class Entrance:
    """Who may come in."""

    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="TRUNQ_WEB_TOKEN",
            show_envvar=False,
            metavar="TOKEN",
            rich_help_panel=SIGN_IN,
            help="Who has it may change things. Or set TRUNQ_WEB_TOKEN, which other users do not see.",
        ),
    ] = None
    viewer_token: Annotated[
        str | None,
        typer.Option(
            "--viewer-token",
            envvar="TRUNQ_WEB_VIEWER_TOKEN",
            show_envvar=False,
            metavar="TOKEN",
            rich_help_panel=SIGN_IN,
            help="Who has it may look. Or set TRUNQ_WEB_VIEWER_TOKEN.",
        ),
    ] = None
    user_header: Annotated[
        str | None,
        typer.Option(
            "--trust-user-header",
            metavar="HEADER",
            rich_help_panel=SIGN_IN,
            help="In which header a trusted proxy says who it is.",
        ),
    ] = None
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            "--trusted-proxy",
            metavar="ADDRESS",
            rich_help_panel=SIGN_IN,
            help="An address or network that the header is believed from; repeat it.",
        ),
    ] = None
    operator: Annotated[
        list[str] | None,
        typer.Option(
            "--operator",
            metavar="NAME",
            rich_help_panel=SIGN_IN,
            help="Who of those the proxy names may change things (default: all); repeat it.",
        ),
    ] = None

    @property
    def is_open(self) -> bool:
        """Whether nobody has to say who they are."""
        return not (self.token or self.viewer_token or self.user_header)


def web(
    host: Annotated[str, typer.Option("--host", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Where to listen; 0: any port that is free.")
    ] = 8460,
    *,
    entrance: Entrance,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME",
            help="A name that browsers call it by, beside localhost; repeat it.",
        ),
    ] = None,
    prefix: Annotated[
        str,
        typer.Option("--prefix", metavar="/PATH", help="What a proxy in front of it cuts off addresses."),
    ] = "",
    read_only: Annotated[
        bool,
        typer.Option(
            "--read-only", metavar=option.FLAG, help="Nobody changes anything; the database refuses it, too."
        ),
    ] = False,
    hide: Annotated[
        str | None,
        typer.Option("--hide", metavar="PARTS", help="What nobody sees: any of payload, headers, error."),
    ] = None,
    database: option.Database,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    verbose: Verbose = False,
    json: Annotated[
        bool, typer.Option("--json", metavar=option.FLAG, help="Print where it listens as JSON.")
    ] = False,
) -> None:
    """Show queues, messages and what is wrong in a browser, live, and change what the commands change.

    Only this machine can reach it. To listen elsewhere, it needs a way to sign in, and a proxy in front
    of it for TLS. It opens at most four connections, however many people look. Each read is a read-only
    transaction that ends after 3 seconds; a count before an act, and the look at all that is wrong, after
    20. GET /healthz answers while it runs, and /readyz while the database does. GET /metrics has figures
    for Prometheus; the token of a viewer is enough.
    """
    log_to_stderr(log_level, log_format, is_verbose=verbose)
    try:
        from trunq.web import app  # noqa: PLC0415  # of an extra
        from trunq.web.guard import LOOPBACK  # noqa: PLC0415
        from trunq.web.serving import configure, serve  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise Mistake(f"The dashboard needs {error.name}: pip install 'trunq[web]'.") from None
    is_here = host in LOOPBACK
    if entrance.is_open and not is_here:
        raise Mistake(
            f"On {host} others reach it, and anybody could purge messages. Have them sign in:"
            ' TRUNQ_WEB_TOKEN="$(openssl rand -hex 24)" trunq web --host '
            f"{host}, or let a proxy say who it is, with --trust-user-header and --trusted-proxy."
        )
    hosts = {*LOOPBACK, *(allow_host or ())} if is_here or allow_host else None
    with address(database) as dsn:
        if not dsn:
            # A database that is named may be away for a while; the usual place must have one.
            with psycopg.connect(dsn):
                pass
        made = app(
            dsn,
            token=entrance.token,
            viewer_token=entrance.viewer_token,
            user_header=entrance.user_header,
            trusted_proxies=entrance.trusted_proxy or (),
            operators=entrance.operator,
            hosts=hosts,
            read_only=read_only,
            hide=[part.strip() for part in hide.split(",")] if hide else (),
        )

        def say(at: tuple[str, int]) -> None:
            told: dict[str, Any] = {"host": at[0], "port": at[1]}
            if json:
                write_json(told)
                # Who waits for it reads from a pipe.
                sys.stdout.flush()
            else:
                err.print(f"The dashboard is at http://{at[0]}:{at[1]}/", highlight=False)

        asyncio.run(serve(configure(made, prefix), host=host, port=port, listening=say))
