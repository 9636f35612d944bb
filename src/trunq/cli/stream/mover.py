"""trunq stream move, moves: the messages of a stream into other queues."""

from __future__ import annotations

import logging
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any, Literal, NamedTuple

import typer

from trunq import Client, display
from trunq.cli.ground import completion, option
from trunq.cli.ground.database import address, client
from trunq.cli.ground.failure import Mistake, in_shell
from trunq.cli.ground.logs import LogFormat, LogLevel, Verbose, log_to_stderr
from trunq.cli.ground.output import Row, print_facts, say, write_json, write_rows
from trunq.cli.operate.policy import Filter
from trunq.cli.stream import stream
from trunq.process.mover import Mover, Statistics, TargetNotFound
from trunq.process.mover.process import default_name
from trunq.word import Start

log = logging.getLogger("trunq.mover")

app = stream.app

COLUMNS = (
    *("queue", "subscription", "to", "worker", "stopping", "batches", "messages", "moved_at", "pending"),
    *("lag", "error"),
)

_SPLIT = "Which queue a message goes to"


class Pattern(NamedTuple):
    """Where messages go whose label has this."""

    regex: str
    queue: str


def pattern(value: str) -> Pattern:
    """Read REGEX=QUEUE; the queue is behind the last = sign."""
    regex, equals, queue = value.rpartition("=")
    if not equals or not regex or not queue:
        raise typer.BadParameter(f"{value!r} is not REGEX=QUEUE; write it like '^mail[.]=mails'.")
    return Pattern(regex, queue)


@option.verb(
    app,
    "move",
    "# All to a queue of the same name in another database, until Ctrl-C",
    "trunq stream move orders orders --to-dsn postgresql://reports/shop",
    "# By key to three queues, which are made; until nothing is left",
    "trunq stream move orders 'orders_{slot}' --split key --into 3 --create --once",
    "# To a queue for each kind; by patterns, and the rest to other",
    "trunq stream move orders 'orders_{kind}' --split kind",
    "trunq stream move orders rest --split pattern --map '^(eu|us)[.]=shop_{1}'",
    "# Of a mover that runs elsewhere",
    "trunq stream move orders 'orders_{kind}' --status",
    "trunq stream move orders 'orders_{kind}' --stop",
)
def move(
    queue: option.Queue,
    to: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]",
            help="The queue they go to; with {kind} or {slot} in its name where a split asks for it.",
        ),
    ] = None,
    to_dsn: Annotated[
        str | None,
        typer.Option(
            "--to-dsn", metavar="DSN", help="Address of the database they go to; by default the same."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="What the mover is called, and the exclusive subscription it reads, which it makes where "
            "there is none (default: to_ and the target).",
            autocompletion=completion.subscriptions,
        ),
    ] = None,
    split: Annotated[
        Literal["kind", "key", "pattern"] | None,
        typer.Option(
            "--split",
            rich_help_panel=_SPLIT,
            help="kind: a queue for each, TARGET has {kind} in it; key: the same queue for the same key, "
            "TARGET has {slot} in it; pattern: as --map says, the rest to TARGET. By default all to TARGET.",
        ),
    ] = None,
    into: Annotated[
        int | None,
        typer.Option(
            "--into",
            metavar="COUNT",
            min=1,
            max=1000,
            rich_help_panel=_SPLIT,
            help="By key: how many queues.",
        ),
    ] = None,
    patterns: Annotated[
        list[Pattern] | None,
        typer.Option(
            "--map",
            metavar="REGEX=QUEUE",
            parser=pattern,
            rich_help_panel=_SPLIT,
            help="By pattern: where the first of these is found, to its queue, whose name may have groups of "
            "it, as {1} or {name}.",
        ),
    ] = None,
    on: Annotated[
        Literal["kind", "key"] | None,
        typer.Option("--on", rich_help_panel=_SPLIT, help="What patterns look at (default: kind)."),
    ] = None,
    create: Annotated[
        bool,
        typer.Option("--create", metavar=option.FLAG, help="Make queues of the target that are not there."),
    ] = False,
    start: Annotated[
        Start,
        typer.Option("--start", help="Where a new mover begins: at the oldest message in reach, or now."),
    ] = "earliest",
    once: Annotated[
        bool, typer.Option("--once", metavar=option.FLAG, help="End when nothing is left to move.")
    ] = False,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept",
            metavar=option.FLAG,
            help="After a seek or a restore: go on from where the stream stands, though messages may be "
            "missing or come twice.",
        ),
    ] = False,
    max_ticks: Annotated[
        int | None,
        typer.Option("--max-ticks", min=1, help="How many ticks, at most, are moved in a transaction."),
    ] = None,
    lease_time: Annotated[
        timedelta | None,
        typer.Option(
            "--lease-time",
            parser=option.interval,
            metavar="INTERVAL",
            help="After how long the batch of a mover that was killed goes to another (default: 60s).",
        ),
    ] = None,
    worker: Annotated[
        str | None,
        typer.Option(
            "--worker",
            metavar="NAME",
            help="Name of this process: started again under it, it need not wait for that time.",
        ),
    ] = None,
    status: Annotated[
        bool,
        typer.Option("--status", metavar=option.FLAG, help="Move nothing: show how far this mover is."),
    ] = False,
    stop: Annotated[
        bool,
        typer.Option(
            "--stop", metavar=option.FLAG, help="Move nothing: ask this mover to stop, wherever it runs."
        ),
    ] = False,
    *,
    filter: Filter,
    database: option.Database,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    verbose: Verbose = False,
    json: option.Json = False,
) -> None:
    """Publish the messages of a queue into other queues, also of another database, exactly once.

    It runs until SIGTERM or Ctrl-C, or with --once until nothing is left. How far it is, the target keeps,
    in the transaction that has the messages: whatever is killed when, none is lost and none doubled. Kind,
    key, payload, body, headers and priority stay as they are; the header trunq_source_id has the id.

    Started again it goes on where it stood. Of two under one name, the second waits until the first has gone.
    A batch that does not follow what the target has received is refused.
    """
    if status and stop:
        raise Mistake("Give --status or --stop, not both.")
    if status or stop:
        with client(database) as trunq:
            found = _find(trunq, queue, name or (None if to is None else default_name(to)))
            if stop:
                _stop(trunq, found, json)
            else:
                _show(found, json)
        return
    if to is None:
        raise Mistake("Name the queue they go to: trunq stream move QUEUE TARGET.")
    log_to_stderr(log_level, log_format, is_verbose=verbose)
    with address(database) as dsn:
        mover = Mover(
            queue,
            to,
            database=dsn,
            target=to_dsn,
            name=name,
            split=split,
            into=into,
            patterns=dict(patterns or ()),
            on=on,
            filter=filter.given().get("filter"),
            start=start,
            create=create,
            once=once,
            accept=accept,
            max_ticks=max_ticks,
            lease_time=lease_time,
            worker=worker,
            progress=_tell,
        )
        log.info("mover %s of %s starts; Ctrl-C ends it", mover.name, queue)
        try:
            mover.run()
        except TargetNotFound as error:
            raise Mistake(
                f"T{error.message[1:]}. Create it there first (trunq queue create), or give --create."
            ) from None
    done = asdict(mover.statistics)
    if json:
        write_json({"queue": queue, "subscription": mover.name, **done})
    else:
        say(
            "Mover {name} of {queue} moved {messages} in {batches}.",
            name=mover.name,
            queue=queue,
            messages=display.counted(done["messages"], "message"),
            batches=display.counted(done["batches"], "batch", "batches"),
        )


@option.verb(app, "moves", "trunq stream moves", "trunq stream moves orders --json")
def moves(
    queue: option.OneQueue = None,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List the movers of streams: where to, how many they moved, how much waits since when, what failed.

    worker is the process that started last, until it ends; one that was killed cannot say so, and stays.
    moved_at is when its last batch was done.
    """
    with client(database) as trunq:
        found = [_row(row) for row in trunq.list_movers(queue)]
    write_rows(found, COLUMNS, json, "There are no movers: trunq stream move starts one.", csv)


def _row(state: Any) -> Row:
    return {
        **state._asdict(),
        "to": state.definition.get("to"),
        "error": state.error and in_shell(state.error),
    }


def _find(trunq: Client, queue: str, name: str | None) -> Row:
    rows = [_row(state) for state in trunq.list_movers(queue)]
    found = [row for row in rows if name in (None, row["subscription"])]
    if len(found) == 1:
        return found[0]
    named = ", ".join(row["subscription"] for row in rows)
    raise Mistake(
        f"Queue {queue} has several movers, say which by --name: {named}."
        if name is None and rows
        else f"Queue {queue} has no mover{f' {name}' if name else ''}. Those there are: {named or 'none'}."
    )


def _show(row: Row, json: bool) -> None:
    if json:
        write_json(row)
        return
    print_facts(row)


def _stop(trunq: Client, row: Row, json: bool) -> None:
    queue, name = row["queue"], row["subscription"]
    is_there = trunq.stop_mover(queue, name)
    if json:
        write_json({"queue": queue, "subscription": name, "was_running": is_there})
    elif is_there:
        say("Mover {name} of {queue} stops when its batch is done.", name=name, queue=queue)
    else:
        say("Mover {name} of {queue} had ended before.", name=name, queue=queue)


def _tell(done: Statistics) -> None:
    log.info("moved %s messages in %s batches", f"{done.messages:,}", f"{done.batches:,}")
