"""What captures no changes, or would lose some, is refused in a sentence, and its hint leads out."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

from pipeline.copying import COPY, SOURCE, copied, words
from pipeline.piping import Bench
from trunq import install
from trunq.errors import InvalidPipeline, TrunqError
from trunq.pipeline import Pipeline

TABLE = {"format": "table", "table": "t"}
CAPTURED = {**TABLE, "changes": "capture"}
UPSERT = {**TABLE, "mode": "upsert", "key": ["id"]}
DELTA = {"format": "delta", "path": "x"}


@pytest.mark.parametrize(
    ("source", "sink", "said"),
    [
        (TABLE, {**TABLE, "mode": "apply"}, "write changes = 'capture'"),
        ({**TABLE, "changes": "all"}, {**DELTA, "mode": "apply"}, "write changes = 'capture'"),
        ({"format": "csv", "path": "x"}, {"format": "queue", "queue": "q", "mode": "apply"}, "gives none"),
        (CAPTURED, UPSERT, "would lose the deletes .* write mode = 'apply'"),
        (CAPTURED, {**DELTA, "mode": "history", "key": ["id"]}, "would lose the deletes"),
        (CAPTURED, {**TABLE, "mode": "replace"}, "would drop the rest: write mode = 'apply'"),
        ({**CAPTURED, "cursor": "at", "lag": "1 hour"}, {**TABLE, "mode": "apply"}, "are for .*'window'"),
        ({**TABLE, "queue": "q"}, TABLE, "queue and subscription are for changes = 'capture'"),
        (CAPTURED, {**TABLE, "mode": "apply", "newest": "at"}, "newest is not for mode = 'apply'"),
        (CAPTURED, {"format": "queue", "queue": "q", "mode": "apply", "key": "id"}, "key is not for"),
        (TABLE, {**UPSERT, "missing": "delete"}, "read whole each time: write changes = 'all'"),
        (
            TABLE,
            {**TABLE, "missing": "delete"},
            "missing = 'delete' is for the modes upsert and history, not for append",
        ),
        (TABLE, {**UPSERT, "deletes": "soft"}, "deletes = 'soft' says what becomes"),
        (TABLE, {**UPSERT, "max_missing": 0.1}, "max_missing goes with missing"),
    ],
)
def test_what_does_not_go_together_is_refused(source: Any, sink: Any, said: str) -> None:
    with pytest.raises(InvalidPipeline, match=said):
        Pipeline("p", source=source, sink=sink)


def test_a_table_without_a_key_is_refused_until_the_sink_names_one(bench: Bench) -> None:
    bench.sql("create table source (id int, word text); insert into source values (1, 'a'), (2, 'b')")
    name = bench.make(SOURCE, COPY)
    with pytest.raises(InvalidPipeline, match="has no primary key") as caught:
        bench.run(name)
    assert "give the sink key" in caught.value.hint
    bench.make(SOURCE, {**COPY, "key": ["id"]}, name=name)
    bench.run(name)
    bench.sql("delete from source where id = 2")
    bench.run(name)
    assert words(bench) == [(1, "a")]


def test_a_key_that_several_rows_have_is_refused(bench: Bench) -> None:
    bench.sql("create table source (id int, word text)")
    name = bench.make(SOURCE, {**COPY, "key": ["id"]})
    bench.run(name)
    bench.sql("insert into source values (1, 'a'), (1, 'b')")
    with pytest.raises(InvalidPipeline, match="where id = 1 do not follow from one another") as caught:
        bench.run(name)
    assert f"cancel {name}" in caught.value.hint
    bench.sql("delete from source where word = 'b'")
    assert bench.client.cancel_pipeline(name)
    bench.client.set_pipeline_state(name, {})
    bench.run(name)
    assert words(bench) == [(1, "a")]


def test_changes_that_were_not_captured_for_a_while_are_missed_and_a_reset_has_all(bench: Bench) -> None:
    name = copied(bench, "a", "b", "c")
    bench.client.uncapture("source")
    bench.sql("delete from source where id = 2; update source set word = 'x' where id = 3")
    for _ in range(2):
        with pytest.raises(InvalidPipeline, match="was not captured for a while") as caught:
            bench.run(name)
        # Nor is it all, that it is captured again.
        bench.client.capture("source", f"changes_{name}")
    assert f"trunq pipeline state {name} --reset" in caught.value.hint
    bench.client.set_pipeline_state(name, {})
    bench.run(name)
    assert words(bench) == [(1, "a"), (3, "x")]


def test_a_capture_that_is_there_is_used_by_its_name_beside_those_of_other_tables(bench: Bench) -> None:
    bench.client.create_queue("shared", default_subscription=False)
    bench.sql("create table source (id int primary key, word text)")
    bench.sql("create table other (id int primary key, word text)")
    bench.client.capture("other", "shared")
    bench.client.capture("source", "shared", format="debezium")
    name = bench.make({**SOURCE, "queue": "shared", "subscription": "mine"}, COPY)
    bench.run(name)
    bench.sql("insert into other values (7, 'other'); insert into source values (1, 'a'), (2, 'b')")
    bench.run(name)
    bench.sql("delete from source where id = 1; update source set id = 3 where id = 2")
    bench.run(name)
    assert words(bench) == [(3, "b")]
    bench.client.drop_pipeline(name)
    # Whoever named them keeps them.
    assert [each.subscription for each in bench.client.list_subscriptions("shared")] == ["mine"]


@pytest.mark.parametrize("left_out", [{"where": {"in": {"word": ["a"]}}}, {"ignore": ["word"]}])
def test_a_capture_that_leaves_changes_out_is_refused(bench: Bench, left_out: Any) -> None:
    bench.client.create_queue("shared", default_subscription=False)
    bench.sql("create table source (id int primary key, word text)")
    bench.client.capture("source", "shared", **left_out)
    name = bench.make({**SOURCE, "queue": "shared"}, COPY)
    with pytest.raises(InvalidPipeline, match="leaves changes out") as caught:
        bench.run(name)
    assert "trunq capture create source shared" in caught.value.hint
    bench.client.capture("source", "shared")
    assert bench.run(name)["outcome"] == "done"


def test_a_table_that_is_captured_into_another_queue_is_refused(bench: Bench) -> None:
    bench.client.create_queue("shared", default_subscription=False)
    bench.sql("create table source (id int primary key, word text)")
    bench.client.capture("source", "shared")
    name = bench.make({**SOURCE, "queue": "mine"}, COPY)
    with pytest.raises(InvalidPipeline, match="is captured into shared, not into mine") as caught:
        bench.run(name)
    assert 'queue = "shared" reads that' in caught.value.hint
    bench.make({**SOURCE, "queue": "shared"}, COPY, name=name)
    assert bench.run(name)["outcome"] == "done"


def test_a_database_without_trunq_is_refused_until_it_has_it(bench: Bench, tmp_path: Any) -> None:
    bench.sql("drop database if exists elsewhere")
    bench.sql("create database elsewhere template template0")
    dsn = make_conninfo(bench.dsn, dbname="elsewhere")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("create table source (id int primary key, word text)")
        connection.execute("insert into source values (1, 'a'), (2, 'b')")
        name = bench.make({**SOURCE, "dsn": dsn}, COPY)
        with pytest.raises(InvalidPipeline, match="the database of source has no trunq") as caught:
            bench.run(name)
        assert "trunq db install" in caught.value.hint
        install.install(connection)
        bench.run(name)
        connection.execute("delete from source where id = 1")
    bench.run(name)
    assert words(bench) == [(2, "b")]
    bench.sql("drop database elsewhere with (force)")


def test_a_pipeline_that_is_dropped_leaves_neither_capture_nor_queue(bench: Bench) -> None:
    name = copied(bench, "a")
    assert bench.client.list_captures()
    bench.client.drop_pipeline(name)
    assert not bench.client.list_captures()
    assert f"changes_{name}" not in {queue.queue for queue in bench.client.list_queues()}
    bench.sql("insert into source values (2, 'b')")


def test_one_that_reads_otherwise_from_now_on_leaves_neither(bench: Bench) -> None:
    name = copied(bench, "a")
    bench.make({**SOURCE, "changes": "all"}, {**COPY, "mode": "replace"}, name=name)
    assert not bench.client.list_captures()
    bench.sql("insert into source values (2, 'b')")
    bench.run(name)
    assert words(bench) == [(1, "a"), (2, "b")]


def test_rows_in_the_quarantine_and_ranges_are_not_applied_again(bench: Bench) -> None:
    name = copied(bench, "a", checks=[{"column": "word", "one_of": ["a"]}])
    bench.sql("insert into source values (2, 'b')")
    bench.run(name)
    with pytest.raises(TrunqError, match="may be older than that of its sink") as caught:
        bench.client.resend_quarantine(name)
    assert "change the row in the source" in caught.value.hint
    bench.sql("update source set word = 'a' where id = 2")
    bench.run(name)
    assert words(bench) == [(1, "a"), (2, "a")]
    with pytest.raises(TrunqError, match="has every change of its table"):
        bench.client.backfill_pipeline(name, {"column": "id", "from": "1", "to": "2"})


def without_op(rows: pa.Table) -> pa.Table:
    return rows.drop_columns(["_op"])


def without_key(rows: pa.Table) -> pa.Table:
    return rows.drop_columns(["id"])


def with_null(rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index("id"), "id", pa.nulls(rows.num_rows, pa.int32()))


@pytest.mark.parametrize("sink", ["table", "queue", "delta"])
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (without_op, 'no column "_op"'),
        (without_key, 'no column "id"'),
        (with_null, '"id" is null in a row'),
    ],
)
def test_rows_that_lost_what_they_are_applied_by_are_refused(
    bench: Bench, tmp_path: Any, sink: str, function: Any, said: str
) -> None:
    bench.sql("create table source (id int primary key, word text); insert into source values (1, 'a')")
    bench.client.create_queue("told")
    sinks: dict[str, Any] = {
        "table": COPY,
        "queue": {"format": "queue", "queue": "told", "mode": "apply"},
        "delta": {"format": "delta", "path": str(tmp_path / "copy"), "mode": "apply"},
    }
    name = bench.make(SOURCE, sinks[sink], function=function)
    with pytest.raises(TrunqError, match=said):
        bench.run(name)


def test_a_column_that_is_called_as_deletes_are_noted_is_refused_until_renamed(bench: Bench) -> None:
    bench.sql("create table source (id int primary key, deleted_at timestamptz)")
    bench.sql("insert into source values (1, null)")
    sink = {**COPY, "deletes": "soft"}
    name = bench.make(SOURCE, sink)
    with pytest.raises(InvalidPipeline, match='rows have a column "deleted_at"') as caught:
        bench.run(name)
    assert "rename" in caught.value.hint
    bench.make(SOURCE, sink, name=name, columns={"rename": {"deleted_at": "gone_at"}})
    bench.run(name)
    assert bench.sql("select id, gone_at, deleted_at from copy") == [(1, None, None)]


def test_a_column_of_our_own_is_refused_until_it_is_left_out(bench: Bench) -> None:
    bench.sql("create table source (id int primary key, _op text); insert into source values (1, 'x')")
    name = bench.make(SOURCE, COPY)
    with pytest.raises(InvalidPipeline, match='has a column "_op"') as caught:
        bench.run(name)
    assert "exclude" in caught.value.hint
    bench.make(SOURCE, COPY, name=name, columns={"exclude": ["_op"]})
    bench.run(name)
    assert bench.sql("select * from copy") == [(1,)]


def test_two_pipelines_do_not_apply_to_one_table(bench: Bench) -> None:
    copied(bench, "a")
    with pytest.raises(TrunqError, match="stands for all of it"):
        bench.make({"format": "table", "table": "source"}, {"format": "table", "table": "copy"})


def test_a_subscription_that_was_dropped_is_missed_and_a_reset_has_all(bench: Bench) -> None:
    name = copied(bench, "a", "b")
    bench.client.unsubscribe(f"changes_{name}", f"pipeline_{name}")
    bench.sql("delete from source where id = 1")
    with pytest.raises(InvalidPipeline, match="kept changes until they were written, was dropped") as caught:
        bench.run(name)
    assert f"trunq pipeline state {name} --reset" in caught.value.hint
    bench.client.set_pipeline_state(name, {})
    bench.run(name)
    assert words(bench) == [(2, "b")]


def test_a_source_whose_names_are_written_out_stays_what_it_is(bench: Bench) -> None:
    name = copied(bench, "a", "b")
    bench.sql("delete from source where id = 1")
    named = {"queue": f"changes_{name}", "subscription": f"pipeline_{name}_2"}
    bench.client.subscribe(named["queue"], named["subscription"], mode="exclusive", start="earliest")
    bench.make({**SOURCE, **named}, COPY, name=name)
    bench.run(name)
    assert words(bench) == [(2, "b")]
    kept = [each.subscription for each in bench.client.list_subscriptions(named["queue"])]
    assert kept == [named["subscription"]]
