"""A page about the history in a lake: one HTML file that needs no network, drawn with plotly."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from trunq.cli.ground.output import Row
from trunq.cli.keep import chart
from trunq.cli.keep.chart import BLUE, GREEN, GREY, HEAT, ORANGE, RED
from trunq.cli.keep.lake import DAYS, Found, at_home, seconds

_LINES: Final = (BLUE, ORANGE, GREEN, "#8d6cc2", GREY)
_ERRORS: Final = 30
_GROUPS: Final = 20
"""Of the heat map's choice, at most."""


def write_report(found: Found, path: Path) -> Path:
    """Write the page to a file; its path."""
    template = Template(files("trunq.cli.keep").joinpath("report.html").read_text(encoding="utf-8"))
    page = template.substitute(
        _facts(found) | _figures(found),
        plotly=get_plotlyjs(),
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
    )
    path.write_text(page, encoding="utf-8")
    return path


def _facts(found: Found) -> dict[str, str]:
    total = sum(row["attempts"] for row in found.outcomes)
    succeeded = sum(row["attempts"] for row in found.outcomes if row["outcome"] == "success")
    failed = sum(row["attempts"] for row in found.errors)
    times = [at_home(row["at"], found.time_zone) for row in found.rates]
    queues = sorted({row["queue"] for row in found.outcomes})
    busiest = _sums((row["at"], row["attempts"]) for row in found.rates).most_common(1)
    return {
        "title": escape(", ".join(queues) or "no attempts"),
        "attempts": f"{total:,}",
        "succeeded": f"{succeeded / (total or 1):.1%}",
        "failed": f"{failed:,}",
        "busiest": f"{busiest[0][1]:,}" if busiest else "0",
        "per": found.per,
        "each": _each(found),
        "span": f"{min(times):%Y-%m-%d %H:%M} to {max(times):%Y-%m-%d %H:%M}" if times else "",
        "zone": escape(found.time_zone),
        "lake": escape(found.lake),
        "fresh": (
            f"up to now: what {escape(', '.join(found.takers))} had not taken yet was read from Postgres"
            if found.takers
            else "as far as the lake has it"
        ),
        "outcomes": "\n".join(map(_outcome, found.outcomes)),
        "errors": "\n".join(map(_error, found.errors[:_ERRORS]))
        or '<tr><td colspan="5" class="soft">None.</td></tr>',
    }


def _figures(found: Found) -> dict[str, str]:
    return chart.placeholders(
        {
            "throughput": _throughput(found),
            "took": _times(found, "took_p90"),
            "waited": _times(found, "waited_p90"),
            "heat": _heat(found),
        }
    )


def _throughput(found: Found) -> go.Figure:
    """Attempts in each minute, hour or day, by what became of them."""
    figure = chart.empty(height=300, y_title=f"attempts {_each(found)}")
    parts: dict[str, Counter[datetime]] = {
        "succeeded": _sums((row["at"], row["succeeded"]) for row in found.rates),
        "failed": _sums((row["at"], row["failed"]) for row in found.rates),
        "other": _sums(
            (row["at"], row["attempts"] - row["succeeded"] - row["failed"]) for row in found.rates
        ),
    }
    for (name, counts), colour in zip(parts.items(), (GREEN, RED, GREY), strict=True):
        figure.add_bar(
            x=[at_home(at, found.time_zone) for at in sorted(counts)],
            y=[counts[at] for at in sorted(counts)],
            name=name,
            marker_color=colour,
            hovertemplate="%{y:,} " + name + "<extra></extra>",
        )
    figure.update_layout(barmode="stack", bargap=0.1, hovermode="x unified")
    figure.update_yaxes(tickformat=",d", rangemode="tozero")
    return figure


def _times(found: Found, column: str) -> go.Figure:
    """A line for each of the busiest kinds, on a logarithmic scale."""
    figure = chart.empty(height=280, y_title="seconds")
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in found.rates:
        groups[_name(row)].append(row)
    busiest = sorted(groups, key=lambda name: -sum(row["attempts"] for row in groups[name]))
    for name, colour in zip(busiest, _LINES, strict=False):
        rows = [row for row in groups[name] if row[column] is not None]
        figure.add_scatter(
            x=[at_home(row["at"], found.time_zone) for row in rows],
            y=[max(row[column], 1e-6) for row in rows],
            name=escape(name),
            mode="lines+markers" if len(rows) < 60 else "lines",
            line={"color": colour, "width": 2},
            customdata=[seconds(row[column]) for row in rows],
            hovertemplate="%{customdata} " + escape(name) + "<extra></extra>",
        )
    figure.update_layout(hovermode="x unified", showlegend=True)
    figure.update_yaxes(type="log", dtick=1, tickformat="~g")
    return figure


def _heat(found: Found) -> go.Figure:
    """Attempts by weekday and hour; of all, or of the queue and kind that is chosen."""
    figure = chart.empty(height=340, legend=False)
    by_name: dict[str, Counter[tuple[int, int]]] = {"everything": Counter()}
    for row in found.heat:
        for name in ("everything", _name(row)):
            by_name.setdefault(name, Counter())[row["weekday"], row["hour"]] += row["attempts"]
    names = sorted(by_name, key=lambda name: (name != "everything", -sum(by_name[name].values())))[:_GROUPS]
    for place, name in enumerate(names):
        counts = by_name[name]
        figure.add_heatmap(
            x=[f"{hour}h" for hour in range(24)],
            y=list(DAYS),
            z=[[counts[day, hour] or None for hour in range(24)] for day in range(1, 8)],
            colorscale=HEAT,
            zmin=0,
            xgap=2,
            ygap=2,
            visible=place == 0,
            colorbar={"thickness": 10, "outlinewidth": 0, "tickformat": ",~s"},
            hovertemplate="%{y} %{x}: %{z:,} attempts<extra></extra>",
        )
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False)
    figure.update_xaxes(type="category", tickangle=0, nticks=12)
    if len(names) > 2:
        shown = [
            {
                "label": escape(name),
                "method": "update",
                "args": [{"visible": [other == name for other in names]}],
            }
            for name in names
        ]
        figure.update_layout(
            margin={"t": 52},
            updatemenus=[
                {
                    "buttons": shown,
                    "x": 0,
                    "xanchor": "left",
                    "y": 1.2,
                    "yanchor": "top",
                    "bgcolor": "#ffffff",
                }
            ],
        )
    return figure


def _outcome(row: Row) -> str:
    numbers = "".join(
        f'<td class="number">{seconds(row[f"{what}_{share}"])}</td>'
        for what in ("took", "waited")
        for share in ("median", "p90", "p99")
    )
    return (
        f"<tr><td>{escape(row['queue'])}</td><td>{escape(row['kind'] or '')}</td>"
        f'<td class="{_tone(row)}">{escape(row["outcome"])}</td>'
        f'<td class="number">{row["attempts"]:,}</td>{numbers}</tr>'
    )


def _tone(row: Row) -> str:
    return {"success": "good", "failed": "bad", "rejected": "bad"}.get(row["outcome"], "")


def _error(row: Row) -> str:
    return (
        f'<tr><td class="number">{row["attempts"]:,}</td><td>{escape(row["error"] or "(none said)")}</td>'
        f"<td>{escape(row['outcome'])}</td><td>{escape(_name(row))}</td>"
        f"<td>{row['last_at']:%Y-%m-%d %H:%M}</td></tr>"
    )


def _name(row: Row) -> str:
    return f"{row['queue']} / {row['kind'] or 'no kind'}"


def _each(found: Found) -> str:
    return f"an {found.per}" if found.per == "hour" else f"a {found.per}"


def _sums(pairs: Iterable[tuple[datetime, int]]) -> Counter[datetime]:
    sums: Counter[datetime] = Counter()
    for at, number in pairs:
        sums[at] += number
    return sums
