"""What Spark does for a run: sql, transform, checks and lookups, in one pass, each row once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet

from pipeline.piping import Bench
from trunq.errors import InvalidPipeline
from trunq.pipeline.engine import Engine
from trunq.pipeline.errors import CheckFailed, TooManyBad, WorkFailed

pytestmark = pytest.mark.usefixtures("spark")

TABLE = {"format": "table", "table": "source"}
MOVED = {"format": "table", "table": "moved"}
KEYED = {"mode": "upsert", "key": ["id"]}
EVEN = {"name": "even", "holds": "id % 2 = 0"}
NAMED = {"name": "named", "holds": "word <> ''"}


@pytest.fixture
def filled(bench: Bench) -> Bench:
    """A table `source` with ids 1 to 1,000, of which every tenth has no word."""
    bench.sql("create table source (id bigint, word text)")
    bench.sql(
        "insert into source select g, case when g % 10 > 0 then 'w' end from generate_series(1, 1000) g"
    )
    return bench


@pytest.fixture
def files(tmp_path: Path) -> str:
    """Four files with ids 1 to 1,000; of each, one line has a field too many."""
    for part in range(4):
        ids = range(part * 250 + 1, part * 250 + 251)
        lines = "".join(f"{id},w{id}\n" for id in ids)
        (tmp_path / f"{part}.csv").write_text(f"id,word\n{lines}0,too,many\n")
    return f"{tmp_path}/*.csv"


@pytest.mark.slow
def test_each_statement_sees_what_the_one_before_gave_and_the_message(filled: Bench) -> None:
    name = filled.make(
        TABLE,
        MOVED,
        sql=[
            "select id, id * 2 as twice, get_json_object(:message, '$.day') as day from input where id > 10",
            "select sum(twice) as total, count(*) as rows, max(day) as day from input",
        ],
    )
    done = filled.run(name, {"day": "monday"})
    assert (done["rows_in"], done["rows_out"], done["rows_bad"]) == (1000, 1, 0)
    assert filled.sql("select * from moved") == [(sum(range(11, 1001)) * 2, 990, "monday")]


@pytest.mark.slow
def test_nothing_new_touches_no_spark_and_an_empty_result_is_a_run(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = filled.make(TABLE, MOVED, sql=["select * from input where id = 1"])
    assert filled.run(name)["rows_out"] == 1
    monkeypatch.setattr(Engine, "session", None)
    assert filled.run(name)["outcome"] == "nothing new"
    monkeypatch.undo()
    filled.sql("update source set id = id + 1")
    assert (filled.run(name)["rows_out"], filled.sql("select * from moved")) == (0, [(1, "w")])
    filled.sql("create table emptied as select 1::bigint as id, 'w' as word")
    sink = {"format": "table", "table": "emptied", "mode": "replace"}
    name = filled.make({**TABLE, "changes": "all"}, sink, sql=["select * from input where id = 1"])
    assert (filled.run(name)["rows_out"], filled.sql("select * from emptied")) == (0, [])
    assert filled.one("select count(*) from pg_class where relname like 'stage\\_%'") == 0


@pytest.mark.slow
def test_rows_that_break_rules_are_kept_with_their_reasons_and_the_sum_is_right(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED, checks=[EVEN, NAMED])
    done = filled.run(name)
    assert (done["rows_in"], done["rows_out"], done["rows_bad"]) == (1000, 400, 600)
    assert filled.one("select sum(id) from moved") == sum(i for i in range(2, 1001, 2) if i % 10)
    client = filled.client
    assert [row[:2] for row in client.count_quarantine(name)] == [("even", 500), ("named", 100)]
    run = client.list_runs(name)[0]
    assert run.progress is not None
    assert run.progress["broken"] == {"even": 500, "named": 100}
    newest = client.list_quarantine(name, "named", 1)[0]
    assert (newest.reasons, newest.content["word"]) == (["named"], None)


@pytest.mark.slow
def test_rows_are_dropped_counted_or_fail_the_run(filled: Bench) -> None:
    warn, drop = {**NAMED, "otherwise": "warn"}, {**EVEN, "otherwise": "drop"}
    name = filled.make(TABLE, MOVED, checks=[warn, drop])
    done = filled.run(name)
    assert (done["rows_in"], done["rows_out"], done["rows_bad"]) == (1000, 500, 0)
    assert filled.one("select count(*) filter (where word is null) from moved") == 100
    assert filled.client.list_runs(name)[0].progress["broken"] == {"even": 500, "named": 100}
    last = {"name": "below", "holds": "id < 1000", "otherwise": "fail"}
    name = filled.make(TABLE, {"format": "table", "table": "other"}, checks=[EVEN, last])
    with pytest.raises(CheckFailed, match=f'{name}: a row broke the check \'below\': {{"id": 1000, "word"'):
        filled.run(name)
    assert filled.one("select count(*) from other") == 0
    assert filled.client.list_quarantine(name) == []
    filled.make(TABLE, {"format": "table", "table": "other"}, checks=[EVEN], max_bad=0.4, name=name)
    with pytest.raises(TooManyBad, match="500 of 1000"):
        filled.run(name)


@pytest.mark.slow
def test_lookups_are_seen_by_statements_and_by_the_transform(filled: Bench, tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text("id,more\n1,a\n2,b\n")
    (tmp_path / "j.json").write_text('{"id": 2, "tags": ["x"]}\n')
    parquet.write_table(pa.table({"id": [2], "p": [0.5]}), tmp_path / "p.parquet")
    write_deltalake(tmp_path / "delta", pa.table({"id": [2, 3], "d": ["y", "z"]}))
    filled.sql("create table names (id int, name text); insert into names values (2, 'two')")
    name = filled.make(
        TABLE,
        MOVED,
        sql=[
            "select i.id, tags, p, d, name from input i join j using (id) join p using (id)"
            " join delta using (id) join names using (id)"
        ],
        transform="pipeline.transforms:joined",
        lookups={
            "words": {"format": "csv", "path": f"{tmp_path}/w.csv"},
            "j": {"format": "json", "path": f"{tmp_path}/j.json"},
            "p": {"format": "parquet", "path": f"{tmp_path}/p.parquet"},
            "delta": {"format": "delta", "path": f"{tmp_path}/delta"},
            "names": {"format": "table", "table": "names"},
        },
    )  # fmt: skip
    done = filled.run(name, "monday")
    assert (done["rows_in"], done["rows_out"], done["rows_bad"]) == (1000, 1, 0)
    assert filled.sql("select * from moved") == [(2, ["x"], 0.5, "y", "two", "b", "monday")]


@pytest.mark.slow
def test_types_of_postgres_pass_through(bench: Bench) -> None:
    bench.sql(
        "create table source as select 1::smallint a, 2 b, 3::bigint c, 1.50::numeric(10,2) d,"
        " 1e30::numeric e, 0.1::float8 f, true g, date '2030-01-31' h, timestamptz '2030-01-31 12:00Z' i,"
        " timestamp '2030-01-31 12:00' j, '\\x00ff'::bytea k, '{\"a\": [1]}'::jsonb l, '{1,2}'::int[] m,"
        " gen_random_uuid() n, interval '1 day' o, null::text p, 'a.b' as \"q.r `s\""
    )  # fmt: skip
    name = bench.make(TABLE, MOVED, sql=["select * from input"], checks=[{"name": "a", "holds": "a = 1"}])
    bench.run(name)
    assert bench.sql("select * from moved") == bench.sql("select * from source")
    types = "select attname, format_type(atttypid, -1) from pg_attribute where attrelid = %s::regclass"
    assert bench.sql(types, "moved") == bench.sql(types, "source")


@pytest.mark.slow
def test_new_columns_of_a_result_are_added_and_a_changed_type_is_refused(filled: Bench) -> None:
    name = filled.make(TABLE, MOVED, sql=["select id, null as unknown from input"])
    filled.run(name)
    filled.sql("insert into source values (1001, 'new')")
    filled.make(TABLE, MOVED, name=name, sql=["select id, map(word, id) as words from input"])
    filled.run(name)
    assert filled.sql("select words from moved where id > 999 order by id") == [(None,), ({"new": 1001},)]
    filled.sql("insert into source values (1002, 'newer')")
    filled.make(TABLE, MOVED, name=name, sql=["select word as id from input"])
    with pytest.raises(InvalidPipeline, match='column "id" of moved is bigint and comes as text'):
        filled.run(name)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"sql": ["select 1", "select id form input x"]}, r"statement 2 of sql: Syntax error.*line 1, pos 15"),
    ({"sql": ["drop table x"]}, "statement 1 of sql is no query, but DropTable"),
    ({"sql": ["select nope from input"]}, "statement 1 of sql: .*`nope` cannot be resolved"),
    ({"sql": ["select * from nothing"]}, "statement 1 of sql: .*`nothing` cannot be found"),
    ({"checks": [{"name": "c", "holds": "id +"}]}, "check 'c': Syntax error"),
    ({"checks": [{"name": "c", "holds": "id + 1"}]}, "check 'c' is bigint, neither true nor false: id"),
    ({"checks": [{"name": "c", "holds": "nope > 1"}]}, "check 'c': .*`nope` cannot be resolved"),
    ({"transform": "pipeline.transforms:none"}, "pipeline.transforms:none is not found"),
    ({"transform": "pipeline.transforms:nothing"}, "gave nothing, not a DataFrame"),
    ({"sql": ["select 1 as id, 2 as ID"]}, 'two columns of the result are called "ID"'),
    ({"sql": ["select interval 1 day as i"]}, '"i" of the result is interval day, which no sink takes'),
    ({"sql": ["select id as _broken from input"], "checks": [EVEN]}, 'have a column "_broken"'),
    ({"sql": ["select word from input"], "sink": KEYED}, 'there is no column "id"'),
    ({"sql": ["select id from input"], "sink": {**KEYED, "newest": "at"}}, 'column "at"'),
    ({"lookups": {"a": {**TABLE, "table": "away"}}, "sql": ["table a"]}, "lookup a: there is no table"),
    ({"lookups": {"a": {"format": "csv", "path": "/away"}}, "sql": ["table a"]}, "lookup a: there is no"),
]  # fmt: skip


@pytest.mark.slow
def test_what_cannot_be_is_said_before_a_row_is_read(filled: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trunq.pipeline.work.staging.map_batches", None)
    for parts, words in WRONG:
        sink = {**MOVED, **parts.get("sink", {})}
        name = filled.make(TABLE, sink, **{key: part for key, part in parts.items() if key != "sink"})
        with pytest.raises(InvalidPipeline, match=f"pipeline {name}: .*{words}") as caught:
            filled.run(name)
        assert "\n" not in caught.value.message
    # What is no query never became a run.
    assert filled.one("select count(*) from trunq.pipeline_run") == len(WRONG) - 4


@pytest.mark.slow
def test_what_fails_in_tasks_is_said_in_a_sentence_without_passwords(
    filled: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = filled.make(TABLE, MOVED, sql=["select cast(word as int) as id from input where word is not null"])
    with pytest.raises(
        WorkFailed, match=f"pipeline {name}: The value 'w' .* cannot be cast to \"INT\""
    ) as said:
        filled.run(name)
    assert "\n" not in said.value.message
    monkeypatch.setenv("SHOP", f"{filled.dsn} password=hunter2")
    other = {"format": "table", "table": "other"}
    name = filled.make({**TABLE, "dsn": "${SHOP}"}, other, transform="pipeline.transforms:raising")
    with pytest.raises(Exception, match=r"ValueError: no row \d+, \*\*\*") as caught:
        filled.run(name)
    assert "hunter2" not in str(caught.value)


@pytest.mark.slow
def test_rows_of_the_quarantine_go_through_the_statements_again(filled: Bench) -> None:
    sql = ["select *, id * 2 as twice, current_date() > date '2020-01-01' as late from input"]
    name = filled.make(TABLE, MOVED, sql=sql, checks=[NAMED])
    assert filled.run(name)["rows_bad"] == 100
    assert filled.execute(filled.client.resend_quarantine(name))["rows_bad"] == 100
    sql[0] = sql[0].replace("*,", "id, coalesce(word, 'none') as word,", 1)
    filled.make(TABLE, MOVED, name=name, sql=sql, checks=[NAMED])
    done = filled.execute(filled.client.resend_quarantine(name))
    assert (done["rows_in"], done["rows_out"], done["rows_bad"]) == (100, 100, 0)
    assert filled.client.list_quarantine(name) == []
    assert filled.sql("select count(*), count(distinct id), sum(twice) from moved") == [(1000, 1000, 1001000)]


@pytest.mark.slow
def test_a_process_of_spark_that_is_killed_costs_no_row(bench: Bench, files: str, tmp_path: Path) -> None:
    source = {"format": "csv", "path": files, "settled": 0}
    name = bench.make(source, MOVED, transform="pipeline.transforms:killed_once", checks=[EVEN])
    done = bench.run(name, f"{tmp_path}/killed")
    assert (tmp_path / "killed").exists()
    assert (done["rows_in"], done["rows_out"], done["rows_bad"]) == (1000, 500, 504)
    assert bench.one("select sum(id) from moved") == sum(range(2, 1001, 2))
    assert sum(row.quarantined for row in bench.client.count_quarantine(name)) == 504
    assert bench.one("select count(*) from trunq.quarantine") == 504


@pytest.mark.slow
def test_a_source_that_a_statement_names_twice_counts_once(bench: Bench, files: str) -> None:
    sql = ["select a.id from input a join (select max(id) as id from input) b on a.id = b.id"]
    name = bench.make({"format": "csv", "path": files, "settled": 0}, MOVED, sql=sql)
    done = bench.run(name)
    assert (done["rows_in"], done["rows_out"], done["rows_bad"]) == (1000, 1, 4)
    assert bench.one("select count(*) from trunq.quarantine") == 4


def _of_table(bench: Bench, path: Path) -> list[Any]:
    return [bench.sql("select count(*), sum(id) from moved")[0]]


def _of_queue(bench: Bench, path: Path) -> list[Any]:
    return bench.sql("select count(*), sum((payload->>'id')::int) from trunq_log.moved")


def _of_lake(bench: Bench, path: Path) -> list[Any]:
    rows = DeltaTable(path).to_pyarrow_table() if (path / "_delta_log").exists() else parquet.read_table(path)
    return [(rows.num_rows, sum(rows["id"].to_pylist()))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sink", "written"),
    [
        ({**MOVED, "mode": "upsert", "key": ["id"]}, _of_table),
        ({"format": "queue", "queue": "moved", "key": "id"}, _of_queue),
        ({"format": "delta", "path": "lake", "partition_by": ["parity"]}, _of_lake),
        ({"format": "parquet", "path": "lake"}, _of_lake),
    ],
    ids=["table", "queue", "delta", "parquet"],
)
def test_several_tasks_stage_for_one_commit(
    bench: Bench,
    files: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sink: dict[str, Any],
    written: Callable[[Bench, Path], list[Any]],
) -> None:
    # Not where Java was started: a path that is no whole one is of the runner's directory.
    monkeypatch.chdir(tmp_path)
    bench.client.create_queue("moved")
    name = bench.make(
        {"format": "csv", "path": files, "settled": 0}, sink, sql=["select *, id % 2 as parity from input"]
    )
    done = bench.run(name)
    assert (done["rows_in"], done["rows_out"], done["rows_bad"]) == (1000, 1000, 4)
    assert written(bench, tmp_path / "lake") == [(1000, 500500)]
    assert bench.one("select max(cardinality(parts)) from trunq.pipeline_attempt") == 4


@pytest.mark.slow
def test_what_a_function_yields_is_read_once_and_its_state_moves(bench: Bench) -> None:
    source = {"format": "python", "function": "pipeline.transforms:numbers"}
    name = bench.make(
        source, MOVED, sql=["select a.id from input a, (select max(id) as m from input) where id < m"]
    )
    for _ in range(2):
        assert bench.run(name)["rows_in"] == 5
    assert bench.sql("select id from moved order by id") == [(id,) for id in (0, 1, 2, 3, 5, 6, 7, 8)]


@pytest.mark.slow
def test_messages_of_a_queue_and_two_runs_beside_each_other(bench: Bench) -> None:
    names = []
    for queue in ("a", "b"):
        bench.client.create_queue(queue)
        bench.client.publish_many(queue, [{"n": n, "of": queue} for n in range(10)])
        sql = [
            "select from_json(payload, 'n int, of string') as it from input",
            "select it.n, it.of from input where it.n > 4",
        ]
        sink = {"format": "table", "table": f"moved_{queue}"}
        names.append(bench.make({"format": "queue", "queue": queue}, sink, sql=sql))
    asked = [bench.asked(bench.client.run_pipeline(name)) for name in names]
    threads = [Thread(target=bench.executor.execute, args=(each,)) for each in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for queue in ("a", "b"):
        assert bench.sql(f"select count(*), sum(n), min(of), max(of) from moved_{queue}") == [
            (5, 35, queue, queue)
        ]


@pytest.mark.slow
@pytest.mark.parametrize("format", ["table", "delta"])
def test_changes_go_through_spark_deletes_too_and_no_rule_keeps_one_out(
    bench: Bench, tmp_path: Path, format: str
) -> None:
    bench.sql("create table source (id int primary key, word text)")
    bench.sql("insert into source values (1, 'a'), (2, 'b'), (3, 'c'), (4, '')")
    sink = {**MOVED, "mode": "apply"}
    if format == "delta":
        sink = {"format": "delta", "path": str(tmp_path / "moved"), "mode": "apply"}
    name = bench.make(
        {**TABLE, "changes": "capture"},
        sink,
        sql=["select *, upper(word) as loud from input"],
        checks=[NAMED],
    )
    assert bench.run(name)["rows_bad"] == 1
    bench.sql("update source set word = 'x' where id = 1; update source set id = 5 where id = 3")
    bench.sql("update source set word = '' where id = 2; delete from source where id = 2")
    assert bench.run(name)["rows_bad"] == 0
    if format == "delta":
        rows = DeltaTable(str(tmp_path / "moved")).to_pyarrow_table().sort_by("id").to_pylist()
        found = [(row["id"], row["word"], row["loud"]) for row in rows]
    else:
        found = bench.sql("select id, word, loud from moved order by id")
    assert found == [(1, "x", "X"), (5, "c", "C")]
