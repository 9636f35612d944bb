"""What may not be asked of unique keys, and who may ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from calling import ask, fetch, refused
from engine import Engine
from keying import is_free, made, take

Connection = psycopg.Connection[Any]


@pytest.fixture
def refusing(session: Connection) -> Iterator[Engine]:
    yield from made(session, "refuse", None)


@pytest.fixture
def replacing(session: Connection) -> Iterator[Engine]:
    yield from made(session, "replace", None)


def test_a_publisher_may_use_keys_and_nothing_else(refusing: Engine, database: str) -> None:
    role = "keyed_publisher"
    refusing.run(f"drop role if exists {role}")
    refusing.run(f"create role {role}")
    try:
        refusing.ask("grant_role", role="publisher", grantee=role)
        refusing.run(f"set role {role}")
        assert fetch(refusing.connection, "select is_new from trunq_queue.keyed_publish_unique('1', 'a')")
        assert not take(refusing, "a")[1]
        rows = refusing.call("publish_many_unique", payloads=["1", "2"], unique_keys=["a", "b"])
        assert [row.is_new for row in rows] == [False, True]
        assert refusing.run("insert into {log} (unique_key) values ('b'), ('c')").rowcount == 1
        for forbidden in (
            "select * from trunq_data.keyed_unique",
            "insert into trunq_data.keyed_freed values (1)",
            "select trunq_queue.keyed_free_keys(array[1])",
            "insert into trunq_log.keyed (unique_key, unique_turn) values ('c', 7)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                refusing.run(forbidden)
    finally:
        refusing.run("reset role")
        refusing.run(f"drop owned by {role}")
        refusing.run(f"drop role {role}")


def test_nobody_else_may_publish_through_the_rights_of_the_owner(
    session: Connection, refusing: Engine
) -> None:
    stranger = "keyed_stranger"
    refusing.run(f"create role {stranger}")
    try:
        refusing.run(f"grant usage on schema trunq, trunq_queue to {stranger}")
        refusing.run(f"set role {stranger}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="function keyed_publish_unique"):
            session.execute("select * from trunq_queue.keyed_publish_unique('1', 'a')")
    finally:
        session.execute("reset role")
        refusing.run(f"drop owned by {stranger}")
        refusing.run(f"drop role {stranger}")


@pytest.mark.parametrize(
    ("options", "state", "words"),
    [
        ({"unique_key": ""}, "TQ005", "empty"),
        ({"key": "x" * 1001}, "TQ006", "1001 bytes"),
        ({"unique_until": "never"}, "TQ005", "leased or done"),
        ({"unique_until": None}, "TQ005", "leased or done"),
        ({"unique_for": "0"}, "TQ005", "positive"),
        ({"unique_for": "-1 hour"}, "TQ005", "positive"),
        ({"unique_for": "2000 years"}, "TQ005", "1000 years"),
        ({"unique_for": "1 hour", "unique_until": "leased"}, "TQ005", "not both"),
        ({"on_conflict": "ignore"}, "TQ005", "refuse, replace or raise"),
        ({"on_conflict": "replace"}, "TQ005", "was made to refuse"),
        ({"priority": 3}, "TQ005", "no priorities"),
        ({"delay": "1 hour", "due_at": "2030-01-01"}, "TQ005", "not both"),
        ({"options": {"x": 1}}, "TQ005", "option"),
    ],
)
def test_what_is_not_possible_is_refused_and_takes_no_key(
    refusing: Engine, options: dict[str, Any], state: str, words: str
) -> None:
    with refused(state, words):
        take(refusing, **options)
    assert is_free(refusing)
    assert not refusing.lease()


def test_an_insert_with_a_key_that_cannot_be_is_refused(refusing: Engine) -> None:
    for key in ("", "x" * 1001):
        with pytest.raises(psycopg.errors.CheckViolation):
            refusing.run("insert into {log} (unique_key) values (%s)", key)
    with refused("TQ005", "not as many"):
        refusing.call("publish_many_unique", payloads=["1", "2", "3"], unique_keys=["a", "b"])
    with refused("TQ005", "differ in length"):
        refusing.call(
            "publish_many_unique", payloads=["1", "2", "3"], unique_keys=["a", "b", "c"], kinds=["a", "b"]
        )


HOSTILE = [
    "'; drop table trunq.queue; --",
    "{k}",
    "a,b",
    'a"b',
    "\\x00",
    "%s %I $1",
    "a:1,b:2",
    "/*unique */",
    "ü" * 500,
    " ",
]


@pytest.mark.parametrize("key", HOSTILE)
def test_a_key_is_a_text_and_nothing_else(replacing: Engine, key: str) -> None:
    first, _ = take(replacing, key)
    second, _ = take(replacing, key)
    assert take(replacing, key, on_conflict="refuse") == (second, False)
    with refused("TQ015", key[:100]):
        take(replacing, key, on_conflict="raise")
    assert [
        row.is_new for row in replacing.call("publish_many_unique", payloads=["1"], unique_keys=[key])
    ] == [True]
    held = replacing.lease(5)
    assert len(held.ids) == 1
    assert replacing.state(first) == "replaced"
    replacing.answer("retry", held)
    assert not is_free(replacing, key)
    replacing.ask("promote")
    replacing.answer("reject", replacing.lease(), errors=[key])
    assert replacing.ask("requeue") == 1
    assert not is_free(replacing, key)


def test_a_plain_queue_has_no_unique_keys(session: Connection, queue: str, database: str) -> None:
    with refused("TQ005", f'queue "{queue}" has no unique keys', "p_unique"):
        ask(session, "publish_unique", queue=queue, payload={}, unique_key="a")
    with refused("TQ005", "has no unique keys"):
        ask(session, "publish_many_unique", queue=queue, payloads=["1"], unique_keys=["a"])
    with refused("TQ001"):
        ask(session, "publish_unique", queue="nowhere", payload={})
    with pytest.raises(psycopg.errors.UndefinedColumn):
        session.execute(f"insert into trunq_log.{queue} (unique_key) values ('a')".encode())
    columns = fetch(
        session,
        "select count(*) from pg_attribute where attrelid = %s::regclass and attname like 'unique%%'",
        f"trunq_log.{queue}",
    )
    assert columns == 0
    assert fetch(session, "select to_regclass(%s)", f"trunq_data.{queue}_unique") is None
    assert (
        fetch(
            session,
            r"select count(*) from pg_proc where proname like %s"
            r" and prosrc ~ 'trunq_data[.]\w+_(unique|freed)'",
            f"{queue}\\_%",
        )
        == 0
    )
