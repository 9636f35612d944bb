"""The pictures of the demo's report, drawn with plotly."""

from __future__ import annotations

import re
from calendar import month_abbr
from collections import defaultdict

import plotly.graph_objects as go

from trunq.cli.keep import chart
from trunq.cli.keep.chart import BLUE, GREEN, GREY, HEAT, ORANGE, RED
from trunq_demo.evidence import Cell, Customer, Month, Outcome, Second

TONES = {"good": GREEN, "warn": ORANGE, "bad": RED}
MEANINGS = {"good": "handled", "warn": "rejected by its handler", "bad": "given up after its last attempt"}
FEWEST_FLIGHTS = 20  # a mean over fewer departures says more about one flight than about the hour
MANY_FLIGHTS = 100  # and a 90th percentile needs more


def throughput(timeline: list[Second]) -> go.Figure:
    """Messages published and answered in each second."""
    seconds = [second.at for second in timeline]
    figure = chart.empty(height=310, x_title="seconds since the first message", y_title="messages a second")
    figure.add_scatter(
        x=seconds,
        y=[s.published for s in timeline],
        name="published",
        mode="lines",
        line={"color": GREY, "width": 1.5, "shape": "hvh"},
        fill="tozeroy",
        fillcolor="rgba(138,146,155,.18)",
        hovertemplate="%{y:,} published<extra></extra>",
    )
    figure.add_scatter(
        x=seconds,
        y=[s.answered for s in timeline],
        name="answered",
        mode="lines",
        line={"color": BLUE, "width": 2.2},
        hovertemplate="%{y:,} answered<extra></extra>",
    )
    figure.update_layout(hovermode="x unified")
    figure.update_yaxes(tickformat=",d", rangemode="tozero")
    return figure


def latency(timeline: list[Second]) -> go.Figure:
    """How long messages waited for their handler, on a logarithmic scale, which shows the tail."""
    seen = [s for s in timeline if s.median_ms is not None]
    figure = chart.empty(
        height=290, x_title="seconds since the first message", y_title="publish to handler, ms"
    )
    for name, values, colour, width in (
        ("slowest in a hundred", [s.p99_ms for s in seen], ORANGE, 1.6),
        ("median", [s.median_ms for s in seen], BLUE, 2.2),
    ):
        figure.add_scatter(
            x=[s.at for s in seen],
            y=values,
            name=name,
            mode="lines",
            line={"color": colour, "width": width},
            hovertemplate="%{y:,.1f} ms " + name + "<extra></extra>",
        )
    figure.update_layout(hovermode="x unified")
    figure.update_yaxes(
        type="log", tickvals=[1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000], tickformat=",d"
    )
    return figure


def shares(rows: list[Outcome]) -> go.Figure:
    """How all messages ended, as shares of one bar; the legend of the picture after it, too."""
    figure = chart.empty(height=176)
    total = sum(row.count for row in rows) or 1
    for tone, colour in TONES.items():
        share = sum(row.count for row in rows if row.tone == tone) / total
        figure.add_bar(
            y=["all"],
            x=[share],
            name=f"{MEANINGS[tone]} {share:.2%}",
            orientation="h",
            marker_color=colour,
            hovertemplate=f"{MEANINGS[tone]}: " + "%{x:.2%}<extra></extra>",
        )
    figure.update_layout(
        barmode="stack", margin={"l": 12, "r": 20, "t": 88, "b": 34}, legend_traceorder="normal"
    )
    figure.update_xaxes(range=[0, 1], tickformat=".0%")
    figure.update_yaxes(visible=False)
    return figure


def outcomes(rows: list[Outcome]) -> go.Figure:
    """The outcomes of the messages, on a logarithmic scale, since few are dead; colours as in `shares`."""
    total = sum(row.count for row in rows) or 1
    figure = chart.empty(height=80 + 56 * len(rows), x_title="messages", legend=False)
    figure.add_bar(
        y=[row.label for row in rows],
        x=[row.count for row in rows],
        orientation="h",
        marker_color=[TONES[row.tone] for row in rows],
        width=0.42,
        text=[f"{row.count:,} · {row.count / total:.2%}" for row in rows],
        textposition="outside",
        cliponaxis=False,
        textfont_size=13.5,
        hovertemplate="%{y}: %{x:,}<extra></extra>",
    )
    figure.update_xaxes(type="log", range=[0, 6.1], tickvals=[1, 100, 10_000, 1_000_000], tickformat=",d")
    figure.update_yaxes(autorange="reversed", ticksuffix="  ")
    # The labels stand above their bars: beside them, they would take half of a telephone's width.
    for row in rows:
        figure.add_annotation(
            x=0,
            xref="paper",
            xanchor="left",
            y=row.label,
            yanchor="bottom",
            yshift=11,
            text=row.label,
            showarrow=False,
        )
    figure.update_yaxes(showticklabels=False)
    figure.update_layout(margin={"l": 12, "r": 96, "t": 22, "b": 48})
    return figure


def delays(cells: list[Cell], airlines: dict[str, str]) -> go.Figure:
    """Mean delay by carrier and hour; the busiest carrier on top."""
    flights: dict[str, int] = defaultdict(int)
    for cell in cells:
        flights[cell.carrier] += cell.flights
    carriers = sorted(flights, key=lambda carrier: -flights[carrier])
    hours = sorted({cell.hour for cell in cells if cell.flights >= FEWEST_FLIGHTS})
    found = {(cell.carrier, cell.hour): cell for cell in cells if cell.flights >= FEWEST_FLIGHTS}
    grid = [[found.get((carrier, hour)) for hour in hours] for carrier in carriers]
    figure = chart.empty(
        height=120 + 31 * len(carriers), x_title="hour of the scheduled departure", legend=False
    )
    figure.add_heatmap(
        x=[f"{hour}h" for hour in hours],
        y=[_short(airlines.get(carrier, carrier)) for carrier in carriers],
        z=[[cell.mean_delay if cell else None for cell in line] for line in grid],
        customdata=[
            [(cell.flights, cell.cancellations, cell.p90_delay) if cell else None for cell in line]
            for line in grid
        ],
        colorscale=HEAT,
        zmin=-5,
        zmax=45,
        xgap=2,
        ygap=2,
        texttemplate="%{z:.0f}",
        textfont_size=12,
        hoverongaps=False,
        hovertemplate="<b>%{y}, %{x}</b><br>mean delay %{z:.1f} min"
        "<br>one flight in ten later than %{customdata[2]:.0f} min"
        "<br>%{customdata[0]:,} flights, %{customdata[1]:,} cancelled<extra></extra>",
        colorbar={"title": {"text": "minutes"}, "thickness": 12, "outlinewidth": 0, "len": 0.6},
    )
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(showgrid=False, side="bottom")
    return figure


def through_the_day(cells: list[Cell], airlines: dict[str, str]) -> go.Figure:
    """The delay that one flight in ten exceeds, hour by hour, for the five busiest carriers."""
    by_carrier: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        by_carrier[cell.carrier].append(cell)
    busiest = sorted(by_carrier, key=lambda carrier: -sum(cell.flights for cell in by_carrier[carrier]))[:5]
    figure = chart.empty(
        height=340, x_title="hour of the scheduled departure", y_title="minutes late, one flight in ten"
    )
    for carrier, colour in zip(busiest, (BLUE, ORANGE, GREEN, RED, GREY), strict=True):
        line = sorted(
            (c for c in by_carrier[carrier] if c.flights >= MANY_FLIGHTS and c.p90_delay is not None),
            key=lambda c: c.hour,
        )
        name = _short(airlines.get(carrier, carrier))
        figure.add_scatter(
            x=[c.hour for c in line],
            y=[c.p90_delay for c in line],
            name=name,
            mode="lines",
            line={"color": colour, "width": 2.2},
            hovertemplate="%{y:.0f} min " + name + "<extra></extra>",
        )
    figure.update_layout(hovermode="x unified")
    hours = range(5, 24, 2)
    figure.update_xaxes(tickvals=list(hours), ticktext=[f"{hour}h" for hour in hours], range=[4.6, 23.4])
    figure.update_yaxes(rangemode="tozero")
    return figure


def months(rows: list[Month]) -> go.Figure:
    """Rows of each partition of the lake table, with cancelled flights in a colour of their own."""
    figure = chart.empty(height=320, y_title="flights")
    names = [f"{month_abbr[int(row.month[-2:])]}<br>{row.cancellations / row.flights:.1%}" for row in rows]
    for name, values, colour in (
        ("flown", [row.flights - row.cancellations for row in rows], BLUE),
        ("cancelled", [row.cancellations for row in rows], RED),
    ):
        figure.add_bar(
            x=names,
            y=values,
            name=name,
            marker_color=colour,
            hovertemplate="%{y:,} " + name + "<extra></extra>",
        )
    figure.update_layout(barmode="stack", bargap=0.35, hovermode="x unified")
    figure.update_xaxes(type="category", tickangle=0)
    figure.update_yaxes(tickformat=",d")
    return figure


def customers(rows: list[Customer]) -> go.Figure:
    """When each airport asked, and its runs: the two lie one above the other."""
    figure = chart.empty(height=110 + 74 * len(rows), x_title="seconds since the first request")
    places = {row.name: len(rows) - at for at, row in enumerate(rows)}
    figure.add_bar(
        base=[run.began for row in rows for run in row.runs],
        x=[max(run.ended - run.began, 0.03) for row in rows for run in row.runs],
        y=[places[row.name] - 0.14 for row in rows for _ in row.runs],
        name="a run",
        orientation="h",
        width=0.26,
        marker_color=BLUE,
        customdata=[run.ended - run.began for row in rows for run in row.runs],
        hovertemplate="a run of %{customdata:.2f} s<extra></extra>",
    )
    late = [(row.name, row.put_off) for row in rows if row.put_off is not None]
    figure.add_bar(
        base=[span.began for _, span in late],
        x=[span.ended - span.began for _, span in late],
        y=[places[name] - 0.14 for name, _ in late],
        name="put off by its limit",
        orientation="h",
        width=0.26,
        marker={"color": GREY, "opacity": 0.45},
        customdata=[span.ended - span.began for _, span in late],
        hovertemplate="put off for %{customdata:.1f} s<extra></extra>",
    )
    figure.add_scatter(
        x=[at for row in rows for at in row.asked],
        y=[places[row.name] + 0.16 for row in rows for _ in row.asked],
        name="asks for a run",
        mode="markers",
        marker={"color": ORANGE, "size": 9, "symbol": "triangle-down"},
        cliponaxis=False,
        hovertemplate="asked at %{x:.1f} s<extra></extra>",
    )
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(
        tickvals=[*places.values()], ticktext=[*places], range=[0.4, len(rows) + 0.6], ticksuffix="  "
    )
    return figure


def _short(airline: str) -> str:
    """The name of an airline as people say it."""
    name = re.sub(r"\b(Corporation|Inc|Co)\b\.?", "", airline).strip()
    return re.sub(r"(?<=\w{3}) (Airlines?|Air Lines|Airways)$", "", name)
