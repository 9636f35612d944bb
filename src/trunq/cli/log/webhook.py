"""trunq webhook: create, list, drop, serve."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated

import psycopg
import typer

from trunq.cli.ground import option
from trunq.cli.ground.database import address, client
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.logs import LogFormat, LogLevel, Verbose, log_to_stderr
from trunq.cli.ground.output import err, say, write_json, write_rows
from trunq.word import WebhookBody, WebhookScheme

app = option.noun(
    "Webhooks: signed requests of others become messages of a queue.",
    "trunq webhook create github pushes --secret GITHUB_SECRET --scheme github",
    "trunq webhook serve --port 8080",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Requests go to /hook/NAME.")]

COLUMNS = ("webhook", "queue", "kind", "scheme", "secret", "body", "max_bytes", "is_unique")


@option.verb(
    app,
    "create",
    "trunq webhook create github pushes --secret GITHUB_SECRET --scheme github",
    "# Each delivery runs a pipeline",
    "trunq webhook create orders pipelines --kind orders --secret SHOP_SECRET",
    "# A signature of time and body",
    "trunq webhook create shop orders --secret S --timestamp-header X-Time",
)
def create(
    name: Name,
    queue: option.Queue,
    secret: Annotated[
        str,
        typer.Option(
            "--secret",
            metavar="VARIABLE",
            help="Which variable in the environment of the server has the secret.",
        ),
    ],
    scheme: Annotated[
        WebhookScheme,
        typer.Option("--scheme", help="How requests are signed."),
    ] = "plain",
    kind: Annotated[
        str | None, typer.Option("--kind", help="Kind of the messages; in the queue pipelines, the pipeline.")
    ] = None,
    header: Annotated[
        str | None, typer.Option("--header", help="Which header has the signature; by default X-Signature.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", help="What stands before the signature, as sha256=.")
    ] = None,
    timestamp_header: Annotated[
        str | None,
        typer.Option(
            "--timestamp-header",
            help="Which header has the time, signed with a dot before the body.",
        ),
    ] = None,
    tolerance: Annotated[
        timedelta | None,
        typer.Option(
            "--tolerance",
            parser=option.interval,
            metavar="INTERVAL",
            help="How far a signed time may be off; by default 5 minutes.",
        ),
    ] = None,
    id_header: Annotated[
        str | None,
        typer.Option("--id-header", help="Which header names a delivery, for a queue with unique keys."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="HEADER", help="A header that messages keep; repeat it."),
    ] = None,
    body: Annotated[WebhookBody, typer.Option("--body", help="A payload, or bytes as they come.")] = "json",
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", min=1, help="Of a body; by default 1 MB.")
    ] = None,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Make a webhook, or change the one of that name. Servers know of it within seconds.

    The secret itself does not go into the database: the server has it in its environment, under this name.
    """
    with client(database) as trunq:
        created = trunq.create_webhook(
            name,
            queue,
            secret,
            scheme=scheme,
            kind=kind,
            header=header,
            prefix=prefix,
            timestamp_header=timestamp_header,
            tolerance=tolerance,
            id_header=id_header,
            headers=keep or (),
            body=body,
            max_bytes=max_bytes,
        )
    if json:
        write_json({"webhook": name, "created": created})
        return
    say(
        f"Webhook {{name}} {'created' if created else 'changed'}: POST /hook/{{name}} becomes a message of"
        " {queue}. Serve it with: trunq webhook serve",
        name=name,
        queue=queue,
    )


@option.verb(app, "list", "trunq webhook list", "trunq webhook list --json | jq '.[].queue'")
def list_webhooks(*, database: option.Database, json: option.Json = False, csv: option.Csv = False) -> None:
    """List the webhooks, each with its queue and the name of its secret."""
    with client(database) as trunq:
        rows = [row._asdict() for row in trunq.list_webhooks()]
    nothing = "There is no webhook. Make one with: trunq webhook create NAME QUEUE --secret VARIABLE"
    write_rows(rows, COLUMNS, json, nothing, csv)


@option.verb(app, "drop", "trunq webhook drop github")
def drop(name: Name, *, database: option.Database, json: option.Json = False) -> None:
    """Drop a webhook. Servers answer 404 for it within seconds; messages stay."""
    with client(database) as trunq:
        dropped = trunq.drop_webhook(name)
    if json:
        write_json({"webhook": name, "dropped": dropped})
    elif dropped:
        say("Webhook {name} dropped.", name=name)
    else:
        raise Mistake(f"There is no webhook {name}. Those there are: trunq webhook list.")


@option.verb(
    app,
    "serve",
    "# The secrets are in its environment, under their names",
    "trunq webhook serve",
    "# As a role that may publish and no more, behind a proxy that does TLS",
    "trunq webhook serve --dsn postgresql://shop_web@db/shop --host 0.0.0.0",
)
def serve(
    host: Annotated[str, typer.Option("--host", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Where to listen.")] = 8080,
    *,
    database: option.Database,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    verbose: Verbose = False,
    json: Annotated[
        bool, typer.Option("--json", metavar=option.FLAG, help="Print where it listens as JSON.")
    ] = False,
) -> None:
    """Serve the webhooks: POST /hook/NAME, and GET /health for a monitor.

    It speaks plain HTTP: put a proxy with TLS in front of it. A request is checked, published, and
    answered with 202 once the message is committed; while the database is away, with 503. The first
    SIGTERM lets open requests finish. POST /resume/QUEUE takes the callbacks of trunq worker --push, if
    TRUNQ_PUSH_SECRET is that worker's.
    """
    log_to_stderr(log_level, log_format, is_verbose=verbose)
    try:
        import uvicorn  # noqa: PLC0415  # of an extra

        from trunq import AsyncClient  # noqa: PLC0415
        from trunq.webhook import app as application  # noqa: PLC0415
        from trunq.webhook.serving import configure  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise Mistake(f"Webhooks need {error.name}: pip install 'trunq[webhook]'.") from None
    with address(database) as dsn:
        if not dsn:
            # A database that is named may be away for a while; the usual place must have one.
            with psycopg.connect(dsn):
                pass
        if json:
            write_json({"host": host, "port": port})
        else:
            err.print(f"Serving webhooks at http://{host}:{port}/hook/NAME", highlight=False)

        async def run() -> None:
            # It connects at the first request, so it starts while the database is away.
            async with AsyncClient(dsn) as trunq:
                await uvicorn.Server(configure(application(trunq), host=host, port=port)).serve()

        asyncio.run(run())
