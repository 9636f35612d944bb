"""The pipelines of the second act.

planes       the register of aircraft, an HTTP API -> a table
weather      files -> a table, by hour and airport
departures   a table that writers go on changing -> a Delta table, with planes and airports, checked
by_airline   the Delta table, with the weather -> an aggregate in a table; after each run of departures
late         what landed three hours late -> a queue, whose workers compensate (refund.py)
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from trunq.pipeline import Pipeline
from trunq_demo import month, refund, weather
from trunq_demo.flights import LATE_MINUTES
from trunq_demo.place import Place

CONTINUOUS: Final = {"continuous": True}

NO_TAIL_NUMBER: Final = "no tail number"
UNKNOWN_PLANE: Final = "aircraft not in the register"
UNKNOWN_AIRPORT: Final = "destination not among the airports"

TOKEN: Final = "PLANES_TOKEN"  # noqa: S105  # its name in the environment of the runner

JOINED: Final = """
select f.*, p.manufacturer, p.model, p.seats, a.name as airport
from input f
left join planes p on p.tailnum = f.tailnum
left join airports a on a.faa = f.dest
where f.status <> 'scheduled'
"""
CHECKS: Final = [
    {"name": NO_TAIL_NUMBER, "holds": "tailnum is not null"},
    {"name": UNKNOWN_PLANE, "holds": "tailnum is null or seats is not null"},
    {"name": UNKNOWN_AIRPORT, "holds": "airport is not null"},
]

BY_AIRLINE: Final = """
select i.carrier, i.name, count(*) as flights,
  count_if(f.status = 'cancelled') as cancelled,
  coalesce(sum(f.arr_delay), 0) as minutes,
  count_if(w.precip > 0) as in_rain
from input i
join departures f on f.carrier = i.carrier
left join weather w on w.origin = f.origin and w.time_hour = f.time_hour
group by i.carrier, i.name
"""


def pipelines(place: Place, url: str) -> list[Pipeline]:
    """All of them, those first that others name in `then`."""
    planes, weather = _landed(place, url)
    return [planes, weather, _by_airline(place), _departures(place), _late()]


def late(rows: pa.Table) -> pa.Table:
    """What landed three hours late or more: the function of a pipeline."""
    is_late = pc.and_(pc.equal(rows["status"], "landed"), pc.greater_equal(rows["arr_delay"], LATE_MINUTES))
    return rows.filter(is_late).select(["id", "carrier", "flight", "arr_delay", "distance"])


def _landed(place: Place, url: str) -> tuple[Pipeline, Pipeline]:
    """Those that bring what others look up."""
    planes = Pipeline(
        "planes",
        source={
            "format": "http",
            "url": url,
            "headers": {"Authorization": f"Bearer ${{{TOKEN}}}"},
            "rows": "planes",
            "cursor": {"path": "next", "param": "after"},
            "landing": str(place.landing),
        },
        sink={"format": "table", "table": "demo.plane", "mode": "upsert", "key": ["tailnum"]},
    )
    hours = Pipeline(
        "weather",
        source={"format": "csv", "path": f"{place.incoming}/*.csv", "types": weather.TYPES},
        sink={
            "format": "table",
            "table": "demo.weather",
            "mode": "upsert",
            "key": weather.KEY,
            "newest": "issued",
        },
        trigger=CONTINUOUS,
    )
    return planes, hours


def _departures(place: Place) -> Pipeline:
    return Pipeline(
        "departures",
        source={"format": "table", "table": "demo.flight"},
        sql=[JOINED],
        lookups={
            "planes": {"format": "table", "table": "demo.plane"},
            "airports": {"format": "csv", "path": str(month.airports())},
        },
        checks=CHECKS,
        sink={
            "format": "delta",
            "path": str(place.month),
            "mode": "upsert",
            "key": ["id"],
            "newest": "revision",
        },
        trigger=CONTINUOUS,
        then=["by_airline"],
    )


def _by_airline(place: Place) -> Pipeline:
    return Pipeline(
        "by_airline",
        source={"format": "table", "table": "demo.airline", "changes": "all"},
        sql=[BY_AIRLINE],
        lookups={
            "departures": {"format": "delta", "path": str(place.month)},
            "weather": {"format": "table", "table": "demo.weather"},
        },
        sink={"format": "table", "table": "demo.airline_month", "mode": "replace"},
    )


def _late() -> Pipeline:
    return Pipeline(
        "late",
        source={"format": "table", "table": "demo.flight"},
        function=late,
        sink={"format": "queue", "queue": refund.DELAYS, "kind": refund.KIND, "key": "id"},
        trigger=CONTINUOUS,
    )
