"""Charts on pages that need no network, drawn with plotly: their colours, an empty one, and their HTML."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

import plotly.graph_objects as go

# Mid tones: a contrast of at least 3:1 against the light and the dark page, distinct for the colour-blind.
BLUE, ORANGE, GREEN, RED, GREY = "#3d84cc", "#d9822b", "#2f9e6b", "#cf4a45", "#8a929b"
HEAT: Final = [(0.0, "#f6efdf"), (0.25, "#f4cf8f"), (0.5, "#ea9653"), (0.75, "#c94f3c"), (1.0, "#84183a")]


def empty(
    *, height: int, x_title: str | None = None, y_title: str | None = None, legend: bool = True
) -> go.Figure:
    """A figure with nothing in it: no frame, no background, a light grid.

    The page's style sheet sets the colours of text and grid, for light and dark mode.
    """
    axis: dict[str, Any] = {
        "zeroline": False,
        "showline": False,
        "title_standoff": 12,
        "automargin": True,
        "fixedrange": True,
        "ticks": "",
    }
    figure = go.Figure()
    figure.update_layout(
        template="none",
        height=height,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        showlegend=legend,
        font={
            "family": "Source Sans 3, Segoe UI, system-ui, -apple-system, Helvetica Neue, Arial, sans-serif",
            "size": 13.5,
        },
        margin={"l": 60, "r": 20, "t": 34 if legend else 8, "b": 48},
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "xanchor": "left",
            "yanchor": "bottom",
            "bgcolor": "rgba(0,0,0,0)",
        },
        xaxis={**axis, "title": x_title, "showgrid": False},
        yaxis={**axis, "title": y_title},
        hoverlabel={"bgcolor": "#22272c", "bordercolor": "#22272c", "font": {"color": "#ffffff", "size": 13}},
    )
    return figure


def placeholders(figures: Mapping[str, go.Figure]) -> dict[str, str]:
    """What a page needs of its charts: `style`, and `figure_<name>` for each.

    The head of the page holds the library that draws them, once.
    """
    config = {"displayModeBar": False, "responsive": True}
    drawn = {
        f"figure_{name}": figure.to_html(full_html=False, include_plotlyjs=False, config=config)
        for name, figure in figures.items()
    }
    return drawn | {
        "style": files("trunq.cli.keep").joinpath("page.css").read_text(encoding="utf-8").rstrip()
    }
