"""Capture of a partitioned table: functions/log/capture.sql."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from calling import ask, call, fetch, new_names

Connection = psycopg.Connection[Any]


@pytest.fixture
def table(session: Connection) -> Iterator[str]:
    """A table with two partitions of other column orders, one of them partitioned again."""
    name = next(new_names("parts"))
    session.execute(
        f"create table {name} (id integer, note text) partition by range (id);"
        f" create table {name}_1 partition of {name} for values from (0) to (10);"
        f" create table {name}_2 (note text, gone integer, id integer) partition by list (id);"
        f" alter table {name}_2 drop column gone;"
        f" create table {name}_2_a partition of {name}_2 default;"
        f" alter table {name} attach partition {name}_2 for values from (10) to (20)".encode()
    )
    yield name
    session.execute(f"drop table if exists {name}, {name}_3 cascade".encode())


def capture(session: Connection, table: str, queue: str) -> None:
    ask(session, "capture", table=table, queue=queue, key=["id"])


def said(session: Connection, queue: str) -> list[tuple[str, str | None]]:
    """Operation and key of each message since; all are said of the whole table."""
    rows = session.execute(
        f"select payload, key from trunq_log.{queue} order by txid, id".encode()
    ).fetchall()
    session.execute(f"truncate trunq_log.{queue}".encode())
    assert {payload["table"].count("_") for payload, _ in rows} <= {1}
    return [(payload["op"] + " " + payload.get("partition", ""), key) for payload, key in rows]


def run(session: Connection, table: str, *statements: str) -> None:
    for statement in statements:
        session.execute(statement.replace("TABLE", table).encode())


def test_changes_are_published_once_whichever_table_they_name(
    session: Connection, queue: str, table: str
) -> None:
    capture(session, table, queue)
    run(
        session,
        table,
        "insert into TABLE values (1, 'a'), (11, 'b')",
        "insert into TABLE_1 values (2, 'c')",
        "insert into TABLE_2 values ('d', 12)",
        "insert into TABLE_2_a values ('e', 13)",
        "update TABLE_2_a set note = 'f' where id = 13",
        "delete from TABLE_2 where id = 12",
    )
    with session.cursor().copy(f"copy {table} from stdin".encode()) as copy:
        copy.write("3\tx\n14\ty\n")
    assert said(session, queue) == [
        *[("insert ", key) for key in ("1", "11", "2", "12", "13")],
        ("update ", "13"),
        ("delete ", "12"),
        *[("insert ", key) for key in ("3", "14")],
    ]


def test_a_row_that_moves_is_one_update(session: Connection, queue: str, table: str) -> None:
    capture(session, table, queue)
    run(session, table, "insert into TABLE values (1, 'a'), (2, 'b')", "update TABLE set id = id + 10")
    assert said(session, queue)[2:] == [("update ", "11"), ("update ", "12")]


def test_a_row_that_is_swallowed_on_its_way_leaves_no_other_wrong(
    session: Connection, queue: str, table: str
) -> None:
    capture(session, table, queue)
    function = f"swallow_{table}"
    run(
        session,
        table,
        f"create function {function}() returns trigger language plpgsql as"
        " $$ begin if new.id = 12 then return null; end if; return new; end $$",
        f"create trigger swallow before insert on TABLE_2_a for each row execute function {function}()",
        "insert into TABLE select n, 'n' || n from generate_series(1, 4) n",
    )
    said(session, queue)
    run(session, table, "update TABLE set id = id + 10")
    assert said(session, queue) == [
        *[("delete ", key) for key in ("1", "2", "3", "4")],
        *[("insert ", key) for key in ("11", "13", "14")],
    ]
    run(session, table, f"drop function {function} cascade")


def test_truncate_is_one_message_for_what_it_names(session: Connection, queue: str, table: str) -> None:
    capture(session, table, queue)
    whole, first, second = "truncate ", f"truncate public.{table}_1", f"truncate public.{table}_2"
    run(session, table, "truncate TABLE")
    assert said(session, queue) == [(whole, None)]
    run(session, table, "truncate TABLE_1", "truncate TABLE_2")
    assert said(session, queue) == [(first, None), (second, None)]
    # In one statement, one transaction, and with others between.
    run(session, table, "truncate TABLE, TABLE_1")
    assert said(session, queue) == [(whole, None)]
    run(session, table, "truncate TABLE; insert into TABLE values (1); truncate TABLE_1; truncate TABLE")
    # Statements of one text look like one, and in doubt a partition says it once more.
    assert said(session, queue) == [
        (whole, None),
        ("insert ", "1"),
        (first, None),
        (whole, None),
        (first, None),
    ]
    run(session, table, "truncate TABLE_1, TABLE; insert into TABLE values (1); truncate TABLE_1")
    assert said(session, queue) == [(first, None), (whole, None), ("insert ", "1"), (first, None)]


def test_a_partition_that_was_attached_later(session: Connection, queue: str, table: str) -> None:
    capture(session, table, queue)
    run(session, table, "create table TABLE_3 partition of TABLE for values from (20) to (30)")
    run(session, table, "insert into TABLE values (20)", "insert into TABLE_3 values (21)")
    assert said(session, queue) == [("insert ", "20")]
    (warned,) = call(session, "list_warnings", queue=queue)
    assert (
        warned.warning
        == f'changes that name partition "public.{table}_3" of "public.{table}" are not published'
    )
    assert "trunq.capture" in warned.hint
    capture(session, table, queue)
    assert call(session, "list_warnings", queue=queue) == []
    run(session, table, "insert into TABLE_3 values (22)")
    assert said(session, queue) == [("insert ", "22")]


def test_a_partition_that_was_detached(session: Connection, queue: str, table: str) -> None:
    capture(session, table, queue)
    run(session, table, "alter table TABLE detach partition TABLE_1")
    (warned,) = call(session, "list_warnings", queue=queue)
    assert f'"public.{table}_1" is no partition' in warned.warning
    capture(session, table, queue)
    assert call(session, "list_warnings", queue=queue) == []
    run(session, table, "insert into TABLE_1 values (1)")
    assert said(session, queue) == []
    run(session, table, "drop table TABLE_1")


def test_a_captured_table_that_became_a_partition(session: Connection, queue: str, table: str) -> None:
    alone = f"{table}_3"
    run(session, table, "create table TABLE_3 (id integer, note text)")
    capture(session, alone, queue)
    run(session, table, "alter table TABLE attach partition TABLE_3 for values from (20) to (30)")
    (warned,) = call(session, "list_warnings", queue=queue)
    assert f'"public.{alone}" is a partition of "public.{table}" now' in warned.warning
    assert ask(session, "uncapture", table=alone) is True


def test_a_trigger_that_is_disabled_is_told(session: Connection, queue: str, table: str) -> None:
    capture(session, table, queue)
    run(session, table, "alter table TABLE_1 disable trigger user")
    (warned,) = call(session, "list_warnings", queue=queue)
    assert f'is disabled on table "public.{table}_1"' in warned.warning


def test_uncapture_takes_all_triggers(session: Connection, queue: str, table: str) -> None:
    capture(session, table, queue)
    assert ask(session, "uncapture", table=table) is True
    left = "select count(*) from pg_trigger t join pg_class c on c.oid = t.tgrelid where c.relname like %s"
    assert fetch(session, left, f"{table}%") == 0
