"""Numbers as pictures and words: points of a line, bars of a life, times a person reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from trunq import display

LEAST = 10
"""The smallest number at the top of a chart: a line of ones is not drawn as if it were a peak."""


def line(values: Sequence[float], width: float, height: float, top: float | None = None) -> str:
    """Points of a polyline."""
    if not values:
        return ""
    highest = max(top or 0, *values, LEAST)
    step = width / max(len(values) - 1, 1)
    return " ".join(
        f"{at * step:.1f},{height - 1 - (height - 2) * value / highest:.1f}"
        for at, value in enumerate(values)
    )


def area(values: Sequence[float], width: float, height: float, top: float | None = None) -> str:
    """Points of the polygon below that line."""
    drawn = line(values, width, height, top)
    last = width if len(values) > 1 else 0
    return f"0,{height:g} {drawn} {last:g},{height:g}" if drawn else ""


def short(value: float | None) -> str:
    """1.2 million, 41,200, 950."""
    if value is None:
        return ""
    if value >= 1_000_000:
        return f"{value / 1_000_000:.3g} million"
    return f"{value:,.0f}"


def number(value: int | None, is_estimate: bool = False) -> str:
    """A count; what is an estimate has a tilde."""
    if value is None:
        return ""
    return f"~{short(value)}" if is_estimate else f"{value:,}"


def rate(value: float | None) -> str:
    """So many a second, with a digit where there are few."""
    if value is None:
        return ""
    return f"{value:,.0f}/s" if value >= 10 or not value else f"{value:.1f}/s" if value >= 0.05 else "<0.1/s"


def about(value: float) -> str:
    """A length of time in its largest unit, for what is computed from rates."""
    for name, of in (("d", 86400), ("h", 3600), ("m", 60)):
        if value >= 2 * of:
            return f"{value / of:.0f}{name}"
    return f"{max(value, 1):.0f}s"


def size(value: int | None) -> str:
    """Bytes in the unit that leaves few digits."""
    if value is None:
        return ""
    left = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if left < 1024:
            return f"{left:.3g} {unit}" if unit != "B" else f"{left:.0f} B"
        left /= 1024
    return f"{left:.3g} TB"


def seconds(value: float | None) -> str:
    """A length of time that Postgres gave in seconds."""
    if value is None:
        return ""
    if 0 < value < 0.001:
        return "<1ms"
    return f"{value * 1000:.3g}ms" if value < 1 else display.interval(timedelta(seconds=value))


def length(value: timedelta | float | None) -> str:
    """A length of time."""
    if value is None:
        return ""
    return display.interval(value) if isinstance(value, timedelta) else seconds(value)


def ago(value: datetime | None, now: datetime) -> str:
    """A time, by how far from now it is."""
    if value is None:
        return ""
    passed = now - value
    if abs(passed) < timedelta(seconds=1):
        return "now"
    words = display.interval(timedelta(seconds=round(abs(passed).total_seconds())))
    return f"{words} ago" if passed > timedelta(0) else f"in {words}"


class Bar(NamedTuple):
    """A stretch of a message's life: from where, how wide (in per cent), and what it was."""

    kind: str
    x: float
    width: float
    begun: datetime
    ended: datetime
    title: str
    error: str | None


def bars(row: Any, begin: datetime, end: datetime, now: datetime, why: str | None = None) -> list[Bar]:
    """Waiting and each attempt, on an axis from `begin` to `end`; `why`: what it waits for now, if ready."""
    whole = max((end - begin).total_seconds(), 1e-6)
    found: list[Bar] = []
    at = row.published_at or begin

    def add(kind: str, begun: datetime, ended: datetime, title: str, error: str | None = None) -> None:
        x = 100 * (begun - begin).total_seconds() / whole
        width = max(0.8, 100 * (ended - begun).total_seconds() / whole)
        found.append(Bar(kind, min(x, 99.2), min(width, 100 - min(x, 99.2)), begun, ended, title, error))

    for attempt in row.attempts or ():
        leased = _time(attempt.get("leased_at"))
        ended = _time(attempt.get("finished_at"))
        if leased is None:
            continue
        if leased > at:
            add("wait", at, leased, f"waited {display.interval(leased - at)}{_because(found)}")
        done = ended or min(now, end)
        outcome = attempt.get("outcome") or "running"
        who = f" by {attempt['worker']}" if attempt.get("worker") else ""
        took = display.interval(max(done - leased, timedelta(0)))
        add(
            outcome,
            leased,
            done,
            f"attempt {attempt.get('attempt')}: {outcome.replace('_', ' ')}{who}, {took}",
            attempt.get("error"),
        )
        at = done
    if row.state in OPEN:
        add(
            "wait",
            at,
            max(now, at),
            f"{OPEN[row.state]}, for {display.interval(max(now - at, timedelta(0)))}"
            + (f": {why}" if why else ""),
        )
    return found


OPEN = {
    "ready": "waits to be handed out",
    "scheduled": "waits until it is due",
    "retrying": "waits for its next attempt",
    "parked": "is parked until somebody resumes it",
}


def _because(found: Sequence[Bar]) -> str:
    if not found:
        return " for a worker"
    return {"released": " after it was given back", "lease_expired": " after its worker was lost"}.get(
        found[-1].kind, ": its back-off, then its turn"
    )


def span(rows: Iterable[Any], now: datetime) -> tuple[datetime, datetime]:
    """From when to when the lives of a message pass, for all its subscriptions."""
    begun, ended = [], []
    for row in rows:
        times = [
            _time(each.get(name)) for each in row.attempts or () for name in ("leased_at", "finished_at")
        ]
        known = [time for time in (row.published_at, row.finished_at, *times) if time is not None]
        begun += known
        ended += [*known, *([now] if row.state in OPEN or row.state == "leased" else [])]
    return min(begun, default=now), max(ended, default=now)


def _time(value: str | datetime | None) -> datetime | None:
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    return time if time is None or time.tzinfo else time.replace(tzinfo=UTC)
