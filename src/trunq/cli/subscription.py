"""trunq subscription: create, set, list, pause, resume, drop, reset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal

import typer

from trunq import Client
from trunq.cli import completion, option
from trunq.cli.database import client
from trunq.cli.failure import Mistake
from trunq.cli.output import Row, print_fact, say, write_json, write_rows
from trunq.cli.pause import Pause, how_long, with_words
from trunq.cli.question import Yes, confirm
from trunq.cli.status import in_words
from trunq.display import text

app = option.noun(
    "Subscriptions, the readers of a queue: create, set, list, pause, resume, drop, reset.",
    "trunq subscription create orders audit --start earliest",
    "trunq subscription set orders default --max-attempts 5",
    "trunq subscription list orders",
)

COLUMNS = (
    *("queue", "subscription", "mode", "paused", "max_attempts", "lease_time", "backoff", "backoff_base"),
    *("backoff_cap", "created_at"),
)
POLICY = "Its policy, for shared subscriptions"

Name = Annotated[
    str,
    typer.Argument(
        metavar="SUBSCRIPTION", help="Name of the subscription.", autocompletion=completion.subscriptions
    ),
]
Start = Annotated[
    Literal["latest", "earliest"],
    typer.Option("--start", help="earliest: at the oldest message that is kept; latest: at those to come."),
]


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
        Literal["constant", "linear", "exponential"] | None,
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


FACTS = ("mode", "paused", "paused_until", *Policy.__dataclass_fields__)
ENDLESS = ("max_attempts", "dead_retention")
"""Of these, none means for ever."""


@option.verb(
    app,
    "create",
    "# A second pool of workers, which sees every message too",
    "trunq subscription create orders audit",
    "# A stream: one reader at a time, batch by batch, from the oldest message that is kept",
    "trunq subscription create orders ledger --mode exclusive --start earliest",
)
def create(
    queue: option.Queue,
    subscription: Name,
    mode: Annotated[
        Literal["shared", "exclusive"],
        typer.Option("--mode", help="shared: many workers; exclusive: one reader, in order."),
    ] = "shared",
    start: Start = "latest",
    *,
    policy: Policy,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Create a subscription: it sees each message that is published from now on, and answers for its own.

    One that is there stays as it is; if it has other settings than you give, the status is 1.
    """
    given = {"mode": mode} | _given(policy)
    with client(database) as trunq:
        there = _find(trunq, queue, subscription)
        created = there is None and trunq.subscribe(queue, subscription, start=start, **given)
        if not created:
            _refuse_another(queue, there or _find(trunq, queue, subscription) or {}, given)
    if json:
        write_json({"queue": queue, "subscription": subscription, "created": created})
    elif created:
        say("Subscription {subscription} of {queue} created.", subscription=subscription, queue=queue)
    else:
        say(
            "Subscription {subscription} of {queue} is there already.", subscription=subscription, queue=queue
        )


@option.verb(
    app,
    "set",
    "trunq subscription set orders default --max-attempts 5 --lease-time 5m",
    "# A day of dead messages",
    "trunq subscription set orders default --dead-retention 1d",
)
def set_subscription(
    queue: option.Queue,
    subscription: Name,
    *,
    policy: Policy,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Change what you give of a subscription's policy; the rest stays. Then show all of it.

    Without any option it shows it. It holds for the next lease and the next failure of each message.
    """
    with client(database) as trunq:
        if given := _given(policy):
            with trunq.transaction() as connection:
                if trunq.subscribe(queue, subscription, connection=connection, **given):
                    # Rolled back: a misspelt name must not become a reader.
                    raise _not_there(queue, subscription)
        there = _find(trunq, queue, subscription)
    if there is None:
        raise _not_there(queue, subscription)
    if json:
        write_json(there)
        return
    say("Subscription {subscription} of {queue}", subscription=subscription, queue=queue)
    for name in FACTS:
        print_fact(
            name.replace("_", " "), "for ever" if name in ENDLESS and there[name] is None else there[name], 14
        )


@option.verb(app, "list", "trunq subscription list", "trunq subscription list orders --json")
def list_subscriptions(
    queue: option.OneQueue = None,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List the subscriptions of a queue, or of all, with their policies; `trunq status` has their numbers."""
    with client(database) as trunq:
        rows = [row._asdict() for row in trunq.list_subscriptions(queue)]
    if not (json or csv):
        rows = [with_words(row) | {"max_attempts": row["max_attempts"] or "for ever"} for row in rows]
    write_rows(rows, COLUMNS[1:] if queue else COLUMNS, json, "There is no subscription.", csv)


@option.verb(
    app,
    "pause",
    "# Until somebody resumes it",
    "trunq subscription pause orders audit",
    "# While the other end is repaired",
    "trunq subscription pause orders audit --for 2h",
)
def pause_subscription(
    queue: option.Queue,
    subscription: Name,
    *,
    pause: Pause,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Hand out no message of a subscription until a time or `trunq subscription resume`; others go on.

    What its workers hold goes on, publishers publish, and what waits is kept. Of one that is paused already
    this changes the end of the pause.
    """
    with client(database) as trunq:
        until = pause.end(trunq)
        trunq.pause_subscription(queue, subscription, until)
    if json:
        write_json({"queue": queue, "subscription": subscription, "paused": True, "paused_until": until})
    else:
        say(
            "Subscription {subscription} of {queue} is paused {until}."
            " Resume it with: trunq subscription resume {queue} {subscription}",
            subscription=subscription, queue=queue, until=how_long(until),
        )  # fmt: skip


@option.verb(app, "resume", "trunq subscription resume orders audit")
def resume_subscription(
    queue: option.Queue, subscription: Name, *, database: option.Database, json: option.Json = False
) -> None:
    """End the pause of a subscription and wake its workers.

    Where its whole queue is paused, it hands out nothing until `trunq queue resume`.
    """
    with client(database) as trunq:
        resumed = trunq.resume_subscription(queue, subscription)
        still = any(row.paused for row in trunq.list_queues() if row.queue == queue)
    if json:
        write_json({"queue": queue, "subscription": subscription, "resumed": resumed, "queue_paused": still})
        return
    says = "is no longer paused" if resumed else "was not paused"
    say(f"Subscription {{subscription}} of {{queue}} {says}.", subscription=subscription, queue=queue)
    if still:
        say("All of queue {queue} is paused: trunq queue resume {queue}", queue=queue)


@option.verb(
    app, "drop", "trunq subscription drop orders audit", "trunq subscription drop orders audit --yes"
)
def drop(
    queue: option.Queue,
    subscription: Name,
    yes: Yes = False,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """End a subscription, with all that it has not read, and its delayed and dead messages.

    It says how many they are and asks. Messages that other subscriptions read stay theirs.
    """
    with client(database) as trunq:
        confirm(f"{_what_goes(trunq, queue, subscription)} Drop it?", is_answered=yes)
        dropped = trunq.unsubscribe(queue, subscription)
    if json:
        write_json({"queue": queue, "subscription": subscription, "dropped": dropped})
    else:
        say("Subscription {subscription} of {queue} dropped.", subscription=subscription, queue=queue)


@option.verb(
    app,
    "reset",
    "# Skip all that waits",
    "trunq subscription reset orders audit",
    "# Read all that is still kept once more",
    "trunq subscription reset orders audit --start earliest",
)
def reset(
    queue: option.Queue,
    subscription: Name,
    start: Start = "latest",
    yes: Yes = False,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Start a subscription afresh: at the latest message it skips what waits, at the earliest it reads again.

    Its policy stays. What it has not read, its delayed and its dead messages go, with the history of its
    messages; who holds some of them can no longer answer. It says how many they are and asks.
    """
    with client(database) as trunq:
        confirm(f"{_what_goes(trunq, queue, subscription)} Start afresh at the {start}?", is_answered=yes)
        trunq.reset(queue, subscription, start)
    if json:
        write_json({"queue": queue, "subscription": subscription, "start": start})
    else:
        say("Subscription {subscription} of {queue} starts at the {start}.",
            subscription=subscription, queue=queue, start=start)  # fmt: skip


def _given(policy: Policy) -> dict[str, Any]:
    return {name: value for name, value in asdict(policy).items() if value is not None}


def _find(trunq: Client, queue: str, subscription: str) -> dict[str, Any] | None:
    rows = (row._asdict() for row in trunq.list_subscriptions(queue))
    return next((row for row in rows if row["subscription"] == subscription), None)


def _not_there(queue: str, subscription: str) -> Mistake:
    return Mistake(
        f'Queue "{queue}" has no subscription "{subscription}".'
        f" Those there are: trunq subscription list {queue}."
    )


def _refuse_another(queue: str, there: Row, given: Mapping[str, Any]) -> None:
    # 0 is how one says for ever, which is told as none.
    other = [name for name, value in given.items() if (there[name] or 0) != (value or type(value)())]
    if other:
        said = ", ".join(f"{name.replace('_', ' ')} {text(there[name]) or 'for ever'}" for name in other)
        name = there["subscription"]
        raise Mistake(
            f"Queue {queue} has a subscription {name} already, with {said}, and it stays as it is."
            f" To change its policy: trunq subscription set {queue} {name} ..."
        )


def _what_goes(trunq: Client, queue: str, subscription: str) -> str:
    """What is lost with a subscription, in a sentence."""
    row = next((row for row in trunq.status(queue) if row.subscription == subscription), None)
    if row is None:
        raise _not_there(queue, subscription)
    return f"Subscription {subscription} of {queue} has {in_words(row)}."
