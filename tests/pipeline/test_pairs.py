"""Two features meet: what each does alone is right, and what both do to a row is, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline import Pipeline
from trunq.pipeline import source as sources
from trunq.pipeline.control import Control
from trunq.pipeline.errors import MessageRefused
from trunq.pipeline.plan import plan_pipeline

CAPTURED = {"format": "table", "table": "source", "changes": "capture"}
WHOLE = {"format": "table", "table": "source", "changes": "all"}
SINKS: dict[str, dict[str, Any]] = {
    "table": {"format": "table", "table": "copy"},
    "delta": {"format": "delta", "path": "copy"},
}


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def rows(bench: Bench, kind: str, *columns: str) -> list[tuple[Any, ...]]:
    if kind == "table":
        return sorted(bench.sql(f"select {', '.join(columns)} from copy"))
    found = DeltaTable("copy").to_pyarrow_table()
    return sorted(zip(*(found[name].to_pylist() for name in columns), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*SINKS, "queue"])
def test_a_row_whose_key_was_kept_out_may_be_deleted(bench: Bench, kind: str) -> None:
    bench.sql("create table source (id text primary key, word text)")
    bench.sql("insert into source values ('1', 'a'), ('2', 'b'), ('x', 'c'), ('y', 'd')")
    if kind == "queue":
        bench.client.create_queue("told")
    sink = SINKS.get(kind, {"format": "queue", "queue": "told", "kind": "told"})
    name = bench.make(CAPTURED, {**sink, "mode": "apply"}, columns={"cast": {"id": "int32"}})
    assert bench.run(name)["rows_bad"] == 2
    bench.sql("delete from source where id in ('2', 'x')")
    assert bench.run(name)["rows_bad"] == 0
    bench.sql("delete from source where id = 'y'")
    assert bench.run(name)["outcome"] == "done", "with no other row"
    if kind == "queue":
        told = bench.sql("select payload->>'op', key from trunq_log.told where key is not null order by id")
        assert told == [("upsert", "1"), ("upsert", "2"), ("delete", "2")]
    else:
        assert rows(bench, kind, "id", "word") == [(1, "a")]


@pytest.mark.slow
def test_a_row_whose_key_does_not_fit_may_be_deleted(bench: Bench) -> None:
    bench.sql("create table source (id bigint primary key, word text)")
    bench.sql("create table copy (id integer primary key, word text)")
    bench.sql("insert into source values (1, 'a'), (3000000000, 'b')")
    name = bench.make(CAPTURED, {**SINKS["table"], "mode": "apply"}, evolve="quarantine")
    assert bench.run(name)["rows_bad"] == 1
    bench.sql("delete from source where id > 1; update source set word = 'c'")
    bench.run(name)
    assert rows(bench, "table", "id", "word") == [(1, "c")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("table", {"mode": "replace"}),
        ("delta", {"mode": "replace"}),
        ("delta", {"mode": "replace_partitions", "partition_by": ["part"]}),
    ],
)
def test_rows_that_are_sent_again_stand_for_no_others(bench: Bench, kind: str, more: dict[str, Any]) -> None:
    bench.sql("create table source (id int primary key, part text, word text)")
    bench.sql("insert into source values (1, 'p', 'a'), (2, 'p', null), (3, 'q', 'c')")
    sink = {**SINKS[kind], **more}
    name = bench.make(WHOLE, sink, checks=[{"column": "word", "not_null": True}])
    bench.run(name)
    bench.make(WHOLE, sink, name=name)
    with pytest.raises(InvalidPipeline, match="would be there alone") as caught:
        bench.client.resend_quarantine(name)
    assert f"trunq pipeline run {name}" in caught.value.hint
    asked = bench.client.publish("pipelines", {"reason": None}, kind=name, headers={"resend": True})
    with pytest.raises(InvalidPipeline, match="would be there alone"):
        bench.execute(asked)
    assert rows(bench, kind, "id") == [(1,), (3,)]
    bench.run(name)
    assert rows(bench, kind, "id", "word") == [(1, "a"), (2, None), (3, "c")], "as the hint says"


@pytest.mark.slow
def test_a_run_that_has_a_part_of_the_rows_stands_for_no_others_when_the_mode_has_changed(
    bench: Bench,
) -> None:
    bench.sql("create table source (id int primary key, word text)")
    bench.sql("insert into source values (1, 'a'), (2, null)")
    bench.sql("create table copy (id int primary key, word text)")
    upserted = {**SINKS["table"], "mode": "upsert", "key": ["id"]}
    name = bench.make(WHOLE, upserted, checks=[{"column": "word", "not_null": True}])
    bench.run(name)
    bench.make(WHOLE, upserted, name=name)
    bench.sql("alter table copy alter word set not null")
    asked = bench.client.resend_quarantine(name)
    with pytest.raises(Exception, match="not-null"):
        bench.execute(asked)
    bench.sql("alter table copy alter word drop not null")
    bench.make(WHOLE, {**SINKS["table"], "mode": "replace"}, name=name)
    with pytest.raises(InvalidPipeline, match="has a part of the rows") as caught:
        bench.execute(asked)
    assert rows(bench, "table", "id") == [(1,)]
    assert f"trunq pipeline cancel {name}" in caught.value.hint
    bench.client.cancel_pipeline(name)
    bench.run(name)
    assert rows(bench, "table", "id") == [(1,), (2,)]


@pytest.mark.slow
def test_a_row_that_is_sent_again_after_its_column_was_renamed_has_its_value(bench: Bench) -> None:
    bench.sql("create table source (id int primary key, price text); create table copy (like source)")
    bench.sql("alter table copy add primary key (id), alter price type numeric(6,2) using null")
    bench.sql("insert into source values (1, '1.00'), (2, '1.005')")
    sink = {**SINKS["table"], "mode": "upsert", "key": ["id"]}
    name = bench.make({"format": "table", "table": "source"}, sink, evolve="quarantine")
    bench.run(name)
    bench.sql("alter table source rename price to amount; insert into source values (3, '3.00')")
    evolve = {"types": "quarantine", "rename": {"price": "amount"}}
    bench.make({"format": "table", "table": "source"}, sink, evolve=evolve, name=name)
    bench.run(name)
    bench.sql("alter table copy alter amount type numeric(7,3)")
    assert bench.execute(bench.client.resend_quarantine(name))["rows_out"] == 1
    found = [(id, str(amount)) for id, amount in rows(bench, "table", "id", "amount")]
    assert found == [(1, "1.000"), (2, "1.005"), (3, "3.000")]


@pytest.mark.slow
@pytest.mark.parametrize("evolve", ["ignore", "freeze", {"columns": "quarantine"}])
@pytest.mark.parametrize("mode", ["apply", "history"])
def test_a_lake_gets_the_columns_that_its_sink_writes_itself(bench: Bench, mode: str, evolve: Any) -> None:
    bench.sql("create table source (id int primary key, word text)")
    bench.sql("insert into source values (1, 'a'), (2, 'b')")
    write_deltalake("copy", pa.table({"id": pa.array([], pa.int32()), "word": pa.array([], pa.string())}))
    source, more = (
        (CAPTURED, {"deletes": "soft"}) if mode == "apply" else (WHOLE, {"key": ["id"], "missing": "delete"})
    )
    name = bench.make(source, {**SINKS["delta"], "mode": mode, **more}, evolve=evolve)
    planned = plan_pipeline(name, bench.dsn)
    column = "deleted_at" if mode == "apply" else "valid_to"
    assert not planned.refused
    assert column in planned.added
    bench.run(name)
    bench.sql("delete from source where id = 1")
    bench.run(name)
    assert [(id, gone is None) for id, gone in rows(bench, "delta", "id", column)] == [(1, False), (2, True)]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["process", "spark"])
def test_a_value_that_has_to_be_unique_may_go_from_a_deleted_row_to_another(
    bench: Bench, engine: str
) -> None:
    bench.sql("create table source (id int primary key, mail text)")
    bench.sql("insert into source values (1, 'ada'), (2, 'bob')")
    checks = [{"column": "mail", "unique": True}]
    name = bench.make(CAPTURED, {**SINKS["table"], "mode": "apply"}, checks=checks, engine=engine)
    bench.run(name)
    bench.sql("delete from source where id = 1; insert into source values (3, 'ada'), (4, 'eva'), (5, 'eva')")
    assert bench.run(name)["rows_bad"] == 2
    assert rows(bench, "table", "id", "mail") == [(2, "bob"), (3, "ada")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SINKS)
def test_a_log_of_changes_says_that_its_table_was_truncated_whatever_checks_there_are(
    bench: Bench, kind: str
) -> None:
    bench.sql("create table source (id int primary key, word text); insert into source values (1, 'a')")
    checks = [{"column": "word", "not_null": True}]
    name = bench.make(CAPTURED, {**SINKS[kind], "mode": "append"}, checks=checks)
    bench.run(name)
    bench.sql("truncate source")
    assert bench.run(name)["rows_bad"] == 0
    assert rows(bench, kind, "_op") == [("snapshot",), ("truncate",)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SINKS)
def test_a_log_of_changes_needs_no_key(bench: Bench, kind: str) -> None:
    bench.sql("create table source (id int primary key, word text); insert into source values (1, 'a')")
    name = bench.make(CAPTURED, {**SINKS[kind], "mode": "append"}, columns={"exclude": ["id"]})
    assert not plan_pipeline(name, bench.dsn).refused
    bench.run(name)
    bench.sql("delete from source")
    bench.run(name)
    assert rows(bench, kind, "_op", "word") == [("delete", "a"), ("snapshot", "a")]


@pytest.mark.slow
def test_a_captured_table_without_a_key_stands_still_beside_the_others(bench: Bench) -> None:
    bench.sql(
        "create schema shop; create table shop.keyless (id int);"
        " create table shop.orders (id int primary key)"
    )
    source = {"format": "table", "tables": "shop.*", "changes": "capture"}
    name = bench.make(source, {"format": "table", "table": "copy_${table}", "mode": "apply"})
    assert bench.run(name)["refused"] == 1
    (found,) = [each for each in bench.client.list_instances(name) if each.value == "shop.keyless"]
    assert "no primary key" in str(found.refused)
    assert not bench.client.list_captures()
    bench.run(f"{name}/shop.orders")


@pytest.mark.slow
@pytest.mark.parametrize("kind", SINKS)
def test_a_row_that_each_whole_run_keeps_out_is_in_the_quarantine_once(bench: Bench, kind: str) -> None:
    bench.sql(
        "create table source (id int primary key, word text); insert into source values (1, null), (2, 'b')"
    )
    name = bench.make(
        WHOLE, {**SINKS[kind], "mode": "replace"}, checks=[{"column": "word", "not_null": True}]
    )
    for _ in range(3):
        assert bench.run(name)["rows_bad"] == 1
    assert [each.quarantined for each in bench.client.count_quarantine(name)] == [1]
    bench.sql("update source set word = 'a' where id = 1")
    bench.run(name)
    assert bench.client.count_quarantine(name) == []
    assert rows(bench, kind, "id") == [(1,), (2,)]


@pytest.mark.slow
def test_a_captured_table_that_was_dropped_and_made_again_is_told_at_once(bench: Bench) -> None:
    made = "create table source (id int primary key, word text);"
    bench.sql(f"{made} insert into source values (1, 'a')")
    name = bench.make(CAPTURED, {**SINKS["table"], "mode": "apply"}, trigger={"continuous": True})
    bench.run(name)
    bench.sql(f"drop table source; {made} insert into source values (2, 'b')")
    (row,) = bench.client.list_pipelines(name)
    source = sources.make(Pipeline(name, **row.definition), bench.dsn, Control(bench.client))
    assert source.has_new(row.state), "or a continuous pipeline would never look"
    with pytest.raises(InvalidPipeline, match="changes are missing") as caught:
        bench.run(name)
    assert f"state {name} --reset" in caught.value.hint
    bench.client.set_pipeline_state(name, {})
    bench.run(name)
    assert rows(bench, "table", "id", "word") == [(2, "b")]


def test_a_pipeline_with_a_message_sends_rows_again_and_fills_a_range_by_its_newest(bench: Bench) -> None:
    bench.sql("create table source (id int primary key, n int); insert into source values (1, 1), (2, -1)")
    sink = {"format": "table", "table": "copy", "mode": "upsert", "key": ["id"], "newest": "n"}
    more: dict[str, Any] = {"message": {"day": "integer"}}
    check = {"column": "n", "between": [0, 9]}
    source = {"format": "table", "table": "source"}
    name = bench.make(source, sink, **more, checks=[check])
    with pytest.raises(MessageRefused, match="day of the message is missing"):
        bench.run(name)
    assert bench.run(name, {"day": 3})["rows_bad"] == 1
    with pytest.raises(MessageRefused, match="day of the message is missing"):
        bench.run(name)
    bench.client.create_pipeline(name, Pipeline(name, source=source, sink=sink, **more).definition)
    assert bench.execute(bench.client.resend_quarantine(name))["rows_out"] == 1
    assert rows(bench, "table", "id", "n") == [(1, 1), (2, -1)]
    bench.sql("update copy set n = 0")
    range = {"column": "id", "from": "1", "to": "2"}
    assert bench.execute(bench.client.backfill_pipeline(name, range))["rows_out"] == 1
    assert rows(bench, "table", "id", "n") == [(1, 1), (2, 0)]


def test_soft_deletes_are_given_up_with_a_sink_that_has_no_such_rows(bench: Bench) -> None:
    bench.sql("create table source (id int primary key)")
    sink = {"format": "table", "table": "copy", "mode": "apply"}
    name = bench.make(CAPTURED, {**sink, "deletes": "soft"})

    def make(more: dict[str, Any]) -> None:
        bench.client.create_pipeline(name, Pipeline(name, source=CAPTURED, sink={**sink, **more}).definition)

    with pytest.raises(InvalidPipeline, match="those that come again would stay marked") as told:
        make({})
    assert f"trunq pipeline drop {name}, delete the rows" in (told.value.hint or "")
    make({"table": "other"})
    make({"table": "copy", "deletes": "soft"})
    bench.client.drop_pipeline(name)
    make({})


@pytest.mark.parametrize("mode", ["upsert", "missing", "history"])
def test_one_of_many_tables_whose_primary_key_was_renamed_goes_on(bench: Bench, mode: str) -> None:
    bench.sql("create schema shop; create schema copy")
    bench.sql("create table shop.a (id int primary key, n int); insert into shop.a values (1, 1), (2, 2)")
    more = {"missing": "delete"} if mode != "upsert" else {}
    sink = {"format": "table", "table": "copy.${table}", "mode": mode if mode == "history" else "upsert"}
    source = {"format": "table", "tables": ["shop.*"], "changes": "window" if mode == "upsert" else "all"}
    name = bench.make(source, {**sink, **more}, evolve={"rename": {"id": "number"}})
    bench.run(name)
    assert bench.run(f"{name}/shop.a")["rows_out"] == 2
    bench.sql("alter table shop.a rename id to number; insert into shop.a values (3, 3)")
    # Nobody has looked since.
    assert bench.run(f"{name}/shop.a")["outcome"] == "done"
    assert bench.sql("select number, n from copy.a order by 1") == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("own", ["valid_from", "valid_to"])
def test_what_a_sink_writes_itself_is_not_renamed(own: str) -> None:
    sink = {"format": "table", "table": "copy", "mode": "history", "key": ["id"]}
    with pytest.raises(InvalidPipeline, match=f'"{own}", which mode history writes itself'):
        Pipeline("p", source=WHOLE, sink=sink, evolve={"rename": {own: "begun"}})
