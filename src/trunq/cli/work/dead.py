"""trunq dead: list, groups, requeue, purge, set."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer

from trunq import Client, display
from trunq.cli.ground import completion, option
from trunq.cli.ground.database import client
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import Row, print_fact, say, tell_rest, with_age, write_json, write_rows
from trunq.cli.ground.question import Yes, confirm
from trunq.cli.work.choice import WHICH, Choice
from trunq.cli.work.sweep import sweep_all
from trunq.record.dead import look_of
from trunq.word import Reason

app = option.noun(
    "Dead messages: rejected, or given up after their last attempt (others say dead-letter queue).",
    "trunq dead list mail",
    "trunq dead groups",
    "trunq dead requeue mail --kind welcome --error 'timed out'",
    "trunq dead purge mail --older-than 30d",
    "trunq dead set mail --warn --into failures",
)

COLUMNS = ("id", "subscription", "kind", "key", "age", "reason", "attempts", "died_at", "error")

GROUPS = ("messages", "queue", "fingerprint", "kinds", "first_died_at", "last_died_at", "id")

Subscription = Annotated[
    str | None,
    typer.Option(
        "--subscription",
        "-s",
        metavar="NAME",
        help="Only those of this subscription.",
        autocompletion=completion.subscriptions,
    ),
]
ForReason = Annotated[
    Reason | None,
    typer.Option("--reason", rich_help_panel=WHICH, help="Only those that are dead for this reason."),
]
ForFingerprint = Annotated[
    str | None,
    typer.Option(
        "--fingerprint",
        metavar="TEXT",
        rich_help_panel=WHICH,
        help="Only those of this group: trunq dead groups.",
    ),
]
Ids = Annotated[list[int] | None, typer.Argument(metavar="ID...", help="Ids of messages.")]
Everything = Annotated[
    bool,
    typer.Option(
        "--all", metavar=option.FLAG, help="All dead messages of the queue, or of the subscription."
    ),
]


@option.verb(
    app,
    "list",
    "trunq dead list mail",
    "# What died within the last hour, and why",
    "trunq dead list mail --newer-than 1h --json | jq '.[].errors'",
)
def list_dead(
    queue: option.Queue,
    subscription: Subscription = None,
    limit: option.Limit = 20,
    before: Annotated[
        int | None, typer.Option("--before", metavar="DEAD_ID", help="Only those listed after this dead_id.")
    ] = None,
    reason: ForReason = None,
    fingerprint: ForFingerprint = None,
    *,
    choice: Choice,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List the dead messages of a queue, the newest first, each with its last error."""
    with client(database) as trunq:
        rows = trunq.list_dead(
            queue,
            subscription,
            limit=limit,
            before=before,
            brief=not (json or csv),
            reason=reason,
            fingerprint=fingerprint,
            **asdict(choice),
        )
    found: list[Row] = [row._asdict() for row in rows]
    shown = (
        found if json or csv else [with_age(row, "died_at") | {"error": _last_error(row)} for row in found]
    )
    nothing = (
        f"Queue {queue} has no {'such ' if choice.is_given or reason or fingerprint else ''}dead messages."
    )
    write_rows(shown, COLUMNS, json, nothing, csv)


@option.verb(
    app,
    "groups",
    "trunq dead groups",
    "trunq dead groups mail",
    "# And then all of one of them",
    "trunq dead requeue mail --fingerprint \"KeyError: '...'\"",
)
def groups(
    queue: option.OneQueue = None,
    subscription: Subscription = None,
    look: Annotated[
        int, typer.Option("--look", min=1, max=100_000, help="At how many of the newest it looks.")
    ] = 10_000,
    before: Annotated[
        int | None, typer.Option("--before", metavar="DEAD_ID", help="Go on where a look ended.")
    ] = None,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """Group dead messages by error, of one queue or all, the most frequent first.

    A fingerprint is the first line of an error without what differs from message to message: texts in
    quotes, numbers, long hexadecimal words. `trunq dead requeue --fingerprint` takes one.
    """
    with client(database) as trunq:
        groups = trunq.list_dead_groups(queue, subscription, look, before)
    found: list[Row] = [group._asdict() for group in groups]
    shown = found if json or csv else [{**row, "kinds": ", ".join(row["kinds"])} for row in found]
    where = "No queue" if queue is None else f"Queue {queue}"
    write_rows(shown, GROUPS, json, f"{where} has {'' if queue is None else 'no '}dead messages.", csv)
    looked, further, _ = look_of(groups)
    tell_rest(looked, further)


@option.verb(
    app,
    "requeue",
    "trunq dead requeue mail 42 43",
    "# What died of one cause, after the cause is mended",
    "trunq dead requeue mail --kind welcome --error 'connection refused'",
    "# Everything, without being asked",
    "trunq dead requeue mail --all --yes",
)
def requeue(
    queue: option.Queue,
    ids: Ids = None,
    everything: Everything = False,
    subscription: Subscription = None,
    yes: Yes = False,
    reason: ForReason = None,
    fingerprint: ForFingerprint = None,
    *,
    choice: Choice,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Requeue dead messages: their subscription handles them again, with all attempts.

    Unless you give ids, it says how many there are, and asks. Messages that die meanwhile stay dead.
    """
    given = _choose(
        ids, everything, subscription, choice, {"reason": reason, "fingerprint": fingerprint}, "requeue"
    )
    with client(database) as trunq:
        count = _take(trunq, queue, given, "requeue", yes)
    _tell("requeued", queue, count, json)


@option.verb(
    app,
    "purge",
    "trunq dead purge mail 42",
    "trunq dead purge mail --older-than 30d",
    "trunq dead purge mail --all",
)
def purge(
    queue: option.Queue,
    ids: Ids = None,
    everything: Everything = False,
    subscription: Subscription = None,
    yes: Yes = False,
    reason: ForReason = None,
    fingerprint: ForFingerprint = None,
    *,
    choice: Choice,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Delete dead messages for good.

    Unless you give ids, it says how many there are, and asks. Messages that die meanwhile stay.
    """
    given = _choose(
        ids, everything, subscription, choice, {"reason": reason, "fingerprint": fingerprint}, "purge"
    )
    with client(database) as trunq:
        count = _take(trunq, queue, given, "purge", yes)
    _tell("purged", queue, count, json)


@option.verb(
    app,
    "set",
    "# As it is",
    "trunq dead set mail",
    "# In the server's log, where alerts are made of",
    "trunq dead set mail --warn",
    "# Into a queue of their own, with a worker that tells somebody",
    "trunq dead set mail --into failures",
    "trunq dead set mail --no-warn --into ''",
)
def set_dead(
    queue: option.Queue,
    subscription: option.Subscription = "default",
    warn: Annotated[
        bool | None,
        typer.Option(
            "--warn/--no-warn", metavar=option.FLAG, show_default=False,
            help="Whether each is a WARNING in the log of the server.",
        ),
    ] = None,
    notify: Annotated[
        bool | None,
        typer.Option(
            "--notify/--no-notify", metavar=option.FLAG, show_default=False,
            help="Whether each is a NOTIFY; the channel is shown.",
        ),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="QUEUE", help="Publish each into this queue, too; '': no more."),
    ] = None,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:  # fmt: skip
    """Choose who hears when a message dies: the log of Postgres, listeners, or another queue.

    A copy in another queue has the header trunq_dead, which lists where it died, and why. The dead
    message itself stays here. Messages that expired or were cancelled are not reported.
    """
    with client(database) as trunq:
        policy = trunq.set_dead(queue, subscription, warn=warn, notify=notify, into=into)
    if json:
        write_json(policy._asdict())
        return
    say("Dead messages of {queue} {subscription}:", queue=queue, subscription=subscription)
    print_fact("warning", policy.warns)
    print_fact("notify", f"on {policy.channel}" if policy.notifies else "no")
    print_fact("into", policy.into_queue or "no other queue")


def _choose(
    ids: list[int] | None,
    everything: bool,
    subscription: str | None,
    choice: Choice,
    named: dict[str, str | None],
    verb: str,
) -> dict[str, Any]:
    """What was chosen, as arguments; all messages only for a user who asks for them."""
    is_filtered = choice.is_given or any(named.values())
    if everything and (ids or is_filtered):
        raise Mistake("Give --all, or ids and filters, not both.")
    if not (ids or everything or is_filtered):
        raise Mistake(f"Say which messages to {verb}: their ids, a filter (--kind, --error, ...), or --all.")
    return {"subscription": subscription, "ids": ids or None, **named, **asdict(choice)}


def _take(
    trunq: Client, queue: str, given: dict[str, Any], act: Literal["requeue", "purge"], yes: bool
) -> int:
    """Requeue or purge what is chosen, in parts; returns how many."""
    # Only what is dead by now: messages die meanwhile, those requeued among them.
    newest = trunq.list_dead(queue, given["subscription"], limit=1, brief=True)
    if not newest:
        return 0
    given = given | {"before": newest[0].dead_id + 1}
    if given["ids"] is not None:
        return (trunq.requeue if act == "requeue" else trunq.purge)(queue, **given)
    del given["ids"]
    count = trunq.count_dead(queue, **given)
    if not count:
        return 0
    confirm(f"{_counted(count)} of {queue}: {act}?", is_answered=yes)
    return sweep_all(trunq, queue, act, given | {"counted": count}).done


def _tell(done: str, queue: str, count: int, json: bool) -> None:
    if json:
        write_json({"queue": queue, done: count})
    else:
        say(f"{{count}} of {{queue}} {done}.", count=_counted(count), queue=queue)


def _counted(count: int) -> str:
    return display.counted(count, "dead message")


def _last_error(row: Row) -> str:
    errors = row["errors"] or []
    return str(errors[-1].get("error") or "") if errors else ""
