"""docs/heritage.md is complete, and what it names is there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]*)\|$", re.MULTILINE)
ROWS = ROW.findall((ROOT / "docs" / "heritage.md").read_text())
FEATURES = 132


def test_every_feature_has_its_row() -> None:
    assert [int(number) for number, *_ in ROWS] == list(range(1, FEATURES + 1))


@pytest.mark.parametrize(("number", "feature", "ours", "tests"), ROWS, ids=[row[0] for row in ROWS])
def test_a_feature_is_shown_by_a_test_or_is_not_ours(
    number: str, feature: str, ours: str, tests: str
) -> None:
    if "`test_" not in tests:
        assert ours.startswith("Not ours, because "), f"{number}, {feature}: {ours}"


def test_the_tests_that_the_page_names_are_there() -> None:
    written = {
        name
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    named = {name for *_, tests in ROWS for name in re.findall(r"`(\w+)`", tests)}
    assert named - written == set()


def test_the_functions_and_parameters_that_the_page_names_are_there(sql: psycopg.Connection[Any]) -> None:
    there = dict(
        sql.execute(
            "select proname, proargnames::text[] from pg_proc where pronamespace = 'trunq'::regnamespace"
        ).fetchall()
    )
    parameters = {name for names in there.values() for name in names or []}
    trunq = importlib.import_module("trunq")
    for number, _, ours, _ in ROWS:
        for name in re.findall(r"`trunq\.(\w+)`", ours):
            is_there = name in there or hasattr(trunq, name) or (ROOT / "src" / "trunq" / name).is_dir()
            assert is_there or (ROOT / "src" / "trunq" / f"{name}.py").exists(), f"{number}: {name}"
        assert set(re.findall(r"`(p_\w+)`", ours)) <= parameters, number
