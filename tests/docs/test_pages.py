"""What the pages of docs/ tell the reader to run does what they say."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from docs.page import Reader, blocks, statements
from docs.program import WITH_SPARK

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "decisions")
# One of the tour's programs waits for ever: tests/cli/test_readme.py follows it.
WITHOUT_SPARK = [page for page in PAGES if page.name not in {*WITH_SPARK, "tour.md"}]
WITHOUT_BLOCKS = {"README.md", "heritage.md", "message.md", "reference.md", "replication.md"}


@pytest.mark.slow
@pytest.mark.parametrize("page", WITHOUT_SPARK, ids=lambda page: page.stem)
def test_a_page_can_be_followed_from_top_to_bottom(
    page: Path,
    tmp_path: Path,
    connection: psycopg.Connection[Any],
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    ran = Reader(page, tmp_path, connection, environment).follow()
    assert (ran == 0) == (page.name in WITHOUT_BLOCKS)


def test_every_page_is_linked_from_the_list_of_pages() -> None:
    listed = (DOCS / "README.md").read_text()
    assert [
        page.name
        for page in PAGES
        if page.name != "README.md" and f"]({page.relative_to(DOCS)})" not in listed
    ] == []


def test_statements_end_where_psql_ends_them() -> None:
    text = "-- a;\nselect ';' \\gset\ndo $$ begin; end $$;\n--> DO\nselect 1;\n\n-- end\n"
    found = [(statement.sql, statement.is_kept, statement.expected) for statement in statements(text)]
    assert found == [
        ("-- a;\nselect ';'", True, None),
        ("do $$ begin; end $$", False, "DO"),
        ("select 1", False, None),
    ]


def test_a_block_that_a_name_introduces_is_a_file(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text.\n\n`a.py`:\n\n```python\nx = 1\n```\n\nMore.\n\n```sh\ntrue\n```\n")
    assert [(block.language, block.file, block.line) for block in blocks(page)] == [
        ("python", "a.py", 6),
        ("sh", None, 12),
    ]


def test_the_page_about_retries_tells_the_defaults(connection: psycopg.Connection[Any]) -> None:
    page = (DOCS / "work" / "retry.md").read_text()
    connection.execute("select trunq.create_queue('orders')")
    with connection.cursor(row_factory=dict_row) as cursor:
        policy = cursor.execute("select * from trunq.list_subscriptions('orders')").fetchone()
    assert policy is not None
    told = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", page, re.MULTILINE))
    assert told == {name: "none" if policy[name] is None else str(policy[name]) for name in told}
    assert "max_attempts" in told
    waits = [
        min(policy["backoff_base"] * 2**number, policy["backoff_cap"])
        for number in range(policy["max_attempts"] - 1)
    ]
    rows = [f"| {n + 2} | {wait} | {sum(waits[: n + 1], timedelta())} |" for n, wait in enumerate(waits)]
    assert re.findall(r"^\| \d+ \|.*\|$", page, re.MULTILINE) == rows
