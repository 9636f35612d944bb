"""trunq overview: what the newest samples say."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rich.text import Text

from trunq import display
from trunq.cli.ground import option
from trunq.cli.ground.database import client
from trunq.cli.ground.output import Row, err, out, write_rows
from trunq.cli.operate.role import unseen
from trunq.record import Overview

COLUMNS = (
    *("queue", "subscription", "ready", "leased", "delayed", "dead", "oldest_ready", "workers"),
    *("in_per_second", "out_per_second", "failed", "sampled_at"),
)

EXAMPLES = (
    "trunq overview",
    "trunq overview --limit 10",
    "trunq overview --json | jq '.[] | select(.oldest_ready > 300)'",
)


def overview(
    limit: option.Limit = 100,
    *,
    database: option.Database,
    json: option.Json = False,
    csv: option.Csv = False,
) -> None:
    """List the worst subscriptions, from the newest samples.

    First come those that lost messages, then those whose messages wait longest. A leader writes a sample
    of each subscription every 5 seconds, so this costs the same with a thousand queues; trunq status
    looks at each queue itself. Rates are those of the last minute; failed is the share of answers that
    were no success. When nobody samples, the first line says so, and this looks by itself at the twenty
    queues that were worst.
    """
    with client(database) as trunq:
        sampled_at = trunq.sampled_at()
        now = trunq.clock()
        rows = trunq.overview(limit)
        dark = unseen(trunq)
    if not json and not csv and (said := stopped(sampled_at, now)):
        out.print(Text(said, style="bold yellow"))
    shown = [_row(row) for row in rows] if not json and not csv else [row._asdict() for row in rows]
    none = "There is no queue yet. Create one with: trunq queue create NAME"
    if shown or dark is None or json or csv:
        write_rows(shown, COLUMNS, json, none, csv)
    if dark is not None:
        (err if json or csv else out).print(Text(dark, style="cyan"))
    if not json and not csv and rows and rows[0].subscriptions > len(rows):
        out.print(f"{rows[0].subscriptions - len(rows):,} more: --limit {rows[0].subscriptions}")


def stopped(sampled_at: datetime | None, now: datetime) -> str | None:
    """That nobody samples, and since when."""
    if sampled_at is not None and (now - sampled_at).total_seconds() <= 15:
        return None
    since = "" if sampled_at is None else f" since {sampled_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return f"! Nobody samples{since}. Start a worker, or: trunq leader"


def _row(row: Overview) -> Row:
    estimated = row.estimated or []
    shown: dict[str, Any] = row._asdict()
    for name in ("ready", "leased", "delayed", "dead"):
        value = getattr(row, name)
        shown[name] = None if value is None else display.count(value, name in estimated)
    shown["in_per_second"] = _rate(row.published_per_second)
    shown["out_per_second"] = _rate(row.answered_per_second)
    notes = ("messages lost" if row.lost_at else "", "paused" if row.paused else "")
    if told := ", ".join(filter(None, notes)):
        shown["subscription"] = f"{row.subscription} ({told})"
    shown["failed"] = None if row.failed_share is None else f"{row.failed_share:.0%}"
    return shown


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:,.1f}"
