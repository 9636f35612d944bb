"""The shape of the SQL: functions that can be read, and names that fit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

SQL = Path(__file__).parents[2] / "src" / "trunq" / "sql"

FACADE = SQL.parents[1] / "trunq_pgq"

LONGEST_LINE = 120
LONGEST_FUNCTION = 120

ENGINE = [path for name in ("functions", "specimen") for path in sorted((SQL / name).rglob("*.sql"))]
"""What the engine does: the functions that all queues share, and the sources of each queue's own."""

MARKS = (
    r"lane|last_segment|priorities|queue_id|segment|unique_policy|unique_on|has_tenants|own_columns"
    r"|(?:limit|lock) \w+"
)
"""What a comment beside a value may say: what the generator writes there, or which number it is."""


@pytest.mark.parametrize(
    "name",
    [f"specimen/{kind}/{file}.sql" for kind in ("queue", "lanes") for file in ("lease", "leasing")],
)
def test_lines_of_sql_are_short(name: str) -> None:
    """What is said of a function is text for people, and has a line each."""
    text = (SQL / name).read_text()
    code = re.sub(r"^comment on [^;]*?'(?:[^']|'')*';$", "", text, flags=re.MULTILINE)
    assert "comment on" not in code
    assert [line for line in code.splitlines() if len(line) > LONGEST_LINE] == []


def test_functions_of_sql_are_short() -> None:
    start = re.compile(r"^create or replace (?:function|procedure) \S+?\(", re.MULTILINE)
    length = {
        match.group(): body.count("\n") + 1
        for path in (*ENGINE, *sorted(FACADE.rglob("*.sql")))
        for match, body in functions_of(path.read_text(), start)
    }
    assert len(length) > 500
    assert {name: lines for name, lines in length.items() if lines > LONGEST_FUNCTION} == {}


def functions_of(text: str, start: re.Pattern[str]) -> Iterator[tuple[re.Match[str], str]]:
    """Each function, up to the quote that ends its body."""
    for match in start.finditer(text):
        quote = re.compile(r"\$\w*\$").search(text, match.end())
        assert quote is not None
        yield match, text[match.start() : text.index(quote.group(), quote.end())]


def test_a_queue_s_functions_fit_behind_the_longest_name_of_a_queue(sql: psycopg.Connection[Any]) -> None:
    """Postgres cuts off a longer name; and one that ends like another may be that of two queues."""
    rows = sql.execute(
        "select distinct regexp_replace(proname, '^_(lane|unique)?specimen_', '') from pg_proc"
        " where pronamespace = 'trunq_queue'::regnamespace and proname like '\\_%specimen\\_%'"
    ).fetchall()
    verbs = {verb for (verb,) in rows}
    assert len(verbs) > 50
    assert {verb for verb in verbs if 48 + len(f"_{verb}") > 63} == set()
    assert {(one, other) for one in verbs for other in verbs if one.endswith(f"_{other}")} <= {
        ("is_read", "read")
    }


def test_no_code_of_sql_stands_in_comments() -> None:
    """A comment within a line says what a value is; what some queues do is a function of its own."""
    found = {
        comment for path in ENGINE for comment in re.findall(r"/\*(.*?)\*/", path.read_text(), re.DOTALL)
    }
    assert {"queue_id", "lane", "limit lease_messages"} <= found
    assert {comment for comment in found if not re.fullmatch(MARKS, comment)} == set()
