"""The policy of a subscription, its filter and its limits: options, and how they are shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Annotated, Any, Final, NamedTuple

import typer

from trunq.cli.ground import option
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import Row
from trunq.display import interval, text
from trunq.word import Backoff

POLICY: Final = "Its policy"
FILTER: Final = "Which messages it reads; what you give takes the place of the filter it has"
LIMIT: Final = "Its limits, for shared subscriptions"
LIMITS: Final = ("rate", "burst", "max_running", "in_order")
NONE: Final = {
    "max_attempts": "for ever",
    "time_out": "none",
    "dead_retention": "for ever",
    "filter": "every message",
    "rate": "no limit",
    "max_running": "no limit",
    "max_age": "no limit",
}
"""What it means that there is none of these."""


class Header(NamedTuple):
    """A header that a filter asks for."""

    name: str
    value: Any


def header(value: str) -> Header:
    """Read NAME=VALUE: what is JSON is read as JSON, anything else is text."""
    name, equals, said = value.partition("=")
    if not name or not equals:
        raise typer.BadParameter(f"{value!r} is not a header; write it like country=CZ.")
    try:
        return Header(name, json.loads(said))
    except ValueError:
        return Header(name, said)


@dataclass(frozen=True, slots=True)
class Policy:
    """What becomes of messages that fail; nothing given: as it is, or the default."""

    max_attempts: Annotated[
        int | None,
        typer.Option(
            "--max-attempts", min=0, rich_help_panel=POLICY,
            help="How often a message is tried (default: 20; 0: for ever).",
        ),
    ] = None  # fmt: skip
    lease_time: Annotated[
        timedelta | None,
        typer.Option(
            "--lease-time", parser=option.interval, metavar="INTERVAL", rich_help_panel=POLICY,
            help="After how long without a sign of its worker a message goes to another (default: 60s).",
        ),
    ] = None  # fmt: skip
    backoff: Annotated[
        Backoff | None,
        typer.Option("--backoff", rich_help_panel=POLICY, help="How the delay grows (default: exponential)."),
    ] = None
    backoff_base: Annotated[
        timedelta | None,
        typer.Option(
            "--backoff-base", parser=option.interval, metavar="INTERVAL", rich_help_panel=POLICY,
            help="The delay before the second attempt (default: 1s).",
        ),
    ] = None  # fmt: skip
    backoff_cap: Annotated[
        timedelta | None,
        typer.Option(
            "--backoff-cap", parser=option.interval, metavar="INTERVAL", rich_help_panel=POLICY,
            help="The longest delay (default: 6h).",
        ),
    ] = None  # fmt: skip
    jitter: Annotated[
        float | None,
        typer.Option(
            "--jitter", min=0, max=1, rich_help_panel=POLICY,
            help="Up to which share a delay is shortened at random (default: 0.1).",
        ),
    ] = None  # fmt: skip
    time_out: Annotated[
        timedelta | None,
        typer.Option(
            "--time-out", parser=option.interval, metavar="INTERVAL", rich_help_panel=POLICY,
            help="How long a handler may run: then it is stopped, and tried again (default: 0, for ever).",
        ),
    ] = None  # fmt: skip
    max_age: Annotated[
        timedelta | None,
        typer.Option(
            "--max-age", parser=option.interval, metavar="INTERVAL", rich_help_panel=POLICY,
            help="Pass over, and count, messages that are older than this (default: 0, none).",
        ),
    ] = None  # fmt: skip
    keep_results: Annotated[
        bool | None,
        typer.Option(
            "--keep-results/--no-keep-results", metavar=option.FLAG, rich_help_panel=POLICY,
            show_default=False, help="Whether what handlers return is kept (default: no).",
        ),
    ] = None  # fmt: skip
    dead_retention: Annotated[
        timedelta | None,
        typer.Option(
            "--dead-retention", parser=option.interval, metavar="INTERVAL", rich_help_panel=POLICY,
            help="How long a dead message is kept (default: 0, until it is purged).",
        ),
    ] = None  # fmt: skip

    def given(self) -> dict[str, Any]:
        """What the user gave of it, as `subscribe` takes it."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def _texts(flag: str, what: str) -> Any:
    return typer.Option(flag, metavar=what.upper(), rich_help_panel=FILTER, help=_TEXTS[flag])


_TEXTS: Final = {
    "--kind": "Messages of this kind; again for another one.",
    "--not-kind": "None of this kind; again for another one.",
    "--key": "Messages with this key; again for another one.",
    "--not-key": "None with this key; again for another one.",
}


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages it reads: all of what is given must hold."""

    kinds: Annotated[list[str] | None, _texts("--kind", "kind")] = None
    not_kinds: Annotated[list[str] | None, _texts("--not-kind", "kind")] = None
    keys: Annotated[list[str] | None, _texts("--key", "key")] = None
    not_keys: Annotated[list[str] | None, _texts("--not-key", "key")] = None
    headers: Annotated[
        list[Header] | None,
        typer.Option(
            "--header", parser=header, metavar="NAME=VALUE", rich_help_panel=FILTER,
            help="Messages with this header; again: with all of them. "
            "true, 1 and other JSON are read as JSON, anything else is text.",
        ),
    ] = None  # fmt: skip
    not_headers: Annotated[
        list[Header] | None,
        typer.Option(
            "--not-header", parser=header, metavar="NAME=VALUE", rich_help_panel=FILTER,
            help="None with this header; again for another one.",
        ),
    ] = None  # fmt: skip
    no_filter: Annotated[
        bool,
        typer.Option("--no-filter", metavar=option.FLAG, rich_help_panel=FILTER, help="Every message."),
    ] = False

    def given(self) -> dict[str, Any]:
        """The filter, as `subscribe` takes it; nothing when there is nothing of it."""
        lists = {name: getattr(self, name) for name in ("kinds", "not_kinds", "keys", "not_keys")}
        made: dict[str, Any] = {name: sorted(set(texts)) for name, texts in lists.items() if texts}
        if self.headers:
            made["headers"] = headers_of("--header", self.headers)
        if self.not_headers:
            made["not_headers"] = headers_of("--not-header", self.not_headers)
        if made and self.no_filter:
            raise Mistake("Give --no-filter, or what a filter lets pass, not both.")
        for name, flag in (("kinds", "kind"), ("keys", "key")):
            _refuse_both(
                flag, (value for value in made.get(name, ()) if value in made.get(f"not_{name}", ()))
            )
        unwanted = made.get("not_headers", {}).items()
        _refuse_both(
            "header", (name for name, value in made.get("headers", {}).items() if (name, value) in unwanted)
        )
        return {"filter": made} if made or self.no_filter else {}


def headers_of(flag: str, headers: Iterable[Header]) -> dict[str, Any]:
    """Headers as an object; one that is given with two values is a mistake."""
    found: dict[str, Any] = {}
    for name, value in headers:
        if found.setdefault(name, value) != value:
            raise Mistake(f"{flag} {name} is given with two values, and a filter has one for each header.")
    return found


def _refuse_both(flag: str, names: Iterable[str]) -> None:
    for name in names:
        raise Mistake(f'No message passes both --{flag} and --not-{flag} "{name}": leave one of them out.')


@dataclass(frozen=True, slots=True)
class Limits:
    """How much it hands out."""

    rate: Annotated[
        option.Rate | None,
        typer.Option(
            "--rate", parser=option.rate, metavar="N[/INTERVAL]", rich_help_panel=LIMIT,
            help="Hand out so many a second, or 100/1m, in all workers together; 0: no limit.",
        ),
    ] = None  # fmt: skip
    burst: Annotated[
        int | None,
        typer.Option(
            "--burst", min=0, rich_help_panel=LIMIT,
            help="So many of them at once (0, the default: what the rate gives in a second, at least one).",
        ),
    ] = None  # fmt: skip
    max_running: Annotated[
        int | None,
        typer.Option(
            "--max-running", min=0, rich_help_panel=LIMIT,
            help="Let so many run at the same time, in all workers together; 0: no limit.",
        ),
    ] = None  # fmt: skip

    in_order: Annotated[
        bool | None,
        typer.Option(
            "--in-order/--no-order", metavar=option.FLAG, rich_help_panel=LIMIT, show_default=False,
            help="One message of each key at a time; a retry holds its key. Say it before the first lease.",
        ),
    ] = None  # fmt: skip

    def given(self, rate: float | None = None) -> dict[str, Any]:
        """What the user gave of them, as `subscribe` takes it, of a subscription with this rate."""
        if self.burst and not (rate if self.rate is None else self.rate.number):
            raise Mistake(
                "--burst says how much of a rate may go out at once, and there is none: give --rate too."
            )
        found: dict[str, Any] = {
            "burst": self.burst,
            "max_running": self.max_running,
            "in_order": self.in_order,
        }
        if self.rate is not None:
            found["rate"] = self.rate.number
            found["rate_interval"] = self.rate.interval if self.rate.number else None
        return {name: value for name, value in found.items() if value is not None}


def words(row: Row, name: str) -> str | None:
    """A setting of a subscription, for people; None when there is nothing to say."""
    value = row[name]
    if name == "rate" and value is not None:
        return f"{value:,.10g}/{interval(row['rate_interval'])}"
    return NONE.get(name) if value is None else text(value)


def differ(there: Row, given: Mapping[str, Any]) -> list[str]:
    """The names of what is given otherwise than it is there."""
    return [name for name, value in given.items() if _sorted(there[name]) != _sorted(value)]


def _sorted(value: Any) -> Any:
    # 0 and {} are how one says none; the kinds and keys of a filter have no order.
    if isinstance(value, dict):
        value = {name: sorted(part) if isinstance(part, list) else part for name, part in value.items()}
    return value or None
