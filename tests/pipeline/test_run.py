"""What a run does, and what asks for one."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline.errors import TooManyBad, Wait
from trunq.pipeline.run import Executor
from trunq.pipeline.runner import Runner
from waiting import wait_until

TABLE = {"format": "table", "table": "source"}
MOVED = {"format": "table", "table": "moved"}


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """A table `source` with ids 1 to 10."""
    bench.sql("create table source (id bigint, word text)")
    bench.sql("insert into source select g, 'w' from generate_series(1, 10) g")
    return bench


def add(bench: Bench, id: int) -> None:
    bench.sql("insert into source values (%s, 'more')", id)


def test_types_of_postgres_arrive_as_they_were(bench: Bench) -> None:
    bench.sql(
        "create table source as select 1::smallint a, 2 b, 3::bigint c, 1.50::numeric(10,2) d,"
        " 0.1::float8 e, 'x'::varchar(9) f,"
        " true g, date '2030-01-31' h, timestamptz '2030-01-31 12:00Z' i, timestamp '2030-01-31"
        " 12:00' j, '\\x00ff'::bytea k,"
        " '{\"a\": [1]}'::jsonb l, '{1,2}'::int[] m, gen_random_uuid() n, interval '1 day' o,"
        " null::text p, 'a\u00e9\"''' q"
    )
    name = bench.make(TABLE, MOVED)
    bench.run(name)
    assert bench.sql("select * from moved") == bench.sql("select * from source")
    types = "select attname, format_type(atttypid, -1) from pg_attribute where attrelid = %s::regclass"
    made, given = dict(bench.sql(types, "moved")), dict(bench.sql(types, "source"))
    assert {name for name in given if made[name] != given[name]} == {"f"}


def test_replace_shows_what_the_source_has(filled: Bench) -> None:
    name = filled.make({**TABLE, "changes": "all"}, {**MOVED, "mode": "replace"})
    filled.run(name)
    filled.sql("delete from source where id > 3")
    filled.run(name)
    assert filled.sql("select id from moved order by id") == [(1,), (2,), (3,)]
    filled.sql("delete from source")
    assert filled.run(name)["rows_out"] == 0
    assert filled.one("select count(*) from moved") == 0


def test_history_keeps_each_version_with_its_time(bench: Bench) -> None:
    bench.sql("create table source (id int, v int, at timestamptz)")
    name = bench.make(TABLE, {**MOVED, "mode": "history", "key": ["id"], "newest": "at"})

    def put(id: int, v: int, day: int) -> None:
        bench.sql(
            "insert into source values (%s, %s, make_timestamptz(2030, 1, %s, 0, 0, 0, 'UTC'))", id, v, day
        )

    put(1, 10, 1), put(1, 11, 3), put(2, 20, 1)
    bench.run(name)
    put(1, 11, 4), put(1, 12, 5), put(1, 9, 2)
    bench.run(name)
    bench.sql("set timezone = 'UTC'")
    days = "extract(day from valid_from)::int, extract(day from valid_to)::int"
    assert bench.sql(f"select id, v, {days} from moved order by id, valid_from") == [
        (1, 10, 1, 3), (1, 11, 3, 5), (1, 12, 5, None), (2, 20, 1, None),
    ]  # fmt: skip


def test_an_older_row_does_not_stand_over_a_newer_one(bench: Bench) -> None:
    bench.sql(
        "create table source (id int, v int, n int); create table moved (id int primary key, v int, n int)"
    )
    name = bench.make(TABLE, {**MOVED, "mode": "upsert", "key": ["id"], "newest": "n"})
    bench.sql("insert into source values (1, 1, 1), (1, 3, 3), (1, 2, 2)")
    bench.run(name)
    bench.sql("insert into source values (1, 0, 0)")
    bench.run(name)
    assert bench.sql("select * from moved") == [(1, 3, 3)]


def test_a_function_is_given_all_rows_and_the_message(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED, function="pipeline.transforms:doubled")
    filled.run(name)
    assert filled.sql("select id, twice from moved where id > 8 order by id") == [(9, 18), (10, 20)]
    made = filled.make(
        {"format": "python", "function": "pipeline.transforms:numbers"}, {"format": "table", "table": "made"}
    )
    filled.run(made, "a")
    filled.run(made, "b")
    assert filled.sql("select count(*), count(distinct id), min(of), max(of) from made") == [
        (10, 10, "a", "b")
    ]


def test_what_is_quarantined_is_counted_listed_and_sent_again(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED, function="pipeline.transforms:only_even")
    done = filled.run(name)
    assert (done["rows_in"], done["rows_out"], done["rows_bad"]) == (10, 5, 5)
    client = filled.client
    assert [row[:2] for row in client.count_quarantine(name)] == [("not even", 5), ("odd", 5)]
    newest = client.list_quarantine(name, "odd", 1)[0]
    assert (newest.number, newest.reasons, newest.content) == (1, ["odd", "not even"], {"id": 9, "word": "w"})
    # Without a fix they come back.
    assert filled.execute(client.resend_quarantine(name))["rows_bad"] == 5
    assert client.count_quarantine(name)[0].quarantined == 5
    filled.make(TABLE, MOVED, function="pipeline.transforms:even_or_fixed", name=name)
    assert filled.execute(client.resend_quarantine(name, "odd"))["rows_out"] == 5
    assert client.list_quarantine(name) == []
    assert filled.one("select count(distinct id) from moved") == 10
    assert filled.run(name)["outcome"] == "nothing new"


def test_too_many_bad_rows_fail_the_run(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED, function="pipeline.transforms:only_even", max_bad=0.2)
    with pytest.raises(TooManyBad, match="5 of 10 rows of run 1"):
        filled.run(name)
    assert filled.one("select to_regclass('moved') is null or not exists (select from moved)")
    # What an attempt that came to nothing quarantined is not shown.
    assert filled.client.count_quarantine(name) == []
    assert "5 of 10" in str(filled.client.list_pipelines()[0].error)


def test_triggers_that_pile_up_become_one_run_and_different_ones_never(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED)
    empty = [filled.client.run_pipeline(name) for _ in range(3)]
    named = [filled.client.run_pipeline(name, {"day": day}) for day in (1, 2)]
    assert [filled.execute(id)["number"] for id in empty] == [1, 1, 1]
    add(filled, 11)
    assert filled.execute(named[0])["number"] == 2
    add(filled, 12)
    assert filled.execute(named[1])["number"] == 3
    # Asked before run 1 began, committed after: what it tells of is not in that run.
    with filled.client.transaction() as connection:
        late = filled.client.run_pipeline(name, connection=connection)
        connection.execute("insert into source values (13, 'late')")
        add(filled, 14)
        assert filled.run(name)["number"] == 4
    assert filled.execute(late)["number"] == 5
    assert filled.one("select count(*) from moved") == 14


def test_a_message_that_comes_again_gets_the_result_of_its_run(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED)
    message = filled.client.run_pipeline(name)
    asked = filled.asked(message)
    first = filled.executor.execute(asked)
    add(filled, 11)
    assert filled.executor.execute(asked) == first
    assert filled.one("select count(*) from moved") == 10


def test_pipelines_run_after_another_in_one_chain_and_never_in_a_circle(filled: Bench) -> None:
    last = filled.make({"format": "table", "table": "moved"}, {"format": "table", "table": "last"})
    first = filled.make(TABLE, MOVED, then=[last])
    with pytest.raises(InvalidPipeline, match=f"{last} -> {first} -> {last}"):
        filled.make(
            {"format": "table", "table": "moved"},
            {"format": "table", "table": "last"},
            name=last,
            then=[first],
        )
    with pytest.raises(InvalidPipeline, match=r"runs .* after itself"):
        filled.client.drop_pipeline(last)
    done = filled.run(first)
    (follower,) = filled.client.list_messages("pipelines", state="ready")
    assert (follower.kind, follower.headers["by"]) == (last, first)
    after = filled.execute(follower.id)
    assert after["chain"] == done["chain"]
    assert [(row.pipeline, row.started_by) for row in filled.client.list_runs(chain=done["chain"])] == [
        (last, first), (first, None),
    ]  # fmt: skip


def test_a_backfill_has_a_number_of_its_own_and_moves_no_state(bench: Bench) -> None:
    bench.sql(
        "create table source (id int primary key, v int, n int); insert into source select g, 0, 0"
        " from generate_series(1, 9) g"
    )
    name = bench.make(TABLE, {**MOVED, "mode": "upsert", "key": ["id"], "newest": "n"})
    bench.run(name)
    before = bench.client.list_pipelines()[0]
    bench.sql("delete from moved")
    message = bench.client.backfill_pipeline(name, {"column": "id", "from": "3", "to": "6"})
    done = bench.execute(message)
    assert (done["backfill"], done["number"], done["rows_out"]) == (message, 1, 3)
    after = bench.client.list_pipelines()[0]
    assert (after.state, after.runs) == (before.state, before.runs)
    with pytest.raises(InvalidPipeline, match='no column "day"'):
        bench.execute(bench.client.backfill_pipeline(name, {"column": "day", "from": "a", "to": "b"}))
    other = bench.make(TABLE, {"format": "table", "table": "other"})
    with pytest.raises(InvalidPipeline, match="twice"):
        bench.client.backfill_pipeline(other, {"column": "id", "from": "1", "to": "2"})


def test_a_pipeline_that_is_paused_or_held_keeps_its_messages_waiting(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED)
    filled.client.pause_pipeline(name)
    message = filled.client.run_pipeline(name)
    with pytest.raises(Wait):
        filled.execute(message)
    assert filled.client.resume_pipeline(name)
    assert filled.execute(message)["outcome"] == "done"
    add(filled, 11)
    held = filled.client.run_pipeline(name)
    opened = filled.executor.control.open(filled.asked(held))
    filled.executor.control.begin(filled.asked(held), opened, {"all": True})
    with pytest.raises(Wait):
        filled.run(name)
    with pytest.raises(InvalidPipeline, match="open run"):
        filled.client.set_pipeline_state(name, {})
    with pytest.raises(InvalidPipeline, match="open run"):
        filled.make({"format": "table", "table": "moved"}, MOVED, name=name)


def test_new_columns_are_added_ignored_or_refused_and_a_changed_type_is_refused(filled: Bench) -> None:
    names = {
        evolve: filled.make(TABLE, {"format": "table", "table": f"to_{evolve}"}, evolve=evolve)
        for evolve in ("add", "ignore", "refuse")
    }
    for name in names.values():
        filled.run(name)
    filled.sql("alter table source add column more int; insert into source values (11, 'x', 1)")
    filled.run(names["add"]), filled.run(names["ignore"])
    assert filled.sql("select more from to_add where id > 9 order by id") == [(None,), (1,)]
    assert filled.one("select count(*) from to_ignore") == 11
    with pytest.raises(InvalidPipeline, match='column "more" is new'):
        filled.run(names["refuse"])
    filled.sql("alter table source alter word type int using 1; insert into source values (12, 5, 1)")
    with pytest.raises(InvalidPipeline, match='column "word" of to_add is text and comes as integer'):
        filled.run(names["add"])


@pytest.mark.parametrize(
    ("sink", "words"),
    [
        ({"mode": "upsert", "key": ["nothing"]}, 'no column "nothing"'),
        ({"mode": "upsert", "key": ["word"]}, "no unique index over word"),
        ({"mode": "upsert", "key": ["id"], "newest": "at"}, 'no column "at"'),
    ],
)
def test_a_sink_that_cannot_take_the_rows_is_refused(filled: Bench, sink: dict[str, Any], words: str) -> None:
    if sink["key"] != ["nothing"]:
        filled.sql("create table moved (id bigint, word text); create unique index on moved (id)")
    name = filled.make(TABLE, {**MOVED, **sink})
    with pytest.raises(InvalidPipeline, match=words):
        filled.run(name)


def test_what_no_table_takes_is_the_pipelines_mistake(filled: Bench) -> None:
    spans = {"format": "python", "function": "pipeline.transforms:spans"}
    for source, sink, words in (
        (TABLE, {**MOVED, "table": "a.b.c"}, '"a.b.c" is not the name of a table'),
        (spans, MOVED, 'column "took" is duration.*, for which Postgres has no type'),
    ):
        name = filled.make(source, sink)
        with pytest.raises(InvalidPipeline, match=f"pipeline {name}: {words}"):
            filled.run(name)


def test_a_password_is_in_no_error(filled: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELSEWHERE", "host=/nowhere password=hunter2 dbname=x")
    name = filled.make({**TABLE, "dsn": "${ELSEWHERE}"}, MOVED)
    with pytest.raises(Exception) as caught:
        filled.run(name)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in str(
        filled.sql(
            "select definition, to_jsonb(r) from trunq.pipeline p left join trunq.pipeline_run r"
            " using (pipeline_id)"
        )
    )


def test_files_are_read_once_and_not_while_they_are_written(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,word\n1,a\n2,b\n3,c,too many\n")
    source = {"format": "csv", "path": f"{tmp_path}/*.csv", "settled": "PT0S"}
    name = bench.make(source, MOVED)
    done = bench.run(name)
    assert (done["rows_out"], done["rows_bad"]) == (2, 1)
    assert bench.run(name)["outcome"] == "nothing new"
    (tmp_path / "b.csv").write_text("id,word\n4,d\n")
    bench.run(name)
    assert bench.sql("select id, word from moved order by id") == [(1, "a"), (2, "b"), (4, "d")]
    (tmp_path / "c.csv").write_text("id,word\n5,e\n")
    waits = bench.make({**source, "settled": "1 hour"}, {"format": "table", "table": "other"})
    assert bench.run(waits)["outcome"] == "nothing new"
    (tmp_path / "x.json").write_text('{"id": 1, "tags": ["a"]}\nnot json\n[1]\n')
    lines = bench.make(
        {"format": "json", "path": f"{tmp_path}/*.json", "settled": 0}, {"format": "table", "table": "tagged"}
    )
    assert bench.run(lines)["rows_bad"] == 2
    assert bench.sql("select id, tags from tagged") == [(1, ["a"])]


def test_types_mend_a_column_of_several_types(bench: Bench, tmp_path: Path) -> None:
    values = ["1", '"x"', "true", "null", '{"a": [1]}', "2.5"]
    (tmp_path / "a.json").write_text("".join(f'{{"id": {n}, "v": {v}}}\n' for n, v in enumerate(values)))
    files = {"format": "json", "path": f"{tmp_path}/a.json", "settled": 0}
    with pytest.raises(InvalidPipeline, match="types = "):
        bench.run(bench.make(files, MOVED))
    bench.run(bench.make({**files, "types": {"v": "string"}}, {**MOVED, "table": "mended"}))
    found = bench.sql("select v from mended order by id")
    assert [v for (v,) in found] == ["1", "x", "true", None, '{"a": [1]}', "2.5"]
    (tmp_path / "b.json").write_text('{"n": 1}\n{"n": "2"}\n')
    files = {"format": "json", "path": f"{tmp_path}/b.json", "settled": 0, "types": {"n": "int64"}}
    bench.run(bench.make(files, {**MOVED, "table": "numbers"}))
    assert bench.sql("select n from numbers order by n") == [(1,), (2,)]


def test_the_runner_runs_what_waits_and_stops_what_is_cancelled(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = filled.make(TABLE, MOVED)
    last = filled.make({"format": "table", "table": "moved"}, {"format": "table", "table": "last"})
    filled.make(TABLE, MOVED, name=name, then=[last])
    for _ in range(3):
        filled.client.run_pipeline(name)
    Runner(filled.dsn, until_empty=True).run()
    assert filled.one("select count(*) from last") == 10
    assert [run.pipeline for run in filled.client.list_runs()] == [last, name]

    # What is put off comes again, and is no attempt.
    add(filled, 10)
    filled.client.pause_pipeline(name, filled.client.clock() + timedelta(seconds=1))
    waits = filled.client.run_pipeline(name)
    Runner(filled.dsn, until_empty=True).run()
    assert filled.client.list_runs(name)[0].message_id == waits
    assert filled.one("select count(*) from last") == 11

    add(filled, 11)
    message = filled.client.run_pipeline(name)
    asked, ended = filled.asked(message), threading.Event()
    original = Executor._attempt

    def slow(self: Executor, *given: Any) -> Any:
        with self._watched(given[3], asked.message_id, threading.Event()) as check:
            wait_until(lambda: _stopped(check), 120)
        ended.set()
        return original(self, *given)

    def _stopped(check: Any) -> bool:
        check()
        return False

    monkeypatch.setattr(Executor, "_attempt", slow)
    working = threading.Thread(target=filled.executor.execute, args=(asked,))
    working.start()
    wait_until(lambda: filled.client.cancel_pipeline(name))
    working.join(120)
    assert not ended.is_set()
    assert filled.client.list_runs(name)[0].outcome == "cancelled"
    monkeypatch.undo()
    assert filled.run(name)["rows_out"] == 1


def test_a_queue_is_read_tick_by_tick_and_each_message_once(bench: Bench) -> None:
    bench.client.create_queue("orders")
    name = bench.make({"format": "queue", "queue": "orders"}, MOVED)
    assert bench.run(name)["outcome"] == "nothing new"
    bench.client.publish_many("orders", [{"n": n} for n in range(5)], kind="a")
    with bench.client.transaction() as connection:
        bench.client.publish("orders", {"n": 5}, connection=connection)
        bench.client.publish("orders", {"n": 6})
        assert bench.run(name)["rows_out"] == 6
    assert bench.run(name)["rows_out"] == 1
    assert bench.run(name)["outcome"] == "nothing new"
    assert bench.sql("select (payload->>'n')::int from moved order by 1") == [(n,) for n in range(7)]
    # It holds nothing more than it has to.
    assert (
        bench.client.position("orders", f"pipeline_{name}") == bench.client.list_pipelines()[0].state["tick"]
    )


def test_files_that_are_nowhere_are_refused_or_warned_of(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(InvalidPipeline, match="is no address of a storage"):
        bench.make({"format": "csv", "path": "ftp://host/*.csv"}, MOVED)
    there, path = tmp_path / "in", f"{tmp_path}/in/**/*.csv"
    files = {"format": "csv", "path": path, "settled": 0}
    name = bench.make(files, MOVED)
    with pytest.raises(InvalidPipeline, match=f"no directory {there} on"):
        bench.run(name)
    there.mkdir()
    assert bench.run(name)["outcome"] == "nothing new"
    (warning,) = bench.client.list_warnings()
    assert f'pipeline "{name}" has found no file that matches {path}' in warning.warning
    (there / "a.csv").write_text("id\n1\n")
    bench.run(name)
    assert bench.client.list_warnings() == []
    (there / "a.csv").unlink()
    assert bench.run(name)["outcome"] == "nothing new"
    assert bench.client.list_warnings() == []


def test_a_file_that_grew_is_read_again_whole_or_refused(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("id\n1\n")
    files = {"format": "csv", "path": f"{tmp_path}/*.csv", "settled": 0}
    again = bench.make(files, MOVED)
    strict = bench.make({**files, "changed": "refuse"}, {**MOVED, "table": "strict"})
    bench.run(again), bench.run(strict)
    file.write_text("id\n1\n2\n")
    bench.run(again)
    assert bench.sql("select id from moved order by id") == [(1,), (1,), (2,)]
    with pytest.raises(InvalidPipeline, match="has changed since, and would be read again whole"):
        bench.run(strict)
    assert bench.sql("select id from strict") == [(1,)]


def test_a_client_refuses_formats_that_there_are_not(bench: Bench) -> None:
    for part in ("source", "sink"):
        definition = {"source": TABLE, "sink": MOVED, part: {"format": "tabel"}}
        with pytest.raises(InvalidPipeline, match=f'no {part} of the format "tabel"') as caught:
            bench.client.create_pipeline("p", definition)
        assert "table, queue, " in str(caught.value)


def test_a_file_of_a_time_to_come_does_not_wait_until_then(bench: Bench, tmp_path: Path) -> None:
    (path := tmp_path / "one.csv").write_text("id\n1\n")
    os.utime(path, (4e9, 4e9))
    name = bench.make({"format": "csv", "path": str(path)}, {"format": "table", "table": "moved"})
    bench.run(name)
    assert bench.sql("select id from moved") == [(1,)]
    assert bench.run(name) == {"outcome": "nothing new"}
