"""Rules for Prometheus: its own tool reads them, each alert fires and is silent where it should, and has a
runbook.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from trunq.metrics.figure import GAUGES, Known, families

ROOT = Path(__file__).parents[2]
RULES = ROOT / "ops" / "prometheus" / "trunq.rules.yml"
CASES = Path(__file__).parent / "cases.yml"
SOURCE = ROOT / "src" / "trunq" / "metrics" / "figure.py"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing: apt-get install prometheus"
)


def alerts() -> list[dict[str, Any]]:
    """The rules."""
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def promtool(folder: Path, *arguments: str) -> str:
    """What it says, beside both files; fails when it does."""
    for path in (RULES, CASES):
        shutil.copy(path, folder)
    done = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_prometheus_reads_the_rules(tmp_path: Path) -> None:
    assert f"SUCCESS: {len(alerts())} rules found" in promtool(tmp_path, "check", "rules", RULES.name)


@needs_promtool
def test_each_alert_fires_where_it_should_and_nowhere_else(tmp_path: Path) -> None:
    """The expected list of cases.yml is all that fires: of each alert one series, and none of another."""
    assert "SUCCESS" in promtool(tmp_path, "test", "rules", CASES.name)
    (case,) = yaml.safe_load(CASES.read_text())["tests"]
    (asked,) = case["promql_expr_test"]
    fired = [re.findall(r'alertname="(\w+)"', each["labels"])[0] for each in asked["exp_samples"]]
    assert sorted(fired) == sorted(each["alert"] for each in alerts())


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    for each in alerts():
        page, _, anchor = each["annotations"]["runbook"].partition("#")
        assert anchor == each["alert"].lower()
        assert f"## {each['alert']}\n" in (ROOT / page).read_text()
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs/operate/alerts.md").read_text(), re.MULTILINE)
    assert headings == [each["alert"] for each in alerts()]


def test_alerts_ask_for_figures_that_there_are() -> None:
    known = {each.name for each in families({"shop": Known([], [], [])})} | {
        f"trunq_{name}" for name in GAUGES
    }
    text = SOURCE.read_text()
    for each in alerts():
        for name in re.findall(r"\btrunq_\w+", each["expr"]):
            plain = name.removeprefix("trunq_").removesuffix("_total")
            assert name in known or f'"{plain}"' in text, name
