"""The rooms: a concept lies in the same one in SQL, client, shell, tests and pages."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FUNCTIONS = sorted((ROOT / "src" / "trunq" / "sql" / "functions").rglob("*.sql"))


def rooms_of(folder: str, prefix: str = "") -> dict[str, str]:
    """The room of each concept that a folder has files of, in rooms."""
    places = [path for path in (ROOT / folder).rglob(f"{prefix}*.*") if path.suffix in (".py", ".sql", ".md")]
    return {
        path.stem.removeprefix(prefix): path.parent.name
        for path in places
        if path.parent.parent == ROOT / folder
    }


def test_files_of_functions_have_names_that_differ() -> None:
    """They are applied in the order of their names, whichever room they lie in."""
    found = [path.name for path in FUNCTIONS]
    assert sorted({*found}) == sorted(found)


@pytest.mark.parametrize(
    ("folder", "prefix"),
    [
        ("src/trunq/client/_async", ""),
        ("src/trunq/cli", ""),
        ("tests/sql", "test_"),
        ("tests/race", "test_"),
        ("tests/cli", "test_"),
        ("docs", ""),
    ],
)
def test_a_concept_lies_in_the_same_room_everywhere(folder: str, prefix: str) -> None:
    ours = rooms_of("src/trunq/sql/functions")
    assert len(ours) > 50
    there = rooms_of(folder, prefix)
    assert {name: there[name] for name in there if ours.get(name, there[name]) != there[name]} == {}


def test_the_page_lists_the_rooms() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text().partition("## The rooms")[2].partition("## The concepts")[0]
    listed = {line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")}
    assert listed - {"room", "---"} == {path.parent.name for path in FUNCTIONS}
