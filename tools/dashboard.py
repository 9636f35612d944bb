"""Writes ops/grafana/trunq.json: the dashboard of Grafana over the metrics of `trunq leader --metrics`.

`python tools/dashboard.py` writes it, `--check` fails when it is stale. Edit the panels below.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

FILE = Path(__file__).parent.parent / "ops" / "grafana" / "trunq.json"

DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
WIDTH: Final = 24

OF_DATABASE: Final = 'database=~"$database"'
OF_QUEUE: Final = f'{OF_DATABASE},queue=~"$queue"'
OF_READER: Final = f'{OF_QUEUE},subscription=~"$subscription"'

READER: Final = "database, queue, subscription"
QUEUE: Final = "database, queue"
STATE: Final = f"{READER}, state"
OUTCOME: Final = f"{READER}, outcome"
PIPELINE: Final = "database, pipeline"

READER_LEGEND: Final = "{{queue}}/{{subscription}}"
READY: Final = ',state="ready"'
DEAD: Final = ',state="dead"'
FAILURES: Final = ',outcome=~"failed|timed_out|rejected|lease_expired"'
KIND: Final = "queue, subscription, kind"


def newest(name: str, by: str, labels: str) -> str:
    """A figure, once: each process that serves metrics of a database tells the same ones."""
    return f"max by ({by}) (trunq_{name}{{{labels}}})"


def rate(name: str, by: str, labels: str) -> str:
    """How fast a counter grows a second."""
    return f"max by ({by}) (rate(trunq_{name}_total{{{labels}}}[$__rate_interval]))"


def quantiles(name: str) -> tuple[str, ...]:
    """The median and 99 % of a histogram, of each kind."""
    grown = f"max by ({KIND}, le) (rate(trunq_{name}_bucket{{{OF_READER}}}[$__rate_interval]))"
    return tuple(f"histogram_quantile({at}, {grown})" for at in (0.5, 0.99))


def of_reader(name: str, more: str = "") -> str:
    """A figure of each subscription."""
    return newest(name, READER, OF_READER + more)


class Panel(NamedTuple):
    """What a panel asks, and how it shows the answer."""

    title: str
    text: str
    exprs: tuple[str, ...]
    legends: tuple[str, ...] = (READER_LEGEND,)
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 8
    red_above: float | None = None
    """A value from which on it is red."""
    red_below: float | None = None


def stat(title: str, text: str, expr: str, **more: Any) -> Panel:
    """One number."""
    return Panel(title, text, (expr,), ("",), "stat", width=4, **more)


NOBODY: Final = (
    f"{of_reader('messages', READY)} > 0"
    f" and on ({READER}) {of_reader('oldest_ready_seconds')} > 10"
    f" and on ({READER}) {of_reader('workers')} == 0"
    f" unless on ({READER}) {of_reader('paused')} == 1"
)

ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "What is stuck": (
        stat(
            "Databases that do not answer",
            "Publishers fail, and workers wait.",
            f"count({newest('up', 'database', OF_DATABASE)} == 0) or vector(0)",
            red_above=1,
        ),
        stat(
            "Led",
            "0: nobody performs the duties of a database. Start a worker of its owner, or `trunq leader`.",
            f"min({newest('leader_up', 'database', OF_DATABASE)})",
            red_below=1,
        ),
        stat(
            "Oldest message that waits",
            "It is ready, and no worker has taken it.",
            f"max(trunq_oldest_ready_seconds{{{OF_READER}}})",
            unit="s",
            red_above=900,
        ),
        stat(
            "Dead messages",
            "`trunq dead list QUEUE` has their errors.",
            f"sum({of_reader('messages', DEAD)})",
            red_above=1,
        ),
        stat(
            "Lost messages",
            "A subscription stood still for longer than its queue holds messages. It hands out nothing until"
            " accept_loss.",
            f"sum({of_reader('lost_messages')}) or vector(0)",
            red_above=1,
        ),
        stat(
            "Age of these figures",
            "The leader samples every five seconds where something happens.",
            f"max(trunq_sample_age_seconds{{{OF_DATABASE}}})",
            unit="s",
            red_above=120,
        ),
        Panel(
            "Messages wait, and nobody works",
            "For ten seconds, and no worker or reader has held one for a minute.",
            (NOBODY,),
            kind="table",
        ),
        Panel(
            "Longest waits",
            "The twenty subscriptions whose oldest message has waited longest.",
            (f"topk(20, {of_reader('oldest_ready_seconds')})",),
            kind="table",
            unit="s",
        ),
        Panel(
            "Alerts",
            "Those of ops/prometheus/trunq.rules.yml that fire; docs/operate/alerts.md says what to do.",
            (f'ALERTS{{alertname=~"Trunq.*",alertstate="firing",{OF_DATABASE}}}',),
            ("{{alertname}}",),
            kind="table",
        ),
    ),
    "Rates": (
        Panel(
            "Published a second",
            "",
            (rate("published", QUEUE, OF_QUEUE),),
            ("{{queue}}",),
            unit="cps",
        ),
        Panel(
            "Answers a second, by outcome",
            "",
            (f"sum by (outcome) ({rate('answers', OUTCOME, OF_READER)})",),
            ("{{outcome}}",),
            unit="cps",
        ),
        Panel(
            "Share of answers that are failures",
            "Failed, timed out, rejected, or the lease ran out.",
            (
                f"sum by ({READER})"
                f" ({rate('answers', OUTCOME, OF_READER + FAILURES)})"
                f" / sum by ({READER}) ({rate('answers', OUTCOME, OF_READER)})",
            ),
            unit="percentunit",
        ),
    ),
    "Waiting and handling": (
        Panel(
            "Messages by state",
            "Above 1,000 they may be estimates.",
            (f"sum by (state) ({newest('messages', STATE, OF_READER)})",),
            ("{{state}}",),
        ),
        Panel("Ready", "", (of_reader("messages", READY),)),
        Panel("Oldest that waits", "", (of_reader("oldest_ready_seconds"),), unit="s"),
        Panel(
            "From publishing to the first lease",
            "Median and 99 % of the last minutes, of messages that succeeded.",
            quantiles("wait_seconds"),
            tuple(f"{READER_LEGEND} {{{{kind}}}} {at}" for at in ("median", "99 %")),
            unit="s",
        ),
        Panel(
            "How long handlers run",
            "Median and 99 % of the last minutes, of messages that succeeded.",
            quantiles("handler_seconds"),
            tuple(f"{READER_LEGEND} {{{{kind}}}} {at}" for at in ("median", "99 %")),
            unit="s",
        ),
        Panel("Dead", "", (of_reader("messages", DEAD),)),
    ),
    "Workers": (
        Panel("Workers", "With a lease now or within a minute.", (of_reader("workers"),), width=12),
        Panel("Paused", "1: nothing is handed out until resume.", (of_reader("paused"),), width=12),
    ),
    "Streams": (
        Panel("Lag", "Since when the first unfinished message waits.", (of_reader("lag_seconds"),), unit="s"),
        Panel("Lag in messages", "", (of_reader("lag_messages"),)),
        Panel(
            "Age of the newest tick",
            "Batches end at ticks. The leader cuts them.",
            (newest("tick_age_seconds", QUEUE, OF_QUEUE),),
            ("{{queue}}",),
            unit="s",
        ),
        Panel("Lost messages", "Until accept_loss.", (of_reader("lost_messages"),), width=24),
    ),
    "Lanes": (
        Panel(
            "At most at a time in a lane", "Limit of each lane.", (of_reader("lane_max_running"),), width=6
        ),
        Panel("At most a second in a lane", "Limit of each lane.", (of_reader("lane_rate"),), width=6),
        Panel("Lanes with a limit of their own", "", (of_reader("lanes_limited"),), width=6),
        Panel("Lanes that are paused", "", (of_reader("lanes_paused"),), width=6),
    ),
    "Schedules and pipelines": (
        Panel(
            "Schedules that are late",
            "Their time is over, and their message is not there.",
            (newest("schedule_late_seconds", "database, queue, schedule", OF_QUEUE),),
            ("{{queue}}/{{schedule}}",),
            unit="s",
        ),
        Panel(
            "Lag of pipelines",
            "How old the newest of what is in the sink is.",
            (newest("pipeline_lag_seconds", PIPELINE, OF_DATABASE),),
            ("{{pipeline}}",),
            unit="s",
        ),
        Panel(
            "Pipelines that fail or are paused",
            "The newest attempt has failed; it is tried again.",
            (
                newest("pipeline_failing", PIPELINE, OF_DATABASE),
                newest("pipeline_paused", PIPELINE, OF_DATABASE),
            ),
            ("{{pipeline}} fails", "{{pipeline}} is paused"),
        ),
        Panel(
            "Runs a second",
            "Runs that ended.",
            (rate("pipeline_runs", PIPELINE, OF_DATABASE),),
            ("{{pipeline}}",),
            unit="cps",
        ),
        Panel(
            "Rows of the newest run",
            "",
            (
                newest("pipeline_last_rows_in", PIPELINE, OF_DATABASE),
                newest("pipeline_last_rows_out", PIPELINE, OF_DATABASE),
            ),
            ("{{pipeline}} in", "{{pipeline}} out"),
        ),
        Panel(
            "Rows in quarantine",
            "",
            (newest("pipeline_quarantined_rows", PIPELINE, OF_DATABASE),),
            ("{{pipeline}}",),
        ),
    ),
    "Leader and database": (
        Panel(
            "Age of duties",
            "Since a duty was last done of that queue for which it is longest ago.",
            (newest("duty_age_seconds", "database, duty", OF_DATABASE),),
            ("{{database}} {{duty}}",),
            unit="s",
        ),
        Panel(
            "Oldest transaction",
            "It keeps vacuum from its work, and segments from being emptied.",
            (newest("oldest_transaction_seconds", "database", OF_DATABASE),),
            ("{{database}}",),
            unit="s",
        ),
        Panel(
            "Size of queues",
            "Looked up once a minute.",
            (newest("queue_bytes", QUEUE, OF_QUEUE),),
            ("{{queue}}",),
            unit="bytes",
        ),
        Panel(
            "Segments that are held",
            "Older than the retention, and not empty: trunq.list_warnings() names who holds them.",
            (newest("segments_held", QUEUE, OF_QUEUE),),
            ("{{queue}}",),
        ),
    ),
}


def thresholds(panel: Panel) -> dict[str, Any]:
    """Where its colour changes."""
    if panel.red_above is not None:
        steps = [{"color": "green", "value": None}, {"color": "red", "value": panel.red_above}]
    elif panel.red_below is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": panel.red_below}]
    else:
        steps = [{"color": "green", "value": None}]
    return {"mode": "absolute", "steps": steps}


def shown(panel: Panel, id: int, x: int, y: int) -> dict[str, Any]:
    """A panel as Grafana reads it."""
    is_table = panel.kind == "table"
    made: dict[str, Any] = {
        "id": id,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": DATASOURCE,
        "gridPos": {"h": height(panel), "w": panel.width, "x": x, "y": y},
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "thresholds": thresholds(panel)},
            "overrides": [],
        },
        "options": {"reduceOptions": {"calcs": ["lastNotNull"]}} if panel.kind == "stat" else {},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": DATASOURCE,
                "expr": expr,
                "legendFormat": legend,
                "instant": is_table or panel.kind == "stat",
                "format": "table" if is_table else "time_series",
            }
            for place, (expr, legend) in enumerate(zip(panel.exprs, panel.legends, strict=True))
        ],
    }
    if is_table:
        hidden = dict.fromkeys(("Time", "__name__", "alertstate", "instance", "job"), True)
        made["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return made


def height(panel: Panel) -> int:
    """In units of the grid."""
    return 4 if panel.kind == "stat" else 8


def variable(name: str, query: str) -> dict[str, Any]:
    """A variable whose values Prometheus knows: one, some or all of them."""
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> dict[str, Any]:
    """All of it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y},
                "panels": [],
            }
        )
        x, y = 0, y + 1
        for place, panel in enumerate(row):
            panels.append(shown(panel, len(panels) + 1, x, y))
            x += panel.width
            is_last = place + 1 == len(row)
            if is_last or x + row[place + 1].width > WIDTH:
                x, y = 0, y + height(panel)
    return {
        "uid": "trunq",
        "title": "trunq",
        "description": "Queues, streams and pipelines, by the metrics of `trunq leader --metrics 9090`.",
        "tags": ["trunq"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "datasource",
                    "type": "datasource",
                    "query": "prometheus",
                    "refresh": 1,
                    "current": {},
                },
                variable("database", "label_values(trunq_up, database)"),
                variable("queue", f"label_values(trunq_messages{{{OF_DATABASE}}}, queue)"),
                variable("subscription", f"label_values(trunq_messages{{{OF_QUEUE}}}, subscription)"),
            ]
        },
        "panels": panels,
    }


def main() -> None:
    """Write it, or compare."""
    text = json.dumps(dashboard(), indent=1) + "\n"
    if "--check" in sys.argv[1:]:
        if not FILE.exists() or FILE.read_text() != text:
            sys.exit(f"{FILE.name} is stale: make format")
        return
    FILE.write_text(text)


if __name__ == "__main__":
    main()
