"""Memos: functions/work/memo.sql."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from calling import ask, call, move_clock, new_names, refused
from conftest import Connect
from waiting import wait_until_blocked

Session = psycopg.Connection[Any]


@pytest.fixture
def scope() -> str:
    return next(new_names("tenant"))


def values(session: Session, scope: str, **more: Any) -> dict[str, Any]:
    return {row.name: row.value for row in call(session, "list_memos", scope=scope, **more)}


def put(session: Session, scope: str, name: str, value: Any, **more: Any) -> Any:
    return ask(session, "set_memo", scope=scope, name=name, value=Jsonb(value), **more)


def test_a_memo_is_read_as_it_was_written_last(session: Session, scope: str) -> None:
    first = put(session, scope, "cursor", {"page": 1})
    assert put(session, scope, "cursor", [2, None]) > first
    (row,) = call(session, "get_memo", scope=scope, name="cursor")
    assert (row.scope, row.name, row.value, row.expires_at) == (scope, "cursor", [2, None], None)
    assert call(session, "get_memo", scope=scope, name="other") == []
    assert ask(session, "delete_memo", scope=scope, name="cursor")
    assert not ask(session, "delete_memo", scope=scope, name="cursor")
    assert values(session, scope) == {}


def test_who_names_a_version_overwrites_nobody(session: Session, scope: str) -> None:
    assert put(session, scope, "n", 1, expected=7) is None
    first = put(session, scope, "n", 1, expected=0)
    assert put(session, scope, "n", 2, expected=0) is None
    second = put(session, scope, "n", 2, expected=first)
    assert put(session, scope, "n", 3, expected=first) is None
    assert not ask(session, "delete_memo", scope=scope, name="n", expected=first)
    assert values(session, scope) == {"n": 2}
    assert ask(session, "delete_memo", scope=scope, name="n", expected=second)
    # Versions do not come again with the name.
    assert put(session, scope, "n", 4, expected=0) > second
    assert put(session, scope, "n", 5, expected=second) is None


@pytest.mark.parametrize("is_there", [False, True])
def test_of_two_who_write_at_once_one_is_told(open_session: Connect, scope: str, is_there: bool) -> None:
    first, second, watcher = (open_session() for _ in range(3))
    expected = put(first, scope, "n", "before") if is_there else 0
    with ThreadPoolExecutor(1) as threads:
        with first.transaction():
            assert put(first, scope, "n", "first", expected=expected)
            other = threads.submit(put, second, scope, "n", "second", expected=expected)
            wait_until_blocked(watcher, second)
        assert other.result() is None
    assert values(watcher, scope) == {"n": "first"}


def test_an_expired_memo_is_gone_when_it_is_read_and_forgotten_later(session: Session, scope: str) -> None:
    version = put(session, scope, "short", 1, expires="1 minute")
    put(session, scope, "long", 2, expires="2 hours")
    put(session, scope, "ever", 3)
    move_clock(session, "1 hour")
    try:
        assert call(session, "get_memo", scope=scope, name="short") == []
        assert values(session, scope) == {"long": 2, "ever": 3}
        assert put(session, scope, "short", 9, expected=version) is None
        assert not ask(session, "delete_memo", scope=scope, name="short", expected=0)
        assert ask(session, "forget_memos") == 1
        assert ask(session, "forget_memos") == 0
        put(session, scope, "short", 4, expires="1 minute")
        move_clock(session, "2 hours")
        assert put(session, scope, "short", 5, expected=0)
        assert values(session, scope) == {"ever": 3, "short": 5}
        assert not ask(session, "delete_memo", scope=scope, name="long")
    finally:
        move_clock(session, "0")


def test_memos_are_listed_by_scope_and_name_in_pages(session: Session, scope: str) -> None:
    for name in ("b", "a", "ab", "c"):
        put(session, scope, name, name)
    put(session, f"{scope}_z", "a", "other")
    assert list(values(session, scope)) == ["a", "ab", "b", "c"]
    assert list(values(session, scope, prefix="a")) == ["a", "ab"]
    assert list(values(session, scope, prefix="%")) == []
    assert list(values(session, scope, limit=2, after="a")) == ["ab", "b"]
    rest = call(session, "list_memos", after_scope=scope, after="b", limit=2)
    assert [(row.scope, row.name) for row in rest] == [(scope, "c"), (f"{scope}_z", "a")]


def test_what_is_no_memo_is_refused(session: Session, scope: str) -> None:
    assert put(session, scope, "n" * 200, "x" * (65_536 - 2))
    with refused("TQ025", "65537 bytes", "at most 65536"):
        put(session, scope, "big", "x" * (65_536 - 1))
    with refused("TQ005", "200"):
        put(session, scope, "n" * 201, 1)
    with refused("TQ005", "scope and a name"):
        put(session, "", "n", 1)
    with refused("TQ005", "needs a value"):
        ask(session, "set_memo", scope=scope, name="n", value=None)
    with refused("TQ005"):
        put(session, scope, "n", 1, expires="-1 second")
    with refused("TQ005"):
        call(session, "list_memos", limit=0)


def test_a_rollback_takes_a_memo_back(session: Session, scope: str) -> None:
    with session.transaction(force_rollback=True):
        put(session, scope, "n", 1)
    assert values(session, scope) == {}
