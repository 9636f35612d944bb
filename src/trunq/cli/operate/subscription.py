"""trunq subscription: create, set, list, pause, resume, drop, reset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from trunq import Client
from trunq.cli.ground import completion, option
from trunq.cli.ground.database import client
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import Row, print_fact, say, write_json, write_rows
from trunq.cli.ground.question import Yes, confirm
from trunq.cli.operate.pause import Pause, how_long, with_words
from trunq.cli.operate.policy import LIMITS, Filter, Limits, Policy, differ, words
from trunq.cli.operate.status import in_words
from trunq.word import Mode, Start

app = option.noun(
    "Subscriptions, the readers of a queue: create, set, list, pause, resume, drop, reset.",
    "trunq subscription create orders audit --start earliest",
    "trunq subscription set orders default --max-attempts 5",
    "trunq subscription list orders",
)

COLUMNS = (
    *("queue", "subscription", "mode", "paused", "max_attempts", "lease_time", "backoff", "backoff_base"),
    *("backoff_cap", "filter", "rate", "max_running", "created_at"),
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="SUBSCRIPTION", help="Name of the subscription.", autocompletion=completion.subscriptions
    ),
]
From = Annotated[
    Start,
    typer.Option("--start", help="earliest: at the oldest message that is kept; latest: at those to come."),
]


FACTS = ("mode", "paused", "paused_until", *Policy.__dataclass_fields__, "filter", *LIMITS)


@option.verb(
    app,
    "create",
    "# A second pool of workers, which sees every message too",
    "trunq subscription create orders audit",
    "# A stream: one reader, batch by batch, from the oldest message kept",
    "trunq subscription create orders ledger --mode exclusive --start earliest",
    "# One that reads only one kind, 100 a minute at most",
    "trunq subscription create orders mail --kind invoice --rate 100/1m",
)
def create(
    queue: option.Queue,
    subscription: Name,
    mode: Annotated[
        Mode,
        typer.Option("--mode", help="shared: many workers; exclusive: one reader, in order."),
    ] = "shared",
    start: From = "latest",
    *,
    policy: Policy,
    filter: Filter,
    limits: Limits,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Create a subscription: it gets every message that is published from now on, and answers for itself.

    One that exists stays as it is; if it has other settings than you give, the exit status is 1.
    """
    given = {"mode": mode} | policy.given() | filter.given() | limits.given()
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
    "# What nobody needs after ten minutes is passed over",
    "trunq subscription set orders default --max-age 10m",
    "# Delayed messages and retries come before those that wait",
    "trunq subscription set orders default --due-first",
    "# Only 4 at the same time; as many as there are",
    "trunq subscription set orders default --max-running 4",
    "trunq subscription set orders default --max-running 0",
    "# Another filter; none",
    "trunq subscription set orders mail --not-kind parcel --header country=CZ",
    "trunq subscription set orders mail --no-filter",
)
def set_subscription(
    queue: option.Queue,
    subscription: Name,
    *,
    policy: Policy,
    filter: Filter,
    limits: Limits,
    lanes: Annotated[str | None, typer.Option("--policy", hidden=True)] = None,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Change what you give of a subscription's policy, filter and limits. Then show all of them.

    Without an option, only show them. Changes hold for the next lease and the next failure of each
    message. A new filter holds for what is read from then on: messages that the old one passed over do
    not come back.
    """
    if lanes is not None:
        raise Mistake(
            "The policy by which lanes are served is set where lanes are: "
            f"trunq lane policy {queue} {subscription} {lanes}"
        )
    changes = policy.given() | filter.given()
    with client(database) as trunq:
        there = _there(trunq, queue, subscription)
        if changes := changes | limits.given(there["rate"]):
            with trunq.transaction() as connection:
                if trunq.subscribe(queue, subscription, mode=there["mode"], connection=connection, **changes):
                    # Rolled back: it was dropped meanwhile, and must not become a reader again.
                    raise _not_there(queue, subscription)
            there = _there(trunq, queue, subscription)
    if json:
        write_json(there)
        return
    say("Subscription {subscription} of {queue}", subscription=subscription, queue=queue)
    for name in FACTS:
        print_fact(name.replace("_", " "), words(there, name), 14)


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
        rows = [
            with_words(row)
            | {"max_attempts": row["max_attempts"] or "for ever", "rate": row["rate"] and words(row, "rate")}
            for row in rows
        ]
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
    """Pause a subscription until a time or `trunq subscription resume`; the others go on.

    Messages that its workers hold go on, publishers publish, and waiting messages are kept. If it is
    paused already, this changes when the pause ends.
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
    """Resume a subscription, and wake its workers.

    While its whole queue is paused, it hands out nothing until `trunq queue resume`.
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
    """Drop a subscription, with all that it has not read, and its delayed and dead messages.

    It says how many there are, and asks. Other subscriptions keep their messages.
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
    start: From = "latest",
    yes: Yes = False,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Start a subscription afresh: at the latest message, or at the earliest one again.

    From the latest, it skips what waits. Its policy stays. Its unread, delayed and dead messages go, and
    so does the history of its messages; workers that hold some of them can no longer answer. It says how
    many there are, and asks.
    """
    with client(database) as trunq:
        confirm(f"{_what_goes(trunq, queue, subscription)} Start afresh at the {start}?", is_answered=yes)
        trunq.reset(queue, subscription, start)
    if json:
        write_json({"queue": queue, "subscription": subscription, "start": start})
    else:
        say("Subscription {subscription} of {queue} starts at the {start}.",
            subscription=subscription, queue=queue, start=start)  # fmt: skip


def _find(trunq: Client, queue: str, subscription: str) -> dict[str, Any] | None:
    rows = (row._asdict() for row in trunq.list_subscriptions(queue))
    return next((row for row in rows if row["subscription"] == subscription), None)


def _there(trunq: Client, queue: str, subscription: str) -> dict[str, Any]:
    if (there := _find(trunq, queue, subscription)) is None:
        raise _not_there(queue, subscription)
    return there


def _not_there(queue: str, subscription: str) -> Mistake:
    return Mistake(
        f'Queue "{queue}" has no subscription "{subscription}".'
        f" Those there are: trunq subscription list {queue}."
    )


def _refuse_another(queue: str, there: Row, given: Mapping[str, Any]) -> None:
    if other := [name for name in differ(there, given) if name != "rate_interval" or there["rate"]]:
        said = ", ".join(f"{name.replace('_', ' ')} {words(there, name) or 'none'}" for name in other)
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
