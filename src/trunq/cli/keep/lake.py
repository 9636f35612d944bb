"""trunq statistics --lake: what the history in a lake tells, as tables, JSON or a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast
from zoneinfo import ZoneInfo

from rich.text import Text

from trunq import Client, display
from trunq.cli.ground.failure import Mistake
from trunq.cli.ground.output import Row, out, say, table, write, write_json
from trunq.errors import InvalidPipeline

DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

_PER: Final = {timedelta(minutes=1): "minute", timedelta(hours=1): "hour", timedelta(days=1): "day"}
_SHADES: Final = " ░▒▓█"
_ERRORS: Final = 20
_OUTCOMES: Final = ("queue", "kind", "outcome", "attempts", "took", "took_99%", "waited", "waited_99%")


@dataclass(frozen=True)
class Found:
    """What a lake tells: the rows of each of `trunq.spark.statistics`, times in UTC."""

    lake: str
    takers: list[str]
    per: str
    time_zone: str
    rates: list[Row]
    outcomes: list[Row]
    errors: list[Row]
    heat: list[Row]


def find(
    lake: str,
    dsn: str,
    wanted: dict[str, Any],
    last: timedelta | None,
    per: timedelta | None,
    time_zone: str,
) -> Found:
    """Have Spark count, over a lake and what its pipelines have not taken yet."""
    from trunq import spark  # noqa: PLC0415  # slow to import

    if (per or timedelta(hours=1)) not in _PER:
        raise Mistake("With --lake, --per is 1m, 1h or 1d.")
    name = _PER[per or timedelta(hours=1)]
    with Client(dsn, max_connections=1) as client:
        takers = takers_of(client, lake)
    counted = spark.statistics(
        lake,
        takers,
        dsn=dsn,
        since=None if last is None else datetime.now(UTC) - last,
        per=cast("Any", name),
        time_zone=time_zone,
        **wanted,
    )
    rows: list[list[Row]] = [[_plain(row.asDict()) for row in frame.collect()] for frame in counted]
    return Found(lake, takers, name, time_zone, *rows)


def takers_of(client: Client, lake: str) -> list[str]:
    """Names of the pipelines that take history from this database into a Delta table at this path."""
    from trunq.pipeline import DeltaSink, HistorySource  # noqa: PLC0415
    from trunq.pipeline.definition.reading import read_definition  # noqa: PLC0415
    from trunq.spark.lake.delta import local_path  # noqa: PLC0415

    directory = local_path(lake).resolve()
    found = []
    for row in client.list_pipelines():
        if (row.source, row.sink) != ("history", "delta"):
            continue
        try:
            pipeline = read_definition(row.pipeline, row.definition).expanded()
        except InvalidPipeline:
            continue  # it needs what only its runner has in its environment
        source, sink = pipeline.source, pipeline.sink
        assert isinstance(source, HistorySource)
        assert isinstance(sink, DeltaSink)
        if source.dsn is None and Path(sink.path).resolve() == directory:
            found.append(source.taker or pipeline.name)
    return found


def print_json(found: Found) -> None:
    """All of it as one object."""
    write_json({name: getattr(found, name) for name in ("rates", "outcomes", "errors", "heat")})


def print_tables(found: Found) -> None:
    """Outcomes, errors, and when it happened."""
    if not found.outcomes:
        out.print("No attempt ended in that time.")
        return
    write(table([_timed(row) for row in found.outcomes], _OUTCOMES, out.width))
    out.print()
    if found.errors:
        errors = [
            {**row, "error": row["error"] or "", "last": row["last_at"]} for row in found.errors[:_ERRORS]
        ]
        write(table(errors, ("queue", "kind", "outcome", "attempts", "last", "error"), out.width))
        out.print()
    write(Text(f"Attempts by weekday and hour ({found.time_zone}), from few to many: {_SHADES[1:]}"))
    for line in _heat_lines(found.heat):
        write(Text(line))
    if not found.takers:
        say("Without what is younger: no pipeline of this database takes history to {lake}.", lake=found.lake)


def _heat_lines(heat: Sequence[Row]) -> list[str]:
    """A line a weekday, two characters an hour."""
    counts: Counter[tuple[int, int]] = Counter()
    for row in heat:
        counts[row["weekday"], row["hour"]] += row["attempts"]
    most = max(counts.values(), default=1)

    def shade(day: int, hour: int) -> str:
        number = counts[day, hour]
        return _SHADES[-(-number * (len(_SHADES) - 1) // most)] * 2

    head = "     " + "".join(f"{hour:<6}" for hour in range(0, 24, 3)).rstrip()
    lines = [
        f"{name}  " + "".join(shade(day, hour) for hour in range(24)) for day, name in enumerate(DAYS, 1)
    ]
    return [head, *(line.rstrip() for line in lines)]


def _timed(row: Row) -> Row:
    return {
        **row,
        "kind": row["kind"] or "",
        "took": seconds(row["took_median"]),
        "took_99%": seconds(row["took_p99"]),
        "waited": seconds(row["waited_median"]),
        "waited_99%": seconds(row["waited_p99"]),
    }


def seconds(value: float | None) -> str:
    """A time as people say it."""
    if value is None:
        return ""
    return f"{value * 1000:.2g}ms" if value < 0.1 else display.interval(timedelta(seconds=value))


def at_home(value: datetime, time_zone: str) -> datetime:
    """A time as clocks of a time zone show it."""
    return value.astimezone(ZoneInfo(time_zone)).replace(tzinfo=None)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    # Spark's times come as this machine's clock shows them.
    return {
        name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in row.items()
    }
