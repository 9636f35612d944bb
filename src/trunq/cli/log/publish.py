"""trunq publish: one message, or one for each line."""

from __future__ import annotations

import json as jsons
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import say, write_json
from trunq.cli.log.unique import Unique, say_left_out
from trunq.record import Published
from trunq.word import Backoff

PANEL = "Its own policy, whatever its subscriptions say"
GROUP = 5_000
"""Messages in one call of publish_many; all calls share one transaction."""

EXAMPLES = (
    """trunq publish mail '{"to": "ada@example.com"}' --kind welcome""",
    "# One message for each line of standard input, all of them or none",
    "cat orders.ndjson | trunq publish orders",
    "# In ten minutes; at a time",
    "trunq publish mail --file letter.json --delay 10m",
    "trunq publish mail --file letter.json --due-at 2030-01-01T08:00+01:00",
    "# One whose handler may take half a minute",
    "trunq publish mail --file letter.json --time-out 30s",
    "# A code that nobody wants after five minutes, tried twice",
    """trunq publish mail '{"code": 1234}' --max-age 5m --max-attempts 2""",
    "# Tried ever later; in the end it goes into another queue",
    "trunq publish mail --file letter.json --backoff linear --dead-into failed",
    "# Before others, in a queue made with --lanes priority",
    "trunq publish work --file job.json --priority 1",
    "# Left out while another message holds the key",
    """trunq publish invoices '{"customer": 7}' --unique-key "customer 7\"""",
    "# With values of columns of your own",
    """trunq publish orders '{"total": 7}' --columns '{"customer": "acme"}'""",
    "# The same content not twice within an hour",
    """trunq publish invoices '{"customer": 7}' --unique --unique-for 1h""",
)


@dataclass(frozen=True, slots=True)
class Policy:
    """What a message says itself of its retries, whatever its subscriptions say; nothing given: nothing."""

    max_attempts: Annotated[
        int | None,
        typer.Option(
            "--max-attempts", min=1, max=9999, rich_help_panel=PANEL, help="How many attempts it has."
        ),
    ] = None
    time_out: Annotated[
        timedelta | None,
        typer.Option(
            "--time-out", parser=option.interval, metavar="INTERVAL", rich_help_panel=PANEL,
            help="How long its handler may run.",
        ),
    ] = None  # fmt: skip
    backoff: Annotated[
        Backoff | None,
        typer.Option("--backoff", rich_help_panel=PANEL, help="How the delay between attempts grows."),
    ] = None
    backoff_base: Annotated[
        timedelta | None,
        typer.Option(
            "--backoff-base", parser=option.interval, metavar="INTERVAL", rich_help_panel=PANEL,
            help="The delay before its second attempt.",
        ),
    ] = None  # fmt: skip
    backoff_cap: Annotated[
        timedelta | None,
        typer.Option(
            "--backoff-cap", parser=option.interval, metavar="INTERVAL", rich_help_panel=PANEL,
            help="The longest delay.",
        ),
    ] = None  # fmt: skip
    jitter: Annotated[
        float | None,
        typer.Option(
            "--jitter", min=0, max=1, rich_help_panel=PANEL,
            help="Each delay is shorter by a random share, up to this one.",
        ),
    ] = None  # fmt: skip
    dead_into: Annotated[
        str | None,
        typer.Option(
            "--dead-into", metavar="QUEUE", rich_help_panel=PANEL,
            help="A queue that it is published into when it dies; '' for none.",
        ),
    ] = None  # fmt: skip

    def options(self) -> dict[str, Any] | None:
        """The options of a message, times in seconds."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: value.total_seconds() if isinstance(value, timedelta) else value
            for name, value in given.items()
            if value is not None
        } or None


def publish(
    queue: option.Queue,
    payload: Annotated[
        str | None,
        typer.Argument(
            metavar="PAYLOAD", help="JSON. Without it, and without --file: the lines of standard input."
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Take the payload from a file: one JSON document.")
    ] = None,
    lines: Annotated[
        Path | None,
        typer.Option(
            "--lines", "-l", help="Publish one message for each line of a file (- is standard input)."
        ),
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", "-k", help="Its kind: which handler takes it.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="What it is about: a customer, an order.")] = None,
    headers: Annotated[
        dict[str, Any] | None,
        typer.Option(
            "--headers", parser=option.json_object, metavar="JSON", help="An object beside the payload."
        ),
    ] = None,
    columns: Annotated[
        dict[str, Any] | None,
        typer.Option(
            "--columns", parser=option.json_object, metavar="JSON", help="Values of columns of your own."
        ),
    ] = None,
    delay: Annotated[
        timedelta | None,
        typer.Option(
            "--delay", parser=option.interval, metavar="INTERVAL", help="Run it after so long: 30s, 10m, 2h."
        ),
    ] = None,
    due_at: Annotated[
        datetime | None,
        typer.Option(
            "--due-at", parser=option.moment, metavar="TIME", help="Run it at this time (ISO 8601)."
        ),
    ] = None,
    max_age: Annotated[
        timedelta | None,
        typer.Option(
            "--max-age",
            parser=option.interval,
            metavar="INTERVAL",
            help="After so long nobody handles it any more: it is dead, with reason expired.",
        ),
    ] = None,
    priority: Annotated[
        int | None,
        typer.Option(
            "--priority",
            min=-32768,
            max=32767,
            help="The smallest is handled first, in a queue with lanes by priority.",
        ),
    ] = None,
    *,
    policy: Policy,
    keys: Unique,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Publish messages to a queue and print their ids.

    What is read from lines is published in one transaction: if a line is not JSON, nothing is published.
    """
    if delay is not None and due_at is not None:
        raise Mistake("A message has either --delay or --due-at, not both.")
    if delay is not None and max_age is not None and delay >= max_age:
        raise Mistake("This message would expire before it is due: give a longer --max-age than --delay.")
    is_unique = keys.is_given()
    if columns is not None and is_unique:
        raise Mistake("Columns go without a unique key here: insert such a message into the log.")
    payloads = _payloads(payload, file, lines)
    rest: dict[str, Any] = {
        "kind": kind,
        "key": key,
        "headers": headers,
        "delay": delay,
        "due_at": due_at,
        "options": policy.options(),
        "max_age": max_age,
        "priorities": priority,
    }
    published: list[Published] = []
    with client(database) as trunq, trunq.transaction() as connection:
        while group := list(islice(payloads, GROUP)):
            if is_unique:
                published += keys.publish(trunq, queue, group, **rest, connection=connection)
            elif columns is not None:
                each = {name: value for name, value in rest.items() if name != "priorities"}
                each |= {"priority": priority, "columns": columns, "connection": connection}
                published += [Published(trunq.publish(queue, payload, **each), True) for payload in group]
            else:
                ids = trunq.publish_many(queue, group, **rest, connection=connection)
                published += [Published(id, True) for id in ids]
    ids = [message.id for message in published if message.is_new]
    holders = [message.id for message in published if not message.is_new]
    if json:
        write_json({"queue": queue, "ids": ids} | ({"held_by": holders} if is_unique else {}))
    else:
        say_left_out(holders)
        _say_published(queue, ids, bool(holders))


def _say_published(queue: str, ids: list[int], is_left_out: bool) -> None:
    if len(ids) > 1:
        say("Published {count} messages to {queue}, ids {first} to {last}.",
            count=f"{len(ids):,}", queue=queue, first=ids[0], last=ids[-1])  # fmt: skip
    elif ids:
        say("Published message {id} to {queue}.", id=ids[0], queue=queue)
    elif not is_left_out:
        say("There was nothing to publish.")


def _payloads(payload: str | None, file: Path | None, lines: Path | None) -> Iterator[Any]:
    """The payloads, read as they are needed; raises Mistake at the first that is not JSON."""
    if sum(source is not None for source in (payload, file, lines)) > 1:
        raise Mistake("Give the payload once: as an argument, with --file or with --lines.")
    if payload is not None:
        return iter([_parse(payload, "The payload")])
    if file is not None:
        return iter([_parse(file.read_text(encoding="utf-8"), str(file))])
    if lines is not None and str(lines) != "-":
        return _parse_lines(_lines_of(lines), str(lines))
    if lines is None and sys.stdin.isatty():
        raise Mistake(
            "There is no payload. Give it as an argument, with --file, or pipe one JSON document a line in."
        )
    return _parse_lines(sys.stdin, "standard input")


def _lines_of(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as lines:
        yield from lines


def _parse_lines(lines: Iterable[str], name: str) -> Iterator[Any]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _parse(line, f"Line {number} of {name}")


def _parse(text: str, what: str) -> Any:
    try:
        return jsons.loads(text)
    except ValueError as error:
        shown = text.strip() if len(text.strip()) <= 40 else text.strip()[:39] + "…"
        raise Mistake(
            f"{what} is not JSON ({error}): {shown}\nText must be in double quotes, like '\"hello\"'. "
            "Nothing was published."
        ) from None
