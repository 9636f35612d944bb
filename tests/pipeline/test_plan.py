"""What the next run would do, told without a trace of the question."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo
from pyarrow import parquet

from pipeline.apis import Reply, Server, serving
from pipeline.piping import Bench
from trunq.errors import InvalidPipeline, PipelineNotFound
from trunq.pipeline.plan import Planned, plan_pipeline

TABLE = {"format": "table", "table": "source"}
MOVED = {"format": "table", "table": "moved"}
COLUMNS = {"id": "integer", "at": "timestamp with time zone", "word": "text"}

Planning = Callable[..., Planned]


@pytest.fixture
def planning(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planning:
    """Plans where no session may write, and no file is new afterwards."""
    monkeypatch.chdir(tmp_path)
    reading = make_conninfo(bench.dsn, options="-c default_transaction_read_only=on")

    def plan(name: str, message: Any = None) -> Planned:
        before = files(tmp_path)
        planned = plan_pipeline(name, reading, message=message)
        assert files(tmp_path) == before
        return planned

    return plan


def files(path: Path) -> list[tuple[str, int]]:
    found = [Path(directory, name) for directory, below, names in os.walk(path) for name in (*below, *names)]
    return sorted((str(each), each.stat().st_mtime_ns) for each in found)


@pytest.fixture
def filled(bench: Bench) -> Bench:
    bench.sql(
        "create table source (id int primary key, at timestamptz default now(), word text);"
        "insert into source select g, now(), 'w' from generate_series(1, 7) g"
    )
    return bench


def why(planned: Planned) -> str:
    """What would stop the run; with the way out."""
    return "; ".join(f"{each['message']}: {each['hint']}" for each in planned.refused)


def test_a_table_is_read_whole_first_and_then_what_was_committed_since(
    filled: Bench, planning: Planning
) -> None:
    name = filled.make(TABLE, MOVED)
    first = planning(name)
    assert (first.reads, first.rows, first.is_exact) == ("all rows of source", 7, True)
    assert (first.columns, first.added, first.makes_sink) == (COLUMNS, COLUMNS, True)
    assert not first.refused
    assert not filled.one("select to_regclass('moved') is not null")
    filled.run(name)
    nothing = planning(name)
    assert (nothing.reads, nothing.rows, nothing.why) == ("nothing is new", 0, "")
    filled.sql("alter table source add born date; insert into source (id) values (8), (9)")
    then = planning(name)
    assert then.reads.startswith("rows of source that were committed since 20")
    assert (then.rows, then.added, then.makes_sink) == (2, {"born": "date"}, False)
    done = filled.run(name)
    assert done["rows_out"] == then.rows
    changed = filled.client.list_schema_changes(name)
    assert {row.column_name: row.type for row in changed} == then.added


def test_of_a_large_table_a_sample_is_counted(
    filled: Bench, planning: Planning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trunq.pipeline.source.table._COUNTED_PAGES", 40)
    filled.sql("insert into source select g, now(), repeat('w', 100) from generate_series(100, 20000) g")
    planned = planning(filled.make(TABLE, MOVED))
    assert not planned.is_exact
    assert planned.rows is not None
    assert 5_000 < planned.rows < 80_000


@pytest.mark.parametrize(
    ("before", "more", "sink", "said"),
    [
        ("create table moved (id int)", {"evolve": "refuse"}, MOVED, 'column "at" is new'),
        ("create table moved (id date)", {}, MOVED, 'column "id" of moved is date and comes as integer'),
        ("create table moved (id int)", {}, {**MOVED, "mode": "upsert", "key": ["id"]}, "no unique index"),
        ("", {}, {**MOVED, "mode": "upsert", "key": ["none"]}, 'there is no column "none"'),
        ("", {}, {"format": "table", "table": "nowhere.moved"}, "there is no schema nowhere"),
        ("", {}, {"format": "queue", "queue": "nowhere"}, "trunq queue create nowhere"),
        ("drop table source", {}, MOVED, "there is no table source"),
        ("drop table source; create view source as select 1 as id", {}, MOVED, 'changes = "all" reads all'),
        ("", {"columns": {"exclude": ["none"]}}, MOVED, '"none"'),
        ("", {"function": "nowhere:nothing"}, MOVED, "nowhere:nothing is not found here"),
        ("", {}, {"format": "table", "table": "moved", "dsn": "${NOWHERE}"}, "start it with NOWHERE="),
        ("", {}, {"format": "delta", "path": "/etc/hostname/lake"}, "that this process may write into"),
        ("", {}, {"format": "delta", "path": "lake", "partition_by": ["none"]}, "none"),
    ],
)  # fmt: skip
def test_what_would_stop_a_run_is_said_with_the_way_out(
    filled: Bench, planning: Planning, before: str, more: dict[str, Any], sink: dict[str, Any], said: str
) -> None:
    if before:
        filled.sql(before)
    name = filled.make(TABLE, sink, **more)
    assert said in why(planning(name))
    with pytest.raises(Exception):  # noqa: B017  # the run says it in its words
        filled.run(name)


def test_a_table_that_is_not_there_is_said_once(filled: Bench, planning: Planning) -> None:
    filled.sql("drop table source")
    planned = planning(filled.make(TABLE, MOVED))
    assert [each["message"].partition(": ")[2] for each in planned.refused] == [
        "there is no table source in its source"
    ]
    assert planned.why == ""


def test_a_right_that_is_missing_is_said_before_the_run_that_needs_it(
    filled: Bench, planning: Planning
) -> None:
    filled.sql("create table moved (id int, at timestamptz, word text)")
    role = f"few_rights_{os.getpid()}"
    filled.sql(
        f"create role {role} login;"
        f" grant connect on database {filled.one('select current_database()')} to {role}"
    )
    dsn = make_conninfo(filled.dsn, user=role, options="-c default_transaction_read_only=on")
    try:
        name = filled.make(TABLE, {**MOVED, "dsn": dsn})
        assert "may not insert in moved: grant insert on moved" in why(planning(name))
        filled.sql(f"grant insert on moved to {role}")
        assert "may not use schema trunq_sink" in why(planning(name))
        sink = {**MOVED, "dsn": dsn, "mode": "upsert", "key": ["id"], "missing": "delete"}
        filled.make({**TABLE, "changes": "all"}, sink, name=name)
        filled.sql(f"grant update on moved to {role}; create unique index on moved (id)")
        assert "may not delete in moved: grant insert,update,delete on moved" in why(planning(name))
    finally:
        filled.sql(f"drop owned by {role}; drop role {role}")


def test_a_run_that_is_open_comes_first(filled: Bench, planning: Planning) -> None:
    filled.sql("create table moved (id int check (id > 3), at timestamptz, word text)")
    name = filled.make(TABLE, MOVED)
    with pytest.raises(Exception, match="moved_id_check"):
        filled.run(name)
    filled.sql("insert into source values (8)")
    planned = planning(name)
    assert planned.is_open
    assert planned.reads == "what run 1, which is open, has to read: all rows of source"
    assert (planned.slice, planned.rows) == (filled.client.list_runs(name)[0].slice, 7)
    assert any("moved_id_check" in note for note in planned.notes)
    filled.client.cancel_pipeline(name)
    filled.client.pause_pipeline(name)
    planned = planning(name)
    assert (planned.is_open, planned.rows) == (False, 8)
    assert "it is paused until somebody resumes it" in planned.notes


def test_a_queue_is_asked_for_its_messages_without_a_tick(bench: Bench, planning: Planning) -> None:
    bench.client.create_queue("orders")
    name = bench.make({"format": "queue", "queue": "orders"}, MOVED)
    for id in range(3):
        bench.client.publish("orders", {"id": id})
    planned = planning(name)
    assert (planned.reads, planned.rows, planned.is_exact) == (
        "messages of orders from tick 0 to now",
        3,
        True,
    )
    assert planned.columns is not None
    assert planned.columns["payload"] == "jsonb"
    assert len(bench.client.status("orders")) == 1
    assert bench.run(name)["rows_out"] == 3
    assert planning(name).reads == "nothing is new"
    bench.client.publish("orders", {"id": 4})
    assert planning(name).rows == 1
    assert bench.run(name)["rows_out"] == 1


def test_a_history_is_asked_for_what_nobody_has_taken(bench: Bench, planning: Planning) -> None:
    bench.client.create_queue("orders")
    name = bench.make({"format": "history", "queue": "orders"}, MOVED)
    assert planning(name).reads == "only a run tells what it reads"
    bench.run(name)
    bench.client.publish("orders", {"id": 1})
    bench.client.ack(bench.client.lease("orders", "default", "w", 10))
    planned = planning(name)
    assert (planned.reads, planned.rows) == ("attempts of queue orders: 1 lease", 1)
    assert bench.run(name)["rows_out"] == 1


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_files_are_named_and_their_rows_counted(bench: Bench, planning: Planning, format: str) -> None:
    for name in ("a", "b"):
        path = Path(f"{name}.{format}")
        if format == "parquet":
            parquet.write_table(pa.table({"id": [1, 2, 3]}), path)
        else:
            path.write_text("id\n1\n2\n3\n" if format == "csv" else '{"id": 1}\n{"id": 2}\n{"id": 3}')
    name = bench.make(
        {"format": format, "path": f"*.{format}", "settled": "0 s"}, {"format": "delta", "path": "lake"}
    )
    planned = planning(name)
    assert planned.reads.startswith("2 files of ")
    assert f"/a.{format}, " in planned.reads
    assert (planned.rows, planned.is_exact) == (6, format == "parquet")
    assert (planned.columns, planned.makes_sink) == ({"id": "int64"}, True)
    assert bench.run(name)["rows_out"] == 6
    assert planning(name).reads == "nothing is new"
    Path("c.csv").write_text("id\nx\n")
    if format == "csv":
        assert 'column "id" of lake is int64 and comes as string' in why(planning(name))


def test_where_only_a_run_tells_it_says_so(
    bench: Bench, planning: Planning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.sql("create table source (id int)")
    (tmp_path / "plan_functions.py").write_text(
        "def rows(context):\n    raise AssertionError\n\n\ndef all(t):\n    return t\n"
    )
    name = bench.make({"format": "python", "function": "plan_functions:rows"}, MOVED)
    monkeypatch.syspath_prepend(tmp_path)
    # It is the plan that is to write nothing.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert planning(name).reads == "only a run tells what it reads"
    changed = bench.make(TABLE, MOVED, function="plan_functions:all")
    planned = planning(changed)
    assert "which columns function gives, only a run tells" in planned.notes
    assert planned.columns is None
    assert not planned.refused


@pytest.fixture
def api() -> Iterator[Server]:
    with serving(lambda _: Reply([])) as served:
        yield served


def test_an_api_is_not_asked(bench: Bench, planning: Planning, api: Server) -> None:
    name = bench.make({"format": "http", "url": api.url}, {"format": "parquet", "path": "out"})
    planned = planning(name)
    assert planned.reads == "only a run tells what it reads"
    assert planned.why == "how large the slice is, only a run tells"
    assert not planned.refused
    assert not api.paths
    bench.sql("create table source (id int)")
    sending = bench.make(TABLE, {"format": "http", "url": api.url})
    assert "whether the API takes the rows, only a run tells" in planning(sending).notes
    assert not api.paths


def test_statements_of_spark_start_no_spark(bench: Bench, planning: Planning) -> None:
    bench.sql("create table source (id int); insert into source values (1)")
    name = bench.make(TABLE, MOVED, sql=["select * from input"])
    planned = planning(name)
    assert (planned.engine, planned.why) == ("spark", "sql needs it")
    assert (planned.rows, planned.columns) == (1, None)
    assert "which columns sql gives, only a run tells" in planned.notes


def test_a_source_that_is_away_is_said_without_its_password(bench: Bench, planning: Planning) -> None:
    bench.sql("create table source (id int); insert into source values (1)")
    with pytest.raises(PipelineNotFound):
        planning("nothing")
    os.environ["PLAN_SHOP"] = "host=127.0.0.1 port=1 password=geheim123"
    try:
        name = bench.make({**TABLE, "dsn": "${PLAN_SHOP}"}, MOVED)
        assert "connection" in why(planning(name))
        assert "geheim123" not in str(planning(name))
    finally:
        del os.environ["PLAN_SHOP"]


def test_a_lake_keeps_its_partitions(filled: Bench, planning: Planning) -> None:
    lake = {"format": "delta", "path": "lake", "partition_by": ["word"]}
    filled.run(filled.make(TABLE, lake))
    other = filled.make(TABLE, {**lake, "partition_by": ["id"]})
    assert "lake is partitioned by (word)" in why(planning(other))
    filled.sql("alter table source add born date")
    assert planning(filled.make(TABLE, lake)).added == {"born": "date32[day]"}


def test_a_lake_that_a_run_would_write_anew_is_planned_so(filled: Bench, planning: Planning) -> None:
    lake = {"format": "delta", "path": "lake"}
    name = filled.make(TABLE, {**lake, "partition_by": ["word"]})
    filled.run(name)
    filled.make(TABLE, {**lake, "partition_by": ["id"]}, name=name, evolve={"partitions": "rewrite"})
    filled.sql("insert into source (id, word) values (8, 'x')")
    planned = planning(name)
    assert not planned.refused
    assert planned.notes == ["lake is written anew, partitioned by (id)"]
    filled.run(name)
    assert not planning(name).notes


@pytest.mark.parametrize("sink", [MOVED, {"format": "delta", "path": "lake"}])
def test_stamps_are_columns_of_the_sink(filled: Bench, planning: Planning, sink: dict[str, Any]) -> None:
    name = filled.make(TABLE, sink, stamp=True)
    assert list(planning(name).columns or ()) == [*COLUMNS, "_run", "_at"]
    filled.run(name)
    filled.sql("insert into source (id) values (8)")
    then = planning(name)
    assert (list(then.columns or ()), then.added) == ([*COLUMNS, "_run", "_at"], {})
    filled.sql("alter table source rename word to _run")
    assert 'rows have a column "_run", which stamp writes itself' in why(planning(name))


def test_a_run_of_changes_that_is_open_is_one_of_changes(filled: Bench, planning: Planning) -> None:
    name = filled.make({**TABLE, "changes": "capture"}, {**MOVED, "mode": "apply"})
    filled.run(name)
    filled.sql("update source set word = 'x'; drop table moved; create view moved as select 1 as id")
    with pytest.raises(InvalidPipeline):
        filled.run(name)
    assert planning(name).reads == "what run 2, which is open, has to read: changes of source"


@pytest.mark.parametrize("sink", [MOVED, {"format": "delta", "path": "lake"}], ids=["table", "delta"])
def test_a_captured_table_is_read_whole_first_and_then_its_changes(
    filled: Bench, planning: Planning, sink: dict[str, Any]
) -> None:
    source = {**TABLE, "changes": "capture"}
    name = filled.make(source, {**sink, "mode": "apply", "deletes": "soft"})
    first = planning(name)
    assert (first.reads, first.rows, first.is_exact) == ("all rows of source", 7, True)
    assert list(first.added) == [*COLUMNS, "deleted_at"]
    assert not filled.client.list_captures()
    assert filled.run(name)["rows_out"] == 7
    then = planning(name)
    assert (then.reads, list(then.columns or ()), then.added) == (
        "nothing is new",
        [*COLUMNS, "deleted_at"],
        {},
    )
    filled.sql("update source set word = 'x' where id < 3; delete from source where id = 7")
    then = planning(name)
    assert (then.reads, then.rows, then.is_exact) == ("changes of source", 3, False)
    assert (list(then.columns or ()), then.added) == ([*COLUMNS, "deleted_at"], {})
    assert filled.run(name)["rows_out"] == 3
    filled.sql("truncate source; insert into source (id) values (9)")
    assert planning(name).reads == "all rows of source anew: it was truncated"
    filled.sql("alter table source add born date default now()")
    then = planning(name)
    assert then.reads == "all rows of source anew: its columns changed"
    assert list(then.added) == ["born"]
    assert filled.run(name)["rows_out"] == then.rows == 1
    filled.client.uncapture("source")
    assert "was not captured for a while" in why(planning(name))


@pytest.mark.parametrize("sink", [MOVED, {"format": "delta", "path": "lake"}], ids=["table", "delta"])
def test_versions_have_the_times_from_and_to_which_they_are_valid(
    filled: Bench, planning: Planning, sink: dict[str, Any]
) -> None:
    name = filled.make(TABLE, {**sink, "mode": "history", "key": ["id"]})
    assert list(planning(name).added) == [*COLUMNS, "valid_from", "valid_to"]
    filled.run(name)
    filled.sql("insert into source (id) values (8)")
    then = planning(name)
    assert (list(then.columns or ()), then.added) == ([*COLUMNS, "valid_from", "valid_to"], {})


def test_each_change_of_a_captured_table_says_what_it_is(filled: Bench, planning: Planning) -> None:
    name = filled.make({**TABLE, "changes": "capture"}, MOVED)
    assert list(planning(name).added) == ["_op", "_changed_at", *COLUMNS]
    filled.run(name)
    filled.sql("update source set word = 'x'; update source set word = 'y' where id = 1")
    then = planning(name)
    assert (then.reads, then.rows, then.is_exact) == ("changes of source", 8, True)
    assert filled.run(name)["rows_out"] == 8


def test_a_column_that_would_be_widened_is_told_and_one_that_may_not_is_refused(
    filled: Bench, planning: Planning
) -> None:
    filled.sql("create table moved (id smallint, at timestamptz, word text)")
    name = filled.make(TABLE, MOVED, evolve="widen")
    planned = planning(name)
    assert planned.notes == ["column id of moved becomes integer, and is smallint"]
    assert (planned.columns, planned.refused) == (COLUMNS, [])
    filled.run(name)
    filled.sql("alter table source alter id type bigint; insert into source values (8)")
    strict = filled.make(TABLE, MOVED, name=name)
    assert 'evolve = "widen" makes it bigint' in why(planning(strict))


EACH = {"message": {"customer": "text"}, "per": "message.customer"}


def test_each_instance_has_a_plan_and_one_that_is_still_to_come(filled: Bench, planning: Planning) -> None:
    filled.sql("create table source_b (id int); insert into source_b values (1)")
    filled.sql("alter table source rename to source_a")
    source = {"format": "table", "table": "source_${message.customer}"}
    name = filled.make(source, {"format": "table", "table": "to_${message.customer}"}, **EACH)
    assert planning(name).reads == "it has 0 instances, and each has a next run of its own"
    new = planning(name, {"customer": "b"})
    assert (new.pipeline, new.reads, new.rows) == (f"{name}/b", "all rows of source_b", 1)
    assert filled.client.list_instances(name) == []
    filled.run(name, {"customer": "a"})
    filled.run(name, {"customer": "b"})
    filled.sql("insert into source_a values (8)")
    planned = planning(name).instances or []
    assert {each.pipeline: each.rows for each in planned} == {f"{name}/a": 1, f"{name}/b": 0}
    assert planning(f"{name}/a").rows == 1
    assert "customer of the message is '../x'" in why(planning(name, {"customer": "../x"}))
