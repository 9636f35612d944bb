"""trunq worker --push: a worker that posts each message to a URL."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Final

import typer

from trunq.cli.ground import option
from trunq.cli.ground.failure import Mistake
from trunq.errors import InvalidArgument
from trunq.worker import Worker

PANEL: Final = "To a URL"


@dataclass(frozen=True, slots=True)
class Push:
    """Whether messages are posted, and how."""

    url: Annotated[
        str | None,
        typer.Option(
            "--push",
            metavar="URL",
            rich_help_panel=PANEL,
            help="Post each message there, signed with the secret in TRUNQ_PUSH_SECRET.",
        ),
    ] = None
    push_callback: Annotated[
        str | None,
        typer.Option(
            "--push-callback",
            metavar="URL",
            rich_help_panel=PANEL,
            help="Where `trunq webhook serve` is reached by whoever answered 202; each request names it.",
        ),
    ] = None
    push_callback_within: Annotated[
        timedelta | None,
        typer.Option(
            "--push-callback-within",
            parser=option.interval,
            metavar="INTERVAL",
            rich_help_panel=PANEL,
            help="How long a message that was answered 202 waits for its callback (default: 1d).",
        ),
    ] = None
    push_timeout: Annotated[
        timedelta | None,
        typer.Option(
            "--push-timeout",
            parser=option.interval,
            metavar="INTERVAL",
            rich_help_panel=PANEL,
            help="How long an answer may take, to its last byte (default: 30s).",
        ),
    ] = None
    push_private: Annotated[
        bool,
        typer.Option(
            "--push-private",
            metavar=option.FLAG,
            rich_help_panel=PANEL,
            help="Post to private addresses too: this machine, your network.",
        ),
    ] = False


def worker_of(push: Push, queues: list[str] | None) -> Worker:
    """The worker that posts."""
    if not queues:
        raise Mistake("Say of which queue messages are posted: --queue NAME.")
    try:
        from trunq.push import Target, push_worker  # noqa: PLC0415  # of an extra
        from trunq.webhook.secret import SECRET, Secret  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise Mistake(f"--push needs {error.name}: pip install 'trunq[pipeline]'.") from None
    try:
        target = Target(
            push.url or "",
            Secret.read(os.environ.get(SECRET)),
            callback=push.push_callback,
            callback_within=push.push_callback_within or timedelta(days=1),
            time_out=30.0 if push.push_timeout is None else push.push_timeout.total_seconds(),
            allow_private=push.push_private,
        )
    except InvalidArgument as error:
        raise Mistake(
            f"{error.message[:1].upper()}{error.message[1:]}; {error.hint or ''}".rstrip("; ") + "."
        ) from None
    return push_worker(*queues, target=target)
