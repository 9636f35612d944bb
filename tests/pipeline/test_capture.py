"""A table and its copy: each kind of change comes once, in whatever order transactions commit, and what
leaves no image of the rows has the table read anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pipeline.copying import COPY, SOURCE, copied, slice_of, words
from pipeline.piping import Bench
from trunq.cli.pipeline.run import slice_words
from trunq.pipeline import Pipeline
from trunq.pipeline import source as sources

Connect = Callable[..., psycopg.Connection[Any]]


def test_inserts_updates_deletes_and_changed_keys_reach_the_copy(bench: Bench) -> None:
    name = copied(bench, "a", "b", "c")
    assert words(bench) == [(1, "a"), (2, "b"), (3, "c")]
    bench.sql("update source set word = 'x' where id = 1")
    bench.sql("delete from source where id = 2")
    bench.sql("update source set id = 4 where id = 3")
    bench.sql("insert into source values (5, 'e')")
    done = bench.run(name)
    assert words(bench) == [(1, "x"), (4, "c"), (5, "e")]
    assert done["rows_out"] == 5  # 1, 4 and 5 are written, 2 and 3 deleted
    assert bench.run(name) == {"outcome": "nothing new"}


def test_soft_deletes_keep_the_row_and_the_time_until_it_comes_again(bench: Bench) -> None:
    name = copied(bench, "a", "b", sink={**COPY, "deletes": "soft"})
    bench.sql("delete from source where id = 2")
    at = bench.one("select clock_timestamp()")
    bench.run(name)
    assert words(bench, alive="where deleted_at is null") == [(1, "a")]
    assert words(bench, alive="where deleted_at is not null") == [(2, "b")]
    # When it was deleted, not when the run heard of it.
    assert bench.one("select deleted_at < %s from copy where id = 2", at)
    bench.sql("insert into source values (2, 'again')")
    bench.run(name)
    assert words(bench, alive="where deleted_at is null") == [(1, "a"), (2, "again")]


def test_of_two_transactions_the_one_that_commits_later_counts_though_it_began_first(
    bench: Bench, connect: Connect
) -> None:
    name = copied(bench, "a")
    first, second = connect(autocommit=False), connect(autocommit=False)
    # Message ids are handed out in portions, too: the later commit has the smaller one.
    first.execute("insert into source values (9, 'of the first')")
    second.execute("insert into source values (8, 'of the second')")
    second.execute("update source set word = 'second' where id = 1")
    second.commit()
    first.execute("update source set word = 'first' where id = 1")
    first.commit()
    log = f"trunq_log.changes_{name} where payload->>'op' = 'update'"
    order = f"select payload->'after'->>'word' from {log} order by txid"
    assert bench.sql(order) == [("first",), ("second",)]
    bench.run(name)
    assert words(bench)[0] == (1, "first")


def test_a_row_that_a_trigger_changes_again_is_as_it_was_changed_last(bench: Bench) -> None:
    name = copied(bench)
    bench.sql("""create function again() returns trigger language plpgsql as $$
        begin update source set word = 'again' where id = new.id and word = 'once'; return null; end $$;
        create trigger again after insert on source for each row execute function again()""")
    bench.sql("insert into source values (1, 'once')")
    assert bench.sql(f"select payload->>'op' from trunq_log.changes_{name} order by id") == [
        ("update",),
        ("insert",),
    ]
    bench.run(name)
    assert words(bench) == [(1, "again")]


def test_keys_that_change_places_in_one_statement_are_right(bench: Bench) -> None:
    bench.sql("create table source (id int primary key deferrable, word text)")
    bench.sql("insert into source values (1, 'a'), (2, 'b'), (3, 'c')")
    name = bench.make(SOURCE, COPY)
    bench.run(name)
    bench.sql("update source set id = id % 3 + 1")
    bench.run(name)
    assert words(bench) == [(1, "c"), (2, "a"), (3, "b")] == words(bench, "source")


def test_what_is_open_while_the_rows_are_read_comes_with_the_changes(bench: Bench, connect: Connect) -> None:
    bench.sql("create table source (id int primary key, word text)")
    bench.sql("insert into source values (1, 'a'), (2, 'b')")
    bench.client.create_queue("changes", default_subscription=False)
    bench.client.capture("source", "changes")
    open_one = connect(autocommit=False)
    open_one.execute("update source set word = 'late' where id = 1")
    open_one.execute("delete from source where id = 2")
    name = bench.make({**SOURCE, "queue": "changes"}, COPY)
    bench.run(name)
    assert words(bench) == [(1, "a"), (2, "b")]
    # That is no reason to take its changes for read.
    assert bench.run(name) == {"outcome": "nothing new"}
    open_one.commit()
    bench.run(name)
    assert words(bench) == [(1, "late")]


def test_after_truncate_the_table_is_read_anew_which_is_said(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    name = copied(bench, "a", "b")
    bench.sql("insert into source values (3, 'gone'); truncate source; insert into source values (2, 'new')")
    bench.run(name)
    assert words(bench) == [(2, "new")]
    assert f"pipeline {name} reads all of source anew: it was truncated" in caplog.messages
    said = slice_words(SOURCE, slice_of(bench, name))
    assert said == "the rows of source as they are, since it was truncated"
    bench.sql("insert into source values (4, 'd')")
    bench.run(name)
    assert words(bench) == [(2, "new"), (4, "d")]
    assert "changes of source between the ticks" in slice_words(SOURCE, slice_of(bench, name))


def test_after_truncate_of_a_partition_the_table_is_read_anew(bench: Bench) -> None:
    bench.sql("""create table source (id int primary key, word text) partition by range (id);
        create table low partition of source for values from (0) to (10);
        create table high partition of source for values from (10) to (20);
        insert into source values (1, 'a'), (11, 'b')""")
    name = bench.make(SOURCE, {**COPY, "deletes": "soft"})
    bench.run(name)
    bench.sql("truncate high")
    bench.run(name)
    assert words(bench, alive="where deleted_at is null") == [(1, "a")]


@pytest.mark.parametrize(
    ("change", "is_anew"),
    [
        ("alter table source add more int", False),
        ("alter table source add more int default 5", True),
        ("alter table source add more int; alter table source drop keep", True),
        ("alter table source drop keep", False),
        ("alter table source rename keep to more", True),
        ("alter table source alter keep type int using length(keep)", True),
    ],
)
def test_columns_that_change_reach_the_copy_with_all_their_rows(
    bench: Bench, change: str, is_anew: bool
) -> None:
    bench.sql("create table source (id int primary key, word text, keep text)")
    bench.sql("insert into source values (1, 'a', 'k'), (2, 'b', 'k')")
    name = bench.make(SOURCE, COPY)
    bench.run(name)
    bench.sql("insert into source values (3, 'c', 'k')")
    bench.sql(change)
    bench.sql("update source set word = word || '!' where id = 1; delete from source where id = 2")
    if " type " in change:
        bench.sql("alter table copy alter keep type int using length(keep)")
    bench.run(name)
    columns = bench.one(
        "select string_agg(attname, ', ') from pg_attribute"
        " where attrelid = 'source'::regclass and attnum > 0 and not attisdropped"
    )
    assert bench.sql(f"select {columns} from copy order by id") == bench.sql(
        f"select {columns} from source order by id"
    )
    assert slice_of(bench, name).get("snapshot", False) is is_anew


TYPES = """i smallint, b bigint, r real, d double precision, n numeric, m numeric(9,2), t text,
v varchar(9), c char(4), y bytea, o boolean, a date, z timestamptz, w timestamp, h time, p interval, u uuid,
j jsonb, x int[], e inet, g int4range"""
VALUES = """(1, 1, 9000000000, 1.5, 0.1, 123456789012345678901234567890.50, 1.50, 'a%b"{0}''', 'v', 'c',
'\\x00ff', true, '2030-01-02', '2030-01-02 03:04:05.678901+02', 'infinity', '03:04:05.6', '1 day 02:00',
gen_random_uuid(), '{"a": null, "b": [1, "x"]}', '{1,null,3}', '10.0.0.1/8', '[1,5)'),
(2, -1, null, 'NaN', '-Infinity', 'NaN', 0.00, '', null, null, '', false, 'infinity', '-infinity', null, null,
null, null, 'null', '{}', null, 'empty')"""


def test_a_value_is_the_same_whether_it_was_there_or_came_as_a_change(bench: Bench) -> None:
    bench.sql(f"create table source (id int primary key, {TYPES})")
    bench.sql(f"insert into source values {VALUES}")
    name = bench.make(SOURCE, COPY)
    bench.run(name)
    bench.sql("alter table copy rename to before; create table copy (like before including all)")
    bench.sql("update source set id = id + 10")
    bench.run(name)
    query = "select (to_jsonb(x) - 'id')::text from {} x order by id"
    there = bench.sql(query.format("source"))
    assert bench.sql(query.format("before")) == there
    assert bench.sql(query.format("copy")) == there


def test_steps_of_columns_pass_on_what_became_of_a_row(bench: Bench) -> None:
    bench.sql("create table source (id int primary key, word text, secret text)")
    bench.sql("insert into source values (1, 'a', 's'), (2, 'b', 's')")
    steps = {"exclude": ["secret"], "rename": {"id": "number"}, "constant": {"origin": "shop"}}
    name = bench.make(SOURCE, COPY, columns=steps)
    bench.run(name)
    bench.sql("delete from source where id = 1; update source set word = 'x' where id = 2")
    bench.run(name)
    assert bench.sql("select number, word, origin from copy") == [(2, "x", "shop")]


def test_a_check_keeps_rows_out_and_no_deletes(bench: Bench) -> None:
    checks = [{"column": "word", "one_of": ["a", "b"]}]
    name = copied(bench, "a", "b", checks=checks)
    bench.sql("update source set word = 'wrong' where id = 1")
    bench.run(name)
    assert words(bench) == [(1, "a"), (2, "b")]
    # It is deleted as it was last, which breaks the rule.
    bench.sql("delete from source where id = 1")
    bench.run(name)
    assert words(bench) == [(2, "b")]


def test_a_delete_of_a_row_that_cannot_be_cast_is_a_delete(bench: Bench) -> None:
    name = copied(bench, "1", "2", columns={"cast": {"word": "int32"}})
    bench.sql("update source set word = 'wrong' where id = 1")
    assert bench.run(name)["rows_bad"] == 1
    bench.sql("delete from source where id = 1; update source set word = 'wrong' where id = 2")
    assert bench.run(name)["rows_bad"] == 1
    assert bench.sql("select * from copy") == [(2, 2)]


def test_an_append_has_a_log_of_the_changes(bench: Bench) -> None:
    name = copied(bench, "a", sink={"format": "table", "table": "log"})
    bench.sql("update source set word = 'b' where id = 1")
    bench.sql("update source set id = 2 where id = 1")
    bench.sql("delete from source where id = 2")
    bench.sql("truncate source")
    bench.run(name)
    assert bench.sql("select _op, id, word from log order by _changed_at nulls first, ctid") == [
        ("snapshot", 1, "a"),
        ("update", 1, "b"),
        ("delete", 1, "b"),
        ("insert", 2, "b"),
        ("delete", 2, "b"),
        ("truncate", None, None),
    ]


def test_a_queue_is_told_what_rows_have_become(bench: Bench) -> None:
    bench.client.create_queue("told")
    name = copied(bench, "a", "b", sink={"format": "queue", "queue": "told", "mode": "apply", "kind": "row"})
    bench.sql("update source set word = 'x', id = 3 where id = 1")
    bench.run(name)
    assert bench.sql("select key, payload - 'because' from trunq_log.told order by id") == [
        (None, {"op": "snapshot"}),
        ("1", {"op": "upsert", "key": {"id": 1}, "row": {"id": 1, "word": "a"}}),
        ("2", {"op": "upsert", "key": {"id": 2}, "row": {"id": 2, "word": "b"}}),
        ("1", {"op": "delete", "key": {"id": 1}, "row": None}),
        ("3", {"op": "upsert", "key": {"id": 3}, "row": {"id": 3, "word": "x"}}),
    ]


def test_a_key_of_several_columns_names_rows(bench: Bench, tmp_path: Path) -> None:
    bench.sql("create table source (a text, b int, word text, primary key (a, b))")
    bench.sql("insert into source values ('x', 1, 'a'), ('x', 2, 'b'), ('y', 1, 'c')")
    name = bench.make(SOURCE, COPY)
    bench.run(name)
    bench.sql("delete from source where (a, b) = ('x', 2); update source set a = 'z' where a = 'y'")
    bench.run(name)
    assert bench.sql("select a, b, word from copy order by a, b") == [("x", 1, "a"), ("z", 1, "c")]


def test_of_columns_that_are_captured_the_others_stay_out_until_all_are(bench: Bench) -> None:
    bench.sql("create table source (id int primary key, word text, more text)")
    bench.sql("insert into source values (1, 'a', 'x'), (2, 'b', 'x')")
    bench.client.create_queue("changes", default_subscription=False)
    bench.client.capture("source", "changes", columns=["id", "word"])
    name = bench.make({**SOURCE, "queue": "changes"}, COPY)
    bench.run(name)
    bench.sql("update source set word = 'c' where id = 1")
    bench.run(name)
    assert bench.sql("select * from copy order by id") == [(1, "c"), (2, "b")]
    bench.client.capture("source", "changes")
    bench.run(name)
    assert bench.sql("select * from copy order by id") == [(1, "c", "x"), (2, "b", "x")]


def test_a_table_that_was_captured_otherwise_for_a_while_is_read_anew(bench: Bench) -> None:
    name = copied(bench, "a", "b")
    bench.client.capture("source", f"changes_{name}", where={"in": {"word": ["none"]}})
    bench.sql("delete from source where id = 2")
    bench.client.capture("source", f"changes_{name}")
    bench.run(name)
    assert words(bench) == [(1, "a")]
    assert slice_of(bench, name)["because"] == "it was captured otherwise"


def test_one_looks_whether_there_is_something_new_and_leaves_nothing_behind(bench: Bench) -> None:
    name = copied(bench, "a")
    source = sources.make(Pipeline(name, source=SOURCE, sink=COPY), bench.dsn, bench.executor.control)

    def has_new() -> bool:
        return source.has_new(bench.client.list_pipelines(name)[0].state)

    assert source.has_new({})
    bench.run(name)
    assert not has_new()
    bench.sql("insert into source values (2, 'b')")
    assert has_new()
    bench.run(name)
    assert not has_new()


def test_what_is_written_is_no_longer_kept(bench: Bench) -> None:
    name = copied(bench, "a")
    bench.sql("insert into source values (2, 'b')")
    bench.run(name)
    queue, subscription = f"changes_{name}", f"pipeline_{name}"
    newest = max(tick.tick_id for tick in bench.client.list_ticks(queue))
    assert bench.client.position(queue, subscription) == newest


def test_two_that_make_the_capture_at_the_same_time_make_one(bench: Bench) -> None:
    bench.sql("create table source (id int primary key, word text)")
    for round in range(3):
        made = Pipeline(f"p_{round}", source=SOURCE, sink=COPY)
        two = [sources.make(made, bench.dsn, bench.executor.control) for _ in range(2)]
        at_once = threading.Barrier(2)

        def plan(source: Any, at_once: threading.Barrier = at_once) -> Any:
            at_once.wait(60)
            return source.plan({}).slice

        with ThreadPoolExecutor(2) as pool:
            assert all(slice["snapshot"] for slice in pool.map(plan, two))
        (capture,) = bench.client.list_captures()
        assert capture.queue == f"changes_p_{round}"
        bench.client.drop_queue(capture.queue, force=True)
