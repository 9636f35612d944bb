"""trunq statistics: what the last minutes, hours or days brought, with small plots."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from trunq import display
from trunq.cli.ground import completion, option
from trunq.cli.ground.database import address, client
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import Row, say, write_csv, write_json, write_rows
from trunq.cli.keep import lake as lakes
from trunq.record import Statistic

COLUMNS = (
    *("queue", "subscription", "kind", "outcome", "messages", "plot"),
    *("took", "took_99%", "waited", "waited_99%"),
)

EXAMPLES = (
    "trunq statistics",
    "trunq statistics mail --last 1d",
    "# Each minute, for a spreadsheet",
    "trunq statistics mail --kind welcome --per 1m --csv",
    "# All that a pipeline took into a lake, as a page with charts",
    "trunq statistics --lake /data/orders --zone Europe/Zurich --html orders.html",
    "trunq statistics --json | jq '.[] | select(.outcome == \"failed\")'",
)

BARS = "▁▂▃▄▅▆▇█"
POINTS = 30
"""Of a plot, at most."""

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)

Group = tuple[str, str, str | None, str]


def statistics(
    queue: option.OneQueue = None,
    subscription: Annotated[
        str | None,
        typer.Option(
            "--subscription", "-s", metavar="NAME", help="Only this subscription.",
            autocompletion=completion.subscriptions,
        ),
    ] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="Only messages of this kind.")
    ] = None,
    last: Annotated[
        timedelta | None,
        typer.Option(
            "--last",
            parser=option.interval,
            metavar="INTERVAL",
            help="About what time: 30m, 6h, 7d (default: 1h).",
        ),
    ] = None,
    per: Annotated[
        timedelta | None,
        typer.Option(
            "--per", parser=option.interval, metavar="INTERVAL", help="A row for each 1m, 1h, 1d of it."
        ),
    ] = None,
    together: Annotated[
        bool, typer.Option("--together", metavar=option.FLAG, help="Kinds together, a row for each outcome.")
    ] = False,
    lake: Annotated[
        str | None,
        typer.Option("--lake", metavar="PATH", help="Have Spark count over the history in this Delta table."),
    ] = None,
    zone: Annotated[
        str, typer.Option("--zone", metavar="ZONE", help="Time zone of days and hours, with --lake (UTC).")
    ] = "UTC",
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page with charts to this file, with --lake."),
    ] = None,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:  # fmt: skip
    """Show how many messages ended how, how long they ran and how long they had waited.

    A line for each queue, subscription, kind and outcome, with a plot over that time. took is how long
    handlers ran, waited is the time from publishing to the first lease. Each has its median, and the time
    that 99 % stay under, right within 9 %. `~` marks kinds that were counted in a sample. Minutes are
    kept for two days, hours for ninety days.

    With --lake, it reads all attempts that pipelines with the source history took there, and from
    Postgres those that they have not taken yet: outcomes, errors and hours of the week. --last is
    everything then, and --per is 1m, 1h or 1d, for --json and --html.
    """
    if lake is not None:
        if csv or together:
            raise Mistake("--lake goes with --json or --html, not with --csv or --together.")
        if html is not None:
            _report()  # before Spark counts for nothing
        wanted = {"queue": queue, "subscription": subscription, "kind": kind}
        with address(database) as dsn:
            _of_lake(lakes.find(lake, dsn, wanted, last, per, zone), html, json)
        return
    if html is not None or zone != "UTC":
        raise Mistake("--html and --zone go with --lake PATH.")
    last = last or HOUR
    asked: dict[str, Any] = {"queue": queue, "subscription": subscription, "kind": kind, "last": last}
    asked["by_kind"] = not together
    with client(database) as trunq:
        rows = trunq.statistics(**asked, per=per)
        points = [] if json or csv or per else trunq.statistics(**asked, per=_step(last))
    found: list[Row] = [row._asdict() for row in rows]
    if json or csv:
        write_csv(found) if csv else write_json(found)
        return
    plots = _plots(points, _step(last))
    columns = ("at", *(column for column in COLUMNS if column != "plot")) if per else COLUMNS
    nothing = (
        "Nothing was answered in that time, or no leader runs: it counts a minute 10 seconds after its end."
    )
    write_rows([_shown(row, plots) for row in rows], columns, False, nothing)


def _of_lake(found: lakes.Found, html: Path | None, json: bool) -> None:
    if html is not None:
        written = _report().write_report(found, html)
        if not json:
            say("The page is {path}.", path=written)
    if json:
        lakes.print_json(found)
    elif html is None:
        lakes.print_tables(found)


def _report() -> ModuleType:
    try:
        from trunq.cli.keep import report  # noqa: PLC0415  # plotly is slow to import, and of the extra report
    except ImportError as error:
        raise Mistake("The page is drawn with plotly: pip install 'trunq[report]'") from error
    return report


def _step(last: timedelta) -> timedelta:
    """How much one point of a plot stands for: whole minutes; hours where minutes are kept no longer."""
    least = HOUR if last > 2 * 24 * HOUR else MINUTE
    return max(least, -(-last / POINTS // least) * least)


def _group(row: Statistic) -> Group:
    return row.queue, row.subscription, row.kind, row.outcome


def _plots(points: Sequence[Statistic], step: timedelta) -> dict[Group, str]:
    """A line of bars for each group, all over the same time."""
    times = [point.at for point in points if point.at is not None]
    if not times:
        return {}
    first = min(times)
    length = (max(times) - first) // step + 1
    counts: dict[Group, list[int]] = {}
    for point in points:
        counts.setdefault(_group(point), [0] * length)[_place(point.at, first, step)] = point.messages
    return {group: _bars(values) for group, values in counts.items()}


def _place(at: datetime | None, first: datetime, step: timedelta) -> int:
    return 0 if at is None else (at - first) // step


def _bars(values: Sequence[int]) -> str:
    most = max(values)
    return "".join(BARS[-(-value * (len(BARS) - 1) // most)] if value else " " for value in values)


def _shown(row: Statistic, plots: dict[Group, str]) -> Row:
    return {
        **row._asdict(),
        "kind": row.kind or "",
        "messages": display.count(row.messages, row.is_sampled),
        "plot": plots.get(_group(row), "").rstrip(),
        "took": _seconds(row.took_median),
        "took_99%": _seconds(row.took_p99),
        "waited": _seconds(row.waited_median),
        "waited_99%": _seconds(row.waited_p99),
    }


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value * 1000:.2g}ms" if value < 0.1 else display.interval(timedelta(seconds=value))
