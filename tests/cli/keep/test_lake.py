"""What a lake tells, as tables and as a page; tests/spark/test_statistics.py has the numbers."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shelling import Shell
from trunq import Client, cli
from trunq.cli.keep import lake
from trunq.cli.keep.lake import Found, print_tables, takers_of
from trunq.cli.keep.report import write_report
from trunq.pipeline import Pipeline

AT = datetime(2030, 1, 1, 23, tzinfo=UTC)
TIMES = {f"{what}_{share}": 0.25 for what in ("took", "waited") for share in ("median", "p90", "p99")}


def found(**more: Any) -> Found:
    rates = [
        {
            "at": AT + timedelta(hours=hour), "queue": "orders", "kind": kind, "attempts": 3, "messages": 3,
            "per_second": 0.1, "succeeded": 2, "failed": 1, "retries": 0, **TIMES,
        }
        for hour in range(2)
        for kind in ("<placed>", None)
    ]  # fmt: skip
    outcomes = [
        {"queue": "orders", "kind": kind, "outcome": outcome, "attempts": number, **TIMES}
        for kind in ("<placed>", None)
        for outcome, number in (("success", 4), ("failed", 2))
    ]
    errors = [
        {
            "queue": "orders", "kind": None, "outcome": "failed", "error": "no <b>printer</b>", "attempts": 4,
            "first_at": AT, "last_at": AT,
        }
    ]  # fmt: skip
    heat = [
        {"queue": "orders", "kind": None, "weekday": 3, "hour": 0, "attempts": 12, "failed": 4, **TIMES},
        {"queue": "orders", "kind": None, "weekday": 3, "hour": 5, "attempts": 2, "failed": 0, **TIMES},
    ]
    parts = {"rates": rates, "outcomes": outcomes, "errors": errors, "heat": heat, "takers": ["orders_lake"]}
    return Found(lake="lake", per="hour", time_zone="Europe/Zurich", **{**parts, **more})


def test_tables_show_outcomes_errors_and_hours(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables(found())
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "orders <placed> success 4 250ms 250ms 250ms 250ms" in lines
    assert any(line.startswith("orders failed 4") and "no <b>printer</b>" in line for line in lines)
    assert "Wed ██ ░░" in lines
    print_tables(found(outcomes=[]))
    assert "No attempt ended" in capsys.readouterr().out


def test_the_page_holds_all_it_needs_and_takes_no_text_for_markup(tmp_path: Path) -> None:
    text = write_report(found(), tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.count('class="plotly-graph-div"') == 4
    page = text.partition("<body>")[2]
    assert "src=" not in page
    assert "no &lt;b&gt;printer" in page
    assert "<b>printer" not in page
    assert "<placed>" not in page
    assert "2030-01-02 00:00 to 2030-01-02 01:00 (Europe/Zurich)" in page
    assert "what orders_lake had not taken yet" in page


def test_pipelines_into_a_lake_are_found_by_its_path(
    trunq: Shell, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKE", str(tmp_path / "lake"))
    source = {"format": "history", "queue": "orders"}
    for name, path in (("a", "lake"), ("b", "${LAKE}"), ("c", "elsewhere"), ("d", "${UNKNOWN}")):
        made = Pipeline(name, source=source, sink={"format": "delta", "path": path})
        client.create_pipeline(name, made.definition)
    assert takers_of(client, "lake") == ["a", "b"]
    assert takers_of(client, (tmp_path / "lake").as_uri()) == ["a", "b"]
    assert "go with --lake" in trunq("statistics", "--html", "x.html").said
    assert "not with --csv" in trunq("statistics", "--lake", "lake", "--csv").said
    assert "--per is 1m, 1h or 1d" in trunq("statistics", "--lake", "lake", "--per", "7m").said


def test_who_has_no_plotly_hears_it_before_spark_counts(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake, "find", lambda *_: pytest.fail("Spark counts"))
    monkeypatch.delattr(cli.keep, "report")
    monkeypatch.setitem(sys.modules, "trunq.cli.keep.report", None)
    asked = ("statistics", "--lake", "lake", "--html", "x.html", "--dsn", "host=nowhere")
    assert "trunq[report]" in shell(*asked).said
