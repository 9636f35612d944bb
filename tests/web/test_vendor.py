"""Scripts that others wrote are those that were looked at."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "vendor.py"


@pytest.fixture
def tool() -> dict[str, Any]:
    return runpy.run_path(str(TOOL))


def test_each_file_has_its_checksum_and_says_where_it_is_from(tool: dict[str, Any]) -> None:
    assert tool["wrong"]() == []
    for told in tool["listed"]().values():
        assert told.keys() == {"package", "version", "path", "licence", "sha256"}


def test_a_file_that_was_changed_is_named(tool: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "htmx.min.js").write_text("alert(1)")
    (tmp_path / "more.js").write_text("")
    wrong = tool["wrong"]
    wrong.__globals__["HERE"] = tmp_path
    assert wrong() == ["more.js is not in vendor.toml", "htmx.min.js is not the one of htmx.org 4.0.1"]


def test_our_own_script_and_style_stay_small() -> None:
    static = ROOT / "src" / "trunq" / "web" / "static"
    assert len((static / "trunq.js").read_text().splitlines()) < 60
    assert len((static / "trunq.css").read_text().splitlines()) < 200
