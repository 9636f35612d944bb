"""Capture of a table's changes: functions/log/capture.sql and change.sql."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql as compose

from calling import ask, call, drain, new_names, refused
from capturing import capture, run, table_of_orders, taken

Connection = psycopg.Connection[Any]


@pytest.fixture
def table(session: Connection) -> Iterator[str]:
    with table_of_orders(session) as name:
        yield name


def said(session: Connection, queue: str) -> list[Any]:
    """Of each message: op, key, and before and after where there are any."""
    return [
        (payload["op"], key, *(payload[part] for part in ("before", "after") if payload[part] is not None))
        for _, key, payload in taken(session, queue)
    ]


def row(id: int, status: str | None, total: float | None = None, seen: int = 0) -> dict[str, Any]:
    return {"id": id, "status": status, "total": total, "seen": seen}


def test_each_row_that_changes_is_a_message(session: Connection, queue: str, table: str) -> None:
    assert capture(session, table, queue) is True
    run(session, table, "insert into TABLE values (1, 'new', 5), (2, 'new', 6)")
    run(session, table, "update TABLE set status = 'paid', seen = 1 where id = 2")
    run(session, table, "delete from TABLE where id = 1")
    messages = taken(session, queue)
    name = f"public.{table}"
    for _, _, payload in messages:
        assert payload.pop("table") == name
        assert payload.pop("at").endswith("+00:00")
    assert messages == [
        (f"{name}.insert", "1", {"op": "insert", "before": None, "after": row(1, "new", 5)}),
        (f"{name}.insert", "2", {"op": "insert", "before": None, "after": row(2, "new", 6)}),
        (
            f"{name}.update",
            "2",
            {
                "op": "update",
                "before": row(2, "new", 6),
                "after": row(2, "paid", 6, 1),
                "changed": ["seen", "status"],
            },
        ),
        (f"{name}.delete", "1", {"op": "delete", "before": row(1, "new", 5), "after": None}),
    ]


def test_what_is_rolled_back_was_never_published(session: Connection, queue: str, table: str) -> None:
    capture(session, table, queue)
    with session.transaction(force_rollback=True):
        run(session, table, "insert into TABLE values (1, 'new')")
    run(session, table, "insert into TABLE values (2, 'new')")
    assert [key for _, key, _ in taken(session, queue)] == ["2"]


def test_copy_merge_upsert_and_with(session: Connection, queue: str, table: str) -> None:
    capture(session, table, queue)
    with session.cursor().copy(f"copy {table} (id, status) from stdin".encode()) as copy:
        copy.write("1\ta\n2\tb\n3\tc\n")
    assert said(session, queue) == [("insert", str(n), row(n, status)) for n, status in enumerate("abc", 1)]
    upsert = (
        "insert into TABLE values (1, 'x'), (4, 'd') on conflict (id) do update set status = excluded.status"
    )
    run(session, table, upsert)
    assert sorted(said(session, queue), key=str) == [
        ("insert", "4", row(4, "d")),
        ("update", "1", row(1, "a"), row(1, "x")),
    ]
    run(session, table, "insert into TABLE values (1, 'y') on conflict do nothing")
    assert said(session, queue) == []
    run(
        session,
        table,
        "merge into TABLE t using (values (2, 'm'), (3, null), (5, 'e')) s(id, status) on t.id = s.id"
        " when matched and s.status is null then delete when matched then update set status = s.status"
        " when not matched then insert values (s.id, s.status)",
    )
    assert sorted(said(session, queue), key=str) == [
        ("delete", "3", row(3, "c")),
        ("insert", "5", row(5, "e")),
        ("update", "2", row(2, "b"), row(2, "m")),
    ]
    run(
        session,
        table,
        "with a as (update TABLE set status = 'w' where id = 1),"
        " b as (update TABLE set status = 'v' where id = 2) delete from TABLE where id = 5",
    )
    assert sorted(said(session, queue), key=str) == [
        ("delete", "5", row(5, "e")),
        ("update", "1", row(1, "x"), row(1, "w")),
        ("update", "2", row(2, "m"), row(2, "v")),
    ]


def test_rows_come_in_the_order_of_their_changes(session: Connection, queue: str, table: str) -> None:
    capture(session, table, queue)
    with session.transaction():
        run(session, table, "insert into TABLE select n, 'a' from generate_series(1000, 1, -1) n")
        run(session, table, "delete from TABLE where id = 500")
        run(session, table, "insert into TABLE values (500, 'b')")
    keys = [key for _, key, _ in taken(session, queue)]
    assert keys == [*(str(n) for n in range(1000, 0, -1)), "500", "500"]


def test_rows_meet_by_their_place_though_all_keys_change(session: Connection, queue: str, table: str) -> None:
    """The plan is that of a statement of one row: it must do for thousands."""
    capture(session, table, queue)
    run(
        session, table, "insert into TABLE select n, 'a', n from generate_series(1, 5000) n order by random()"
    )
    run(session, table, "update TABLE set seen = 1 where id = 1")
    taken(session, queue)
    run(session, table, "update TABLE set id = id + 10000")
    changes = said(session, queue)
    assert len(changes) == 5000
    assert all(
        before["id"] + 10000 == after["id"] == int(key) and before["total"] == after["total"]
        for _, key, before, after in changes
    )


def test_a_change_of_the_key_has_the_new_key_and_says_the_old(
    session: Connection, queue: str, table: str
) -> None:
    capture(session, table, queue)
    run(session, table, "insert into TABLE values (1, 'a')")
    run(session, table, "update TABLE set id = 7")
    (_, (_, key, payload)) = taken(session, queue)
    assert (key, payload["before"]["id"], payload["after"]["id"]) == ("7", 1, 7)
    assert payload["changed"] == ["id"]


def test_an_update_that_changes_nothing_is_not_published_and_wakes_nobody(
    session: Connection, queue: str, table: str
) -> None:
    run(session, table, "insert into TABLE values (1, 'a', 1.5)")
    capture(session, table, queue, ignore=["seen"])
    # A closed queue would refuse any INSERT, one of no rows as well.
    ask(session, "close_queue", queue=queue)
    run(session, table, "update TABLE set status = status, total = 1.50")
    run(session, table, "update TABLE set seen = seen + 1")
    run(session, table, "update TABLE set status = 'b' where id = 99")
    run(session, table, "delete from TABLE where id = 99")
    run(session, table, "insert into TABLE select 5, 'a' where false")
    ask(session, "open_queue", queue=queue)
    run(session, table, "update TABLE set seen = seen + 1, status = 'b'")
    ((_, _, payload),) = taken(session, queue)
    assert payload["changed"] == ["seen", "status"]
    assert payload["after"]["seen"] == 2


def test_only_the_columns_that_were_named(session: Connection, queue: str, table: str) -> None:
    capture(session, table, queue, columns=["status", "id"], key=["status", "id"])
    run(session, table, "insert into TABLE values (1, 'a', 5)")
    run(session, table, "update TABLE set total = 6")
    run(session, table, "alter table TABLE add column secret text")
    run(session, table, "update TABLE set status = 'b', secret = 'x'")
    assert said(session, queue) == [
        ("insert", "a:1", {"id": 1, "status": "a"}),
        ("update", "b:1", {"id": 1, "status": "a"}, {"id": 1, "status": "b"}),
    ]


def test_more_columns_than_a_function_has_arguments(session: Connection, queue: str) -> None:
    table = next(new_names("wide"))
    names = [f"c{n}" for n in range(120)]
    session.execute(f"create table {table} ({', '.join(f'{name} integer' for name in names)})".encode())
    capture(session, table, queue, columns=names)
    session.execute(f"insert into {table} (c0, c119) values (1, 2)".encode())
    ((_, key, after),) = said(session, queue)[0:1]
    assert (key, after["c0"], after["c60"], after["c119"], len(after)) == (None, 1, None, 2, 120)


def test_only_rows_with_certain_values(session: Connection, queue: str, table: str) -> None:
    where = {"in": {"status": ["paid", "sent"]}, "not_in": {"total": [0, None]}}
    capture(session, table, queue, where=where)
    run(
        session,
        table,
        "insert into TABLE values (1, 'new', 1), (2, 'paid', 1), (3, 'paid', 0), (4, 'paid', null),"
        " (5, null, 1)",
    )
    assert said(session, queue) == [("insert", "2", row(2, "paid", 1))]
    run(session, table, "update TABLE set seen = 1")
    run(session, table, "update TABLE set status = 'sent' where id = 1")
    run(session, table, "update TABLE set status = 'lost' where id = 2")
    run(session, table, "update TABLE set status = 'x' where id = 5")
    run(session, table, "delete from TABLE")
    # An update is published if the row passes before or after it: who copies the rows hears that one left.
    assert [(op, key) for op, key, *_ in said(session, queue)] == [
        ("update", "2"),
        ("update", "1"),
        ("update", "2"),
        ("delete", "1"),
    ]
    capture(session, table, queue, where={"in": {"status": [None], "total": [1]}})
    run(session, table, "insert into TABLE values (6, null, 1.0), (7, null, 2), (8, 'x', 1)")
    assert [key for _, key, _ in taken(session, queue)] == ["6"]


def test_kinds_and_keys_as_they_were_asked_for(session: Connection, queue: str, table: str) -> None:
    capture(session, table, queue, kind="order_{op}", key=[])
    run(session, table, "insert into TABLE values (1)")
    run(session, table, "truncate TABLE")
    assert [(kind, key) for kind, key, _ in taken(session, queue)] == [
        ("order_insert", None),
        ("order_truncate", None),
    ]
    assert capture(session, table, queue, kind="order") is False
    run(session, table, "insert into TABLE values (1)")
    assert [(kind, key) for kind, key, _ in taken(session, queue)] == [("order", "1")]


def test_what_debezium_would_write(session: Connection, queue: str, table: str) -> None:
    capture(session, table, queue, format="debezium")
    run(session, table, "insert into TABLE values (1, 'a')")
    run(session, table, "update TABLE set status = 'b'")
    run(session, table, "delete from TABLE")
    run(session, table, "truncate TABLE")
    messages = [payload for _, _, payload in taken(session, queue)]
    assert [each["op"] for each in messages] == ["c", "u", "d", "t"]
    assert messages[1]["before"] == row(1, "a")
    assert messages[1]["after"] == row(1, "b")
    source = messages[1]["source"]
    assert (source["schema"], source["table"]) == ("public", table)
    assert source["db"] == session.info.dbname
    assert isinstance(source["txId"], int)
    assert messages[1]["ts_ms"] > 1_700_000_000_000


def test_columns_that_come_and_go(session: Connection, queue: str, table: str) -> None:
    capture(session, table, queue, key=["status"], ignore=["seen"])
    run(session, table, "insert into TABLE values (1, 'a')")
    run(session, table, "alter table TABLE add column note text default 'n'")
    run(session, table, "update TABLE set note = 'm'")
    run(session, table, "alter table TABLE drop column total")
    run(session, table, "update TABLE set note = 'o'")
    run(
        session,
        table,
        "alter table TABLE alter column note drop default, alter column note type integer using 7",
    )
    run(session, table, "update TABLE set note = 8")
    assert [part for _, _, *parts in said(session, queue)[1:] for part in parts] == [
        {"id": 1, "status": "a", "total": None, "seen": 0, "note": "n"},
        {"id": 1, "status": "a", "total": None, "seen": 0, "note": "m"},
        {"id": 1, "status": "a", "seen": 0, "note": "m"},
        {"id": 1, "status": "a", "seen": 0, "note": "o"},
        {"id": 1, "status": "a", "seen": 0, "note": 7},
        {"id": 1, "status": "a", "seen": 0, "note": 8},
    ]
    # What was named and is gone fails nobody: the key is null, and a warning says why.
    run(session, table, "alter table TABLE rename column status to state")
    run(session, table, "update TABLE set note = 9")
    assert [key for _, key, _ in taken(session, queue)] == [None]
    (warned,) = call(session, "list_warnings", queue=queue)
    assert warned.warning == f'captured table "public.{table}" has no column "status" any more'
    (listed,) = call(session, "list_captures", queue=queue)
    assert listed.warning == warned.warning


def test_columns_with_the_names_of_ours(session: Connection, queue: str) -> None:
    table = next(new_names("odd"))
    names = (
        "t",
        "r",
        "row",
        "at",
        "before",
        "after",
        "added",
        "gone",
        "v_added",
        "v_gone",
        "tg_op",
        'it\'s "%s" $f$ {op}',
    )
    columns = compose.SQL(", ").join(
        compose.SQL("{} integer").format(compose.Identifier(name)) for name in names
    )
    session.execute(compose.SQL("create table {} ({})").format(compose.Identifier(table), columns))
    odd = names[-1]
    capture(
        session, table, queue, key=[odd, "t"], ignore=["r"], where={"not_in": {odd: [5]}}, columns=[*names]
    )
    session.execute(f"insert into {table} values (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)".encode())
    session.execute(f'update {table} set t = 2, "row" = 4'.encode())
    session.execute(f"delete from {table}".encode())
    assert [(op, key) for op, key, *_ in said(session, queue)] == [
        ("insert", "12:1"),
        ("update", "12:2"),
        ("delete", "12:2"),
    ]


def test_values_are_the_same_whatever_the_session_says(session: Connection, queue: str) -> None:
    table = next(new_names("typed"))
    session.execute(
        f"create table {table} (id integer, at timestamptz, day date, span interval, raw bytea,"
        " number numeric, real double precision, list integer[], doc jsonb, cash money)".encode()
    )
    capture(session, table, queue)
    settings = ("DateStyle = 'German'", "IntervalStyle = 'sql_standard'", "TimeZone = 'Asia/Tokyo'")
    for setting in (*settings, "bytea_output = 'escape'", "extra_float_digits = -15"):
        session.execute(f"set {setting}".encode())
    session.execute(
        f"insert into {table} values (1, '2026-01-31 12:00:00+00', '31.01.2026', '1 day 2 hours', '\\xff',"
        " 'NaN', 0.1::double precision + 0.2, '{1,null}', '{\"a\": 1}', 5)".encode()
    )
    session.execute("reset all")
    ((_, _, payload),) = taken(session, queue)
    assert payload["after"].pop("cash").endswith("5.00")
    assert payload["after"] == {
        "id": 1,
        "at": "2026-01-31T12:00:00+00:00",
        "day": "2026-01-31",
        "span": "1 day 02:00:00",
        "raw": "\\xff",
        "number": "NaN",
        "real": 0.30000000000000004,
        "list": [1, None],
        "doc": {"a": 1},
    }


def test_a_table_without_a_key_whose_rows_are_all_alike(session: Connection, queue: str) -> None:
    table = next(new_names("keyless"))
    session.execute(f"create table {table} (a integer, b integer)".encode())
    capture(session, table, queue)
    session.execute(f"insert into {table} select 1, 1 from generate_series(1, 3)".encode())
    session.execute(f"update {table} set b = 2 where ctid = (select max(ctid) from {table})".encode())
    session.execute(f"update {table} set b = b + 1".encode())
    session.execute(f"delete from {table}".encode())
    one, two, three = ({"a": 1, "b": n} for n in (1, 2, 3))
    changes = said(session, queue)
    assert changes[:4] == [("insert", None, one)] * 3 + [("update", None, one, two)]
    assert sorted(changes[4:7], key=str) == [("update", None, one, two)] * 2 + [("update", None, two, three)]
    assert sorted(changes[7:], key=str) == [("delete", None, two)] * 2 + [("delete", None, three)]
    with refused("TQ005", f'table "public.{table}" has no column "id", which key names', "it has: a, b"):
        capture(session, table, queue, key=["id"])


def test_numbers_lose_no_digit_and_what_is_none_is_a_text(session: Connection, queue: str) -> None:
    table = next(new_names("numbers"))
    session.execute(f"create table {table} (n numeric, d double precision)".encode())
    capture(session, table, queue)
    digits = "12345678901234567890.12345678901234567890"
    session.execute(f"insert into {table} values ({digits}, 'NaN'), ('Infinity', '-Infinity')".encode())
    query = f"select payload->'after'->>'n', payload->'after'->'d' from trunq_log.{queue} order by id"
    assert session.execute(query.encode()).fetchall() == [(digits, "NaN"), ("Infinity", "-Infinity")]
    # A change of what digits are written alone is none.
    session.execute(f"update {table} set n = n * 1.00 where n < 'Infinity'".encode())
    assert len(said(session, queue)) == 2


def test_virtual_columns_are_left_out_since_no_trigger_sees_them(session: Connection, queue: str) -> None:
    if session.info.server_version < 180000:
        pytest.skip("a virtual generated column comes with Postgres 18")
    table = next(new_names("computed"))
    session.execute(
        f"create table {table} (a integer, v integer generated always as (a + 1) virtual,"
        " s integer generated always as (a + 2) stored)".encode()
    )
    capture(session, table, queue)
    session.execute(f"insert into {table} values (1)".encode())
    session.execute(f"update {table} set a = 2".encode())
    one, two = {"a": 1, "s": 3}, {"a": 2, "s": 4}
    assert said(session, queue) == [("insert", None, one), ("update", None, one, two)]
    with refused("TQ005", 'column "v"', "is virtual"):
        capture(session, table, queue, key=["v"])
    session.execute(f"alter table {table} add column w integer generated always as (a + 3) virtual".encode())
    (warned,) = call(session, "list_warnings", queue=queue)
    assert 'has a virtual column "w" by now' in warned.warning
    capture(session, table, queue)
    assert call(session, "list_warnings", queue=queue) == []


def test_values_of_every_sort_of_type(session: Connection, queue: str) -> None:
    table = next(new_names("sorts"))
    with session.transaction(force_rollback=True):
        session.execute(
            "create type mood as enum ('ok', 'bad'); create domain word as text;"
            " create type pair as (x integer, y text);"
            f" create table {table} (m mood, w word, c pair,"
            " ms mood[], r int4range, p point, j json, t timestamp)".encode()
        )
        capture(session, table, queue, key=["m", "w"])
        values = """'ok', 'a', (1, '2'), '{bad}', '[1,3)', '(1,2)', '{"a":  1}', 'infinity'"""
        session.execute(f"insert into {table} values ({values})".encode())
        session.execute(f"update {table} set w = 'b'".encode())
        (_, (_, key, payload)) = session.execute(
            f"select kind, key, payload from trunq_log.{queue} order by id".encode()
        ).fetchall()
        assert (key, payload["changed"]) == ("ok:b", ["w"])
        assert payload["before"] == {
            "m": "ok",
            "w": "a",
            "c": {"x": 1, "y": "2"},
            "ms": ["bad"],
            "r": "[1,3)",
            "p": "(1,2)",
            "j": {"a": 1},
            "t": "infinity",
        }


def test_truncate_is_one_message(session: Connection, queue: str, table: str) -> None:
    capture(session, table, queue)
    run(session, table, "truncate TABLE")
    ((kind, key, payload),) = taken(session, queue)
    assert (kind, key, payload["op"]) == (f"public.{table}.truncate", None, "truncate")
    assert (payload["before"], payload["after"]) == (None, None)


def test_cascades_are_captured(session: Connection, queue: str, table: str) -> None:
    child = next(new_names("items"))
    session.execute(
        f"create table {child} (id integer primary key, order_id integer references {table} on delete cascade"
        " on update cascade)".encode()
    )
    capture(session, table, queue)
    capture(session, child, queue)
    run(session, table, "insert into TABLE values (1), (2)")
    session.execute(f"insert into {child} values (10, 1), (11, 1), (20, 2)".encode())
    taken(session, queue)
    run(session, table, "update TABLE set id = id + 100")
    assert sorted((kind, key) for kind, key, _ in taken(session, queue)) == sorted(
        [(f"public.{child}.update", key) for key in ("10", "11", "20")]
        + [(f"public.{table}.update", key) for key in ("101", "102")]
    )
    run(session, table, "delete from TABLE where id = 101")
    assert sorted((kind, key) for kind, key, _ in taken(session, queue)) == [
        (f"public.{child}.delete", "10"),
        (f"public.{child}.delete", "11"),
        (f"public.{table}.delete", "101"),
    ]


def test_roles_of_replication(session: Connection, queue: str, table: str) -> None:
    capture(session, table, queue, deny=["delete"])
    for role in ("replica", "local"):
        session.execute(f"set session_replication_role = {role}".encode())
        run(session, table, "insert into TABLE values (1)")
        run(session, table, "delete from TABLE")
    session.execute("reset session_replication_role")
    assert taken(session, queue) == []


def test_changes_that_are_denied(session: Connection, queue: str, table: str) -> None:
    run(session, table, "insert into TABLE values (1, 'a')")
    capture(session, table, queue, deny=["update", "delete", "truncate"])
    for statement in ("update TABLE set seen = 1", "delete from TABLE", "truncate TABLE"):
        operation = statement.split()[0].upper()
        with refused("TQ020", f'table "public.{table}" may not be changed by {operation}', "trunq.uncapture"):
            run(session, table, statement)
    # What touches no row is no change.
    run(session, table, "delete from TABLE where id = 99")
    run(session, table, "insert into TABLE values (2, 'b')")
    capture(session, table, queue)
    run(session, table, "delete from TABLE where id = 1")
    assert [(op, key) for op, key, *_ in said(session, queue)] == [("insert", "2"), ("delete", "1")]


@pytest.mark.parametrize("lanes", [None, "key", "kind"])
@pytest.mark.parametrize("unique", [None, "refuse"])
def test_workers_of_every_sort_of_queue_get_them(
    session: Connection, table: str, lanes: str | None, unique: str | None
) -> None:
    queue = next(new_names("queue"))
    ask(session, "create_queue", queue=queue, lanes=lanes, unique=unique)
    capture(session, table, queue)
    run(session, table, "insert into TABLE values (1), (2)")
    run(session, table, "update TABLE set seen = 1")
    assert len(drain(session, queue)) == 4
