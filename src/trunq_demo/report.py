"""The report of the demo: one HTML file that needs no network.

It holds plotly's library of charts with axes, 1.5 MB and a third of the whole one, which plotly for Python
brings: plotly-cartesian.min.js.gz, as published (plotly.js-cartesian-dist-min 4.1.1, MIT license).
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from trunq.cli.keep import chart
from trunq_demo import chapter, figure
from trunq_demo.evidence import Cell, Evidence

COUNTS = (
    *("published", "handled", "retried", "dead", "rejected", "given_up", "compensated"),
    *("lake_rows", "lake_files", "lake_batches"),
    *("counted", "most_unanswered", "carriers", "went_on_from"),
)
WORDS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight")


def write(evidence: Evidence, path: Path) -> Path:
    """Write the report of one run to a file and return its path."""
    path.write_text(render(evidence), encoding="utf-8")
    return path


def render(evidence: Evidence) -> str:
    """The page with its pictures and the library that draws them."""
    here = files("trunq_demo")
    page = Template(here.joinpath("report.html").read_text(encoding="utf-8"))
    library = gzip.decompress(here.joinpath("plotly-cartesian.min.js.gz").read_bytes()).decode()
    values = _numbers(evidence) | chapter.numbers(evidence.act) | _pictures(evidence) | _verdict(evidence)
    return page.substitute(values, plotly=library)


def _numbers(evidence: Evidence) -> dict[str, str]:
    """The values of the placeholders in the page's text."""
    count = {name: f"{getattr(evidence, name):,}" for name in COUNTS}
    return count | {
        "title": f"{evidence.published:,} flights through one Postgres queue",
        "replay": f"{evidence.replay_seconds:.0f}",
        "workers": _word(evidence.workers),
        "median": _milliseconds(evidence.latency.median),
        "p99": _milliseconds(evidence.latency.p99),
        "peak": f"{evidence.peak_answered:,}",
        "compensation": f"€{evidence.compensation:,}",
        "pace": _pace(evidence.replay_seconds),
        "worst": _worst(evidence.cells, evidence.airlines),
        "fewest": str(figure.FEWEST_FLIGHTS),
        "checks": "\n".join(map(chapter.check_row, evidence.checks)),
        "commands": _commands(evidence.commands),
        "started_at": f"{evidence.started_at:%Y-%m-%d %H:%M}",
        "seconds": f"{evidence.seconds:.0f}",
        "versions": ", ".join(
            f"{escape(name)} {escape(number)}" for name, number in evidence.versions.items()
        ),
    }


def _pictures(evidence: Evidence) -> dict[str, str]:
    """The pictures as HTML, and their style."""
    return chart.placeholders(
        {
            "throughput": figure.throughput(evidence.timeline),
            "latency": figure.latency(evidence.timeline),
            "shares": figure.shares(evidence.outcomes),
            "outcomes": figure.outcomes(evidence.outcomes),
            "delays": figure.delays(evidence.cells, evidence.airlines),
            "through_the_day": figure.through_the_day(evidence.cells, evidence.airlines),
            "months": figure.months(evidence.months),
            "customers": figure.customers(evidence.act.customers),
        }
    )


def _verdict(evidence: Evidence) -> dict[str, str]:
    checks = [*evidence.checks, *evidence.act.checks]
    wrong = sum(not check.holds for check in checks)
    if not wrong:
        return {
            "verdict_tone": "good",
            "verdict_number": "0",
            "verdict_label": f"lost, 0 doubled: {len(checks)} checks below",
            "verdict": "0 lost, 0 doubled.",
        }
    return {
        "verdict_tone": "bad",
        "verdict_number": str(wrong),
        "verdict_label": f"of {len(checks)} checks below do not hold",
        "verdict": "Some numbers differ: this run went wrong.",
    }


def _pace(replay_seconds: float) -> str:
    days = 365 / max(replay_seconds, 1)
    return f"the flights of {_word(round(days)).lower()} days" if days >= 1.5 else "the flights of one day"


def _worst(cells: Sequence[Cell], airlines: dict[str, str]) -> str:
    known = [cell for cell in cells if cell.flights >= figure.MANY_FLIGHTS and cell.p90_delay is not None]
    if not known:
        return ""
    worst = max(known, key=lambda cell: cell.p90_delay or 0.0)
    return (
        f" The worst hour to leave: {airlines.get(worst.carrier, worst.carrier)} at {worst.hour}h, "
        f"when one flight in ten left more than {worst.p90_delay:.0f} minutes late."
    )


def _commands(commands: dict[str, str]) -> str:
    return "\n\n".join(
        f"<span class=soft># {escape(what)}</span>\n{escape(command)}" for command, what in commands.items()
    )


def _word(number: int) -> str:
    return WORDS[number] if number < len(WORDS) else str(number)


def _milliseconds(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:,.1f} s"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"
