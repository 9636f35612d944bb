"""Unique keys of what `trunq publish` publishes: the options, and the call."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import typer

from trunq import Client
from trunq.cli.ground import option
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import say
from trunq.record import Published
from trunq.word import OnConflict, UniqueUntil

PANEL = "Unique keys, of a queue made with --unique"


@dataclass(frozen=True, slots=True)
class Unique:
    """With which key messages are published, and on what terms; nothing given: without one."""

    unique_key: Annotated[
        str | None,
        typer.Option(
            "--unique-key", rich_help_panel=PANEL,
            help="Leave the message out, or replace the one, if another holds this key.",
        ),
    ] = None  # fmt: skip
    unique: Annotated[
        bool,
        typer.Option(
            "--unique", metavar=option.FLAG, rich_help_panel=PANEL,
            help="The same with a key made of kind and payload, for each message.",
        ),
    ] = False  # fmt: skip
    unique_until: Annotated[
        UniqueUntil | None,
        typer.Option(
            "--unique-until", rich_help_panel=PANEL, help="How long it holds the key (default: done)."
        ),
    ] = None
    unique_for: Annotated[
        timedelta | None,
        typer.Option(
            "--unique-for", parser=option.interval, metavar="INTERVAL", rich_help_panel=PANEL,
            help="It holds the key for so long, whatever becomes of it.",
        ),
    ] = None  # fmt: skip
    on_conflict: Annotated[
        OnConflict | None,
        typer.Option(
            "--on-conflict", rich_help_panel=PANEL,
            help="What to do if another holds the key (default: as the queue was made).",
        ),
    ] = None  # fmt: skip

    def is_given(self) -> bool:
        """Whether messages have keys; raises Mistake for options that do not go together."""
        if self.unique and self.unique_key is not None:
            raise Mistake("Give --unique-key, or --unique for a key made of the content, not both.")
        is_given = self.unique or self.unique_key is not None
        if not is_given and (self.unique_until or self.unique_for is not None or self.on_conflict):
            raise Mistake(
                "--unique-until, --unique-for and --on-conflict belong to --unique-key or --unique."
            )
        return is_given

    def publish(self, trunq: Client, queue: str, payloads: list[Any], **rest: Any) -> list[Published]:
        """Publish messages with these keys."""
        return trunq.publish_many_unique(
            queue,
            payloads,
            None if self.unique_key is None else [self.unique_key],
            unique_until=self.unique_until,
            unique_for=self.unique_for,
            on_conflict=self.on_conflict,
            **rest,
        )


def say_left_out(holders: list[int]) -> None:
    """Tell that messages were left out, and for which others."""
    if len(set(holders)) == 1:
        say("Left out {count}: message {id} holds the unique key.", count=f"{len(holders):,}", id=holders[0])
    elif holders:
        say("Left out {count}: other messages hold their unique keys.", count=f"{len(holders):,}")
