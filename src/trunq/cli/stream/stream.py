"""trunq stream: list, show, seek, retry, losses, accept; move and moves are in mover.py."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from trunq import Client, display
from trunq.cli.ground import completion, option
from trunq.cli.ground.database import client
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import Row, print_facts, say, write_json, write_rows
from trunq.cli.operate.subscription import Name
from trunq.record import Batch, Stream
from trunq.word import Start

app = option.noun(
    "Streams, the exclusive subscriptions of queues: where they stand, and how to move them.",
    "trunq stream list",
    "trunq stream show orders ledger",
    "trunq stream retry orders ledger --after 10m",
    "trunq stream seek orders ledger --at 2026-03-01T08:00",
    "trunq stream losses orders",
    "trunq stream move orders 'orders_{kind}' --split kind --to-dsn postgresql://reports/shop",
)

LOSSES = (
    *("queue", "subscription", "reason", "messages", "from_tick_id", "to_tick_id"),
    *("first_at", "last_at", "lost_at", "accepted_at"),
)
COLUMNS = (
    *("queue", "subscription", "position_tick_id", "newest_tick_id", "pending", "lag"),
    *("worker", "expires_at", "attempt", "seen_at"),
)


@option.verb(app, "list", "trunq stream list", "trunq stream list orders --json")
def list_streams(
    queue: option.OneQueue = None,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List the exclusive subscriptions: how far each is, how much waits since when, and who has a batch.

    Positions are ticks. pending is how many messages are not finished, lag is how long the first of them
    has waited, and seen_at is when a reader last took or finished a batch.
    """
    with client(database) as trunq:
        found: list[Row] = [row._asdict() for row in trunq.list_streams(queue)]
    write_rows(found, COLUMNS, json, "There are no streams: no subscription is exclusive.", csv)


@option.verb(app, "show", "trunq stream show orders ledger", "trunq stream show orders ledger --json")
def show(
    queue: option.Queue, subscription: Name, *, database: option.Database, json: option.Json = False
) -> None:
    """Show where one stream stands, and the batch that is open or comes next.

    After failures, batches is how many parts of it are open, and error what the last attempt failed with.
    lost_at: when it lost messages, until somebody accepts that (trunq stream accept).
    """
    with client(database) as trunq:
        row = _stream(trunq, queue, subscription)._asdict()
        row |= next(
            {"lost_at": each.lost_at, "ticks_paused": each.ticks_paused}
            for each in trunq.status(queue)
            if each.subscription == subscription
        )
    if json:
        write_json(row)
        return
    print_facts(row)


@option.verb(
    app,
    "seek",
    "# Everything since eight o'clock once more",
    "trunq stream seek orders ledger --at 2026-03-01T08:00",
    "# All that is kept; nothing of what waits",
    "trunq stream seek orders ledger --start earliest",
    "trunq stream seek orders ledger --start latest",
    "trunq stream seek orders ledger --tick 41",
    "# Exactly where another stream of this queue stands",
    "trunq stream seek orders ledger --like audit",
)
def seek(
    queue: option.Queue,
    subscription: Name,
    tick: Annotated[
        int | None, typer.Option("--tick", metavar="TICK", help="After this tick (trunq stream list).")
    ] = None,
    at: Annotated[
        datetime | None,
        typer.Option(
            "--at", parser=option.moment, metavar="TIME", help="Nothing since this time is left out."
        ),
    ] = None,
    start: Annotated[
        Start | None,
        typer.Option("--start", help="earliest: at the oldest message in reach; latest: at those to come."),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(
            "--like",
            metavar="NAME",
            help="Where this exclusive subscription of the queue stands; neither may have an open batch.",
            autocompletion=completion.subscriptions,
        ),
    ] = None,
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Move a stream to a tick, a time, an end of its queue or another stream's place, forward or back.

    It fails where messages after that place are gone. A batch that is open ends: its reader cannot finish it,
    and what it wrote in the same transaction is rolled back.
    """
    if sum(given is not None for given in (tick, at, start, like)) != 1:
        raise Mistake("Seek goes to one place: give --tick, --at, --start or --like.")
    with client(database) as trunq:
        if like is None:
            position = trunq.seek(queue, subscription, tick, at, start)
        else:
            position = trunq.copy_position(queue, subscription, like)
    if json:
        write_json({"queue": queue, "subscription": subscription, "position_tick_id": position})
    else:
        say(
            "Stream {subscription} of {queue} stands at tick {tick}.",
            subscription=subscription,
            queue=queue,
            tick=position,
        )


@option.verb(
    app,
    "retry",
    "# The batch that fails again and again: once more in ten minutes",
    "trunq stream retry orders ledger --after 10m",
    "# Its messages in an hour; the stream goes on behind them at once",
    "trunq stream retry orders ledger --later --after 1h --error closed",
    "# Only if it is still this one (trunq stream show)",
    "trunq stream retry orders ledger --batch 41",
)
def retry(
    queue: option.Queue,
    subscription: Name,
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="BATCH", help="Only if this batch is open.")
    ] = None,
    later: Annotated[
        bool,
        typer.Option(
            "--later", metavar=option.FLAG, help="Put its messages into a later batch, and go on behind them."
        ),
    ] = False,
    after: Annotated[
        timedelta | None,
        typer.Option(
            "--after",
            parser=option.interval,
            metavar="INTERVAL",
            help="When, such as 10m (default: after the back-off).",
        ),
    ] = None,
    error: Annotated[
        str, typer.Option("--error", metavar="TEXT", help="Why; the next attempt shows it.")
    ] = "retried by trunq stream retry",
    *,
    database: option.Database,
    json: option.Json = False,
) -> None:
    """Take the open batch of a stream from its reader, and have it handed out again.

    The reader cannot finish it: what it wrote in the same transaction is rolled back. That counts as a
    failure of the batch, which is handed out by halves after max_attempts of them, and the stream waits for
    it. With --later the stream goes on: each of its messages comes again by itself in a later batch, out of
    order, and dies when its attempts are used up.
    """
    with client(database) as trunq:
        found = _stream(trunq, queue, subscription)
        count, until = None, None
        with trunq.transaction() as connection:
            taken = _take(trunq, found, batch, connection)
            named = (queue, subscription, taken.batch_id, taken.token)
            if later:
                count = trunq.retry_batch(*named, None, after, error, connection=connection)
                trunq.finish_batch(*named, connection=connection)
            else:
                until = trunq.fail_batch(*named, error, after, connection=connection)
    told = {
        "queue": queue,
        "subscription": subscription,
        "batch_id": found.batch_id,
        "messages": count,
        "until": until,
    }
    if json:
        write_json(told)
    elif later:
        of = f"of batch {found.batch_id}"
        say(
            "{messages} again later; stream {subscription} of {queue} goes on behind that.",
            messages=display.counted(count or 0, f"message {of} comes", f"messages {of} come"),
            subscription=subscription,
            queue=queue,
        )
    else:
        say(
            "Batch {batch_id} of stream {subscription} of {queue} is handed out again from {until} on.",
            **{**told, "until": until and until.isoformat(" ", "seconds")},
        )


def _take(trunq: Client, stream: Stream, asked: int | None, connection: Any) -> Batch:
    """The open batch, in the name of its reader."""
    if stream.batch_id is None:
        raise Mistake(f"Stream {stream.subscription} of {stream.queue} has no open batch.")
    if asked is not None and asked != stream.batch_id:
        raise Mistake(
            f"Batch {asked} is not open: stream {stream.subscription} of {stream.queue}"
            f" is at {stream.batch_id}."
        )
    taken = trunq.next_batch(
        stream.queue,
        stream.subscription,
        stream.worker or "trunq stream retry",
        cut=False,
        connection=connection,
    )
    if taken is None:
        raise Mistake(
            f"Batch {stream.batch_id} waits: it is handed out from {stream.expires_at} on, if its"
            f" stream is not paused. See: trunq stream show {stream.queue} {stream.subscription}"
        )
    if taken.to_tick_id != stream.to_tick_id:
        raise Mistake(f"The reader has finished batch {stream.batch_id} meanwhile.")
    return taken


@option.verb(app, "losses", "trunq stream losses", "trunq stream losses orders --json")
def losses(
    queue: option.OneQueue = None,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List what subscriptions, exclusive and shared, lost because their queue no longer held it for them.

    `trunq queue set --hold-at-most --hold-size` limits for how long, and up to how many bytes, a queue
    holds messages for those who have not read them; without, it holds them for ever. messages is how many
    were lost; with `+`, at least so many.
    """
    with client(database) as trunq:
        found: list[Row] = [row._asdict() for row in trunq.list_losses(queue)]
    for_people = ({**row, "messages": f"{row['messages']:,}{'+' if row['is_more'] else ''}"} for row in found)
    write_rows(found if json or csv else for_people, LOSSES, json, "Nothing was lost.", csv)


@option.verb(
    app, "accept", "# What was lost", "trunq stream losses orders", "trunq stream accept orders ledger"
)
def accept(
    queue: option.Queue, subscription: Name, *, database: option.Database, json: option.Json = False
) -> None:
    """Accept that a subscription lost messages, so that it goes on with those that are left.

    Until then its workers and readers get an error. `trunq stream losses` still lists what was lost.
    """
    with client(database) as trunq:
        accepted = trunq.accept_loss(queue, subscription)
    if json:
        write_json({"queue": queue, "subscription": subscription, "accepted": accepted})
    elif accepted:
        say("Subscription {subscription} of {queue} goes on.", subscription=subscription, queue=queue)
    else:
        say(
            "Subscription {subscription} of {queue} had lost nothing.", subscription=subscription, queue=queue
        )


def _stream(trunq: Client, queue: str, subscription: str) -> Stream:
    for row in trunq.list_streams(queue):
        if row.subscription == subscription:
            return row
    raise Mistake(
        f"Queue {queue} has no exclusive subscription {subscription}."
        f" Those there are: trunq stream list {queue}"
    )
