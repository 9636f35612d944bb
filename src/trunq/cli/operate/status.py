"""trunq status: what waits, runs, is put off and was given up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from trunq import Client, display
from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.failure import in_shell
from trunq.cli.ground.output import Row, err, out, write, write_csv, write_json
from trunq.cli.ground.table import Column, draw, draw_under, fits
from trunq.cli.keep.taker import behind
from trunq.cli.operate.pause import words
from trunq.cli.operate.role import unseen
from trunq.record import Status, Stream, Warned

COUNTED = (("ready", "cyan"), ("leased", "blue"), ("delayed", "yellow"), ("dead", "red"))
"""Numbers with their colours."""

FEW, TOLD, SOME = 20, 10, 5
"""So many subscriptions are in the order of their names, of more the worst come first; so many warnings are
told of all queues; and so many lines of each kind, where a terminal has no room for all.
"""

_AROUND = ("heading", "rule", "more rows", "more warnings", "foot")

UNLED = (
    "! No leader runs, so nothing delayed or retried runs, and nothing that a dead worker held."
    " Start a worker, or: trunq leader"
)
"""The first line, where it is so."""

EXAMPLES = (
    "trunq status",
    "# Once, for a script or a cron mail",
    "trunq status --once",
    "trunq status mail --json | jq '.[] | select(.dead > 0)'",
)


def status(
    queue: option.OneQueue = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once", metavar=option.FLAG, help="Print the table once instead of keeping it up to date."
        ),
    ] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.2, metavar="SECONDS", help="How often it is brought up to date.")
    ] = 1.0,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """Show each subscription of each queue in a line, live. Ctrl-C ends it.

    ready waits for a worker; leased is held by one; delayed runs later; dead was given up. oldest is how
    long the first ready message has waited, done is how many were answered within the last minute. Of more
    than 20 subscriptions the worst come first, and of what does not fit a terminal, it says how much. `~`
    marks an estimate: numbers are exact up to 1,000. Beside the name it says when a subscription is
    paused, lost messages, or has parked ones (they are among the delayed).

    The first line says when no leader runs. The last lines say at which tick streams stand, how far
    behind the lakes are that take the history of a queue, and what else is wrong, such as a subscription
    that is about to lose messages.
    """
    with client(database, queue) as trunq:
        if json or csv:
            ticks = {(row.queue, row.subscription): row for row in trunq.list_streams(queue)}
            rows = [_with_ticks(row, ticks.get((row.queue, row.subscription))) for row in trunq.status(queue)]
            write_csv(rows) if csv else write_json(rows)
            if dark := unseen(trunq, queue):
                err.print(Text(dark))
        elif once or not out.is_terminal:
            write(_shown(trunq, queue))
        else:
            with Live(console=out, screen=False, auto_refresh=False, transient=False) as live:
                while True:
                    live.update(Group(_shown(trunq, queue, out.height), _foot()), refresh=True)
                    time.sleep(every)


def in_words(row: Status) -> str:
    """What a subscription holds: 3 ready, 0 leased, 0 delayed, 1 dead."""
    return ", ".join(
        f"{display.count(getattr(row, name), name in row.estimated)} {name}" for name, _ in COUNTED
    )


def _shown(trunq: Client, queue: str | None, height: int | None = None) -> Group:
    """All there is to say; where that is more than so many lines, the worst of it."""
    rows = [row._asdict() for row in trunq.status(queue)]
    warnings = trunq.list_warnings(queue)
    streams = [Text(_standing(row), style="dim") for row in trunq.list_streams(queue)]
    takers = [
        Text(f"{row.taker} takes the history of {row.queue}: {behind(row._asdict())}", style="dim")
        for row in trunq.list_takers(queue)
    ]
    unled = [] if all(row["led"] for row in rows) else [Text(UNLED, style="bold yellow")]
    dark = unseen(trunq, queue)
    last = [] if dark is None else [Text(dark, style="cyan")]
    if len(rows) > FEW:
        # With few of them, who looks every day finds each at its place.
        rows.sort(key=_badness)
    told = warnings[: TOLD if queue is None else None]
    room = len(rows)
    around = len(unled) + len(last) + len(_AROUND)
    if height is not None and around + room + len(streams) + len(takers) + 3 * len(told) > height:
        streams, takers, told = streams[:SOME], takers[:SOME], told[:SOME]
        room = max(SOME, height - around - len(streams) - len(takers) - len(told))
    table = [] if dark and not rows else [_table(rows[:room])]
    if len(rows) > room:
        table.append(Text(f"{display.counted(len(rows) - room, 'subscription')} more: trunq status --once"))
    is_cut = len(told) < len(warnings)
    lines = (_warning(row, cut=height is not None and is_cut) for row in told)
    return Group(*unled, *table, *streams, *takers, *lines, *_sum(warnings, is_cut), *last)


def _badness(row: Row) -> tuple[Any, ...]:
    """Orders rows as trunq.overview does: who lost messages, then whose messages wait longest, then what
    died, then what waits and is paused, then the others.
    """
    waits, is_paused = row["oldest_ready"], row["paused"]
    troubles = (row["lost_at"], waits and not is_paused, row["dead"] and not is_paused, waits or row["dead"])
    found = next((place for place, trouble in enumerate(troubles) if trouble), len(troubles))
    return (found, -(waits or timedelta(0)), -row["dead"], row["queue"], row["subscription"])


def _warning(row: Warned, *, cut: bool) -> Text:
    symbol, style = ("✗", "bold red") if row.severity == "error" else ("!", "yellow")
    if cut:
        return Text(f"{symbol} {row.warning}", style=style, no_wrap=True, overflow="ellipsis")
    return Text(f"{symbol} {row.warning}; {in_shell(row.hint)}", style=style)


def _sum(warnings: Sequence[Warned], is_cut: bool) -> list[Text]:
    """How many there are, where not all are told."""
    if not is_cut:
        return []
    said = display.troubles(row.severity for row in warnings)
    return [Text(f"{said} in all, the worst first: trunq doctor", style="bold")]


def _standing(row: Stream) -> str:
    """Stream ledger of sales: tick 41 of 45, 12 pending for 3 s, batch 7 with bookkeeper."""
    pending = display.count(row.pending, row.is_estimate)
    said = [
        f"Stream {row.subscription} of {row.queue}: tick {row.position_tick_id} of {row.newest_tick_id}",
        f"{pending} pending" + (f" for {display.interval(row.lag)}" if row.pending else ""),
    ]
    if row.batch_id is not None:
        said.append(f"batch {row.batch_id} {f'with {row.worker}' if row.worker else 'waits'}")
    return ", ".join(said)


def _with_ticks(row: Status, stream: Stream | None) -> Row:
    """As JSON and CSV have it; ticks are those of a stream."""
    ticks = (None, None) if stream is None else (stream.position_tick_id, stream.newest_tick_id)
    return {**row._asdict(), "position_tick_id": ticks[0], "newest_tick_id": ticks[1]}


def _table(rows: Sequence[Row]) -> RenderableType:
    """A line a subscription; where names leave no room for the counts, queues have lines of their own."""
    if not rows:
        return Text("There is no queue yet. Create one with: trunq queue create NAME")
    names, numbers = _names(rows), _numbers(rows)
    if fits([*names, *numbers[: len(COUNTED)]], out.width):
        return draw([*names, *numbers], out.width, keep=len(names))
    readers = Column("", [Text(f"  {_reader(row)}") for row in rows])
    return draw_under([row["queue"] for row in rows], [readers, *numbers], out.width)


def _names(rows: Sequence[Row]) -> list[Column]:
    return [
        Column("queue", [Text(row["queue"], style="bold") for row in rows]),
        Column("subscription", [Text(_reader(row)) for row in rows]),
    ]


def _numbers(rows: Sequence[Row]) -> list[Column]:
    return [
        *(Column(name, [_counted(row, name, style) for row in rows], True) for name, style in COUNTED),
        Column("oldest", [_age(row["oldest_ready"]) for row in rows], True),
        Column("workers", [_number(f"{row['workers']:,}", row["workers"], "") for row in rows], True),
        Column("done", [_counted(row, "done_last_minute", "green", "/min") for row in rows], True),
    ]


def _reader(row: Row) -> str:
    said = (
        "exclusive" if row["mode"] == "exclusive" else "",
        "messages lost" if row["lost_at"] is not None else "",
        f"{row['parked']:,} parked" if row["parked"] else "",
        "ticks paused" if row["ticks_paused"] and row["mode"] == "exclusive" else "",
        words(row),
    )
    told = ", ".join(filter(None, said))
    return f"{row['subscription']} ({told})" if told else str(row["subscription"])


def _age(value: timedelta | None) -> Text:
    return Text("" if value is None else display.interval(value))


def _counted(row: Row, name: str, style: str, unit: str = "") -> Text:
    return _number(display.count(row[name], name in row["estimated"]) + unit, row[name], style)


def _number(shown: str, value: int, style: str) -> Text:
    return Text(shown, style=style) if value else Text("–", style="dim")


def _foot() -> Text:
    return Text(f"{time.strftime('%H:%M:%S')}   Ctrl-C ends this", style="dim")
