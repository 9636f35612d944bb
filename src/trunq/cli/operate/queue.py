"""trunq queue: create, set, list, close, open, pause, resume, drop."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Final, Literal

import typer

from trunq import Client
from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import Row, print_fact, say, write_json, write_rows
from trunq.cli.operate.pause import Pause, how_long, with_words
from trunq.display import interval
from trunq.word import Lanes, UniqueOn, UniquePolicy

app = option.noun(
    "Queues: create, set, list, close, open, pause, resume, drop.",
    "trunq queue create mail",
    "trunq queue set mail --max-waiting 100000",
    "trunq queue list",
    "trunq queue drop mail",
)

COLUMNS = (
    *("queue", "subscriptions", "retention", "closed", "paused", "lanes", "kinds", "max_waiting"),
    *("max_per_transaction", "created_at"),
)
SETTINGS = (
    *(
        "retention",
        "kinds",
        "unique_policy",
        "unique_on",
        "max_waiting",
        "max_per_transaction",
        "announces",
        "is_closed",
        "paused",
    ),
    *("paused_until", "hold_at_most", "hold_size", "retain_size"),
    *("tick_max_count", "tick_max_lag", "tick_idle_period", "tick_paused", "tick_external"),
)
SPACE = "How much is kept"
RULES = "What may be published"
TICKS = "When a tick is due, for exclusive subscriptions"


def _kinds(value: str) -> list[str]:
    return [kind.strip() for kind in value.split(",") if kind.strip()]


HoldAtMost = Annotated[
    timedelta | None,
    typer.Option(
        "--hold-at-most",
        parser=option.interval,
        metavar="INTERVAL",
        rich_help_panel=SPACE,
        help="How long messages are held for subscriptions that have not read them; then these lose them"
        " (trunq stream losses). 0: for ever.",
    ),
]
HoldSize = Annotated[
    int | None,
    typer.Option(
        "--hold-size",
        min=0,
        metavar="BYTES",
        rich_help_panel=SPACE,
        help="Up to how many bytes of log they are held; 0: no limit.",
    ),
]
RetainSize = Annotated[
    int | None,
    typer.Option(
        "--retain-size",
        min=0,
        metavar="BYTES",
        rich_help_panel=SPACE,
        help="What everybody has read is kept for the retention, up to so many bytes of log; 0: no limit.",
    ),
]


@option.verb(
    app,
    "create",
    "trunq queue create mail",
    "# A queue that keeps a week of history, for replays and for looking back",
    "trunq queue create orders --retention 7d",
    "# One that serves each key in turn: trunq lane --help",
    "trunq queue create tenants --lanes key",
    "# One in which the newest message of a unique key stands for those that wait",
    "trunq queue create invoices --unique replace",
    "# One that takes no task twice while it waits, whatever publishes it",
    "trunq queue create tasks --unique refuse --unique-on content",
    "# One whose log a reader that stands still cannot hold for ever",
    "trunq queue create clicks --hold-at-most 7d",
    "# One that streams alone read: trunq subscription create --mode exclusive",
    "trunq queue create events --no-default-subscription",
)
def create(
    queue: option.Queue,
    retention: Annotated[
        timedelta | None,
        typer.Option(
            parser=option.interval,
            metavar="INTERVAL",
            help="How long a message is kept after it was published, at least (default: one day).",
        ),
    ] = None,
    lanes: Annotated[
        Lanes | None,
        typer.Option(
            "--lanes",
            help="Hand messages out by turns of these, not the oldest first (later: trunq queue convert).",
        ),
    ] = None,
    unique: Annotated[
        UniquePolicy | None,
        typer.Option(
            "--unique",
            help="Messages may have unique keys: one whose key another holds is left out, or stands for that"
            " one (later: trunq queue convert).",
        ),
    ] = None,
    unique_on: Annotated[
        UniqueOn | None,
        typer.Option(
            "--unique-on",
            help="With --unique refuse: each message has its kind and content as its key, also that of a"
            " plain INSERT or COPY.",
        ),
    ] = None,
    default_subscription: Annotated[
        bool,
        typer.Option(
            "--default-subscription/--no-default-subscription",
            help="Whether workers find a subscription; it keeps each message until one reads it. A queue for "
            "streams alone needs none.",
        ),
    ] = True,
    hold_at_most: HoldAtMost = None,
    hold_size: HoldSize = None,
    retain_size: RetainSize = None,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Create a queue, with its shared subscription `default`.

    Messages go into the table trunq_log.QUEUE: publish with `trunq publish`, trunq.publish() or a plain
    INSERT. A name is 1 to 48 of a-z, 0-9 and _, and starts with a letter. A queue that is there stays as it
    is; if it has other settings than you give, the status is 1.
    """
    with client(database) as trunq:
        created = trunq.create_queue(
            queue,
            retention=retention,
            lanes=lanes,
            unique=unique,
            unique_on=unique_on,
            default_subscription=default_subscription,
            hold_at_most=hold_at_most,
            hold_size=hold_size,
            retain_size=retain_size,
        )
        if not created:
            given = {
                "retention": retention,
                "hold_at_most": hold_at_most,
                "hold_size": hold_size,
                "retain_size": retain_size,
            }
            _refuse_another(_settings(trunq, queue), given)
    if json:
        write_json({"queue": queue, "created": created})
    elif created:
        say(
            "Queue {queue} created. Publish with: trunq publish {again} '{payload}'",
            queue=queue,
            again=queue,
            payload='{"n": 1}',
        )
    else:
        say("Queue {queue} is there already.", queue=queue)


@option.verb(
    app,
    "set",
    "trunq queue set mail --retention 12h",
    "# Publishers are refused while so many messages wait (0: no limit)",
    "trunq queue set mail --max-waiting 100000",
    "# Only these kinds; and any kind again",
    "trunq queue set mail --kinds welcome,goodbye",
    "trunq queue set mail --kinds ''",
)
def set_queue(
    queue: option.Queue,
    retention: Annotated[
        timedelta | None,
        typer.Option(
            parser=option.interval,
            metavar="INTERVAL",
            help="How long a message is kept at least; no longer than it was made for (trunq queue convert).",
        ),
    ] = None,
    hold_at_most: HoldAtMost = None,
    hold_size: HoldSize = None,
    retain_size: RetainSize = None,
    kinds: Annotated[
        str | None,
        typer.Option(
            "--kinds",
            metavar="KIND,...",
            rich_help_panel=RULES,
            help="Take only messages of these kinds; '' takes any.",
        ),
    ] = None,
    max_waiting: Annotated[
        int | None,
        typer.Option(
            "--max-waiting",
            min=0,
            rich_help_panel=RULES,
            help="Refuse to publish while the slowest shared subscription has so many waiting; 0: no limit.",
        ),
    ] = None,
    max_per_transaction: Annotated[
        int | None,
        typer.Option(
            "--max-per-transaction",
            min=-1,
            rich_help_panel=RULES,
            help="Refuse more than so many messages in one transaction; 0: take none; -1: no limit.",
        ),
    ] = None,
    announce: Annotated[
        bool | None,
        typer.Option(
            "--announce/--no-announce",
            metavar=option.FLAG,
            rich_help_panel=RULES,
            help="Send a NOTIFY with the ids of each statement.",
            show_default=False,
        ),
    ] = None,
    remind_after: Annotated[
        timedelta | None,
        typer.Option(
            "--remind-after",
            parser=option.interval,
            metavar="INTERVAL",
            rich_help_panel=RULES,
            help="Announce again what has waited unread for so long; 0: not at all.",
        ),
    ] = None,
    tick_max_count: Annotated[
        int | None,
        typer.Option(
            "--tick-max-count", min=0, rich_help_panel=TICKS, help="After so many messages; 0: at every look."
        ),
    ] = None,
    tick_max_lag: Annotated[
        timedelta | None,
        typer.Option(
            "--tick-max-lag",
            parser=option.interval,
            metavar="INTERVAL",
            rich_help_panel=TICKS,
            help="When the oldest message has waited so long.",
        ),
    ] = None,
    tick_idle_period: Annotated[
        timedelta | None,
        typer.Option(
            "--tick-idle-period",
            parser=option.interval,
            metavar="INTERVAL",
            rich_help_panel=TICKS,
            help="So long after the last one, while nothing is published; without it there is none then.",
        ),
    ] = None,
    ticks: Annotated[
        Literal["on", "paused", "external"] | None,
        typer.Option(
            "--ticks",
            rich_help_panel=TICKS,
            help="paused: nobody cuts any; external: only trunq.cut_tick() does; on: trunq does, again.",
        ),
    ] = None,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Change the settings of a queue that you give; the others stay. Then show all of them.

    Without an option, only show them. Workers and publishers go on meanwhile. New rules hold for messages
    published from now on; those that wait stay.
    """
    shape: dict[str, Any] = {
        "retention": retention,
        "tick_max_count": tick_max_count,
        "tick_max_lag": tick_max_lag,
        "tick_idle_period": tick_idle_period,
        "hold_at_most": hold_at_most,
        "hold_size": hold_size,
        "retain_size": retain_size,
        "tick_external": None if ticks is None else ticks == "external",
    }
    rules: dict[str, Any] = {
        "kinds": None if kinds is None else _kinds(kinds),
        "max_waiting": max_waiting,
        "max_per_transaction": max_per_transaction,
        "announce": announce,
    }
    with client(database) as trunq:
        with trunq.transaction() as connection:
            trunq.set_queue(queue, **shape, connection=connection)
            if ticks is not None:
                change = trunq.pause_ticks if ticks == "paused" else trunq.resume_ticks
                change(queue, connection=connection)
            if any(value is not None for value in rules.values()):
                trunq.set_publishing(queue, **rules, connection=connection)
            if remind_after is not None:
                trunq.set_reminders(queue, after=remind_after or None, connection=connection)
        settings = _settings(trunq, queue)
    if json:
        write_json(settings)
        return
    say("Queue {queue}", queue=queue)
    for name in SETTINGS:
        print_fact(name.removeprefix("is_").replace("_", " "), _said(name, settings[name]), 19)


@option.verb(app, "list", "trunq queue list", "trunq queue list --json | jq -r '.[].queue'")
def list_queues(*, database: option.Database, json: option.Json = False, csv: option.Csv = False) -> None:
    """List the queues."""
    with client(database) as trunq:
        found: list[Row] = [row._asdict() for row in trunq.list_queues()]
    for_people = (
        {
            **with_words(row),
            "closed": "yes" if row["is_closed"] else "",
            "kinds": ", ".join(row["kinds"] or []),
        }
        for row in found
    )
    write_rows(
        found if json or csv else for_people,
        COLUMNS,
        json,
        "There is no queue yet. Create one with: trunq queue create NAME",
        csv,
    )


@option.verb(app, "close", "trunq queue close mail")
def close(queue: option.Queue, *, database: option.Database, json: option.Json = False) -> None:
    """Refuse to publish into a queue until `trunq queue open`.

    What it holds is handled, retried and promoted as before: this drains a queue.
    """
    with client(database) as trunq:
        trunq.close_queue(queue)
    if json:
        write_json({"queue": queue, "closed": True})
    else:
        say("Queue {queue} is closed. Open it with: trunq queue open {again}", queue=queue, again=queue)


@option.verb(app, "open", "trunq queue open mail")
def open_queue(queue: option.Queue, *, database: option.Database, json: option.Json = False) -> None:
    """Let a closed queue take messages again. Publishers only have to try again."""
    with client(database) as trunq:
        trunq.open_queue(queue)
    if json:
        write_json({"queue": queue, "closed": False})
    else:
        say("Queue {queue} is open.", queue=queue)


@option.verb(
    app,
    "pause",
    "# Until somebody resumes it",
    "trunq queue pause mail",
    "# While the other end is repaired",
    "trunq queue pause mail --for 2h",
    "trunq queue pause mail --until 2030-01-01T08:00+01:00",
)
def pause_queue(
    queue: option.Queue, *, pause: Pause, database: option.Database, json: option.Json = False
) -> None:
    """Pause a queue with all its subscriptions, until a time or `trunq queue resume`.

    Messages that workers hold go on, publishers publish, and waiting messages are kept. If the queue is
    paused already, this changes when the pause ends.
    """
    with client(database) as trunq:
        until = pause.end(trunq)
        trunq.pause_queue(queue, until)
    if json:
        write_json({"queue": queue, "paused": True, "paused_until": until})
    else:
        say("Queue {queue} is paused {until}. Resume it with: trunq queue resume {queue}",
            queue=queue, until=how_long(until))  # fmt: skip


@option.verb(app, "resume", "trunq queue resume mail")
def resume_queue(queue: option.Queue, *, database: option.Database, json: option.Json = False) -> None:
    """End the pause of a queue and wake its workers.

    A subscription that was paused itself stays so, until `trunq subscription resume`.
    """
    with client(database) as trunq:
        resumed = trunq.resume_queue(queue)
        still = [row.subscription for row in trunq.list_subscriptions(queue) if row.paused]
    if json:
        write_json({"queue": queue, "resumed": resumed, "still_paused": still})
        return
    say("Queue {queue} goes on." if resumed else "Queue {queue} was not paused.", queue=queue)
    for subscription in still:
        say(
            "Its subscription {subscription} is paused itself:"
            " trunq subscription resume {queue} {subscription}",
            subscription=subscription,
            queue=queue,
        )


@option.verb(app, "drop", "trunq queue drop mail", "# With everything in it", "trunq queue drop mail --force")
def drop(
    queue: option.Queue,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            metavar=option.FLAG,
            help="Also when other subscriptions read it or messages are unfinished.",
        ),
    ] = False,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Drop a queue with its messages, history and dead messages.

    Its archive stays, with every attempt that is over: trunq archive drop removes it.
    """
    with client(database) as trunq:
        trunq.drop_queue(queue, force=force)
    if json:
        write_json({"queue": queue, "dropped": True})
    else:
        say("Queue {queue} dropped.", queue=queue)


def _settings(trunq: Client, queue: str) -> Row:
    return next(row._asdict() for row in trunq.list_queues() if row.queue == queue)


def _refuse_another(there: Row, given: Row) -> None:
    for name, value in given.items():
        if value is None or there[name] == (value or None):
            continue
        queue, is_now = there["queue"], there[name]
        said = interval(is_now) if isinstance(is_now, timedelta) else "no limit" if is_now is None else is_now
        raise Mistake(
            f"Queue {queue} is there already, with a {name} of {said}, and stays as it is."
            f" To change it: trunq queue set {queue} --{name.replace('_', '-')} ..."
        )


NONE: Final = {
    "kinds": "any",
    "unique_policy": "no unique keys",
    "unique_on": "the keys given",
    "paused_until": "–",
    "tick_idle_period": "none",
}
"""What a setting without a value is called, where it is not a limit."""


def _said(name: str, value: Any) -> Any:
    match value:
        case None:
            return NONE.get(name, "no limit")
        case list():
            return ", ".join(value)
        case _:
            return value
