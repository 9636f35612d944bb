"""Words stand once, in SQL (ground/outcome.sql): whatever names all of a subject takes or equals them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import psycopg
import pytest

from trunq import word
from trunq.web import figure
from trunq.webhook.signature import _SCHEMES

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "trunq"

OF_MESSAGES = {"State", "Open", "Outcome", "Reason"}
"""Compared in tests/test_house.py."""

CONSTRAINTS = {
    "trunq.schedule missed_is_known": "missed",
    "trunq.schedule overlap_is_known": "overlap",
    "trunq.capture format_is_known": "capture_format",
    "trunq.webhook scheme_is_known": "webhook_scheme",
    "trunq.webhook body_is_known": "webhook_body",
    "trunq.queue lanes_are_known": "lanes",
    "trunq.queue unique_policy_is_known": "unique_policy",
    "trunq.subscription mode_is_shared_or_exclusive": "mode",
    "trunq.subscription backoff_is_known": "backoff",
    "trunq.lane_policy policy_is_known": "lane_policy",
    "trunq.worker_report last_word_is_known": "last_word",
    "trunq.sweep act_is_known": "sweep_act",
    "trunq.sweep state_is_known": "sweep_state",
}

RESTATED = {
    "cli/work/message.py": {"resumption", "state"},
    "webhook/signature.py": {"webhook_scheme"},
    "web/figure.py": {"open"},
}
"""What says something of each word: tests/test_house.py compares the first, tests below the others."""

RESTATED_IN_SQL = {"functions/log/unique.sql": {"on_conflict", "unique_until"}}
"""Constants of the hot path, which look nothing up; a test below compares them."""


@pytest.fixture
def vocabulary(sql: psycopg.Connection[Any]) -> dict[str, list[str]]:
    """The words by their subject."""
    return dict(sql.execute("select subject, words from trunq._vocabulary()").fetchall())


def literals() -> dict[str, tuple[str, ...]]:
    return {
        name: get_args(value)
        for name, value in vars(word).items()
        if str(get_origin(value)) == "typing.Literal"
    }


def _words_of_messages(sql: psycopg.Connection[Any]) -> dict[str, list[str]]:
    rows = sql.execute("select 'state', array_agg(state) from trunq._states()").fetchall()
    rows += sql.execute("select 'open', array_agg(state) from trunq._states() where is_open").fetchall()
    rows += sql.execute("select 'outcome', array_agg(outcome) from trunq._outcomes()").fetchall()
    rows += sql.execute(
        "select 'reason', array_agg(distinct reason) from trunq._outcomes() where reason is not null"
    ).fetchall()
    return dict(rows)


def test_types_of_python_have_the_words_of_sql(vocabulary: dict[str, list[str]]) -> None:
    named = {subject.title().replace("_", ""): tuple(words) for subject, words in vocabulary.items()}
    named["RoleName"] = named.pop("Role")
    assert {name: words for name, words in literals().items() if name not in OF_MESSAGES} == named
    assert set(vocabulary["verb"]) == word.VERBS
    assert set(get_args(word.Open)) == word.OPEN


def test_tables_take_the_words_that_functions_take(
    sql: psycopg.Connection[Any], vocabulary: dict[str, list[str]]
) -> None:
    rows = sql.execute(
        "select conrelid::regclass || ' ' || conname, pg_get_constraintdef(oid) from pg_constraint"
        " where contype = 'c' and connamespace = 'trunq'::regnamespace"
    ).fetchall()
    allowed = {name: set(re.findall(r"'([\w,]+)'::", text)) for name, text in rows if name in CONSTRAINTS}
    assert allowed == {name: set(vocabulary[subject]) for name, subject in CONSTRAINTS.items()}


def test_each_queue_has_a_function_for_each_verb(
    sql: psycopg.Connection[Any], vocabulary: dict[str, list[str]]
) -> None:
    sql.execute("select trunq.create_queue('worded', p_unique => 'refuse')")
    made = {
        name.removeprefix("worded_")
        for (name,) in sql.execute(
            "select proname from pg_proc where pronamespace = 'trunq_queue'::regnamespace"
            " and starts_with(proname, 'worded_')"
        )
    }
    assert set(vocabulary["verb"]) <= made


def test_each_role_consists_of_something_and_the_page_says_of_what(
    sql: psycopg.Connection[Any], vocabulary: dict[str, list[str]]
) -> None:
    for role in vocabulary["role"]:
        assert sql.execute("select trunq._role_functions('q', %s, true)", (role,)).fetchone() != ([],), role
    page = (ROOT / "docs" / "operate" / "roles.md").read_text()
    assert (
        re.findall(r"^\| (\w+) \|", page, re.MULTILINE)[1 : len(vocabulary["role"]) + 1] == vocabulary["role"]
    )


def test_a_refusal_names_the_words_that_there_are(
    sql: psycopg.Connection[Any], vocabulary: dict[str, list[str]]
) -> None:
    sql.execute("select trunq.create_queue('worded', p_lanes => 'key')")
    sql.execute("select trunq.create_queue('keyed', p_unique => 'replace')")
    for subject, call in (
        ("role", "trunq.grant_role('worded', 'king', 'postgres')"),
        ("mode", "trunq.subscribe('worded', 's', 'nothing')"),
        ("start", "trunq.subscribe('worded', 's', p_start => 'nothing')"),
        ("backoff", "trunq.subscribe('worded', 's', p_backoff => 'nothing')"),
        ("lanes", "trunq.create_queue('other', p_lanes => 'nothing')"),
        ("lane_policy", "trunq.set_lanes('worded', 'default', 'nothing')"),
        ("unique_policy", "trunq.create_queue('other', p_unique => 'nothing')"),
        ("missed", "trunq.create_schedule('s', 'worded', p_every => '1 h', p_missed => 'nothing')"),
        ("overlap", "trunq.create_schedule('s', 'worded', p_every => '1 h', p_overlap => 'nothing')"),
        (
            "on_conflict",
            "trunq.publish_unique('keyed', '1', p_unique_key => 'a', p_on_conflict => 'nothing')",
        ),
        (
            "unique_until",
            "trunq.publish_unique('keyed', '1', p_unique_key => 'a', p_unique_until => 'nothing')",
        ),
        ("webhook_scheme", "trunq.create_webhook('w', 'worded', 'SECRET', p_scheme => 'nothing')"),
        ("webhook_body", "trunq.create_webhook('w', 'worded', 'SECRET', p_body => 'nothing')"),
    ):
        with pytest.raises(psycopg.Error) as caught, sql.transaction():
            sql.execute(f"select {call}".encode())
        assert caught.value.sqlstate in ("TQ005", "TQ017"), subject
        told = f"{caught.value.diag.message_primary} {caught.value.diag.message_hint}"
        assert set(vocabulary[subject]) <= set(re.findall(r"\w+,\w+|\w+", told)), told


def test_each_scheme_of_webhooks_is_checked(vocabulary: dict[str, list[str]]) -> None:
    assert {"plain", *_SCHEMES} == set(vocabulary["webhook_scheme"])


def _collections(path: Path) -> Iterator[set[str]]:
    """What is written out in a file as a list, set, tuple, Literal, or the keys of a dict of texts."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.List | ast.Set | ast.Tuple):
            parts: list[ast.expr | None] = [*node.elts]
        elif isinstance(node, ast.Dict):
            parts = [*node.keys]
        else:
            continue
        if parts and all(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in parts):
            yield {part.value for part in parts if isinstance(part, ast.Constant)}


def _is_all(found: set[str], words: set[str]) -> bool:
    """Whether they are all of a subject, or of many all but one, which may be one too few."""
    return found == words or (len(words) > 3 and found < words and len(found) >= len(words) - 1)


def test_nothing_in_python_restates_the_words(
    sql: psycopg.Connection[Any], vocabulary: dict[str, list[str]]
) -> None:
    subjects = {**vocabulary, **_words_of_messages(sql)}
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        if path.name != "word.py" and "_sync" not in path.parts:
            for each in _collections(path):
                for subject, words in subjects.items():
                    if _is_all(each, set(words)):
                        found.setdefault(str(path.relative_to(SOURCE)), set()).add(subject)
    assert found == RESTATED


def test_nothing_in_sql_restates_the_words(
    sql: psycopg.Connection[Any], vocabulary: dict[str, list[str]]
) -> None:
    subjects = {**vocabulary, **_words_of_messages(sql)}
    found: dict[str, set[str]] = {}
    for path in (SOURCE / "sql").rglob("*.sql"):
        if path.parent.name == "migrations" or path.name == "outcome.sql":
            continue
        text = path.read_text()
        lists = re.findall(r"(?:in \(|array\[)((?:'[\w,]+'(?:, )?)+)[\])]", text)
        spelled = [set(re.findall(r"'([\w,]+)'", each)) for each in lists]
        spelled += [set(each.split(",")) for each in re.findall(r"'\{(\w+(?:,\w+)+)\}'", text)]
        for each in spelled:
            for subject, words in subjects.items():
                if _is_all(each, set(words)):
                    found.setdefault(str(path.relative_to(SOURCE / "sql")), set()).add(subject)
    assert found == RESTATED_IN_SQL


def test_the_page_of_a_message_says_why_it_waits_in_each_open_state() -> None:
    assert set(figure.OPEN) == word.OPEN - {"leased"}
