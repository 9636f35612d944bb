"""What is altered of a captured table between its changes and the run that reads them."""

from __future__ import annotations

import pytest

from pipeline.piping import Bench

SOURCE = {"format": "table", "table": "read", "changes": "capture"}
LOG = {"format": "table", "table": "moved"}
APPLY = {**LOG, "mode": "apply"}


def same(bench: Bench, columns: str) -> bool:
    read, moved = (bench.sql(f"select {columns} from {table} order by id") for table in ("read", "moved"))
    return bool(read == moved)


@pytest.mark.parametrize("between", [False, True])
def test_a_column_that_is_dropped_and_added_again_is_empty_in_the_copy_too(
    bench: Bench, between: bool
) -> None:
    bench.sql("create table read (id int primary key, a int, b int)")
    bench.sql("insert into read values (1, 10, 20), (2, 30, 40)")
    pipeline = bench.make(SOURCE, APPLY)
    bench.run(pipeline)
    bench.sql("alter table read drop a")
    if between:
        bench.sql("update read set b = 41 where id = 2")
        bench.run(pipeline)
    bench.sql("alter table read add a int")
    bench.sql("insert into read values (3, 1, 2)")
    bench.run(pipeline)
    assert same(bench, "id, a, b")


def test_columns_that_change_names_change_them_in_the_copy_too(bench: Bench) -> None:
    bench.sql("create table read (id int primary key, a int, b int)")
    bench.sql("insert into read values (1, 10, 20)")
    pipeline = bench.make(SOURCE, APPLY)
    bench.run(pipeline)
    bench.sql("alter table read rename a to c")
    bench.sql("alter table read rename b to a")
    bench.sql("alter table read rename c to b")
    bench.sql("insert into read values (2, 30, 40)")
    bench.run(pipeline)
    assert same(bench, "id, a, b")


def test_a_value_of_an_enum_that_is_renamed_is_renamed_in_the_copy_too(bench: Bench) -> None:
    bench.sql("create type mood as enum ('calm', 'sad')")
    bench.sql("create table read (id int primary key, mood mood, moods mood[])")
    bench.sql("insert into read values (1, 'sad', '{sad,calm}')")
    pipeline = bench.make(SOURCE, APPLY)
    bench.run(pipeline)
    bench.sql("insert into read values (2, 'sad', '{sad}')")
    bench.sql("alter type mood rename value 'sad' to 'low'")
    bench.run(pipeline)
    assert same(bench, "id, mood::text, array_to_string(moods, ' ')")
    # One that is added changes nothing that is there.
    bench.sql("alter type mood add value 'glad'")
    bench.sql("insert into read values (3, 'glad', '{}')")
    assert bench.run(pipeline)["rows_in"] == 1
    assert same(bench, "id, mood::text, array_to_string(moods, ' ')")


def test_a_log_tells_what_an_enum_said_before_it_was_renamed(bench: Bench) -> None:
    bench.sql("create type mood as enum ('calm', 'sad')")
    bench.sql("create table read (id int primary key, mood mood)")
    pipeline = bench.make(SOURCE, LOG)
    bench.run(pipeline)
    bench.sql("insert into read values (1, 'sad')")
    bench.sql("alter type mood rename value 'sad' to 'low'")
    bench.run(pipeline)
    assert bench.sql("select id, mood from moved") == [(1, "sad")]


def test_a_row_that_was_deleted_before_its_domain_forbade_it_is_deleted(bench: Bench) -> None:
    bench.sql("create domain amount as int")
    bench.sql("create table read (id int primary key, amount amount)")
    bench.sql("insert into read values (1, -1), (2, 2), (3, -3)")
    pipeline = bench.make(SOURCE, APPLY)
    bench.run(pipeline)
    bench.sql("delete from read where id = 1")
    bench.sql("update read set amount = 3 where id = 3")
    bench.sql("alter domain amount add check (value > 0)")
    bench.run(pipeline)
    assert bench.sql("select id, amount from moved order by id") == [(2, 2), (3, 3)]
