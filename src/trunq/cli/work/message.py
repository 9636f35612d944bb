"""trunq message: show, list, progress, find, resume, cancel, delete."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Final, get_args
from uuid import UUID

import typer
from rich.markup import escape

from trunq import Client, display
from trunq.cli.ground import completion, option
from trunq.cli.ground.database import client, looked_to
from trunq.cli.ground.failure import Mistake, in_shell
from trunq.cli.ground.output import Row, out, print_fact, say, tell_rest, with_age, write_json, write_rows
from trunq.cli.ground.question import Yes, confirm
from trunq.cli.work.choice import WHICH, Choice, Contains, HeadersContain, contained
from trunq.display import attempt as attempt_in_words
from trunq.record.look import LOOKED_AT_MOST
from trunq.wire.json import RawJson
from trunq.word import Open, State

app = option.noun(
    "Messages: where each one is and what became of it; resume, cancel or erase some.",
    "trunq message list mail --state retrying",
    "trunq message show mail 42",
    "trunq message find 4JZ7K7M2Q9",
    "trunq message progress mail",
    "trunq message resume payments 9f2c7d",
    "trunq message cancel mail 42",
    "trunq message delete mail 42",
)

OPEN: Final[tuple[Open, ...]] = get_args(Open)
FATES: Final = {
    "scheduled": "will not run",
    "ready": "will not run",
    "retrying": "will not run again",
    "parked": "will not run again",
    "leased": "its worker is told",
    "done": "was done before",
    "outdated": "was passed over before",
    "dead": "was dead before",
    "replaced": "was replaced before",
    "purged": "was dead before",
}
RESUMED: Final = {
    "resumed": "Resumed: the message of {queue} runs again.",
    "noted": "No message of {queue} is parked under this token yet: one that will be within a week goes on.",
    "repeated": "Resumed before: nothing changed in {queue}.",
}
STDIN: Final = "-"
PART: Final = 5_000
"""Messages in one transaction."""
FEW: Final = 50
"""Of more it prints numbers."""

COLUMNS = ("id", "state", "kind", "key", "age", "attempt", "published_at", "worker", "error")
DELETIONS = ("deletion_id", "deleted_at", "deleted_by", "messages", "running", "ids")
PROGRESS = ("id", "subscription", "running", "percent", "note", "checkpoint", "worker", "age")
FACTS = ("kind", "key", "published_at", "due_at", "headers", "payload")
COLOURS = {
    "scheduled": "magenta",
    "ready": "cyan",
    "leased": "blue",
    "retrying": "yellow",
    "parked": "bright_blue",
    "done": "green",
    "outdated": "bright_black",
    "dead": "red",
    "replaced": "bright_black",
    "purged": "red",
}


FOUND: Final = (
    "reference",
    "queue",
    "subscription",
    "id",
    "kind",
    "attempt",
    "failed_at",
    "worker",
    "public",
)


@option.verb(
    app,
    "show",
    "trunq message show mail 42",
    "trunq message show mail 42 --json | jq '.[].attempts'",
    "# No more than users of your application may see",
    "trunq message show mail 42 --public",
    "# By the id that a stranger was shown",
    "trunq message show --public-id 4b95b481-dfc2-82e7-8b56-ffeec890fd71",
)
def show(
    queue: option.OneQueue = None,
    id: Annotated[int | None, typer.Argument(metavar="ID", help="The number that publish returned.")] = None,
    public: Annotated[
        bool,
        typer.Option(
            "--public", metavar=option.FLAG, help="Only what users may see: state, reference, public text."
        ),
    ] = False,
    public_id: Annotated[
        UUID | None,
        typer.Option("--public-id", metavar="UUID", help="Find it by its public id, in that queue or any."),
    ] = None,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Show one message: its payload, and for each shared subscription its state and every attempt."""
    with client(database) as trunq:
        if public_id is not None and id is None:
            named = trunq.find_public_id(public_id, queue)
            if not named:
                raise Mistake(f"No message here has the public id {public_id}.")
            queue, id = named[0]
        elif queue is None or id is None or public_id is not None:
            raise Mistake("Name a message by its queue and ID, or by --public-id.")
        if public:
            rows: list[Row] = [row._asdict() for row in trunq.show_public(queue, id)]
            write_rows(rows, ("subscription", "state", "reference", "public"), json, "")
            return
        found = [row._asdict() for row in trunq.show_message(queue, id)]
        said = {row.subscription: row._asdict() for row in trunq.list_progress(queue, ids=[id])}
        waits = {row.subscription: row._asdict() for row in trunq.explain_wait(queue, id)}
    for row in found:
        row["progress"] = said.get(row["subscription"])
        row["waits"] = waits.get(row["subscription"])
    if json:
        write_json(found)
        return
    out.print(f"Message [bold]{id}[/bold] of queue [bold]{escape(queue)}[/bold]")
    for fact in FACTS:
        print_fact(fact.removesuffix("_at"), found[0][fact])
    for row in found:
        _print_state(row)


@option.verb(
    app,
    "progress",
    "trunq message progress mail",
    "# How far those are that run",
    "trunq message progress mail --json | jq '.[] | select(.is_running) | .percent'",
)
def list_progress(
    queue: option.Queue,
    subscription: Annotated[
        str | None,
        typer.Option(
            "--subscription",
            "-s",
            metavar="NAME",
            autocompletion=completion.subscriptions,
            help="Only of this subscription.",
        ),
    ] = None,
    limit: option.Limit = 20,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """List how far running handlers are, as they report it, the newest report first.

    A message that is not running waits for its next attempt, or is dead. If it has a checkpoint, the next
    attempt goes on from there.
    """
    with client(database) as trunq:
        rows = trunq.list_progress(queue, subscription, limit=limit)
    found: list[Row] = [row._asdict() for row in rows]
    shown = found if json else [_in_words(row) for row in found]
    write_rows(shown, PROGRESS, json, f"No handler of queue {queue} reported progress.")


@option.verb(
    app,
    "find",
    "trunq message find 4JZ7K7M2Q9",
    "# As it was told on the telephone, and in one queue alone",
    "trunq message find '4jz7k-7m2q9' --queue mail",
    "trunq message find 4JZ7K7M2Q9 --json | jq '.[].error'",
)
def find(
    reference: Annotated[
        str, typer.Argument(metavar="REFERENCE", help="What stands in the log, or what a user was shown.")
    ],
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue",
            metavar="NAME",
            autocompletion=completion.queues,
            help="Only in this queue, or the archive it left.",
        ),
    ] = None,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Find the attempt whose error has a reference: the message, the error, when and where.

    The exit status is 1 when there is none. A queue keeps messages no longer than its retention, an
    archive keeps them longer.
    """
    with client(database) as trunq:
        found = [row._asdict() for row in trunq.find_reference(reference, queue)]
    if json:
        write_json(found)
    for row in [] if json else found:
        for fact in FOUND:
            print_fact(fact.removesuffix("_at"), row[fact])
        out.print(f"\n{row['error']}\n", markup=False, highlight=False, soft_wrap=True)
    if not found:
        raise Mistake(f"No error that is still kept has the reference {reference}.")


@option.verb(
    app,
    "list",
    "trunq message list mail",
    "trunq message list mail --csv > messages.csv",
    "# What is being worked on now, and by whom",
    "trunq message list mail --state leased",
    "# What failed with a time-out within the last hour",
    "trunq message list mail --error 'timed out' --newer-than 1h",
    "# What a payload contains, as a part of its JSON",
    """trunq message list mail --payload '{"customer": "acme"}'""",
    "# The page after message 1234",
    "trunq message list mail --before 1234",
)
def list_messages(
    queue: option.Queue,
    subscription: option.Subscription = "default",
    state: Annotated[State | None, typer.Option("--state", help="Only messages in this state.")] = None,
    limit: option.Limit = 20,
    before: Annotated[
        int | None, typer.Option("--before", metavar="ID", help="Only messages with smaller ids.")
    ] = None,
    payload: Contains = None,
    headers: HeadersContain = None,
    look: Annotated[
        int,
        typer.Option("--look", min=1, max=LOOKED_AT_MOST, help="At how many a filter looks."),
    ] = LOOKED_AT_MOST,
    *,
    choice: Choice,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List messages of a queue as one subscription sees them, the newest first.

    A filter, or the state outdated, replaced or purged, looks at 100,000 messages at most, and says where to
    go on when there are more.
    """
    with client(database) as trunq, trunq.transaction() as connection:
        rows = trunq.list_messages(
            queue,
            subscription,
            state=state,
            limit=limit,
            before=before,
            brief=not (json or csv),
            payload=payload,
            headers=headers,
            look=look,
            connection=connection,
            **asdict(choice),
        )
        further = looked_to(connection)
    found: list[Row] = [row._asdict() for row in rows]
    shown = found if json or csv else [with_age(row, "published_at") for row in found]
    write_rows(shown, COLUMNS, json, _nothing(queue, state, choice), csv)
    tell_rest(look, further)


@option.verb(
    app,
    "resume",
    "trunq message resume payments 9f2c7d",
    "# With what the next attempt is to get",
    "trunq message resume payments 9f2c7d '{\"paid\": true}'",
    "# A token that no other process is to see",
    "cat token.txt | trunq message resume payments -",
)
def resume(
    queue: option.Queue,
    token: Annotated[
        str, typer.Argument(metavar="TOKEN", help="What the message is parked under; -: a line of stdin.")
    ],
    value: Annotated[
        RawJson | None,
        typer.Argument(
            parser=contained, metavar="VALUE", help="JSON that its next attempt gets, of 1 MB at most."
        ),
    ] = None,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Resume a message that is parked: it runs again within a second, and no attempt was counted.

    If the token comes before its message is parked, it is remembered for a week. A second call changes
    nothing.
    """
    if token == STDIN:
        token = sys.stdin.readline().rstrip("\n")
    with client(database) as trunq:
        did = trunq.resume(queue, token, value)
    if json:
        write_json({"resumption": did})
    else:
        say(RESUMED[did], queue=queue)


@option.verb(
    app,
    "cancel",
    "trunq message cancel mail 42 43",
    "# For one reader; the others keep it",
    "trunq message cancel mail 42 --subscription audit",
    "# All of one kind that is not over, without being asked",
    "trunq message cancel mail --kind newsletter --yes",
    "# What is being worked on for too long",
    "trunq message cancel mail --state leased --older-than 1h",
)
def cancel(
    queue: option.Queue,
    ids: Annotated[list[int] | None, typer.Argument(metavar="ID...", help="Ids of messages.")] = None,
    subscription: Annotated[
        str | None,
        typer.Option(
            "--subscription",
            "-s",
            metavar="NAME",
            autocompletion=completion.subscriptions,
            help="Only for this subscription; without it, for all shared ones.",
        ),
    ] = None,
    state: Annotated[
        Open | None, typer.Option("--state", rich_help_panel=WHICH, help="Only messages in this state.")
    ] = None,
    yes: Yes = False,
    *,
    choice: Choice,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Cancel messages: they are dead, with the reason cancelled. `trunq dead requeue` takes it back.

    Waiting messages do not run. For a running one, the worker is told, and stops the handler; if the
    handler succeeds all the same, the message is done. Finished messages stay as they are. Unless you
    give ids, it says how many there are, and asks.
    """
    is_chosen = choice.is_given or state is not None
    if ids and is_chosen:
        raise Mistake("Give ids or filters, not both.")
    if not (ids or is_chosen):
        raise Mistake("Say which messages to cancel: their ids, or a filter (--kind, --state, ...).")
    found: list[Row] = []
    with client(database) as trunq:
        if not ids:
            ids = sorted(set(_chosen(trunq, queue, subscription, state, choice)))
            if ids:
                confirm(f"{display.counted(len(ids), 'message')} of {queue}: cancel?", is_answered=yes)
        for at in range(0, len(ids), PART):
            found += [row._asdict() for row in trunq.cancel(queue, ids[at : at + PART], subscription)]
    if json:
        write_json(found)
    elif len(found) > FEW:
        for was, number in Counter(row["state"] for row in found).most_common():
            say("{number} {was}: {fate}.", number=f"{number:,}", was=was, fate=FATES[was])
    else:
        rows = [{**row, "fate": FATES[row["state"]]} for row in found]
        write_rows(
            rows, ("id", "subscription", "state", "fate"), False, f"Queue {queue} has no such messages."
        )


@option.verb(
    app,
    "delete",
    "trunq message delete mail 42 43",
    "# In a script",
    "trunq message delete mail 42 --yes",
    "# Who deleted what",
    "trunq message delete mail --list",
)
def delete(
    queue: option.Queue,
    ids: Annotated[list[int] | None, typer.Argument(metavar="ID...", help="Ids of messages.")] = None,
    list_: Annotated[
        bool,
        typer.Option("--list", metavar=option.FLAG, help="Show who deleted which, and delete none."),
    ] = False,
    yes: Yes = False,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Erase the content of messages for good: payload, body, headers, errors and results.

    A message that is not finished is cancelled and never runs. A worker that holds one keeps its copy:
    delete it again when it is finished. Kind, key and unique key stay. This cannot be undone, so it asks
    first.
    """
    if list_ == bool(ids):
        raise Mistake("Say which messages to delete, by their ids, or --list to see who deleted what.")
    with client(database) as trunq:
        if not ids:
            rows = [row._asdict() for row in trunq.list_deletions(queue)]
            write_rows(rows, DELETIONS, json, f"Nobody has deleted messages of queue {queue}.")
            return
        confirm(f"{display.counted(len(ids), 'message')} of {queue}: erase for good?", is_answered=yes)
        found = sum(trunq.delete(queue, ids[at : at + PART]) for at in range(0, len(ids), PART))
        running = sum(row.running for row in trunq.list_deletions(queue, limit=-(-len(ids) // PART)))
    if json:
        write_json({"deleted": found, "running": running})
    else:
        said = display.counted(found, "message") if found else "No message"
        missing = len(ids) - found
        say("{said} of {queue} erased{rest}.", said=said, queue=queue,
            rest=f"; it has none with {missing:,} of these ids" if missing else "")  # fmt: skip
        if running:
            say("Workers hold {running} of them and keep what they have: delete these again later.",
                running=running)  # fmt: skip


def _chosen(
    trunq: Client, queue: str, subscription: str | None, state: Open | None, choice: Choice
) -> Iterator[int]:
    """The ids of messages that are not over, as the subscription sees them, or any shared one."""
    readers = [row.subscription for row in trunq.list_subscriptions(queue) if row.mode == "shared"]
    for reader in readers if subscription is None else [subscription]:
        for each in OPEN if state is None else (state,):
            rows = trunq.list_messages(queue, reader, state=each, brief=True, **asdict(choice))
            yield from (row.id for row in rows)


def _nothing(queue: str, state: State | None, choice: Choice) -> str:
    what = "No such message" if choice.is_given else "No message"
    return (
        f"{what} of queue {queue} is {state}."
        if state
        else f"Queue {queue} has no {'such ' if choice.is_given else ''}messages."
    )


def _in_words(row: Row) -> Row:
    """A row of progress as a person reads it."""
    percent, size = row["percent"], row["checkpoint_bytes"]
    return {
        **with_age(row, "reported_at"),
        "running": "yes" if row["is_running"] else "no",
        "percent": None if percent is None else f"{percent:.4g} %",
        "checkpoint": None if size is None else f"{size:,} B",
    }


def _print_state(row: Row) -> None:
    colour = COLOURS.get(row["state"], "white")
    out.print(
        f"\nSubscription [bold]{escape(row['subscription'])}[/bold]: [{colour}]{row['state']}[/{colour}]"
    )
    for attempt in row["attempts"] or []:
        print_fact(f"attempt {attempt['attempt']}", attempt_in_words(attempt))
    if row["waits"] is not None:
        print_fact("waits", row["waits"]["explanation"])
        if row["waits"]["hint"]:
            print_fact("helps", in_shell(row["waits"]["hint"]))
    print_fact("result", row["result"])
    if row["progress"] is not None:
        said = _in_words(row["progress"])
        for fact in ("percent", "note", "checkpoint"):
            print_fact(fact, said[fact])
